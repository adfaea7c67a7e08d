"""`replayer verify-report`."""

from pathlib import Path

import click
import msgspec

from blockgz_runtime.errors import UsageError
from blockgz_runtime.program.main import closing
from replayer.cli.report import FORMAT, SIGNATURE_SUFFIX
from replayer.verify.signing import is_signed, public_key

NOT_SIGNED = 3


@click.command(
    "verify-report",
    epilog=closing(
        "replayer verify-report report.json --key pub.pem", "replayer verify-report page.html --key pub.pem"
    ),
)
@click.argument("report", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    envvar="BLOCKGZ_REPORT_KEY",
    metavar="PEM",
    help="The signer's public key.",
)
@click.option(
    "--signature",
    type=click.Path(path_type=Path),
    envvar="BLOCKGZ_REPORT_SIGNATURE",
    metavar="FILE",
    help="The signature, if it is not in FILE.sig.",
)
def command(report: Path, key: Path, signature: Path | None) -> int:
    """Check that a report is as `verify --report --sign-key` signed it.

    Prints what the report found.
    """
    body = _content(report)
    if not is_signed(body, _content(signature or report.with_name(report.name + SIGNATURE_SUFFIX)), public_key(key)):
        click.echo(f"FAILURE {report} is not what the owner of {key} signed", err=True)
        return NOT_SIGNED
    click.echo(f"{report} is as signed{_findings(body) if report.suffix == '.json' else ''}")
    return 0


def _findings(body: bytes) -> str:
    document = msgspec.json.decode(body)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return ", and no report of blockgz"
    return f": {document['verdict']}, {document['archive']}, {document['created']}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=error.strerror or str(error)) from error

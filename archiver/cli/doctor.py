"""`archiver doctor`."""

import sys

import click
import orjson

from archiver.cli.config_options import config_options_for_any_topic
from archiver.doctor import Finding, Severity, examine, worst
from blockgz.config.resolution import Resolved
from blockgz.errors import FAILED, AccessDenied
from blockgz.program.main import closing
from blockgz.program.terminal import unescaped

COLORS = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}


@click.command(
    epilog=closing(
        "archiver doctor orders -b localhost:9092 -a s3://backup/kafka", "archiver doctor -C archiver.yaml --json"
    )
)
@config_options_for_any_topic
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, resolved: Resolved, as_json: bool) -> int:
    """Check broker, permissions, topics, store and this machine for a run with the same settings.

    Each check prints ok, warn or fail, and what to do. Archives nothing; writes only scratch objects to probe the
    store. Exits with 12 if credentials or permissions are wrong, as a run would, and with 1 if another check failed.
    """
    findings = list(examine(resolved.config))
    verdict = worst(findings)
    if as_json:
        click.echo(orjson.dumps({"verdict": verdict, "findings": findings}).decode())
    else:
        _print(findings)
    if verdict is not Severity.FAIL:
        return 0
    return AccessDenied.exit_code if any(finding.denied for finding in findings) else FAILED


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        verdict = click.style(f"{finding.verdict:<4}", COLORS[finding.verdict])
        click.echo(verdict, nl=False, file=unescaped(sys.stdout))
        click.echo(f"  {finding.check}: {finding.detail}")
        if finding.remedy:
            click.echo(f"      do: {finding.remedy}")

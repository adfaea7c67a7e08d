"""Print the findings of a verification: on stdout, kept as signed files (`--report`, `--sign-key`), and `replayer
verify-report`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
import msgspec

from blockgz.errors import PARTLY_FAILED, UsageError, Verdict, listed
from blockgz.program.main import closing, noting_what_is_left
from blockgz.program.options import LocalPath, report_key_option
from blockgz.program.terminal import print_each, print_table
from blockgz.signing import check_signature, is_signed_by, signature_of
from blockgz.units import timestamp_text
from replayer.verify.earlier import parse_report
from replayer.verify.report import (
    FORMAT,
    ArchiveReport,
    Depth,
    EarlierFindings,
    ReportFiles,
    StoredReport,
    verification_document,
)

# The format of a report of `archiver erase --report`.
ERASE_FORMAT = "block-gzip-erase-report"
# The format of a report of `archiver erase --status --report`.
COMPLETION_FORMAT = "block-gzip-erase-completion"


def naming_what_is_left(names: Sequence[str], num_done: Callable[[], int]) -> AbstractContextManager[None]:
    """Print on stderr which partitions are left if a signal ends the block; the first `num_done` are not."""

    def note() -> str:
        left = names[num_done() :]
        return f"ended with {len(left)} of {len(names)} partitions left: {listed(left)}"

    return noting_what_is_left(note)


def conclude(report: ArchiveReport, archive: str, depth: Depth, report_to: ReportFiles, *, as_json: bool) -> int:
    """Print the report, write it to the files of --report, and return the exit code."""
    document = verification_document(report, archive, depth)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        print_report(report)
    report_to.write(document)
    return PARTLY_FAILED if report.verdict is Verdict.FAILURE else 0


def print_report(report: ArchiveReport) -> None:
    """A table of the partitions, and a line for everything that is wrong."""
    columns = ("TOPIC", "PARTITION", "VERDICT", "RECORDS", "CHUNKS", "NEXT OFFSET", "GAPS", "LOST")
    rows = [
        (
            each.topic,
            each.partition,
            each.verdict.value,
            each.records,
            str(each.chunks) if each.checked_chunks == each.chunks else f"{each.checked_chunks} of {each.chunks}",
            "-" if each.next_offset is None else str(each.next_offset),
            len(each.gaps),
            len(each.lost),
        )
        for each in report.partitions
    ]
    print_table(columns, rows, droppable=("CHUNKS", "NEXT OFFSET", "RECORDS", "GAPS"))
    for partition in report.partitions:
        place = f"{partition.topic}:{partition.partition}"
        if partition.pruned_before is not None:
            click.echo(f"{place} pruned: nothing below offset {partition.pruned_before} is kept")
        if partition.erased:
            click.echo(f"{place} erased: {listed([f'[{start}..{end})' for start, end in partition.erased])}")
        for gap in partition.gaps:
            click.echo(f"WARNING {place} recorded gap [{gap.start}..{gap.end}): {gap.reason}")
        if partition.unopened_chunks:
            click.echo(
                f"WARNING {place} {partition.unopened_chunks} chunks are encrypted: without their keys (--keys), only "
                "their bytes were checked, not their contents"
            )
        for closed in partition.unopened:
            click.echo(f"WARNING {place} not opened [{closed.start}..{closed.end}): {closed.reason}")
        for damage in partition.damage:
            click.echo(f"FAILURE {place} {damage.key}: {damage.reason}")
        for lost in partition.lost:
            click.echo(f"FAILURE {place} lost [{lost.start}..{lost.end}): {lost.reason}")
        if partition.lost:
            readable = ", ".join(f"[{start}..{end})" for start, end in partition.readable)
            click.echo(f"{place} still readable: {readable or 'nothing'}")
        for orphan in partition.orphans:
            end = "" if orphan.end is None else orphan.end
            click.echo(f"{place} orphan {orphan.key}, offsets [{orphan.start}..{end}): above the marker, not committed")
    _print_above(report)
    if report.checked_chunks < report.chunks:
        click.echo(f"{_share(report.checked_chunks, report.chunks)}: damage in the others goes unnoticed")
    click.echo(report.verdict.value)


def _share(checked: int, chunks: int) -> str:
    return f"{checked:,} of {chunks:,} chunks were checked ({100 * checked / chunks:.3g}%)"


def _print_since(found: EarlierFindings) -> None:
    for each in found.differences:
        place = f"{each.topic}:{each.partition} [{each.start}..{each.end})"
        click.echo(f"FAILURE {place} differs from the report of {found.created}: {each.reason}")
    print_each("WARNING ", found.warnings)
    earlier = f"the report of {found.created} ({found.earlier_verdict})"
    click.echo(f"compared with {earlier}: {found.partitions} partitions, {found.verdict.value}")


def _print_above(report: ArchiveReport) -> None:
    """Print the findings that belong to no checked partition."""
    for damage in report.damage:
        click.echo(f"FAILURE {damage.key}: {damage.reason}")
    for missing in report.missing:
        click.echo(f"FAILURE {missing} is missing: it was archived once, but all of it is gone")
    for name in report.unmet:
        click.echo(f"FAILURE {name} is expected, but nothing of it is archived")
    print_each("WARNING ", report.warnings)
    if report.inventory_rebuilt_ms is not None:
        made = timestamp_text(report.inventory_rebuilt_ms)
        click.echo(f"the inventory was rebuilt from a listing at {made}: losses before that time go unnoticed")
    for topic, number in report.absent:
        click.echo(f"WARNING {topic}:{number} is not here: it was never archived, or all of it is gone")
    if report.since_report is not None:
        _print_since(report.since_report)


@click.command(
    "verify-report",
    epilog=closing(
        "replayer verify-report report.json --key pub.pem", "replayer verify-report page.html --key pub.pem"
    ),
)
@click.argument("report", metavar="FILE", type=LocalPath(path_type=Path))
@report_key_option("--key", required=True, text="The signer's public key.")
@click.option(
    "--signature",
    type=LocalPath(path_type=Path),
    envvar="BLOCKGZ_REPORT_SIGNATURE",
    metavar="FILE",
    help="The signature, if it is not in FILE.sig.",
)
def verify_report(report: Path, key: Path, signature: Path | None) -> int:
    """Check the signature of a report, also of one made by `archiver erase`.

    Prints what the report found.
    """
    body = _content(report)
    if not is_signed_by(body, _content(signature or signature_of(report)), key):
        click.echo(f"FAILURE {report} does not match the signature by {key}", err=True)
        return PARTLY_FAILED
    click.echo(f"{report} is as signed{_findings(body) if report.suffix == '.json' else ''}")
    return 0


def earlier_report(since_report: Path | None, key: Path | None) -> StoredReport | None:
    """Return the report in a file, signed by the key's owner if a key is given.

    Raise UsageError for no such file, MalformedObject for one with another signature.
    """
    if since_report is None:
        return None
    body = _content(since_report)
    if key is not None:
        check_signature(body, since_report, key)
    return parse_report(body, str(since_report))


def _findings(body: bytes) -> str:
    document = msgspec.json.decode(body)
    kind = document.get("format") if isinstance(document, dict) else None
    if kind == ERASE_FORMAT:
        records = sum(each["records"] for each in document["partitions"])
        return f": an erase of {records:,} records, {document['archive']}, {timestamp_text(document['at'])}"
    if kind == COMPLETION_FORMAT:
        state = "complete" if document["complete"] else "not complete yet"
        what = f"an erase of {document['records']:,} records, {state}"
        return f": {what}, {document['archive']}, {timestamp_text(document['at'])}"
    if kind != FORMAT:
        return ", but it is not a report of blockgz"
    what = next((document[name] for name in ("archive", "restore", "drill") if name in document), "")
    found = document.get("partitions")
    partitions = found if isinstance(found, list) else []
    checked, chunks = (sum(each.get(name, 0) for each in partitions) for name in ("checked_chunks", "chunks"))
    share = f", {_share(checked, chunks)}" if checked < chunks else ""
    return f": {document['verdict']}, {what}, {document['created']}{share}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=error.strerror or str(error)) from error

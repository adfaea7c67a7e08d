"""What a verification found, for people."""

import click
import msgspec

from blockgz_runtime.program.tables import print_table
from replayer.cli.report import ReportOptions
from replayer.verify.findings import ArchiveReport, PartitionReport, Verdict
from replayer.verify.partition import Depth
from replayer.verify.report import verification_document

FAILED = 3


def _checked(partition: PartitionReport) -> str:
    """The number of chunks, and how many of them were chosen."""
    whole = partition.checked_chunks == partition.chunks
    return str(partition.chunks) if whole else f"{partition.checked_chunks} of {partition.chunks}"


def conclude(report: ArchiveReport, archive: str, depth: Depth, report_to: ReportOptions, *, as_json: bool) -> int:
    """Prints the report and writes it where that was asked for; the exit code that it means."""
    document = verification_document(report, archive, depth)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        print_report(report)
    report_to.write(document)
    return FAILED if report.verdict is Verdict.FAILURE else 0


def print_report(report: ArchiveReport) -> None:
    """A table of the partitions, and a line for everything that is wrong."""
    columns = ("TOPIC", "PARTITION", "VERDICT", "RECORDS", "CHUNKS", "NEXT OFFSET", "GAPS", "LOST")
    rows = [
        (
            partition.topic,
            partition.partition,
            partition.verdict.value,
            partition.records,
            _checked(partition),
            "-" if partition.next_offset is None else str(partition.next_offset),
            len(partition.gaps),
            len(partition.lost),
        )
        for partition in report.partitions
    ]
    print_table(columns, rows)
    for partition in report.partitions:
        place = f"{partition.topic}:{partition.partition}"
        for gap in partition.gaps:
            click.echo(f"WARNING {place} recorded gap {gap.start}..{gap.end}: {gap.reason}")
        for damage in partition.damage:
            click.echo(f"FAILURE {place} {damage.key}: {damage.reason}")
        for lost in partition.lost:
            click.echo(f"FAILURE {place} lost {lost.start}..{lost.end}: {lost.reason}")
        if partition.lost:
            readable = ", ".join(f"{start}..{end}" for start, end in partition.readable)
            click.echo(f"{place} still readable: {readable or 'nothing'}")
    for damage in report.damage:
        click.echo(f"FAILURE {damage.key}: {damage.reason}")
    for topic, number in report.absent:
        click.echo(f"WARNING {topic}:{number} is not here: nothing of it was archived yet, or all of it is gone")
    click.echo(report.verdict.value)

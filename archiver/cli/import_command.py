"""`archiver import`."""

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import Progress

from archiver.importing import ImportReport, ImportTarget, OldReader, check_target, import_partition, survey
from archiver.ingest.chunk_builder import BufferFolder
from blockgz.errors import PARTLY_FAILED, UsageError, exit_code
from blockgz.program import archive_options
from blockgz.program.main import closing, confirm, print_problems
from blockgz.program.options import SIZE, LocalPath, plan_options
from blockgz.program.terminal import print_table, range_text, unescaped
from blockgz.store.address import S3Settings
from blockgz.store.customer_key import fingerprint_of
from blockgz.store.opening import default_buffer_root, open_existing_store, open_store
from index_format.old_files import OldPartition
from index_format.old_objects import OldFormat

SHOWN_NOTES = 20


@click.command(
    "import",
    epilog=closing(
        "archiver import s3://old/prefix -a s3://backup/kafka --dry-run",
        "archiver import ./old orders -a ./archive --yes --old-format delimited --key-delimiter '|'",
    ),
)
@click.argument("source", metavar="SOURCE")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@archive_options.store_options(archive_options.writing_s3_options)
@archive_options.old_format_option
@archive_options.max_block_option
@click.option(
    "--layout", type=click.Choice(["topic", "seed"]), default="topic", show_default=True, help="Of the new archive."
)
@click.option(
    "--record-format",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
    help="Of the new archive.",
)
@click.option("--block-bytes", type=SIZE, default="1MiB", show_default=True, help="Maximum encoded size of a block.")
@click.option(
    "--chunk-bytes", type=SIZE, default="128MiB", show_default=True, help="Close a chunk at this compressed size."
)
@archive_options.encrypt_option
@click.option("--buffer-dir", type=LocalPath(path_type=Path), help="Folder for the open chunk.")
@click.option("--single-writer", is_flag=True, help="Accept a store without conditional writes.")
@plan_options
def import_command(
    *,
    source: str,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    old_format: OldFormat,
    max_block_bytes: int,
    buffer_dir: Path | None,
    single_writer: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **form: Any,
) -> int:
    """Convert an archive of kafka-connect-s3, or one of its forks, at SOURCE into a current one.

    SOURCE is not changed. Offsets are those that the old writer counted, with the same errors; if a block leaves them
    open, a gap with reason `unverified` is recorded and reported. A second run resumes where the first one ended. TOPIC
    is a name, a glob or ~regex. --endpoint-url and --region apply to both addresses.
    """
    if form["layout"] == "seed" and form["encrypt"] is not None:
        raise UsageError(
            "--layout seed and --encrypt cannot be combined",
            why="layout seed is for readers that know no encryption",
            remedy="use --layout topic, or leave --encrypt out",
        )
    old = open_existing_store(source, s3)
    reader = OldReader(old, old_format, max_block_bytes)
    partitions = survey(reader, topics)
    if not as_json:
        _print_plan(partitions)
    reports: list[ImportReport] = []
    if not dry_run:
        records = sum(each.num_records for each in partitions)
        question = f"Import {records:,} records of {len(partitions)} partitions?"
        confirm(question, undone="nothing was imported", is_agreed=yes)
        store = open_store(archive, s3, single_writer=single_writer)
        check_target(reader, store, single_writer=single_writer)
        buffers = contextlib.closing(BufferFolder(buffer_dir or default_buffer_root(archive)))
        console = Console(file=unescaped(sys.stderr))
        progress = Progress(console=console, transient=True, disable=as_json or not console.is_terminal)
        with buffers as buffer, progress as shown:
            task = shown.add_task("records", total=records)
            target = ImportTarget.opened(store, fingerprint_of(s3.customer_key), **form)
            on_records = partial(shown.advance, task)
            wanted = [each for each in partitions if each.num_records]
            reports = [import_partition(reader, each, target, buffer, on_records) for each in wanted]
    if as_json:
        result = result_object(source, archive, partitions, reports, dry_run=dry_run)
        click.echo(orjson.dumps(result).decode())
    elif not dry_run:
        click.echo(f"imported {sum(report.records for report in reports):,} records")
    return _outcome(reports, old_format)


def result_object(
    source: str, archive: str, partitions: Sequence[OldPartition], reports: Sequence[ImportReport], *, dry_run: bool
) -> dict[str, Any]:
    """Return the JSON contract of `archiver import --json`; `imported` is null in a dry run."""
    by_place = {report.partition.place: report for report in reports}
    return {
        "source": source,
        "archive": archive,
        "dry_run": dry_run,
        "offsets": "counted",
        "records": sum(report.records for report in reports),
        "partitions": [
            {
                "topic": each.place.topic,
                "partition": each.place.partition,
                "files": len({piece.file.key for piece in each.pieces}),
                "start_offset": each.start_offset,
                "next_offset": each.next_offset,
                "planned_records": each.num_records,
                "gaps": [{"from": gap.start, "to": gap.end, "reason": gap.reason} for gap in each.gaps],
                "notes": each.notes,
                "imported": _imported(by_place.get(each.place)),
            }
            for each in partitions
        ],
    }


def _imported(report: ImportReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "from_offset": report.position,
        "next_offset": report.next_offset,
        "records": report.records,
        "chunks": report.chunks,
        "unverified": [{"from": start, "to": end, "reason": reason} for start, end, reason, _ in report.unsure],
        "error": report.failure.what if report.failure else None,
    }


def _print_plan(partitions: Sequence[OldPartition]) -> None:
    rows = []
    for each in partitions:
        files = len({piece.file.key for piece in each.pieces})
        offsets = range_text(each.start_offset, each.next_offset)
        rows.append((*each.place, files, each.num_records, offsets, len(each.gaps)))
    print_table(("topic", "partition", "files", "records", "offsets", "gaps"), rows, droppable=("files", "records"))
    notes = [note for each in partitions for note in each.notes]
    for note in notes[:SHOWN_NOTES]:
        click.echo(f"note: {note}", err=True)
    if len(notes) > SHOWN_NOTES:
        click.echo(f"note: and {len(notes) - SHOWN_NOTES} more, which --json lists", err=True)


def _outcome(reports: Sequence[ImportReport], old_format: OldFormat) -> int:
    for report in reports:
        if doubt := old_format.doubt(report.lines, report.delimited):
            click.echo(f"note: {report.partition.place}: {doubt}", err=True)
        for unsure in report.unsure[:SHOWN_NOTES]:
            where = f"{report.partition.place}, offsets [{unsure.start}..{unsure.end})"
            click.echo(f"not imported: {where}: {unsure.reason}", err=True)
        if len(report.unsure) > SHOWN_NOTES:
            click.echo(f"not imported: {report.partition.place}: and {len(report.unsure) - SHOWN_NOTES} more", err=True)
        if report.failure is not None:
            print_problems([(str(report.partition.place), report.failure)])
    failures = [report.failure for report in reports if report.failure is not None]
    if failures and len(failures) == len(reports):
        return exit_code(failures[0])
    return PARTLY_FAILED if failures or any(report.unsure for report in reports) else 0

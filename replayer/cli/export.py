"""`replayer export`."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial

import click
import orjson

from blockgz.archive.archive import ArchivePlace, TopicPartitions, parse_topic
from blockgz.archive.positions import Rule
from blockgz.archive.selection import DamagePolicies, SelectionRequest, selected_batches
from blockgz.process import run_async
from blockgz.program.main import closing
from blockgz.program.options import LocalPath, Option, choice_option
from blockgz.program.progress import record_progress
from blockgz.units import bytes_text
from replayer.cli.cat import say_why_nothing
from replayer.cli.options.options import archive_options, json_option, limit_option, open_archive, times_option
from replayer.cli.options.selection_options import (
    damage_option,
    print_cuts,
    print_skipped,
    selection_options,
    with_choice,
)
from replayer.export import BINARY, FORMATS, STDOUT, TEXT, Exported, ExportForm, export, format_of


@click.command(
    "export",
    epilog=closing(
        "replayer export orders orders.parquet -a ./archive",
        "replayer export orders:0-3 orders.csv --value-as text --since -1d -a s3://bucket/prefix",
        "replayer export orders - --format jsonl --value-as text -a ./archive | jq .value",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@click.argument("destination", metavar="DEST", type=LocalPath())
@selection_options
@limit_option
@damage_option
@Option("--format", "file_format", type=click.Choice(FORMATS), help="File format; by default as DEST ends.")
@choice_option("--key-as", "key", choices=[BINARY, TEXT], help="Keys as bytes (in CSV and JSON, Base64) or text.")
@choice_option("--value-as", "value", choices=[BINARY, TEXT], help="Values as bytes or text.")
@times_option
@Option("--overwrite", "overwrites", is_flag=True, help="Replace DEST if it exists.")
@json_option
@archive_options
def command(
    topic: str,
    destination: str,
    selection: SelectionRequest,
    limit: int | None,
    on_damage: str,
    file_format: str | None,
    key: str,
    value: str,
    as_times: str,
    overwrites: bool,
    as_json: bool,
    archive: ArchivePlace,
) -> int:
    """Write records to a Parquet, CSV, JSON lines or Arrow file.

    DEST of - is standard output. Columns are key, value, topic, partition, offset, timestamp, timestampType and
    headers. The file appears whole or not at all. Damage ends the export with exit code 3 and no file; with
    --on-damage skip, all other records are written, the lost offsets are named on stderr, and the exit code is still 3.
    """
    form = ExportForm(format_of(destination, file_format), key, value, as_times)
    damage = DamagePolicies(on_damage)

    def run(rule: Rule | None) -> int:
        output = partial(export, destination=destination, form=form, overwrites=overwrites)
        ruled = selection.ruled(rule)
        done = run_async(_exported(archive, parse_topic(topic), ruled, limit, damage, output, as_json=as_json))
        if as_json:
            told = {"destination": destination, "format": form.file_format, **done._asdict()}
            click.echo(orjson.dumps(told).decode(), err=destination == STDOUT)
        elif destination != STDOUT:
            click.echo(f"{done.records} records exported to {destination} ({bytes_text(done.bytes)})")
        return print_skipped(damage)

    return with_choice(run)


async def _exported(
    place: ArchivePlace,
    topic: TopicPartitions,
    selection: SelectionRequest,
    limit: int | None,
    damage: DamagePolicies,
    output: Callable[..., Awaitable[Exported]],
    *,
    as_json: bool,
) -> Exported:
    async with AsyncExitStack() as stack:
        archive = await stack.enter_async_context(open_archive(place))
        chosen = await selection.select(archive, topic)
        print_cuts(chosen, copies=True)
        batches = selected_batches(chosen, selection.filter, limit, damage)
        await stack.enter_async_context(aclosing(batches))
        advance = stack.enter_context(record_progress("exporting", None, as_json=as_json))
        done = await output(batches, advance=advance)
    if done.records == 0 and limit != 0:
        say_why_nothing(chosen, selection.filter)
    return done

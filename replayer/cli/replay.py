"""`replayer replay`."""

import asyncio
import gc
import sys
import time
from typing import Any

import click
import msgspec

from ..errors import UsageError
from ..kafka_admin import KafkaAdmin
from ..kafka_sink import KafkaSink
from ..republish import RepublishResult, republish, written_text
from ..republish_plan import RepublishPlan, Request, SourcePartition, make_plan
from ..republish_sources import describe_source, find_refusable
from .get import timestamp_text
from .options import (
    ArchiveOptions,
    KafkaOptions,
    RangeOptions,
    TopicArgument,
    archive_options,
    json_option,
    kafka_options,
    open_archive,
    parse_topic,
    range_options,
    select,
    with_partitions,
)
from .program import closing
from .progress import record_progress
from .tables import bytes_text, print_table


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --at 2026-11-20T12:00:00Z --yes -b localhost:9092 -a ./archive",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@click.option(
    "--to-topic",
    required=True,
    envvar="BLOCKGZ_TO_TOPIC",
    show_envvar=True,
    metavar="TOPIC",
    help="Where the records go; it must exist, with at least as many partitions.",
)
@range_options
@click.option(
    "--partitions", envvar="BLOCKGZ_PARTITIONS", show_envvar=True, metavar="P,P-P", help="Only these partitions."
)
@click.option(
    "--into-source",
    is_flag=True,
    envvar="BLOCKGZ_INTO_SOURCE",
    show_envvar=True,
    help="Allow --to-topic to be the archived topic itself.",
)
@click.option(
    "--dry-run", is_flag=True, envvar="BLOCKGZ_DRY_RUN", show_envvar=True, help="Print the plan and write nothing."
)
@click.option("--yes", is_flag=True, envvar="BLOCKGZ_YES", show_envvar=True, help="Do not ask.")
@json_option
@kafka_options
@archive_options
def command(
    topic: str,
    to_topic: str,
    selection: RangeOptions,
    partitions: str | None,
    into_source: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    kafka: KafkaOptions,
    archive: ArchiveOptions,
) -> None:
    """Produce archived records to a topic: partition n to partition n, in order, with their own timestamps.

    Prints the plan and asks first. The producer is idempotent; a replay that is broken off and started again writes
    again what it had written.
    """
    wanted = with_partitions(parse_topic(topic), partitions)
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    asyncio.run(_replay(wanted, to_topic, selection, into_source, dry_run, yes, as_json, kafka, archive))


async def _replay(
    topic: TopicArgument,
    to_topic: str,
    positions: RangeOptions,
    into_source: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    kafka: KafkaOptions,
    options: ArchiveOptions,
) -> None:
    admin = await asyncio.to_thread(KafkaAdmin, kafka.properties)
    async with open_archive(options) as archive:
        selections = await select(archive, topic, positions)
        sources = [await describe_source(selection) for selection in selections]
        target = await asyncio.to_thread(admin.topic, to_topic)
        numbers = [source.partition for source in sources if target and source.partition < target.num_partitions]
        watermarks = await asyncio.to_thread(admin.watermarks, to_topic, numbers) if numbers else {}
        findings = await find_refusable(selections, target.config if target else None)
        source_topic = selections[0].partition.topic if selections else topic.topic
        plan = make_plan(
            Request(source_topic, to_topic, into_source), sources, target, watermarks, findings, time.time_ns() // 10**6
        )
        if not as_json:
            _print_plan(plan)
        if dry_run:
            if as_json:
                click.echo(
                    msgspec.json.encode({"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan)})
                )
            return
        _confirm(plan, yes)
        limit = target.config.max_message_bytes if target and target.config else None
        sink = KafkaSink(kafka.properties, to_topic, limit)
        with record_progress("replaying", plan.records, as_json=as_json) as advance:
            try:
                result = await republish(selections, sink, advance)
            except asyncio.CancelledError:
                click.echo(written_text(sink.delivered()), err=True)
                raise
    if as_json:
        click.echo(msgspec.json.encode(result_json(plan, result)))
    else:
        _print_result(plan, result)


def _confirm(plan: RepublishPlan, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"nothing was written to {plan.target}",
            why="there is no terminal to ask on, and --yes was not given",
            remedy="add --yes, or --dry-run to see the plan only",
        )
    click.confirm(f"Write about {plan.records} records to {plan.target}?", abort=True, err=True)


def _print_plan(plan: RepublishPlan) -> None:
    columns = ("PARTITION", "OFFSETS", "RECORDS", "SIZE", "FROM (UTC)", "UNTIL (UTC)")
    rows = [_plan_row(source) for source in plan.sources]
    print_table(columns, rows, title=f"{plan.topic} -> {plan.target}, at most {plan.records} records", file=sys.stderr)
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)


def _plan_row(source: SourcePartition) -> tuple[str | int, ...]:
    times = source.timestamps
    return (
        source.partition,
        f"{source.start}..{source.end}",
        source.records,
        bytes_text(source.bytes),
        _seconds(times.min) if times else "-",
        _seconds(times.max) if times else "-",
    )


def _seconds(timestamp_ms: int) -> str:
    return timestamp_text(timestamp_ms).partition(".")[0].replace("T", " ")


def _print_result(plan: RepublishPlan, result: RepublishResult) -> None:
    columns = ("PARTITION", "RECORDS", "OFFSETS", "TARGET OFFSETS")
    rows = [
        (
            lane.partition,
            lane.records,
            _inclusive(lane.first_offset, lane.last_offset),
            _inclusive(lane.target_first_offset, lane.target_last_offset),
        )
        for lane in result.partitions
    ]
    print_table(columns, rows)
    rate = result.records / result.seconds if result.seconds else 0
    click.echo(
        f"{result.records} records ({bytes_text(result.bytes)}) replayed to {plan.target} in {result.seconds:.1f} s, "
        f"{rate:,.0f} records/s"
    )
    if result.zero_timestamps:
        click.echo(f"warning: {result.zero_timestamps} records with timestamp 0 were sent with 1", err=True)


def _inclusive(first: int | None, last: int | None) -> str:
    return "-" if first is None else f"{first}..{last}"


def plan_json(plan: RepublishPlan) -> dict[str, Any]:
    """The plan for `--json`; `to` is excluded, records and bytes are upper bounds."""
    return {
        "topic": plan.topic,
        "target": plan.target,
        "target_partitions": plan.target_partitions,
        "records": plan.records,
        "bytes": plan.bytes,
        "partitions": [
            {
                "partition": source.partition,
                "target_partition": source.partition,
                "from": source.start,
                "to": source.end,
                "records": source.records,
                "bytes": source.bytes,
                "min_timestamp_ms": source.timestamps.min if source.timestamps else None,
                "max_timestamp_ms": source.timestamps.max if source.timestamps else None,
            }
            for source in plan.sources
        ],
        "warnings": plan.warnings,
    }


def result_json(plan: RepublishPlan, result: RepublishResult) -> dict[str, Any]:
    """What was done, for `--json`; offsets are inclusive."""
    return {
        "records": result.records,
        "partitions": msgspec.to_builtins(result.partitions),
        "topic": plan.topic,
        "target": plan.target,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "zero_timestamps": result.zero_timestamps,
        "plan": plan_json(plan),
    }

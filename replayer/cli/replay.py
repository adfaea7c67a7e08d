"""`replayer replay`."""

import asyncio
import gc
import sys
import time

import click
import msgspec

from ..errors import UsageError
from ..kafka_admin import KafkaAdmin
from ..kafka_sink import KafkaSink
from ..pipeline import Pipeline
from ..republish import republish, written_text
from ..republish_plan import Preflight, RepublishPlan, Request
from ..republish_planning import make_plan
from ..republish_sources import describe_source, find_refusable
from ..selection import Selection
from .options import ArchiveOptions, KafkaOptions, archive_options, json_option, kafka_options, open_archive, select
from .program import closing
from .progress import record_progress
from .replay_options import ReplayOptions, replay_options
from .replay_output import plan_json, print_plan, print_result, result_json


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --at 2026-11-20T12:00:00Z --yes -b localhost:9092 -a ./archive",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
@replay_options
@json_option
@kafka_options
@archive_options
def command(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, archive: ArchiveOptions) -> None:
    """Produce archived records to a topic: partition n to partition n, in order, with their own timestamps.

    Prints the plan and asks first. The producer is idempotent; a replay that is broken off and started again writes
    again what it had written.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    asyncio.run(_replay(options, as_json, kafka, archive))


async def _replay(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, address: ArchiveOptions) -> None:
    admin = await asyncio.to_thread(KafkaAdmin, kafka.properties)
    async with open_archive(address) as archive:
        selections = await select(archive, options.topic, options.positions)
        pipeline = Pipeline()
        preflight = await _preflight(options, selections, pipeline, admin)
        plan = make_plan(preflight)
        if not as_json:
            print_plan(plan)
        if options.dry_run:
            if as_json:
                click.echo(
                    msgspec.json.encode({"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan)})
                )
            return
        _confirm(plan, options.yes)
        target = preflight.target
        limit = target.config.max_message_bytes if target and target.config else None
        sink = KafkaSink(kafka.properties, options.target, limit)
        with record_progress("replaying", plan.records, as_json=as_json) as advance:
            try:
                result = await republish(selections, pipeline, sink, advance)
            except asyncio.CancelledError:
                click.echo(written_text(sink.delivered()), err=True)
                raise
    if as_json:
        click.echo(msgspec.json.encode(result_json(plan, result)))
    else:
        print_result(plan, result)


async def _preflight(
    options: ReplayOptions, selections: list[Selection], pipeline: Pipeline, admin: KafkaAdmin
) -> Preflight:
    """What archive and cluster have to say."""
    sources = tuple([await describe_source(selection) for selection in selections])
    target = await asyncio.to_thread(admin.topic, options.target)
    lanes = {lane for source in sources for lane in pipeline.targets(source.partition)}
    known = sorted(lane for lane in lanes if target and lane < target.num_partitions)
    return Preflight(
        Request(
            selections[0].partition.topic if selections else options.topic.topic, options.target, options.into_source
        ),
        sources,
        target,
        await asyncio.to_thread(admin.watermarks, options.target, known) if known else {},
        await find_refusable(selections, target.config if target else None),
        time.time_ns() // 10**6,
        pipeline.router,
    )


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

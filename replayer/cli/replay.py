"""`replayer replay`."""

import asyncio
import gc
import sys
import time

import click
import msgspec
import pyarrow as pa

from ..control import Commands
from ..errors import UsageError
from ..kafka_admin import KafkaAdmin
from ..pipeline import Pipeline
from ..record_sink import RecordSink
from ..republish import republish, written_text
from ..republish_plan import Preflight, RepublishPlan, Request
from ..republish_planning import make_plan
from ..republish_result import RepublishResult
from ..republish_sources import describe_source, find_refusable
from .options import ArchiveOptions, KafkaOptions, archive_options, json_option, kafka_options, open_archive
from .program import closing
from .progress import record_progress
from .replay_job import PreparedJob, prepared_job
from .replay_options import ReplayOptions, replay_options
from .replay_output import plan_json, print_plan, print_result, result_json
from .replay_signals import steered

INTERRUPTED = 130


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --at 2026-11-20T12:00:00Z --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --transactional --resume --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic load-test --rate 20MB/s --yes -b localhost:9092 -a ./archive",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
@replay_options
@json_option
@kafka_options
@archive_options
def command(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, archive: ArchiveOptions) -> int:
    """Produce archived records to a topic: partition n to partition n, in order, with their own timestamps.

    Prints the plan and asks first. With --transactional every record arrives exactly once, however often the replay is
    broken off and gone on with by --resume. Without it the producer is idempotent, and after a crash what was sent
    since the last checkpoint (at most 25,000 records, 8 MiB or 5 seconds) is sent again.

    SIGUSR1 pauses, SIGUSR2 goes on; SIGTERM and Ctrl-C end after a commit.
    """
    # Arrow's own allocator keeps some 60 MB more for a dozen threads; the batches here are too few for it to be faster.
    pa.set_memory_pool(pa.system_memory_pool())
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    return asyncio.run(_replay(options, as_json, kafka, archive))


async def _replay(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, address: ArchiveOptions) -> int:
    admin = await asyncio.to_thread(KafkaAdmin, kafka.properties)
    pipeline = Pipeline()
    async with open_archive(address) as archive, prepared_job(options, archive, pipeline, kafka) as prepared:
        preflight = await _preflight(options, prepared, admin)
        plan = make_plan(preflight)
        if not as_json:
            print_plan(plan)
        if options.dry_run:
            if as_json:
                click.echo(
                    msgspec.json.encode({"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan)})
                )
            return 0
        _confirm(plan, options.yes)
        limit = preflight.target.config.max_message_bytes if preflight.target and preflight.target.config else None
        with prepared.alone():
            result, interrupted = await _run(options, prepared, prepared.sink(kafka, limit), plan.records, as_json)
            if result.complete:
                prepared.forget()
    if as_json:
        click.echo(msgspec.json.encode(result_json(plan, result)))
    else:
        print_result(plan, result)
    return INTERRUPTED if interrupted else 0


async def _run(
    options: ReplayOptions, prepared: PreparedJob, sink: RecordSink, records: int, as_json: bool
) -> tuple[RepublishResult, bool]:
    """What was done, and whether SIGINT ended it."""
    commands = Commands()
    with (
        record_progress("replaying", records, as_json=as_json) as advance,
        steered(commands, advance) as steering,
    ):
        try:
            result = await republish(prepared.work, prepared.pipeline, sink, options.pace, commands, advance)
        except asyncio.CancelledError:
            click.echo(written_text(sink.delivered()), err=True)
            raise
    return result, steering.interrupted


async def _preflight(options: ReplayOptions, prepared: PreparedJob, admin: KafkaAdmin) -> Preflight:
    """What archive and cluster have to say."""
    remaining = prepared.remaining
    sources = tuple([await describe_source(selection) for selection in remaining])
    target = await asyncio.to_thread(admin.topic, options.target)
    known = [lane for lane in prepared.work.first if target and lane < target.num_partitions]
    topic = prepared.work.selections[0].partition.topic
    return Preflight(
        Request(topic, options.target, options.into_source),
        sources,
        target,
        await asyncio.to_thread(admin.watermarks, options.target, known) if known else {},
        await find_refusable(remaining, target.config if target else None),
        time.time_ns() // 10**6,
        prepared.pipeline.router,
        prepared.state(resume=options.resume),
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

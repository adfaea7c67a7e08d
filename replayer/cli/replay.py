"""`replayer replay`."""

import asyncio
import gc
from contextlib import AsyncExitStack

import click
import msgspec

from blockgz_runtime.allocators import share_heaps
from blockgz_runtime.program.main import closing, print_failure
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, open_archive
from replayer.cli.options.cluster_options import KafkaOptions, kafka_options
from replayer.cli.options.damage import DamagePolicies
from replayer.cli.options.options import json_option
from replayer.cli.options.replay_options import ReplayOptions, replay_options
from replayer.cli.progress import record_progress
from replayer.cli.replay_job import PreparedJob, prepared_job
from replayer.cli.replay_output import (
    UNFIT_LEFT_OUT,
    print_left_out,
    print_plan,
    print_planned,
    print_result,
    result_json,
    skipped_json,
)
from replayer.cli.replay_preflight import ask_before, confirm
from replayer.cli.replay_signals import steered
from replayer.cli.replay_target import make_ready, shaped_target, tell_set_back, undo_retention
from replayer.errors import DeliveryFailed
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.pace import Commands
from replayer.replay.preflight import make_plan
from replayer.replay.record_sink import RecordSink
from replayer.replay.result import RepublishResult
from replayer.replay.run import republish, written_text

INTERRUPTED = 130


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --at 2026-11-20T12:00:00Z --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --transactional --resume --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic load-test --rate 20MB/s --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic '{topic}-v2' --create-topic --partitions by-key:24 -b HOST:PORT -a DIR",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
@replay_options
@json_option
@kafka_options
@archive_options
def command(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, archive: ArchiveOptions) -> int:
    """Produce archived records to a topic, in order and as they were.

    Prints the plan and asks first. With --transactional every record arrives exactly once, however often the replay is
    broken off and gone on with by --resume. Without it the producer is idempotent, and after a crash what was sent
    since the last checkpoint (at most 25,000 records, 8 MiB or 5 seconds) is sent again.

    SIGUSR1 pauses, SIGUSR2 goes on; SIGTERM and Ctrl-C end after a commit.
    """
    share_heaps()
    gc.freeze()
    return asyncio.run(_replay(options, as_json, kafka, archive))


async def _replay(options: ReplayOptions, as_json: bool, kafka: KafkaOptions, address: ArchiveOptions) -> int:
    admin = await asyncio.to_thread(KafkaAdmin, kafka.properties)
    if options.shape.undo_retention:
        click.echo(await asyncio.to_thread(undo_retention, options.target, admin, kafka))
        return 0
    async with open_archive(address) as archive, AsyncExitStack() as stack:
        target = await shaped_target(options.shape, archive, options.topic.topic, options.target, admin)
        damage = DamagePolicies(options.on_damage)
        prepared = await stack.enter_async_context(prepared_job(options, archive, target.pipeline, kafka, damage))
        preflight = await ask_before(options, prepared, target, admin)
        plan = make_plan(preflight)
        if not as_json:
            print_plan(plan)
        if options.dry_run:
            if as_json:
                print_planned(plan)
            return 0
        confirm(plan, options.yes)
        limit = preflight.target.config.max_message_bytes if preflight.target and preflight.target.config else None
        with prepared.alone():
            await asyncio.to_thread(make_ready, target, admin, kafka)
            result, interrupted = await _run(options, prepared, prepared.sink(kafka, limit), plan.records, as_json)
            if result.complete:
                prepared.forget()
                await tell_set_back(target.name, admin, kafka)
            elif target.holds:
                click.echo(f"retention of {target.name} is still held: --resume, or --undo-retention", err=True)
    if as_json:
        told = {"left_out": msgspec.to_builtins(target.tally), "skipped": skipped_json(damage.skipped)}
        click.echo(msgspec.json.encode(result_json(plan, result) | told))
    else:
        print_result(plan, result)
        print_left_out(target.tally)
    incomplete = damage.report() or (UNFIT_LEFT_OUT if target.tally.unfit else 0)
    return INTERRUPTED if interrupted else incomplete


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
        except DeliveryFailed as error:
            if not steering.interrupted:
                raise
            print_failure(error)
            raise click.Abort from error
    return result, steering.interrupted

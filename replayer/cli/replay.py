"""`replayer replay`."""

import asyncio
import gc
from contextlib import AsyncExitStack

import click
import msgspec

from blockgz.archive.place import ArchivePlace
from blockgz.errors import PARTLY_FAILED, BrokerUnreachable, PartitionUnavailable
from blockgz.process import run_async, share_heaps
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing, ended_code, print_failure
from replayer.cli.options.archive_options import archive_options, open_archive
from replayer.cli.options.job_options import open_jobs
from replayer.cli.options.options import json_option
from replayer.cli.options.replay_options import ReplayOptions, replay_options
from replayer.cli.options.selection_options import print_skipped, with_choice
from replayer.cli.replay_output import (
    agreed,
    left_out_json,
    print_left_out,
    print_result,
    proof_command,
    skipped_json,
)
from replayer.cli.replay_steering import Steering, controlled
from replayer.errors import DeliveryFailed
from replayer.replay.documents import result_json
from replayer.replay.replaying import BegunReplay, planned_replay, undone_retention
from replayer.replay.result import ReplayResult


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --create-topic --at 2026-11-20T12:00:00Z -b HOST:PORT -a DIR",
        "replayer replay orders --to-topic orders-copy --transactional --resume --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic load-test --rate 20MB/s --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic '{topic}-v2' --create-topic --partitions by-key:24 -b HOST:PORT -a DIR",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
@replay_options
@json_option
@kafka_options(required=True)
@archive_options
def command(options: ReplayOptions, as_json: bool, kafka: dict[str, str], archive: ArchivePlace) -> int:
    """Write archived records to a topic, unchanged and in order.

    Prints the plan and asks first. With --transactional, every record arrives exactly once, however often the replay is
    interrupted and resumed with --resume. Without it, the producer is idempotent, but after a crash everything sent
    since the last checkpoint is sent again.

    SIGUSR1 pauses, SIGUSR2 resumes. SIGTERM and Ctrl-C commit, then exit. With --control, replayer jobs does the same
    from anywhere.
    """
    share_heaps()
    gc.freeze()
    return with_choice(lambda rule: run_async(_replay(options.ruled(rule), as_json, kafka, archive)))


async def _replay(options: ReplayOptions, as_json: bool, properties: dict[str, str], address: ArchivePlace) -> int:
    request = options.request
    if request.shape.undo_retention:
        click.echo(await undone_retention(request, properties))
        return 0
    steering = Steering(request.pace, options.rate)
    async with AsyncExitStack() as stack:
        if options.control:
            stack.enter_context(controlled(open_jobs(request.jobs, address), options, steering))
        archive = await stack.enter_async_context(open_archive(address))
        jobs = open_jobs(request.jobs, address)
        planned = await stack.enter_async_context(planned_replay(request, archive, properties, jobs))
        if options.control:
            planned = planned.kept_alone()
        if not agreed(planned.plan, options, as_json=as_json, seconds=round(planned.seconds, 3)):
            return 0
        async with planned.begun() as begun:
            result = await _run(begun, steering, as_json)
            note = await begun.settled(result)
            if note is not None:
                click.echo(note, err=True)
    left_out, skipped = planned.ground.target.left_out, planned.damage.skipped
    proof = proof_command(planned.plan.job.name, request.jobs, properties, address)
    if as_json:
        more = {"verify": proof, "skipped": skipped_json(skipped), **left_out_json(left_out)}
        click.echo(msgspec.json.encode(result_json(planned.plan, result) | more))
    else:
        print_result(planned.plan, result)
        print_left_out(left_out)
        click.echo(f"to prove it: {proof}", err=True)
    incomplete = print_skipped(planned.damage) or (PARTLY_FAILED if left_out.unfit or planned.ground.missing else 0)
    return ended_code(incomplete, steering.signals, is_done=result.complete)


async def _run(begun: BegunReplay, steering: Steering, as_json: bool) -> ReplayResult:
    with steering.running(begun.planned.plan, as_json=as_json) as progress:
        try:
            steering.result = await begun.run(steering.commands, progress)
        except asyncio.CancelledError as error:
            click.echo("\n".join(error.__notes__), err=True)
            raise steering.ended() from error
        except (BrokerUnreachable, DeliveryFailed, PartitionUnavailable) as error:
            if not steering.signals:
                raise
            print_failure(error)
            raise steering.ended() from error
    return steering.result

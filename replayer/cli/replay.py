"""`replayer replay`."""

import asyncio
import gc
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import click
import msgspec

from blockgz_runtime.errors import FAILED, PARTLY_FAILED, BrokerUnreachable, PartitionUnavailable
from blockgz_runtime.process import share_heaps
from blockgz_runtime.program.kafka_options import kafka_options
from blockgz_runtime.program.main import closing, ended_code, print_failure
from blockgz_runtime.program.progress import RecordProgress, record_progress
from replayer.cli.options.archive_options import archive_options, open_archive
from replayer.cli.options.job_options import open_jobs
from replayer.cli.options.options import json_option
from replayer.cli.options.replay_options import ReplayOptions, replay_options
from replayer.cli.options.selection_options import print_skipped
from replayer.cli.replay_output import (
    agreed,
    print_left_out,
    print_result,
    proof_command,
    result_json,
    skipped_json,
)
from replayer.errors import DeliveryFailed
from replayer.place import ArchivePlace
from replayer.replay.pace import Commands
from replayer.replay.replaying import BegunReplay, planned_replay, undone_retention
from replayer.replay.result import ReplayResult


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
@kafka_options(required=True)
@archive_options
def command(options: ReplayOptions, as_json: bool, kafka: dict[str, str], archive: ArchivePlace) -> int:
    """Write archived records to a topic, unchanged and in order.

    Prints the plan and asks first. With --transactional, every record arrives exactly once, however often the replay is
    interrupted and resumed with --resume. Without it, the producer is idempotent, but after a crash everything sent
    since the last checkpoint is sent again.

    SIGUSR1 pauses, SIGUSR2 resumes. SIGTERM and Ctrl-C commit, then exit.
    """
    share_heaps()
    gc.freeze()
    return asyncio.run(_replay(options, as_json, kafka, archive))


async def _replay(options: ReplayOptions, as_json: bool, properties: dict[str, str], address: ArchivePlace) -> int:
    request = options.request
    if request.shape.undo_retention:
        click.echo(await undone_retention(request, properties))
        return 0
    async with AsyncExitStack() as stack:
        archive = await stack.enter_async_context(open_archive(address))
        jobs = open_jobs(request.jobs, address)
        planned = await stack.enter_async_context(planned_replay(request, archive, properties, jobs))
        if not agreed(planned.plan, options, as_json=as_json, seconds=round(planned.seconds, 3)):
            return 0
        async with planned.begun() as begun:
            result, signals = await _run(begun, as_json)
            note = await begun.settled(result)
            if note is not None:
                click.echo(note, err=True)
    left_out, skipped = planned.ground.target.left_out, planned.damage.skipped
    proof = proof_command(planned.plan.job.name, request.jobs, properties, address)
    if as_json:
        more = {"verify": proof, "left_out": msgspec.to_builtins(left_out), "skipped": skipped_json(skipped)}
        click.echo(msgspec.json.encode(result_json(planned.plan, result) | more))
    else:
        print_result(planned.plan, result)
        print_left_out(left_out)
        click.echo(f"to prove it: {proof}", err=True)
    incomplete = print_skipped(planned.damage) or (PARTLY_FAILED if left_out.unfit or planned.ground.missing else 0)
    return ended_code(incomplete, signals, is_done=result.complete)


async def _run(begun: BegunReplay, as_json: bool) -> tuple[ReplayResult, set[int]]:
    """What was done, and the signals that asked it to end."""
    commands, records = Commands(), begun.planned.plan.records
    with record_progress("replaying", records, as_json=as_json) as advance, steered(commands, advance) as steering:
        try:
            result = await begun.run(commands, advance)
        except asyncio.CancelledError as error:
            click.echo("\n".join(error.__notes__), err=True)
            raise steering.ended() from error
        except (BrokerUnreachable, DeliveryFailed, PartitionUnavailable) as error:
            if not steering.signals:
                raise
            print_failure(error)
            raise steering.ended() from error
    return result, steering.signals


class Steering:
    """What signals asked for; `signals` are those that asked to end."""

    def __init__(self, commands: Commands, progress: RecordProgress) -> None:
        self._commands, self._progress = commands, progress
        self._work = asyncio.current_task()
        self.signals: set[int] = set()

    def pause(self) -> None:
        self._commands.pause()
        self._progress.state("paused")

    def resume(self) -> None:
        self._commands.resume()
        self._progress.state("replaying")

    def terminate(self) -> None:
        """SIGTERM; a second one does not wait for the commit."""
        self._end(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, as SIGTERM."""
        if not self._commands.ending:
            click.echo("stopping after the next commit; interrupt again to stop at once", err=True)
        self._end(signal.SIGINT)

    def ended(self) -> click.exceptions.Exit:
        """What ends a replay that is not complete."""
        return click.exceptions.Exit(ended_code(FAILED, self.signals, is_done=False))

    def _end(self, number: int) -> None:
        self.signals.add(number)
        if self._commands.ending and self._work is not None:
            self._work.cancel()
        self._commands.end()
        self._progress.state("ending")


@contextmanager
def steered(commands: Commands, progress: RecordProgress) -> Iterator[Steering]:
    """While this lasts, signals to the process steer the replay of the current task."""
    steering = Steering(commands, progress)
    loop = asyncio.get_running_loop()
    handlers = {
        signal.SIGUSR1: steering.pause,
        signal.SIGUSR2: steering.resume,
        signal.SIGTERM: steering.terminate,
        signal.SIGINT: steering.interrupt,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield steering
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)

"""`replayer replay`."""

import asyncio
import gc
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import FAILED, PARTLY_FAILED, BrokerUnreachable, PartitionUnavailable, UsageError, exit_code
from blockgz.process import loop_signals, run_async, share_heaps
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing, ended_code, print_failure
from blockgz.program.progress import RecordProgress, record_progress
from blockgz.store.writer import Store
from index_format.errors import BlockgzError, masked_urls
from replayer.cli.options.options import archive_options, json_option, open_archive
from replayer.cli.options.replay_options import ReplayOptions, replay_options
from replayer.cli.options.selection_options import print_skipped, with_choice
from replayer.cli.options.spark_options import SparkOptions, spark_switch
from replayer.cli.replay_output import (
    agreed,
    left_out_json,
    print_left_out,
    print_result,
    proof_command,
    skipped_json,
)
from replayer.errors import DeliveryFailed
from replayer.replay.job import check_job_name
from replayer.replay.jobs.control import (
    ControlThread,
    JobControl,
    JobFailure,
    JobProgress,
    ReportedState,
    lanes_progress,
)
from replayer.replay.jobs.folder import open_jobs, this_process
from replayer.replay.pace import Commands, Slowest, parse_rate
from replayer.replay.plan import ReplayPlan
from replayer.replay.replaying import PlannedReplay, job_alone, planned_replay
from replayer.replay.result import ReplayResult, result_json
from replayer.replay.run import Progress
from replayer.replay.stages import wall_clock
from replayer.replay.surroundings import Surroundings
from replayer.replay.target_topic import undo_retention


class Steering:
    """Pauses, paces and ends the replay of the current task, and knows how far it is.

    It is a `Steered` of replayer.replay.jobs.control; the rest is called in the thread of the event loop.
    """

    def __init__(self, pace: Slowest, rate: str | None) -> None:
        """`rate` is that of the pace, as it was given."""
        self.commands = Commands()
        self.signals: set[int] = set()
        """The signals that requested the end; a command to cancel counts as SIGTERM."""
        self.result: ReplayResult | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when the state or the rate did."""
        self._pace, self._rate = pace, rate
        self._plan: ReplayPlan | None = None
        self._shown: RecordProgress | None = None
        self._began = 0.0
        self._records = self._bytes = 0
        self._work, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self.run = uuid.uuid4().hex

    @contextmanager
    def running(self, plan: ReplayPlan, *, as_json: bool) -> Iterator[Progress]:
        """While this lasts the replay of that plan runs: its progress is shown, and signals steer it."""
        handlers = {
            signal.SIGUSR1: self.pause,
            signal.SIGUSR2: self.resume,
            signal.SIGTERM: self.terminate,
            signal.SIGINT: self.interrupt,
        }
        before = plan.written
        with record_progress("replaying", plan.records, as_json=as_json, before=before) as shown:
            self._shown, self._plan, self._began = shown, plan, self.commands.elapsed()
            if self.commands.paused:
                self._show("paused")
            self.changed()
            try:
                with loop_signals(handlers):
                    yield self._advance
            finally:
                self._shown = None

    def pause(self) -> None:
        self.commands.pause()
        self._show("paused")

    def resume(self) -> None:
        self.commands.resume()
        self._show("replaying")

    def limit(self, rate: str | None) -> None:
        """Change the rate, None for no limit; raises UsageError."""
        self._pace.limit(None if rate is None else parse_rate(rate))
        self._rate = rate
        self.commands.wake()
        self.changed()

    def terminate(self) -> None:
        """End as SIGTERM does; a second one does not wait for the commit."""
        self._end(signal.SIGTERM)

    def interrupt(self) -> None:
        """End as SIGINT does: as SIGTERM, with a note."""
        if not self.commands.ending:
            click.echo("stopping after the next commit; interrupt again to stop at once", err=True)
        self._end(signal.SIGINT)

    def cancel(self) -> None:
        """End as one SIGTERM does, however often this is called; end at once before the first record."""
        if self.commands.ending:
            return
        self._end(signal.SIGTERM)
        if self._plan is None and self._work is not None:
            self._work.cancel()

    def ended(self) -> click.exceptions.Exit:
        """Return the exit of a replay that is not complete."""
        return click.exceptions.Exit(ended_code(FAILED, self.signals, is_done=False))

    def follow(self, seen: JobControl, now: JobControl) -> None:
        """See Steered."""
        self._loop.call_soon_threadsafe(self._follow, seen, now)

    def warn(self, text: str) -> None:
        """See Steered."""
        click.echo(text, err=True)

    def _follow(self, seen: JobControl, now: JobControl) -> None:
        if now.rate != seen.rate:
            try:
                self.limit(now.rate)
            except UsageError as error:
                click.echo(f"the rate stays as it is: {error.what} ({error.why})", err=True)
        if now.state != seen.state or now.rate == seen.rate:
            {"run": self.resume, "pause": self.pause, "cancel": self.cancel}[now.state]()

    def progress(self, last: ReportedState | None = None, failure: JobFailure | None = None) -> JobProgress:
        """Return the progress of the replay; `last` is its last state."""
        plan = self._plan
        return JobProgress(
            run=self.run,
            state=last or self._state,
            records=self._records,
            total=plan.records if plan else None,
            bytes=self._bytes,
            seconds=round(self.commands.elapsed() - self._began, 3) if plan else 0.0,
            rate=self._rate,
            records_before=plan.written if plan else 0,
            lanes=lanes_progress(self.commands.committed),
            updated_at=wall_clock(),
            attempt_host=this_process(),
            failure=failure,
        )

    @property
    def _state(self) -> ReportedState:
        if self.commands.ending:
            return "ending"
        if self._plan is None:
            return "planning"
        return "paused" if self.commands.paused else "running"

    def _advance(self, records: int, num_bytes: int) -> None:
        self._records += records
        self._bytes += num_bytes
        if self._shown is not None:
            self._shown(records, num_bytes)

    def _end(self, number: int) -> None:
        self.signals.add(number)
        if self.commands.ending and self._work is not None:
            self._work.cancel()
        self.commands.end()
        self._show("ending")

    def _show(self, text: str) -> None:
        if self._shown is not None:
            self._shown.state(text)
        self.changed()


@contextmanager
def controlled(jobs: Store, options: ReplayOptions, steering: Steering) -> Iterator[None]:
    """While this lasts the job is this run's alone, and its folder steers the run and says how far it is.

    Raises JobTakenOver, or UsageError for a name that no job can have.
    """
    name = options.request.job
    assert name is not None
    check_job_name(name)
    with job_alone(options.request, name):
        thread = ControlThread(jobs, name, steering.run, options.rate, steering)
        steering.changed = thread.wake
        thread.start()
        last: ReportedState = "ended"
        failure = None
        try:
            yield
            last = "complete" if steering.result is not None and steering.result.complete else "ended"
        except asyncio.CancelledError as error:
            if not steering.signals:
                raise
            click.echo("cancelled before the first record", err=True)
            raise steering.ended() from error
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            last, failure = "failed", _failure_of(error)
            raise
        finally:
            thread.end(steering.progress(last, failure))


def _failure_of(error: Exception) -> JobFailure:
    if isinstance(error, BlockgzError):
        what, why, remedy = map(masked_urls, (error.what, error.why, error.remedy))
        return JobFailure(what, why, remedy, exit_code(error))
    return JobFailure(f"{type(error).__name__}: {error}", "this is a bug", "report it", FAILED)


@click.command(
    "replay",
    epilog=closing(
        "replayer replay orders --to-topic orders-restored -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic orders-copy --create-topic --at 2026-11-20T12:00:00Z -b HOST:PORT -a DIR",
        "replayer replay orders --to-topic orders-copy --transactional --resume --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic load-test --rate 20MB/s --yes -b localhost:9092 -a ./archive",
        "replayer replay orders --to-topic '{topic}-v2' --create-topic --partitions by-key:24 -b HOST:PORT -a DIR",
        "replayer replay orders:0,2-4 --to-topic test --from -1000 --dry-run -b localhost:9092 -a s3://bucket/prefix",
        "replayer replay orders --to-topic orders-copy --transactional --spark -b HOST:PORT -a s3://bucket/prefix",
    ),
)
@replay_options
@spark_switch(without=("jobs", "patience", "rate", "speed", "control"), why="only a single process can keep to it")
@json_option
@kafka_options(required=True)
@archive_options
def command(
    options: ReplayOptions,
    spark: SparkOptions | None,
    as_json: bool,
    kafka: dict[str, str],
    archive: ArchivePlace,
) -> int:
    """Write archived records to a topic, unchanged and in order.

    Prints the plan and asks first. With --transactional, every record arrives exactly once, however often the replay is
    interrupted and resumed with --resume. Without it, the producer is idempotent, but after a crash everything sent
    since the last checkpoint is sent again.

    SIGUSR1 pauses, SIGUSR2 resumes. SIGTERM and Ctrl-C commit, then exit. With --control, replayer jobs does the same
    from anywhere.

    With --spark, each source partition is one Spark task, however large: executors beyond the number of partitions are
    idle. With --transactional, every record still arrives exactly once, across retried tasks and lost executors.
    """
    if options.request.undo_retention:
        click.echo(undo_retention(options.request.target, kafka))
        return 0
    if spark is not None:
        from replayer.cli.replay_on_spark import replay_on_spark  # noqa: PLC0415  # Spark is an extra

        return with_choice(lambda rule: run_async(replay_on_spark(options.ruled(rule), spark, as_json, kafka, archive)))
    share_heaps()
    gc.freeze()
    return with_choice(lambda rule: run_async(_replay(options.ruled(rule), as_json, kafka, archive)))


async def _replay(options: ReplayOptions, as_json: bool, properties: dict[str, str], address: ArchivePlace) -> int:
    request = options.request
    steering = Steering(request.pace, options.rate)
    async with AsyncExitStack() as stack:
        if options.control:
            stack.enter_context(controlled(open_jobs(request.jobs, address), options, steering))
        archive = await stack.enter_async_context(open_archive(address))
        around = Surroundings(archive, properties, open_jobs(request.jobs, address))
        planned = await stack.enter_async_context(planned_replay(request, around))
        planned.is_alone = options.control
        if not agreed(planned.plan, options, as_json=as_json, seconds=round(planned.seconds, 3)):
            return 0
        result = await _run(planned, steering, as_json)
    left_out, skipped = planned.target.left_out, planned.damage.skipped
    proof = proof_command(planned.plan.job.name, request.jobs, properties, address)
    if as_json:
        more = {"verify": proof, "skipped": skipped_json(skipped), **left_out_json(left_out)}
        click.echo(msgspec.json.encode(result_json(planned.plan, result) | more))
    else:
        print_result(planned.plan, result)
        print_left_out(left_out)
        click.echo(f"to prove it: {proof}", err=True)
    incomplete = print_skipped(planned.damage) or (PARTLY_FAILED if left_out.unfit or planned.plan.missing else 0)
    return ended_code(incomplete, steering.signals, is_done=result.complete)


async def _run(planned: PlannedReplay, steering: Steering, as_json: bool) -> ReplayResult:
    async with planned.begun() as run:
        with steering.running(planned.plan, as_json=as_json) as progress:
            try:
                steering.result = await run(steering.commands, progress)
            except asyncio.CancelledError as error:
                click.echo("\n".join(error.__notes__), err=True)
                raise steering.ended() from error
            except (BrokerUnreachable, DeliveryFailed, PartitionUnavailable) as error:
                if not steering.signals:
                    raise
                print_failure(error)
                raise steering.ended() from error
        if (note := await planned.settled(steering.result)) is not None:
            click.echo(note, err=True)
    return steering.result

"""`replayer replay`: its options, its plan and result for people and as JSON, and a run here or on Spark."""

import asyncio
import gc
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import click
import msgspec

from blockgz import errors
from blockgz.archive.archive import ArchivePlace, TopicPartitions, parse_topic
from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.positions import OffsetRange, Rule
from blockgz.process import loop_signals, run_async, share_heaps
from blockgz.program import options as shared
from blockgz.program.main import closing, confirm, ended_code, noting_what_is_left, print_failure
from blockgz.program.progress import RecordProgress, record_progress
from blockgz.program.terminal import print_each, print_table, range_text
from blockgz.store.writer import Store
from blockgz.units import bytes_text, time_text, wall_clock
from replayer.cli.options.options import (
    SparkOptions,
    archive_options,
    jobs_option,
    json_option,
    open_archive,
    spark_switch,
)
from replayer.cli.options.selection_options import (
    CHOOSE_BY_OPTION,
    damage_option,
    print_skipped,
    record_options,
    with_choice,
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
from replayer.replay.pace import Commands, Slowest, make_pace, parse_rate
from replayer.replay.pipeline import LeftOut
from replayer.replay.plan import ReplayPlan
from replayer.replay.replaying import PlannedReplay, job_alone, planned_replay
from replayer.replay.request import CommandOption, ReplayRequest, Surroundings, named_target
from replayer.replay.run import Progress, ReplayResult
from replayer.replay.target_topic import undo_retention

if TYPE_CHECKING:
    from replayer.spark.replay import LanesResult, Replay


class ReplayOptions(NamedTuple):
    """The options of a replay.

    `rate` is that of the request's pace, as it was given; with `control` the job's folder steers the replay.
    """

    request: ReplayRequest
    dry_run: bool
    yes: bool
    rate: str | None = None
    control: bool = False

    def ruled(self, rule: Rule | None) -> "ReplayOptions":
        """Return the same options with a rule for `--at`."""
        return self._replace(request=replace(self.request, selection=self.request.selection.ruled(rule)))


def _option(name: str, given: CommandOption, default: object) -> shared.Option:
    if default is False:
        return shared.Option(given.name, name, is_flag=True, **given.attributes)
    if given.choices:
        return shared.choice_option(given.name, name, choices=given.choices, **given.attributes)
    file = shared.LocalPath(exists=True, dir_okay=False, path_type=Path)
    types = {"text": None, "file": file, "duration": shared.DURATION}
    return shared.Option(given.name, name, parse=given.parse, type=types[given.kind], **given.attributes)


def _options() -> dict[str, shared.Option]:
    """Map each field of a request that a command sets to its option, in the order of the help."""
    hints = get_type_hints(ReplayRequest, include_extras=True)
    found = {}
    for each in fields(ReplayRequest):
        for given in getattr(hints[each.name], "__metadata__", ()):
            found[each.name] = _option(each.name, given, each.default)
    return found


def _make_options(
    topic: TopicPartitions,
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    rate: str | None,
    speed: str | None,
    control: bool,
    **given: Any,
) -> ReplayOptions:
    if (given["topic_config"] or given["omit_topic_config"]) and not given["create_topic"]:
        raise click.UsageError(
            "--topic-config requires --create-topic, as --omit-topic-config does: existing topics are not changed"
        )
    if given["undo_retention"] and (dry_run or given["resume"]):
        raise click.UsageError("--undo-retention replays nothing: remove --resume and --dry-run")
    if control and (dry_run or given["undo_retention"]):
        raise click.UsageError("--control steers a running replay: remove --dry-run and --undo-retention")
    if control and given["job"] is None:
        raise click.UsageError("--control requires --job NAME: the name says which folder to look at")
    target = named_target(to_topic, topic, given["chain"])
    if target is None:
        raise click.UsageError("--to-topic, which says where the records go, is missing")
    request = ReplayRequest(topic, target, pace=make_pace(rate, speed), **given)
    return ReplayOptions(request, dry_run, yes, rate, control)


_BY_FIELD = _options()
# Fields about changes to records, and about the target topic.
TARGET_FIELDS = tuple(_BY_FIELD)[: tuple(_BY_FIELD).index("undo_retention") + 1]

replay_options = shared.OptionSet(
    "options",
    _make_options,
    shared.Argument("topic", metavar="TOPIC[:P[,P-P]]", parse=parse_topic),
    shared.Option(
        "--to-topic",
        metavar="TOPIC",
        help="Target topic; {topic} stands for the archived topic's name. Transforms that route by name "
        "alone can replace it.",
    ),
    record_options,
    *(option for name, option in _BY_FIELD.items() if name in TARGET_FIELDS),
    damage_option,
    *(option for name, option in _BY_FIELD.items() if name not in TARGET_FIELDS),
    shared.dry_run_option,
    shared.yes_option,
    jobs_option,
    shared.Option(
        "--rate", metavar="N/s", help="Maximum rate: records (5000/s), or bytes of keys and values (20MB/s)."
    ),
    shared.Option("--speed", metavar="Nx", help="Follow the timestamps: 1x in real time, 10x ten times as fast."),
    shared.Option(
        "--control",
        is_flag=True,
        help="Report progress to the job's folder, and take commands from it: see replayer jobs.",
    ),
)


def agreed(plan: ReplayPlan, options: ReplayOptions, *, as_json: bool, seconds: float | None = None) -> bool:
    """Print the plan, and the `seconds` it may take, and asks whether to write; False for a dry run.

    Raises UsageError without a terminal, click.exceptions.Exit for a no.
    """
    if not as_json:
        _print_plan(plan)
        cost = f"about {plan.requests:,} requests to the store for {bytes_text(plan.stored_bytes)}"
        click.echo(cost if seconds is None else f"{cost}, {duration_text(seconds)} or more", err=True)
    if options.dry_run:
        if as_json:
            planned = {"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan) | {"seconds": seconds}}
            click.echo(msgspec.json.encode(planned))
        return False
    refuse_doubtful(plan.cuts, CHOOSE_BY_OPTION)
    question = f"Write {_count_text(plan)} to {plan.target}?"
    confirm(question, undone=f"nothing was written to {plan.target}", is_agreed=options.yes)
    return True


def _print_plan(plan: ReplayPlan) -> None:
    """Print the plan as a table, and its warnings, on stderr."""
    columns = ("PARTITION", "OFFSETS", "RECORDS", "SIZE", "FROM", "TO")
    rows: list[tuple[str | int, ...]] = [
        (
            source.partition,
            range_text(source.start, source.end),
            source.records,
            bytes_text(source.bytes),
            *(time_text(time) for time in source.timestamps or (None, None)),
        )
        for source in plan.sources
    ]
    title = f"{plan.topic} -> {plan.target}, {_count_text(plan)}"
    print_table(columns, rows, droppable=("SIZE", "FROM", "TO"), title=title, file=sys.stderr)
    print_each("note: ", plan.notes, err=True)
    print_cut_bytes(plan.cut_bytes)
    print_each("warning: ", plan.warnings, err=True)


def print_cut_bytes(num_bytes: int) -> None:
    """Print on stderr how much was read to find the ends as of a time."""
    if num_bytes:
        click.echo(f"read {bytes_text(num_bytes)} of blocks to find the cuts", err=True)


def _count_text(plan: ReplayPlan) -> str:
    return f"{'' if plan.is_exact else 'at most '}{plan.records} records"


def duration_text(seconds: float) -> str:
    """Return seconds as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def print_result(plan: ReplayPlan, result: ReplayResult) -> None:
    columns = ("PARTITION", "TARGET", "RECORDS", "OFFSETS", "TARGET OFFSETS")
    rows = [
        (
            lane.partition,
            lane.target_partition,
            lane.records,
            _range_text(lane.offsets),
            _range_text(lane.target_offsets),
        )
        for lane in result.partitions
    ]
    print_table(columns, rows)
    rate = result.records / result.seconds if result.seconds else 0
    click.echo(
        f"{result.records} records ({bytes_text(result.bytes)}) replayed to {plan.target} in {result.seconds:.1f} s, "
        f"{rate:,.0f} records/s"
    )
    if result.records_before:
        click.echo(f"{result.records_before} records of job {plan.job.name} had been written before")
    if not result.complete:
        click.echo(f"not complete: repeat the command with --resume --job {plan.job.name}", err=True)
    print_each("note: ", cut_lines(plan.cuts), err=True)
    if result.zero_timestamps:
        click.echo(f"warning: {result.zero_timestamps} records with timestamp 0 were sent with 1", err=True)


def proof_command(job: str, jobs: str | None, properties: Mapping[str, str], archive: ArchivePlace) -> str:
    """Return the command that proves the records that a job wrote; settings of the connection (-X) are to be added."""
    return f"replayer verify --job {shlex.quote(job)} {place_options(jobs, properties, archive)}"


def place_options(jobs: str | None, properties: Mapping[str, str], archive: ArchivePlace) -> str:
    """Return the options that name an archive, a cluster and the folder of jobs in the commands that are shown."""
    words = ["-a", str(archive.address), "-b", properties["bootstrap.servers"]]
    given = {"jobs": jobs, "keys": archive.keys, **asdict(archive.s3)}
    for name, value in given.items():
        if value is not None and errors.masked_urls(value) == value:  # that of a proxy may have a password
            words += [f"--{name.replace('_', '-')}", value]
    return shlex.join(words)


def plan_json(plan: ReplayPlan) -> dict[str, Any]:
    """Return the plan for `--json`; `to` is excluded, and there are at most `records` unless `records_exact`."""
    return {
        "topic": plan.topic,
        "target": plan.target,
        "target_partitions": plan.target_partitions,
        "records": plan.records,
        "records_exact": plan.is_exact,
        "bytes": plan.bytes,
        "stored_bytes": plan.stored_bytes,
        "requests": plan.requests,
        "partitions": [
            {
                "partition": source.partition,
                "target_partitions": list(plan.router.targets(source.partition)),
                "from": source.start,
                "to": source.end,
                "records": source.records,
                "bytes": source.bytes,
                "min_timestamp_ms": source.timestamps.min if source.timestamps else None,
                "max_timestamp_ms": source.timestamps.max if source.timestamps else None,
                "pruned": _range_json(source.pruned),
            }
            for source in plan.sources
        ],
        "cuts": [cut.document(partition) for _, partition, cut in plan.cuts],
        "cut_bytes": plan.cut_bytes,
        "job": plan.job.name,
        "transactional": plan.transactional,
        "records_before": plan.written,
        "notes": plan.notes,
        "warnings": plan.warnings,
    }


def result_json(plan: ReplayPlan, result: ReplayResult) -> dict[str, Any]:
    """Return the result for `--json`; `to` and `target_to` are excluded."""
    return {
        "records": result.records,
        "partitions": [
            {
                "partition": lane.partition,
                "target_partition": lane.target_partition,
                "records": lane.records,
                **_range_json(lane.offsets),
                **_range_json(lane.target_offsets, "target_"),
            }
            for lane in result.partitions
        ],
        "topic": plan.topic,
        "target": plan.target,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "zero_timestamps": result.zero_timestamps,
        "records_before": result.records_before,
        "complete": result.complete,
        "lost_commits": result.lost_commits,
        "targets": [
            {
                "target_partition": lane.target_partition,
                "records": lane.records,
                "records_before": lane.records_before,
                **_range_json(lane.offsets),
                "sha256": lane.sha256,
            }
            for lane in result.targets
        ],
        "plan": plan_json(plan),
    }


def _range_json(offsets: OffsetRange | None, prefix: str = "") -> dict[str, int | None]:
    start, end = offsets or (None, None)
    return {f"{prefix}from": start, f"{prefix}to": end}


def left_out_json(left_out: LeftOut) -> dict[str, Any]:
    """Return how many records transforms left out, and how many each of them changed, for `--json`."""
    told = msgspec.to_builtins(left_out)
    return {"transforms": told.pop("changed"), "left_out": told}


def print_left_out(left_out: LeftOut) -> None:
    """Print how many records transforms left out, and how many each of them changed."""
    for number, reason in (
        (left_out.dropped, "dropped by transforms"),
        (left_out.routed_elsewhere, "routed to other topics by transforms"),
        (left_out.unfit, "skipped because a transform could not handle them"),
    ):
        if number:
            click.echo(f"{number} records were {reason}")
    for name, number in left_out.changed.items():
        click.echo(f"{number} records were changed by transform {name}")


def _range_text(offsets: OffsetRange | None) -> str:
    return "-" if offsets is None else range_text(offsets.start, offsets.end)


class Steering:
    """Pauses, paces and ends the replay of the current task, and knows how far it is.

    `follow` and `progress` are called in the control thread, the rest in that of the event loop.
    """

    def __init__(self, pace: Slowest, rate: str | None) -> None:
        """`rate` is that of the pace, as it was given."""
        self.commands = Commands()
        # The signals that requested the end; a command to cancel counts as SIGTERM.
        self.signals: set[int] = set()
        self.result: ReplayResult | None = None
        # Called when the state or the rate did.
        self.changed: Callable[[], None] = lambda: None
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
        return click.exceptions.Exit(ended_code(errors.FAILED, self.signals, is_done=False))

    def follow(self, seen: JobControl, now: JobControl) -> None:
        """Carry out the command `now`, after `seen`."""
        self._loop.call_soon_threadsafe(self._follow, seen, now)

    def _follow(self, seen: JobControl, now: JobControl) -> None:
        if now.rate != seen.rate:
            try:
                self.limit(now.rate)
            except errors.UsageError as error:
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
        warn = partial(click.echo, err=True)
        thread = ControlThread(jobs, name, steering.run, options.rate, steering.progress, steering.follow, warn)
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
    if isinstance(error, errors.BlockgzError):
        what, why, remedy = map(errors.masked_urls, (error.what, error.why, error.remedy))
        return JobFailure(what, why, remedy, errors.exit_code(error))
    return JobFailure(f"{type(error).__name__}: {error}", "this is a bug", "report it", errors.FAILED)


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
@shared.kafka_options(required=True)
@archive_options
def command(
    options: ReplayOptions, spark: SparkOptions | None, as_json: bool, kafka: dict[str, str], archive: ArchivePlace
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
        lost = [
            {"partition": partition.partition, "from": each.start, "to": each.end, "reason": each.reason}
            for partition, each in skipped
        ]
        more = {"verify": proof, "skipped": lost, **left_out_json(left_out)}
        click.echo(msgspec.json.encode(result_json(planned.plan, result) | more))
    else:
        print_result(planned.plan, result)
        print_left_out(left_out)
        click.echo(f"to prove it: {proof}", err=True)
    incomplete = print_skipped(planned.damage) or (
        errors.PARTLY_FAILED if left_out.unfit or planned.plan.missing else 0
    )
    return ended_code(incomplete, steering.signals, is_done=result.complete)


async def replay_on_spark(
    options: ReplayOptions, spark: SparkOptions, as_json: bool, properties: dict[str, str], address: ArchivePlace
) -> int:
    """Plan the replay, ask, and run it with one Spark task per source partition; return the exit code."""
    with shared.spark_needed("replayer replay --spark"):
        from replayer.spark.replay import planned_lanes  # noqa: PLC0415
    async with (
        open_archive(address) as archive,
        planned_lanes(options.request, archive, address.absolute(), properties) as (target, plan, job),
    ):
        if not agreed(plan, options, as_json=as_json):
            return 0
        await asyncio.to_thread(target.make_ready, plan.lifted)
        begun = time.monotonic()
        result = await _run_on_spark(job, plan, spark, as_json=as_json)
        note = await target.set_back() if result.complete else None
        if note is not None:
            click.echo(note, err=True)
    if as_json:
        click.echo(msgspec.json.encode(_spark_result_json(plan, result, time.monotonic() - begun)))
    else:
        _print_spark_result(plan, result, time.monotonic() - begun)
    for source, (start, end, reason) in result.skipped:
        click.echo(f"FAILURE {plan.topic}:{source} skipped offsets [{start}..{end}): {reason}", err=True)
    return errors.PARTLY_FAILED if result.skipped or result.left_out.unfit or plan.missing else 0


async def _run_on_spark(job: "Replay", plan: ReplayPlan, spark: SparkOptions, *, as_json: bool) -> "LanesResult":
    from blockgz.spark.session import session  # noqa: PLC0415
    from replayer.spark.replay import LanesResult, run_rounds, written  # noqa: PLC0415

    if not job.tasks(job.before):
        return LanesResult(job.before, job.before)
    with (
        session("blockgz replay", spark.master, spark.settings) as running,
        noting_what_is_left(lambda: f"not complete: repeat the command with --resume --job {plan.job.name}"),
        record_progress("replaying", plan.records, as_json=as_json, before=written(job.before)) as advance,
    ):
        bytes_each = plan.bytes / plan.records if plan.records else 0
        return await run_rounds(job, running, lambda records: advance(records, int(records * bytes_each)))


def _spark_result_json(plan: ReplayPlan, result: "LanesResult", seconds: float) -> dict[str, object]:
    return {
        "records": result.records,
        "partitions": [
            {
                "partition": source,
                "target_partitions": list(plan.router.targets(source)),
                "records": position.written - result.before[source].written,
                "records_before": result.before[source].written,
                "from": result.before[source].sources[source].next,
                "to": position.sources[source].next,
            }
            for source, position in sorted(result.now.items())
        ],
        "topic": plan.topic,
        "target": plan.target,
        "seconds": round(seconds, 3),
        "zero_timestamps": sum(outcome.zero_timestamps for outcome in result.outcomes),
        "records_before": result.records_before,
        "complete": result.complete,
        "lost_commits": sum(outcome.lost_commits for outcome in result.outcomes),
        "tasks": len(result.outcomes),
        **left_out_json(result.left_out),
        "skipped": [
            {"partition": source, "from": start, "to": end, "reason": reason}
            for source, (start, end, reason) in result.skipped
        ],
        "plan": plan_json(plan),
    }


def _print_spark_result(plan: ReplayPlan, result: "LanesResult", seconds: float) -> None:
    rows = []
    for source, now in sorted(result.now.items()):
        before = result.before[source]
        offsets = range_text(before.sources[source].next, now.sources[source].next)
        rows.append((str(source), str(now.written - before.written), offsets))
    print_table(("PARTITION", "RECORDS", "OFFSETS"), rows)
    click.echo(f"{result.records} records replayed to {plan.target} in {seconds:.1f} s")
    if result.records_before:
        click.echo(f"{result.records_before} records of job {plan.job.name} had been written before")
    if zeros := sum(outcome.zero_timestamps for outcome in result.outcomes):
        click.echo(f"warning: {zeros} records with timestamp 0 were sent with 1", err=True)
    print_left_out(result.left_out)


async def _run(planned: PlannedReplay, steering: Steering, as_json: bool) -> ReplayResult:
    async with planned.begun() as run:
        with steering.running(planned.plan, as_json=as_json) as progress:
            try:
                steering.result = await run(steering.commands, progress)
            except asyncio.CancelledError as error:
                click.echo("\n".join(error.__notes__), err=True)
                raise steering.ended() from error
            except (errors.BrokerUnreachable, DeliveryFailed, errors.PartitionUnavailable) as error:
                if not steering.signals:
                    raise
                print_failure(error)
                raise steering.ended() from error
        if (note := await planned.settled(steering.result)) is not None:
            click.echo(note, err=True)
    return steering.result

"""`archiver run`: its processes, their progress, and the report at the end.

With `--once --workers N` forks drain a share of the partitions each, and there is one report of them all.
"""

import faulthandler
import gc
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import click
import orjson
import pyarrow as pa
from msgspec.structs import replace

from archiver.cli.config_options import config_options
from archiver.errors import TopicGone, WorkerLost
from archiver.ingest.assignment import WHOLE, DrainShare
from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.kafka_source import Partition, check_settings, name_of
from archiver.ingest.ownership import PartitionHistory, PartitionState
from archiver.ingest.service import ArchiverService
from archiver.ingest.workers import WORKER_VARIABLE, Forks, Workers, own_http, worker_commands
from archiver.logs import LogEvent, log, log_to, progress_log
from archiver.monitor.snapshot import PartitionSnapshot, ServiceSnapshot
from blockgz import process
from blockgz.archive.inventory import undone_text, undone_topics
from blockgz.config.files import KAFKA_PREFIX
from blockgz.config.model import RunConfig
from blockgz.config.resolution import Resolved
from blockgz.encryption.keyring import load_keyring
from blockgz.errors import PARTLY_FAILED, BlockgzError, BrokerUnreachable, StoreUnavailable, exit_code, listed
from blockgz.hosts import unencrypted_brokers, unencrypted_endpoint
from blockgz.program.main import TERMINATED, closing, ended_code, error_lines, print_failure
from blockgz.program.options import used_config
from blockgz.program.terminal import print_each, print_table, printable
from blockgz.store.opening import default_buffer_root, open_store
from blockgz.store.writer import ToolStore
from blockgz.units import bytes_text

LOOK_SECONDS = 0.5
LINE_SECONDS = 10.0
ENDED = (PartitionState.DONE, PartitionState.STOPPED, PartitionState.RELEASED, PartitionState.GONE)


class RunProgress(NamedTuple):
    """The offsets and bytes since the first look."""

    offsets: int = 0
    total: int | None = None
    """Offsets from the first look to the end of a run; None if it has no end, or not all ends are known yet."""
    bytes: int = 0
    """Compressed bytes, committed or not."""

    @property
    def ended(self) -> "RunProgress":
        """The progress when nothing is left to do."""
        return self._replace(total=self.offsets)

    @property
    def percent(self) -> float | None:
        if self.total is None:
            return None
        return round(100 * self.offsets / self.total, 1) if self.total else 100.0

    def eta_seconds(self, seconds: float) -> float | None:
        """Return the remaining seconds if `offsets` took this many seconds."""
        if self.total is None or not self.offsets:
            return None
        return round((self.total - self.offsets) / self.offsets * seconds, 1)


class ProgressTally:
    """A sum of the partitions' progress, updated with each look."""

    def __init__(self) -> None:
        self._began: dict[Partition, int] = {}
        self._reached: dict[Partition, int] = {}

    def look(self, partitions: Iterable[PartitionSnapshot], ends: Mapping[Partition, int]) -> RunProgress:
        """Return the progress; `ends` has the offsets at which the partitions are drained."""
        num_bytes, left, all_known = 0, 0, bool(ends)
        for each in partitions:
            partition = (each.topic, each.partition)
            position = each.position if each.position is not None else each.durable_offset
            if position is not None:
                began = position if each.durable_offset is None else min(position, each.durable_offset)
                self._began.setdefault(partition, began)
                self._reached[partition] = max(position, self._reached.get(partition, position))
            num_bytes += each.stored_bytes + each.open_chunk_bytes
            if each.state in ENDED:
                continue
            end, reached = ends.get(partition), self._reached.get(partition)
            if end is None or reached is None:
                all_known = False
            else:
                left += max(0, end - reached)
        offsets = sum(reached - self._began[partition] for partition, reached in self._reached.items())
        return RunProgress(offsets, offsets + left if all_known else None, num_bytes)


def looking_at(service: ArchiverService) -> Callable[[], RunProgress]:
    """Return a function that returns the progress of the service; safe to call from any thread."""
    tally = ProgressTally()

    def look() -> RunProgress:
        ends = {partition: report.end_offset for partition, report in list(service.reports.items())}
        known = {partition: end for partition, end in ends.items() if end is not None}
        return tally.look(service.snapshot().partitions, known)

    return look


def summed(parts: Iterable[RunProgress]) -> RunProgress:
    """Return the progress of workers together."""
    parts = list(parts)
    totals = [part.total for part in parts if part.total is not None]
    return RunProgress(
        sum(part.offsets for part in parts),
        sum(totals) if len(totals) == len(parts) else None,
        sum(part.bytes for part in parts),
    )


Show = Callable[[RunProgress], None]


def shown_progress(look: Callable[[], RunProgress], show: Show) -> AbstractContextManager[None]:
    """Show the progress of a block, from a thread."""
    return process.every(LOOK_SECONDS, lambda: show(look()))


class CurrentStderr(io.TextIOBase):
    """The current `sys.stderr`: a bar replaces it while it is shown, and escapes nothing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(printable(text) if sys.stderr.isatty() else text)

    def flush(self) -> None:
        sys.stderr.flush()


class Lines:
    """A line of the log every LINE_SECONDS, if there is something new."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._told_at = clock()
        self._told = RunProgress()

    def __call__(self, progress: RunProgress) -> None:
        now = self._clock()
        is_news = progress.total is not None or progress != self._told
        if now - self._told_at >= LINE_SECONDS and is_news:
            self._told_at, self._told = now, progress
            seconds = now - self._began
            progress_log.info(
                LogEvent.PROGRESS,
                offsets=progress.offsets,
                bytes=progress.bytes,
                seconds=round(seconds, 1),
                percent=progress.percent,
                eta_seconds=progress.eta_seconds(seconds),
            )


@contextmanager
def _bar() -> Iterator[Show]:
    # Bars take a while to load, and only people see them.
    from blockgz.program.progress import record_progress  # noqa: PLC0415

    with record_progress("archiving", None, as_json=False) as advance:
        told = RunProgress()

        def show(progress: RunProgress) -> None:
            nonlocal told
            advance.expect(progress.total)
            advance(progress.offsets - told.offsets, progress.bytes - told.bytes)
            told = progress

        yield show


# Seconds after `--grace` for leaving the group and closing clients: Kubernetes kills 30 s after SIGTERM.
LEAVE_SECONDS = 4.0

# Seconds that a late end waits for the removal of its buffer folder.
CLOSE_SECONDS = 1.0


class RunResult(NamedTuple):
    """The partitions, missing topics and signals of a run."""

    partitions: Sequence[PartitionHistory]
    missing_topics: Collection[str]
    """Topics that are named and that the cluster does not have."""
    signals: Collection[int] = ()
    """Signals that ended the run."""


# Print what was done, and return the exit code.
Report = Callable[[RunResult], int]

# The result of a fork, its failure, or its progress.
Told = RunResult | BlockgzError | RunProgress


def prepare() -> None:
    """Make the settings of the whole process, which its forks inherit, before it starts threads."""
    process.share_heaps()
    with process.pandas_refused():
        pa.array([])
    gc.freeze()  # what is loaded stays, and forks share it
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a client library that crashes takes the process with it: where, at least


def archive(config: RunConfig, share: DrainShare, report: Report, showing: AbstractContextManager[Show]) -> int:
    """Run one process from its start to its report, and return the exit code; raises what keeps it from starting.

    `showing` enters a function that shows progress.
    """
    if config.encrypt is not None:
        _ = load_keyring(config.encrypt).tail  # what keeps the keys from being used shows now
    store = open_store(config.archive, config.s3, single_writer=config.single_writer)
    buffer = BufferFolder(config.buffer_dir or default_buffer_root(config.archive))
    service = ArchiverService(config, store, buffer, share=share)

    def ended() -> int:
        return report(RunResult(list(service.reports.values()), service.missing_topics, signals))

    def ended_early(waited: float) -> int:
        # This end is in order: the next start must not call it a death. A disk that hangs must not hold it up either.
        closing = threading.Thread(target=buffer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        log.warning(LogEvent.UNANSWERED, seconds=waited)
        return ended() if service.failure is None else print_failure(service.failure)

    signals = process.stop_on_signals(service.stop)
    if not config.once:
        process.call_on_hangup(service.try_again)
    bound = process.ended_in_time(service.ending, config.grace + LEAVE_SECONDS, ended_early)
    maintained = _maintained(config, store, service)
    try:
        with (
            bound,
            maintained as look,
            _watched(config.http, look),
            showing as show,
            shown_progress(looking_at(service), show),
        ):
            service.run()
    except (BrokerUnreachable, StoreUnavailable) as error:
        if not (signals and config.once):
            raise
        print_failure(error)  # a signal ended it before the drain could begin
    return ended()


@contextmanager
def _maintained(
    config: RunConfig, store: ToolStore, service: ArchiverService
) -> Iterator[Callable[[], ServiceSnapshot]]:
    """Maintain partitions by the configured policy, if there is one; yield a function that returns the state."""
    if config.once or not (config.archive_retention or config.archive_retention_bytes or config.compact):
        yield service.snapshot
        return
    # Most processes have none: for these it would be a part of the start.
    from archiver.maintain.policy import Maintainer  # noqa: PLC0415

    maintainer = Maintainer(config, store, service.archived_partitions, service.ending)
    maintainer.start()
    try:
        yield lambda: replace(service.snapshot(), maintenance=maintainer.snapshot())
    finally:
        maintainer.close()


def _watched(address: str | None, look: Callable[[], ServiceSnapshot]) -> AbstractContextManager[None]:
    if address is None:
        return nullcontext()
    # The metrics' library is for those who ask for metrics.
    from archiver.monitor.server import serving  # noqa: PLC0415

    return serving(address, look)


def drain_together(config: RunConfig, report: Report, showing: AbstractContextManager[Show]) -> int:
    """Drain the topics by `config.workers` forks, and return the exit code; call `prepare` before."""

    def work(number: int, tell_parent: Callable[[Told], None]) -> None:
        _drain(config, DrainShare(number, config.workers), tell_parent)

    with process.signals_held_back():
        forks: Forks[Told] = Forks(config.workers, work)
        signals = process.stop_on_signals(forks.end)
    parts = dict.fromkeys(range(config.workers), RunProgress())

    with showing as show:

        def heard(number: int, told: Told) -> bool:
            parts[number] = told if isinstance(told, RunProgress) else parts[number].ended
            show(summed(parts.values()))
            return isinstance(told, RunProgress)

        ended = list(forks.ended(heard))
    return _concluded(ended, signals, report)


def _drain(config: RunConfig, share: DrainShare, tell_parent: Callable[[Told], None]) -> None:
    def report(result: RunResult) -> int:
        tell_parent(result)
        return 0

    def tell_progress(progress: RunProgress) -> None:
        with suppress(OSError):  # the parent is gone
            tell_parent(progress)

    own = {} if config.http is None else {"http": own_http(config.http, share.number)}
    try:
        archive(config.model_copy(update=own), share, report, nullcontext(tell_progress))
    except BlockgzError as error:
        tell_parent(error)
    except Exception as error:
        sys.exit(print_failure(error))


def _concluded(ended: Sequence[tuple[int, Told | None, int]], signals: Collection[int], report: Report) -> int:
    """Print one report of all partitions, and each reason why workers failed as a whole; return the exit code."""
    done = [told for _, told, _ in ended if isinstance(told, RunResult)]
    failures = [
        told if isinstance(told, BlockgzError) else WorkerLost(number, exit_code)
        for number, told, exit_code in ended
        if not isinstance(told, RunResult)
    ]
    reports = sorted((each for told in done for each in told.partitions), key=lambda each: each.partition)
    missing = sorted({topic for told in done for topic in told.missing_topics})
    code = report(RunResult(reports, missing, signals)) if done else 0
    for failure in {each.reason: each for each in failures}.values():
        code = print_failure(failure)
    if done and failures and code != TERMINATED:
        code = PARTLY_FAILED
    return ended_code(code, signals, is_done=True)


@click.command(
    epilog=closing(
        "archiver run orders payments -b localhost:9092 -a s3://backup/kafka --once",
        "archiver run 'orders-*' '~eu[.].+' -b localhost:9092 -a ./archive --exclude '*-test' --chunk-interval 1m",
        "archiver run -C archiver.yaml --workers 4",
    )
)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Log the configuration file, claims and commits.")
def run(*, resolved: Resolved, as_json: bool, verbose: bool) -> int:
    """Archive topics: follow them forever, or drain them once.

    TOPIC is a name, a glob or ~regex; in BLOCKGZ_TOPICS, separate several by spaces. Without --once, archivers with the
    same --group-id split the partitions across machines. SIGTERM commits what is open and exits; --once then exits with
    143 if partitions are not drained.

    Every field of a configuration file is also an option and an environment variable. Flags override the environment,
    which overrides the file of -C, which overrides the defaults. `archiver config show` prints the values in use.
    """
    config = resolved.config
    log_to(CurrentStderr(), level=logging.INFO if verbose else logging.WARNING, log_format=config.log_format)
    log.info(LogEvent.CONFIGURATION, file=str(used_config().path) if used_config().path else None)
    _warn_of_open_connections(config)
    resolved.check_secrets(os.environ)
    check_settings(config, lambda name: resolved.named(KAFKA_PREFIX + name))
    if config.workers > 1 and not config.once:
        return _run_workers(config)
    prepare()

    def report(result: RunResult) -> int:
        return print_reports(config, result, as_json=as_json)

    has_bar = sys.stderr.isatty() and not as_json and WORKER_VARIABLE not in os.environ
    showing = _bar() if has_bar else nullcontext(Lines())
    if config.workers > 1:
        return drain_together(config, report, showing)
    return archive(config, WHOLE, report, showing)


def _warn_of_open_connections(config: RunConfig) -> None:
    if WORKER_VARIABLE in os.environ:  # the parent process said so
        return
    brokers = unencrypted_brokers({"bootstrap.servers": config.bootstrap_servers, **config.kafka})
    endpoint = unencrypted_endpoint(config.endpoint_url)
    for service, host in (("Kafka", brokers), ("S3", endpoint)):
        if host is not None:
            log.warning(LogEvent.UNENCRYPTED, service=service, host=host)


def _run_workers(config: RunConfig) -> int:
    workers = Workers(worker_commands(sys.argv[1:], config))
    signals = process.stop_on_signals(workers.end)
    process.call_on_hangup(workers.hang_up)
    return ended_code(workers.run(), signals, is_done=True)


def print_reports(config: RunConfig, result: RunResult, *, as_json: bool) -> int:
    """Print what was done, and return the exit code."""
    if as_json:
        click.echo(orjson.dumps(result_object(config, result)).decode())
    else:
        _print_result(result.partitions, config)
    if config.once:
        _tell_undrained(result)
    return run_exit_code(result, once=config.once)


def result_object(config: RunConfig, result: RunResult) -> dict[str, Any]:
    """Return the JSON contract of `archiver run --json`."""
    reports = result.partitions
    return {
        "archive": config.archive,
        "records": sum(report.counts.records for report in reports),
        "missing_topics": list(result.missing_topics),
        "partitions": [
            {
                "topic": report.partition[0],
                "partition": report.partition[1],
                "records": report.counts.records,
                "chunks": report.counts.chunks,
                "stored_bytes": report.counts.stored_bytes,
                "skipped": report.counts.skipped,
                "next_offset": report.next_offset,
                "high_watermark": report.high_watermark,
                "drained": report.is_drained if config.once else None,
                "error": None if report.failure is None else report.failure.what,
            }
            for report in reports
        ],
    }


def _print_result(reports: Sequence[PartitionHistory], config: RunConfig) -> None:
    rows = [
        (
            *each.partition,
            each.counts.records,
            each.counts.chunks,
            bytes_text(each.counts.stored_bytes),
            each.next_offset,
        )
        for each in reports
    ]
    print_table(("topic", "partition", "records", "chunks", "size", "next offset"), rows, droppable=("chunks", "size"))
    gone, undone = [each for each in reports if isinstance(each.failure, TopicGone)], frozenset[str]()
    with suppress(BlockgzError):  # then each is named
        undone = undone_topics(open_store(config.archive, config.s3)) if gone else undone
    gone = [each for each in gone if each.partition[0] in undone]
    for report in reports:
        if report in gone:
            continue
        if report.failure is not None:
            click.echo("\n".join(error_lines(report.failure)), err=True)
        elif report.end_offset is not None and (report.high_watermark or 0) > report.end_offset:
            click.echo(
                f"note: {name_of(report.partition)} continues to {report.high_watermark}, beyond the last stable "
                f"offset {report.end_offset}: an open transaction holds back the rest; run again once it has ended",
                err=True,
            )
    print_each("", [undone_text(len(gone))] if gone else (), err=True)


def _tell_undrained(result: RunResult) -> None:
    reports = result.partitions
    if result.missing_topics:
        missing = ", ".join(result.missing_topics)
        click.echo(f"note: the cluster has no topic {missing}: check the names and -b, or create them first", err=True)
    left = [report for report in reports if not report.is_drained and report.failure is None]
    if left:
        shown = listed([name_of(report.partition) for report in left])
        click.echo(
            f"note: the run ended before {len(left)} of {len(reports)} partitions were drained ({shown}); "
            "run it again to resume",
            err=True,
        )


def run_exit_code(result: RunResult, *, once: bool) -> int:
    """Return the exit code; a run with `--once` that ended too early, or lacks a topic, has partly failed."""
    reports = result.partitions
    failures: list[BlockgzError] = [report.failure for report in reports if report.failure is not None]
    is_done = not once or (bool(reports) and all(report.is_drained or report.failure for report in reports))
    code = PARTLY_FAILED if not is_done or (once and result.missing_topics) else 0
    if failures:
        code = exit_code(failures[0]) if len(failures) == len(reports) else PARTLY_FAILED
    return ended_code(code, result.signals, is_done=is_done)

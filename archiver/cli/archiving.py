"""What the processes of `archiver run` do, from their start to their report.

With `--once --workers N` forks drain a share of the partitions each, and there is one report of them all.
"""

import faulthandler
import gc
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from archiver.cli.run_progress import Progress, Show, looking_at, shown_progress, summed
from archiver.errors import WorkerLost
from archiver.ingest.assignment import DrainShare
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.ownership import PartitionReport
from archiver.ingest.service import ArchiverService
from archiver.ingest.workers import Ended, Forks, own_http
from archiver.logs import LogEvent, log
from archiver.monitor.snapshot import ServiceSnapshot
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import load_keyring
from blockgz.errors import PARTLY_FAILED, BrokerUnreachable, StoreUnavailable
from blockgz.process import ended_in_time, pandas_refused, share_heaps, signals_held_back, stop_on_signals
from blockgz.program.main import TERMINATED, ended_code, print_failure
from blockgz.store.opening import default_buffer_root, open_store
from blockgz.store.writer import ToolStore
from index_format.errors import BlockgzError

LEAVE_SECONDS = 4.0
"""Beyond `--grace`, for leaving the group and closing clients: Kubernetes kills 30 s after it asked."""

CLOSE_SECONDS = 1.0
"""How long an end that is late waits until its buffer folder is removed."""


class RunResult(NamedTuple):
    """What a run did."""

    partitions: Sequence[PartitionReport]
    missing_topics: Collection[str]
    """Those that are named and that the cluster does not have."""
    signals: Collection[int] = ()
    """Those that asked it to end."""


Report = Callable[[RunResult], int]
"""Says what was done; gives the exit code."""

Told = RunResult | BlockgzError | Progress
"""What a fork did, what kept it from its work, or how far it is."""


def prepare() -> None:
    """Settings of the whole process, which forks of it inherit; before it starts threads."""
    share_heaps()
    with pandas_refused():
        pa.array([])
    gc.freeze()  # what is loaded stays, and forks share it
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a client library that crashes takes the process with it: where, at least


def archive(config: RunConfig, share: DrainShare, report: Report, showing: AbstractContextManager[Show]) -> int:
    """One process's work from its start to its report; gives the exit code. Raises what keeps it from starting.

    `showing` gives what shows progress.
    """
    if config.encrypt is not None:
        _ = load_keyring(config.encrypt).tail  # what keeps the keys from being used shows now
    store = open_store(config.archive, config.s3)
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

    signals = stop_on_signals(service.stop)
    bound = ended_in_time(service.ending, config.grace + LEAVE_SECONDS, ended_early)
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
        print_failure(error)  # it was told to end before the drain could begin
    return ended()


@contextmanager
def _maintained(
    config: RunConfig, store: ToolStore, service: ArchiverService
) -> Iterator[Callable[[], ServiceSnapshot]]:
    """Applies the configured policy meanwhile, if there is one; gives what looks at service and maintenance."""
    if config.once or not (config.archive_retention or config.archive_retention_bytes or config.compact):
        yield service.snapshot
        return
    # Most processes have none: for these it would be a part of the start.
    from archiver.maintain.policy import (  # noqa: PLC0415
        Maintainer,
        MaintenanceContext,
        MaintenancePolicy,
    )

    context = MaintenanceContext(
        store=store,
        policy=MaintenancePolicy.of(config),
        partitions=service.archived_partitions,
        new_buffers=partial(BufferFolder, config.buffer_dir or default_buffer_root(config.archive)),
        ending=service.ending,
        interval_seconds=config.maintenance_interval,
        bytes_per_second=config.maintenance_rate,
        buffer_bytes=config.maintenance_buffer,
    )
    maintainer = Maintainer(context)
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
    """Drain the topics by `config.workers` forks; gives the exit code. Not before `prepare`."""

    def work(number: int, tell_parent: Callable[[Told], None]) -> None:
        _drain(config, DrainShare(number, config.workers), tell_parent)

    with signals_held_back():
        forks: Forks[Told] = Forks(config.workers, work)
        signals = stop_on_signals(forks.end)
    parts = dict.fromkeys(range(config.workers), Progress())

    with showing as show:

        def heard(number: int, told: Told) -> bool:
            parts[number] = told if isinstance(told, Progress) else parts[number].ended
            show(summed(parts.values()))
            return isinstance(told, Progress)

        ended = list(forks.ended(heard))
    return _concluded(ended, signals, report)


def _drain(config: RunConfig, share: DrainShare, tell_parent: Callable[[Told], None]) -> None:
    def report(result: RunResult) -> int:
        tell_parent(result)
        return 0

    def tell_progress(progress: Progress) -> None:
        with suppress(OSError):  # the parent is gone
            tell_parent(progress)

    own = {} if config.http is None else {"http": own_http(config.http, share.number)}
    try:
        archive(config.model_copy(update=own), share, report, nullcontext(tell_progress))
    except BlockgzError as error:
        tell_parent(error)
    except Exception as error:
        sys.exit(print_failure(error))


def _concluded(ended: Sequence[Ended[Told]], signals: Collection[int], report: Report) -> int:
    """One report of all partitions, after which come the workers that failed as a whole, each reason once."""
    done = [each.told for each in ended if isinstance(each.told, RunResult)]
    failures = [
        each.told if isinstance(each.told, BlockgzError) else WorkerLost(each.number, each.exit_code)
        for each in ended
        if not isinstance(each.told, RunResult)
    ]
    reports = sorted((each for told in done for each in told.partitions), key=lambda each: each.partition)
    missing = sorted({topic for told in done for topic in told.missing_topics})
    code = report(RunResult(reports, missing, signals)) if done else 0
    for failure in {each.reason: each for each in failures}.values():
        code = print_failure(failure)
    if done and failures and code != TERMINATED:
        code = PARTLY_FAILED
    return ended_code(code, signals, is_done=True)

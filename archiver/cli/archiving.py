"""What one process of `archiver run` does, from its start to its report."""

import faulthandler
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from archiver.cli.ending import ended_in_time
from archiver.cli.signals import stop_on_signals
from archiver.config.model import RunConfig
from archiver.ingest.assignment import DrainShare
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.ownership import PartitionReport
from archiver.ingest.service import ArchiverService
from blockgz_runtime.process import pandas_refused, share_heaps
from blockgz_runtime.program.main import INTERRUPTED, print_failure
from blockgz_runtime.store.opening import default_buffer_root, open_store

LEAVE_SECONDS = 4.0
"""Beyond `--grace`, for leaving the group and closing clients: Kubernetes kills 30 s after it asked."""

Report = Callable[[Sequence[PartitionReport]], int]
"""Says what was done to the partitions; gives the exit code of a run that nobody interrupted."""


def prepare() -> None:
    """Settings of the whole process, which forks of it inherit; before it starts threads."""
    share_heaps()
    with pandas_refused():
        pa.array([])
    gc.freeze()  # what is loaded stays, and forks share it
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a client library that crashes takes the process with it: where, at least


def archive(config: RunConfig, share: DrainShare, report: Report) -> int:
    """One process's work from its start to its report; gives the exit code. Raises what keeps it from starting."""
    store = open_store(config.archive, endpoint_url=config.endpoint_url, region=config.region)
    buffer = BufferFolder(config.buffer_dir or default_buffer_root(config.archive))
    service = ArchiverService(config, store, buffer, share=share)

    def ended() -> int:
        code = report(list(service.reports.values()))
        return INTERRUPTED if signal.SIGINT in signals else code

    def ended_early() -> int:
        return ended() if service.failure is None else print_failure(service.failure)

    signals = stop_on_signals(service.stop)
    bound = ended_in_time(service.ending, config.grace + LEAVE_SECONDS, ended_early)
    with bound, _watched(config.http, service):
        service.run()
    return ended()


def _watched(address: str | None, service: ArchiverService) -> AbstractContextManager[None]:
    if address is None:
        return nullcontext()
    # The metrics' library is for those who ask for metrics.
    from archiver.monitor.server import serving  # noqa: PLC0415

    return serving(address, service.snapshot)

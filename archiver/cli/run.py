"""`archiver run`."""

import faulthandler
import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import click
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from index_format.errors import BlockgzError
from index_format.no_pandas import pandas_refused

from ..allocators import share_heaps
from ..buffer import BufferFolder
from ..config import RunConfig
from ..configuration.origins import KAFKA_PREFIX
from ..configuration.resolution import Resolved
from ..errors import UsageError
from ..kafka_settings import check_settings
from ..logs import log_to
from ..ownership import PartitionReport
from ..service import ArchiverService
from ..stores.opening import default_buffer_root, open_store
from ..workers import Workers, worker_commands
from .config_options import config_options
from .ending import ended_in_time
from .outcome import INTERRUPTED, PARTLY_FAILED, closing, error_lines, tell

SHOWN_PARTITIONS = 5
LEAVE_SECONDS = 4.0
"""Beyond `--grace`, for leaving the group and closing clients: Kubernetes kills 30 s after it asked."""


@click.command(
    epilog=closing(
        "archiver run orders payments -b localhost:9092 -a s3://backup/kafka --once",
        "archiver run 'orders-*' '~eu[.].+' -b localhost:9092 -a ./archive --exclude '*-test' --chunk-interval 1m",
        "archiver run -C archiver.yaml --workers 4",
    )
)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Log claims and commits.")
def run(*, resolved: Resolved, as_json: bool, verbose: bool) -> int:
    """Archive topics: follow for ever, or drain them once.

    TOPIC is a name, a glob or ~regex; BLOCKGZ_TOPICS holds them with spaces between.
    SIGTERM ends it in order, with what is open committed; --once then exits 3 where it left something.
    Every field of a configuration file is an option here and an environment variable: flags come first, then the
    environment, then the file of -C, then the defaults. `archiver config show` says what is in force.
    """
    config = resolved.config
    log_to(sys.stderr, level=logging.INFO if verbose else logging.WARNING, log_format=config.log_format)
    check_settings(config, lambda name: resolved.named(KAFKA_PREFIX + name))
    if config.workers > 1:
        return _run_workers(config)
    share_heaps()
    with pandas_refused():
        pa.array([])
    store = open_store(config.archive, endpoint_url=config.endpoint_url, region=config.region)
    buffer = BufferFolder(config.buffer_dir or default_buffer_root(config.archive))
    service = ArchiverService(config, store, buffer)
    # Thousands of messages and lines come and go a moment, none of them in a cycle: collections find nothing.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)

    def report() -> int:
        reports = list(service.reports.values())
        if as_json:
            click.echo(orjson.dumps(result_object(config, reports)).decode())
        else:
            _print_result(reports)
        if config.once:
            _tell_undrained(reports)
        return INTERRUPTED if signal.SIGINT in signals else exit_code(reports, once=config.once)

    def report_early() -> int:
        return report() if service.failure is None else tell(service.failure)

    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a client library that crashes takes the process with it: where, at least
    signals = _stop_on_signals(service.stop)
    bound = ended_in_time(service.ending, config.grace + LEAVE_SECONDS, report_early)
    with bound, _watched(config.http, service):
        service.run()
    return report()


def _watched(address: str | None, service: ArchiverService) -> AbstractContextManager[None]:
    if address is None:
        return nullcontext()
    # The metrics' library is for those who ask for metrics.
    from ..http.server import serving  # noqa: PLC0415

    return serving(address, service.snapshot)


def result_object(config: RunConfig, reports: list[PartitionReport]) -> dict[str, Any]:
    """The JSON contract of `archiver run --json`."""
    return {
        "archive": config.archive,
        "records": sum(report.counts.records for report in reports),
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


def _print_result(reports: list[PartitionReport]) -> None:
    table = Table("topic", "partition", "records", "chunks", "bytes", "next offset", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for report in reports:
        counts = report.counts
        numbers = (report.partition[1], counts.records, counts.chunks, counts.stored_bytes, report.next_offset)
        table.add_row(report.partition[0], *("-" if number is None else f"{number:,}" for number in numbers))
    Console(soft_wrap=True).print(table)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    for report in reports:
        where = f"{report.partition[0]}:{report.partition[1]}"
        if report.failure is not None:
            errors.print("\n".join(error_lines(report.failure)), markup=False)
        elif report.end_offset is not None and (report.high_watermark or 0) > report.end_offset:
            errors.print(
                f"note: {where} goes on to {report.high_watermark}, beyond the last stable offset {report.end_offset}: "
                "an open transaction holds the rest back; run again once it ended",
                markup=False,
            )


def _tell_undrained(reports: Sequence[PartitionReport]) -> None:
    left = [report for report in reports if not report.is_drained and report.failure is None]
    if left:
        names = [f"{topic}:{number}" for topic, number in (report.partition for report in left)]
        shown = ", ".join(names[:SHOWN_PARTITIONS]) + (", …" if len(names) > SHOWN_PARTITIONS else "")
        click.echo(
            f"note: the run was ended before {len(left)} of {len(reports)} partitions were drained ({shown}); "
            "run it again: it goes on where it ended",
            err=True,
        )


def exit_code(reports: Sequence[PartitionReport], *, once: bool) -> int:
    """What a run ends with that nobody interrupted; one of `--once` that was ended too early did not do its work."""
    failures: list[BlockgzError] = [report.failure for report in reports if report.failure is not None]
    if failures:
        return failures[0].exit_code if len(failures) == len(reports) else PARTLY_FAILED
    is_done = not once or (bool(reports) and all(report.is_drained for report in reports))
    return 0 if is_done else PARTLY_FAILED


def _run_workers(config: RunConfig) -> int:
    if config.once:
        raise UsageError("--once takes one worker", why="it drains all partitions in one process")
    workers = Workers(worker_commands(sys.argv[1:], config))
    signals = _stop_on_signals(workers.end)
    code = workers.run()
    return INTERRUPTED if signal.SIGINT in signals else code


def _stop_on_signals(stop: Callable[[], None]) -> set[int]:
    """End the run in order on SIGINT and SIGTERM; gives the set of the signals that came."""
    received: set[int] = set()

    def on_signal(number: int, _: FrameType | None) -> None:
        received.add(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return received

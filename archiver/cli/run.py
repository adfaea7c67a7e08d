"""`archiver run`."""

import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from index_format.errors import BlockgzError

from ..buffer import BufferFolder
from ..config import RunConfig, parse_duration, parse_size, run_config
from ..errors import UsageError
from ..service import ArchiverService, PartitionReport
from ..stores.opening import default_buffer_root, open_store
from .outcome import EXIT_CODES, INTERRUPTED, error_lines

PARTLY_FAILED = 3


class SizeType(click.ParamType[int]):
    """`128MiB` as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class DurationType(click.ParamType[float]):
    """`5m` as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE, DURATION = SizeType(), DurationType()


@click.command(
    epilog="""\b
Examples:
  archiver run orders payments -b localhost:9092 -a s3://backup/kafka --once
  archiver run orders -b localhost:9092 -a ./archive --chunk-interval 1m

"""
    + EXIT_CODES
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--once", is_flag=True, help="Drain to the last stable offsets taken at the start, then exit.")
@click.option("-b", "--bootstrap-server", "bootstrap_servers", required=True, help="HOST:PORT of a broker.")
@click.option("-a", "--archive", required=True, help="s3://bucket/prefix, file:///dir or ./dir.")
@click.option("-X", "kafka", multiple=True, metavar="PROP=VALUE", help="A librdkafka setting; may be repeated.")
@click.option("--endpoint-url", help="Of an S3 work-alike.")
@click.option("--region", help="AWS region.")
@click.option("--group-id", help="Consumer group that owns the archive. [blockgz-archiver]")
@click.option("--layout", type=click.Choice(["topic", "seed"]), help="Names of objects. [topic]")
@click.option("--record-format", type=click.Choice(["json", "text"]), help="Records inside a block. [json]")
@click.option("--isolation-level", type=click.Choice(["read_committed", "read_uncommitted"]), help="[read_committed]")
@click.option("--block-bytes", type=SIZE, help="Encoded bytes of a block at most. [1MiB]")
@click.option("--chunk-bytes", type=SIZE, help="Roll at this compressed size. [128MiB]")
@click.option("--chunk-records", type=int, help="Roll at this many records.")
@click.option("--chunk-interval", type=DURATION, help="Roll at this age. [5m]")
@click.option("--gzip-library", type=click.Choice(["isal", "zlib"]), help="[isal]")
@click.option("--gzip-level", type=int, help="isal 0 to 3, zlib 0 to 9. [isal 1, zlib 6]")
@click.option("--memory", type=SIZE, help="Budget for records in memory. [256MiB]")
@click.option("--buffer-dir", type=click.Path(path_type=Path), help="Where open chunks wait.")
@click.option("--buffer-bytes", type=SIZE, help="Budget of that folder. [10GiB]")
@click.option("--grace", type=DURATION, help="Time to flush and commit at shutdown. [25s]")
@click.option("--on-gap", type=click.Choice(["record", "stop"]), help="Records lost to retention. [record]")
@click.option("--on-bad-record", type=click.Choice(["stop", "skip"]), help="Records that cannot be archived. [stop]")
@click.option("--single-writer", is_flag=True, help="Trust that only one process writes: no probe of the store.")
@click.option("--takeover", is_flag=True, help="Claim partitions that another group archives.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Log claims and commits.")
def run(*, as_json: bool, verbose: bool, kafka: tuple[str, ...], **options: Any) -> int:
    """Archive topics: follow for ever, or drain them once.

    Every option has an environment variable: BLOCKGZ_ and its long name in capitals.
    """
    _log_to_stderr(logging.INFO if verbose else logging.WARNING)
    config = run_config(kafka=kafka_properties(kafka), **options)
    store = open_store(config.archive, endpoint_url=config.endpoint_url, region=config.region)
    buffer = BufferFolder(config.buffer_dir or default_buffer_root(config.archive))
    service = ArchiverService(config, store, buffer)
    signals = _stop_on_signals(service)
    service.run()
    reports = list(service.reports.values())
    if as_json:
        click.echo(orjson.dumps(result_object(config, reports)).decode())
    else:
        _print_result(reports)
    return INTERRUPTED if signal.SIGINT in signals else _exit_code(reports)


def kafka_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    """Librdkafka settings from `name=value` pairs; raises UsageError."""
    properties = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(
                f"-X {pair!r} is not PROP=VALUE",
                why="it has no name and '=' before the value",
                remedy="write -X security.protocol=SSL",
            )
        properties[name.strip()] = value
    return properties


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


def _exit_code(reports: list[PartitionReport]) -> int:
    failures: list[BlockgzError] = [report.failure for report in reports if report.failure is not None]
    if not failures:
        return 0
    return failures[0].exit_code if len(failures) == len(reports) else PARTLY_FAILED


def _stop_on_signals(service: ArchiverService) -> set[int]:
    """End the run in order on SIGINT and SIGTERM; gives the set of the signals that came."""
    received: set[int] = set()

    def stop(number: int, _: FrameType | None) -> None:
        received.add(number)
        service.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return received


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("blockgz.archiver")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False

"""`archiver run`, and what it says when it ends: a table or JSON, what was left, and the exit code."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
import orjson

from archiver.cli.archiving import RunResult, archive, drain_together, prepare
from archiver.cli.config_options import config_options
from archiver.cli.run_progress import CurrentStderr, on_stderr
from archiver.ingest.assignment import WHOLE
from archiver.ingest.kafka_settings import check_settings
from archiver.ingest.kafka_source import name_of
from archiver.ingest.ownership import PartitionReport
from archiver.ingest.workers import WORKER_VARIABLE, Workers, worker_commands
from archiver.logs import LogEvent, log, log_to
from blockgz.config.model import RunConfig
from blockgz.config.origins import KAFKA_PREFIX
from blockgz.config.resolution import Resolved
from blockgz.errors import PARTLY_FAILED, exit_code, listed
from blockgz.process import stop_on_signals
from blockgz.program.config_file import used_config
from blockgz.program.main import closing, ended_code, error_lines
from blockgz.program.tables import bytes_text, print_table
from blockgz.unencrypted import unencrypted_brokers, unencrypted_endpoint
from index_format.errors import BlockgzError


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

    showing = on_stderr(as_json=as_json or WORKER_VARIABLE in os.environ)
    if config.workers > 1:
        return drain_together(config, report, showing)
    return archive(config, WHOLE, report, showing)


def _warn_of_open_connections(config: RunConfig) -> None:
    if WORKER_VARIABLE in os.environ:  # whoever started this process said so
        return
    brokers = unencrypted_brokers({"bootstrap.servers": config.bootstrap_servers, **config.kafka})
    endpoint = unencrypted_endpoint(config.endpoint_url)
    for service, host in (("Kafka", brokers), ("S3", endpoint)):
        if host is not None:
            log.warning(LogEvent.UNENCRYPTED, service=service, host=host)


def _run_workers(config: RunConfig) -> int:
    workers = Workers(worker_commands(sys.argv[1:], config))
    signals = stop_on_signals(workers.end)
    return ended_code(workers.run(), signals, is_done=True)


def print_reports(config: RunConfig, result: RunResult, *, as_json: bool) -> int:
    """Prints what was done; gives the exit code."""
    if as_json:
        click.echo(orjson.dumps(result_object(config, result)).decode())
    else:
        _print_result(result.partitions)
    if config.once:
        _tell_undrained(result)
    return run_exit_code(result, once=config.once)


def result_object(config: RunConfig, result: RunResult) -> dict[str, Any]:
    """The JSON contract of `archiver run --json`."""
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


def _print_result(reports: Sequence[PartitionReport]) -> None:
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
    for report in reports:
        if report.failure is not None:
            click.echo("\n".join(error_lines(report.failure)), err=True)
        elif report.end_offset is not None and (report.high_watermark or 0) > report.end_offset:
            click.echo(
                f"note: {name_of(report.partition)} continues to {report.high_watermark}, beyond the last stable "
                f"offset {report.end_offset}: an open transaction holds back the rest; run again once it has ended",
                err=True,
            )


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
    """What a run ends with; one of `--once` that was ended too early, or missed a topic, did not do its work."""
    reports = result.partitions
    failures: list[BlockgzError] = [report.failure for report in reports if report.failure is not None]
    is_done = not once or (bool(reports) and all(report.is_drained or report.failure for report in reports))
    code = PARTLY_FAILED if not is_done or (once and result.missing_topics) else 0
    if failures:
        code = exit_code(failures[0]) if len(failures) == len(reports) else PARTLY_FAILED
    return ended_code(code, result.signals, is_done=is_done)

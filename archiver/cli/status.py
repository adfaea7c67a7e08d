"""`archiver status`."""

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click
import msgspec
from msgspec.structs import replace

from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_source import CLIENT_ID
from archiver.ingest.ownership import PartitionState
from archiver.maintain.status import PartitionStatus, read_status, with_lag
from archiver.monitor.server import health, readiness, service_snapshot
from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.kafka.connection import client_settings
from blockgz.program.archive_options import store_options
from blockgz.program.main import closing
from blockgz.program.options import DURATION, kafka_options
from blockgz.program.terminal import print_table, unescaped
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text, time_text

DROPPABLE = (
    *("writer", "epoch", "unstable", "high watermark", "chunks", "size", "gaps", "newest record"),
    *("retired size", "floor", "retired"),
    *("retries", "fetch s ago", "commit s ago", "open chunk s", "headroom", "records", "paused", "lag s"),
)
# The characters that clear a terminal.
CLEARED = "\x1b[2J\x1b[H"
# The default of an archiver: it reads up to the last stable offset.
ISOLATION_LEVEL = "read_committed"


@click.command(
    epilog=closing(
        "archiver status -a s3://backup/kafka",
        "archiver status orders 'eu-*' -a ./archive -b localhost:9092 --watch",
        "archiver status --http 127.0.0.1:9464 --json",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(required=False)
@kafka_options("Brokers; also shows the lag to the high watermarks.")
@click.option(
    "--http",
    metavar="URL",
    envvar="BLOCKGZ_STATUS_HTTP",
    help="Ask the archiver that serves --http at this address, instead of reading the archive.",
)
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option("--interval", type=DURATION, default="5s", show_default=True, help="Time between refreshes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per refresh.")
def status(
    *,
    topics: tuple[str, ...],
    archive: str | None,
    s3: S3Settings,
    kafka: dict[str, str],
    http: str | None,
    watch: bool,
    interval: float,
    as_json: bool,
) -> int:
    """Show the progress of each partition, from the archive's markers or from a running archiver.

    TOPIC is a name, a glob or ~regex; the default is all topics. Exits with 3 if a marker is damaged, or if a partition
    of the running archiver has stopped.
    """
    selection = TopicSelection(topics) if topics else None
    if http is not None:
        look = partial(_seen_in_service, http, selection)
    elif archive is not None:
        store = open_existing_store(archive, s3)
        named = "bootstrap.servers" in kafka
        cluster = KafkaCluster(client_settings(kafka, CLIENT_ID)) if named else None
        look = partial(_seen_in_archive, store, selection, cluster)
    else:
        raise UsageError(
            "there is nothing to look at",
            why="neither an archive nor a running archiver is given",
            remedy="add -a/--archive, or --http for a running archiver",
        )
    seen = look()
    _show(seen, as_json=as_json)
    while watch:
        time.sleep(interval)
        seen = look()
        if sys.stdout.isatty():
            click.echo(CLEARED, nl=False, file=unescaped(sys.stdout))
        _show(seen, as_json=as_json)
    return PARTLY_FAILED if seen.is_troubled else 0


class Seen(NamedTuple):
    """A table with a heading and notes, and its JSON."""

    value: msgspec.Struct
    """The JSON contract of `archiver status --json`."""
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | None]]
    notes: Sequence[str]
    """The note of each row, or an empty text."""
    is_troubled: bool


def _seen_in_archive(store: ToolStore, selection: TopicSelection | None, cluster: KafkaCluster | None) -> Seen:
    """Return a row for each partition; the columns of the cluster only if one is given."""
    status = read_status(store, selection)
    if cluster is not None:
        status = with_lag(status, lambda partitions: cluster.watermarks(partitions, ISOLATION_LEVEL))
    asked = any(each.high_watermark is not None for each in status.partitions)
    maintained = any(each.pruned_before or each.rewriting or each.retired for each in status.partitions)
    rows = [
        (
            str(each.folder),
            each.partition,
            each.records,
            each.chunks,
            bytes_text(each.bytes),
            each.next_offset,
            *((each.high_watermark, each.lag, each.unstable) if asked else ()),
            each.epoch,
            each.gaps,
            *((each.pruned_before, each.retired, bytes_text(each.retired_bytes)) if maintained else ()),
            time_text(each.newest_ms),
            None if each.writer is None else each.writer[:8],
        )
        for each in status.partitions
    ]
    columns = ["topic", "partition", "records", "chunks", "size", "next offset"]
    columns += ["high watermark", "lag", "unstable"] if asked else []
    columns += [
        "epoch",
        "gaps",
        *(["floor", "retired", "retired size"] if maintained else []),
        "newest record",
        "writer",
    ]
    notes = [_note(each) for each in status.partitions]
    troubled = any(each.error is not None for each in status.partitions)
    return Seen(status, f"archive {status.archive_id} at {status.archive}", columns, rows, notes, troubled)


def _note(status: PartitionStatus) -> str:
    if status.error is None and status.rewriting is not None:
        return f"under way: {status.rewriting}"
    return status.error or (f"continues as {status.successor}" if status.successor else "")


def _seen_in_service(address: str, selection: TopicSelection | None) -> Seen:
    """Return a row for each partition of a running archiver."""
    snapshot = service_snapshot(address)
    if selection is not None:
        chosen = set(selection({each.topic for each in snapshot.partitions}))
        snapshot = replace(snapshot, partitions=tuple(each for each in snapshot.partitions if each.topic in chosen))
    shown = [each for each in snapshot.partitions if each.state is not PartitionState.RELEASED]
    rows = [
        (
            each.topic,
            each.partition,
            each.state.value,
            each.durable_offset,
            each.lag_records,
            _seconds(each.lag_seconds),
            each.retention_headroom,
            each.unstable_records,
            _seconds(each.open_chunk_seconds),
            _seconds(each.commit_age_seconds),
            _seconds(each.fetch_age_seconds),
            "yes" if each.is_paused else "",
            each.records,
            each.retries,
            each.gaps,
        )
        for each in shown
    ]
    notes = [each.failure or each.trouble or each.stuck or "" for each in shown]
    columns = ["topic", "partition", "state", "durable offset", "lag", "lag s", "headroom", "unstable", "open chunk s"]
    columns += ["commit s ago", "fetch s ago", "paused", "records", "retries", "gaps"]
    problems = [text for text in (health(snapshot), readiness(snapshot)) if text is not None]
    heading = [f"archiver of {snapshot.archive}: {'; '.join(problems) or 'ready'}"]
    heading += (
        [f"not maintained: {trouble}" for trouble in snapshot.maintenance.troubles] if snapshot.maintenance else []
    )
    return Seen(snapshot, "\n".join(heading), columns, rows, notes, bool(snapshot.in_state(PartitionState.STOPPED)))


def _show(seen: Seen, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(seen.value).decode())
        return
    click.echo(seen.heading)
    print_table(seen.columns, seen.rows, droppable=DROPPABLE)
    for (topic, partition, *_), note in zip(seen.rows, seen.notes, strict=True):
        if note:
            click.echo(f"{topic}:{partition}: {note}")


def _seconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)

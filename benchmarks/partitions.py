"""`python -m benchmarks.partitions`: thousands of partitions on a store that takes 50 ms more for each request.

How soon after its start a service has claimed partitions that hold chunks, the last record of each compared with the
log, and how long it flushes an open chunk of each. The service runs in this process, the broker and the S3 server
(Versity's gateway) are processes of their own on the same machine.
"""

import argparse
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from archiver.cli.run import prepare
from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.ownership import PartitionState
from archiver.ingest.service import ArchiverService
from archiver.monitor.snapshot import ServiceSnapshot
from benchmarks.data import TopicShape
from benchmarks.measure import measured_on
from benchmarks.site import Settings, Site, opened
from benchmarks.tables import Table, as_text
from blockgz.config.model import RunConfig
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_store

CLAIM_GOAL_SECONDS = 10.0
RECORDS_IN_EACH = 8
PATIENCE_SECONDS = 300


class SlowStore:
    """Another store, each of whose answers takes a while longer."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "head", "put_if_absent", "compare_and_swap", "list"):
            return found

        def later(*arguments: Any) -> Any:
            self.requests += 1
            time.sleep(self._seconds)
            return found(*arguments)

        return later


def main() -> None:
    """Measure, print a table, and say which goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__)
    parser.add_argument("--claimed", type=int, default=1000, help="partitions that are claimed")
    parser.add_argument("--flushed", type=int, default=2000, help="partitions with an open chunk each")
    parser.add_argument("--milliseconds", type=float, default=50, help="added to every request to the store")
    parser.add_argument("--store", choices=("folder", "s3"), default="folder")
    given = parser.parse_args()
    prepare()
    print(measured_on())
    with opened(Settings()) as site:
        rows = [*measured(site, given.store, given.claimed, given.flushed, given.milliseconds / 1000)]
    title = f"Partitions on a store ({given.store}) with {given.milliseconds:g} ms more a request"
    print(as_text(Table(title, ("", "seconds", "goal", "CPU s", "requests", ""), rows)))


def measured(site: Site, kind: str, claimed: int, flushed: int, delay: float) -> Iterator[tuple[str, ...]]:
    """A row of each: claimed by a second run, and flushed."""
    shape = TopicShape(claimed * RECORDS_IN_EACH, 200, partitions=claimed)
    archive = _address(site, kind)
    with _running(site, archive, shape, 0) as (service, _):
        _until(service, lambda seen: _position(seen) == shape.records)
    site.say(f"{claimed} partitions are archived")
    with _running(site, archive, shape, delay) as (service, store):
        begun, cpu, requests = time.monotonic(), _cpu(), store.requests
        _until(service, lambda seen: _archiving(seen) == claimed)
        seconds = time.monotonic() - begun
        yield _row(f"{claimed:,} claimed", seconds, CLAIM_GOAL_SECONDS, _cpu() - cpu, store.requests - requests)
    site.drop(shape)

    shape = TopicShape(flushed * RECORDS_IN_EACH, 200, partitions=flushed)
    with _running(site, _address(site, kind), shape, delay) as (service, store):
        _until(service, lambda seen: _position(seen) == shape.records)
        begun, cpu, requests = time.monotonic(), _cpu(), store.requests
        service.stop()
        _until(service, lambda seen: sum(each.records for each in seen.partitions) == shape.records)
        seconds = time.monotonic() - begun
        grace = float(RunConfig.model_fields["grace"].default)
        yield _row(f"{flushed:,} flushed", seconds, grace, _cpu() - cpu, store.requests - requests)


def _row(what: str, seconds: float, goal: float, cpu: float, requests: int) -> tuple[str, ...]:
    return what, f"{seconds:.1f}", f"{goal:g}", f"{cpu:.1f}", f"{requests:,}", "missed" if seconds > goal else ""


def _address(site: Site, kind: str) -> str:
    if kind == "folder":
        return str(site.folder("partitions"))
    os.environ.update(site.store.env)
    return f"s3://{site.store.bucket}/{site.new_name('partitions')}"


@contextmanager
def _running(site: Site, archive: str, shape: TopicShape, delay: float) -> Iterator[tuple[ArchiverService, SlowStore]]:
    topic = site.topic(shape)
    endpoint = site.store.endpoint_url if archive.startswith("s3:") else None
    slow = SlowStore(open_store(archive, S3Settings(endpoint)), delay)
    store: Any = slow
    config = RunConfig(archive=archive, bootstrap_servers=site.bootstrap, topics=(topic,), grace=PATIENCE_SECONDS)
    service = ArchiverService(config, store, BufferFolder(site.folder("buffer")))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service, slow
    finally:
        service.stop()
        thread.join()


def _until(service: ArchiverService, condition: Callable[[ServiceSnapshot], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition(seen := service.snapshot()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS} s: {_archiving(seen)} claimed, {_position(seen)} read")
        time.sleep(0.25)


def _archiving(seen: ServiceSnapshot) -> int:
    return sum(each.state is PartitionState.ARCHIVING for each in seen.partitions)


def _position(seen: ServiceSnapshot) -> int:
    return sum(each.position or 0 for each in seen.partitions)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

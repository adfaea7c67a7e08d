"""A partition whose commit does not end, beside healthy ones: a real service, librdkafka's mock cluster, a folder."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from archiver.ingest.buffer import BufferFolder
from archiver.ingest.service import ArchiverService
from archiver.monitor.server import health, readiness
from archiver.monitor.snapshot import ServiceSnapshot
from blockgz.config.model import RunConfig
from blockgz.store.local import LocalStore
from blockgz.store.writer import Body, ContentTag
from tests.support.archives import records
from tests.support.mock_cluster import PARTITIONS, MockCluster

SICK = 1
CHUNK_RECORDS = 200
TOTAL, VALUE_BYTES = 5000, 900
"""Of each partition: more than may wait to be encoded with the least memory, and less than the mock cluster keeps."""

DEADLINE_SECONDS = 60


class HangingStore(LocalStore):
    """Writes of one partition do not end while `sick` is set, as behind a lock that another process holds."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_well = threading.Event()
        self.is_well.set()

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        self._wait(key)
        return super().put_if_absent(key, body, attempt)

    def compare_and_swap(self, key: str, body: bytes, expected: ContentTag | None) -> ContentTag | None:
        self._wait(key)
        return super().compare_and_swap(key, body, expected)

    def _wait(self, key: str) -> None:
        if f"partition={SICK:05}/" in key:
            assert self.is_well.wait(2 * DEADLINE_SECONDS)


@contextmanager
def running(service: ArchiverService) -> Iterator[None]:
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join()


def until(service: ArchiverService, condition: Callable[[ServiceSnapshot], bool], what: str) -> ServiceSnapshot:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition(snapshot := service.snapshot()):
        assert time.monotonic() < deadline, f"waited in vain until {what}: {snapshot}"
        threading.Event().wait(0.02)
    return snapshot


def test_the_others_are_archived_and_the_stuck_one_is_named(tmp_path: Path) -> None:
    mock = MockCluster()
    mock.create_topic("orders")
    store = HangingStore(tmp_path / "archive")
    config = RunConfig(
        archive=store.url,
        bootstrap_servers=mock.bootstrap_servers,
        topics=("orders",),
        single_writer=True,
        memory=32 * 1024**2,
        chunk_records=CHUNK_RECORDS,
    )
    service = ArchiverService(config, store, BufferFolder(tmp_path / "buffer"))

    def archived(count: int) -> Callable[[ServiceSnapshot], bool]:
        return lambda seen: all(each.records == count for each in seen.partitions if each.partition != SICK)

    with running(service):
        until(service, lambda seen: len(seen.partitions) == PARTITIONS and not seen.unowned, "all are claimed")
        store.is_well.clear()
        for total in range(1000, TOTAL + 1, 1000):
            for number in range(PARTITIONS):
                mock.produce("orders", number, records(range(1000), value_bytes=VALUE_BYTES))
            until(service, archived(total), "the healthy partitions are archived")
        told = until(service, lambda seen: bool(seen.stuck), "the sick one is stuck")
        assert readiness(told) is not None and f"orders:{SICK}: paused for 10 s" in str(readiness(told)), readiness(
            told
        )
        assert told.stuck == 1 and health(told) is None and not told.paused
        store.is_well.set()
        until(service, lambda seen: all(each.records == TOTAL for each in seen.partitions), "the sick one catches up")
        assert readiness(until(service, lambda seen: not seen.stuck, "nothing is stuck")) is None

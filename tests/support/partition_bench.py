"""One partition under work, with its threads as in the service, against a store in memory."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from archiver.commit.operations import Driver
from archiver.commit.recovery import take_over
from archiver.errors import Situation, UnreadableRecord
from archiver.ingest.chunk_builder import BufferFolder, ChunkSettings, RollLimits
from archiver.ingest.dead_letters import DeadLetters
from archiver.ingest.kafka_source import Fetched, RecordRefused
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import Order, PartitionEvent
from archiver.logs import FailureLog
from blockgz.errors import StoreUnavailable
from blockgz.store.writer import Body
from index_format.blocks import IsalCompressor
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.support.archives import records
from tests.support.chain import Chain, check_history, read_chain
from tests.support.chunks import POLICY, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore

PARTITION = ("orders", 3)
DEADLINE_SECONDS = 20
FLUSH = Order.FLUSH


def until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain until {what}"
        pause.wait(0.001)


class GatedStore(MemoryStore):
    """Writes wait at a gate; each `open(n)` lets n of them through."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets = threading.Semaphore(0)
        self.gated = False
        self.waiting = 0
        self.failure: Exception | None = None

    def open(self, writes: int) -> None:
        self.tickets.release(writes)

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        self._pass()
        return super().put_if_absent(key, body, attempt)

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self._pass()
        return super().compare_and_swap(key, body, expected)

    def _pass(self) -> None:
        if self.gated:
            self.waiting += 1
            assert self.tickets.acquire(timeout=DEADLINE_SECONDS)
            self.waiting -= 1
        if self.failure is not None:
            raise self.failure


class Bench:
    """A partition under work, its store, buffer and clock."""

    def __init__(self, root: Path) -> None:
        self.now = 1000.0
        self.store = GatedStore()
        self.buffer = BufferFolder(root)
        self.builders: Executor = ThreadPoolExecutor(2)
        self.committers = ThreadPoolExecutor(2)
        self.block_bytes = 200
        self.topic_id: str | None = "id-1"
        self.made: list[PartitionArchiver] = []

    def archiver(
        self,
        *,
        layout: str = "topic",
        partition: int = 3,
        end_offset: int | None = None,
        low: int = 0,
        skip: bool = False,
        topic_id: str | None = "id-1",
        dead_letters: DeadLetters | None = None,
        **limits: Any,
    ) -> PartitionArchiver:
        self.identity = identity_of(layout, partition=partition, topic_id=topic_id)
        self.driver = Driver(
            self.store, MemoryLog([], low=low, high=10**6), self._wait, lambda: True, lambda: Situation.SERVING
        )
        archiver = PartitionArchiver(
            self.identity,
            self.driver.run(take_over(self.identity, f"writer-{len(self.made)}", POLICY)),
            ChunkSettings(
                record_format=record_format(self.identity.record_format),
                compressor=IsalCompressor(1),
                block_bytes=self.block_bytes,
                limits=RollLimits(
                    **{"chunk_bytes": 10**9, "chunk_records": None, "chunk_interval_seconds": 60.0} | limits
                ),
                bad_records_are_skipped=skip,
            ),
            buffer=self.buffer,
            driver=self.driver,
            topic_id_now=lambda: self.topic_id,
            builders=self.builders,
            committers=self.committers,
            failures=FailureLog(),
            clock=lambda: self.now,
            end_offset=end_offset,
            dead_letters=dead_letters,
        )
        self.made.append(archiver)
        return archiver

    def settle(self) -> None:
        """Wait until everything that was offered is done."""
        archiver = self.made[-1]
        until(lambda: archiver.state.is_idle, "the partition is idle")

    def feed(self, archiver: PartitionArchiver, *events: PartitionEvent) -> None:
        """Offer events to an archiver one after the other, and wait until everything is done."""
        for event in events:
            archiver.offer(event)
        self.settle()

    def chain(self) -> Chain | None:
        history = {key: bodies for key, bodies in self.store.versions.items() if not key.endswith(".txt")}
        check_history(history, self.identity.keys.home)
        return read_chain(self.store.bodies(), self.identity.keys.home, self.identity.keys.chunks)

    def spans(self) -> list[tuple[int, int, int]]:
        """Start, next offset and number of records of each chunk."""
        chain = self.chain()
        tail = chain.marker["tail"] if chain else []
        return [(entry["start_offset"], entry["next_offset"], entry["num_records"]) for entry in tail]

    def offsets(self) -> list[int]:
        chain = self.chain()
        return [line.offset for line in chain.lines] if chain else []

    def close(self) -> None:
        self.store.gated = False
        self.store.open(1000)
        for archiver in self.made:
            archiver.close()
        for pool in (self.builders, self.committers):
            pool.shutdown()
        self.buffer.close()

    @staticmethod
    def _wait(attempt: int, cause: str) -> None:
        if attempt >= 3:
            raise StoreUnavailable("the store failed 3 times", why=str(cause))


def fetched(rows: Sequence[Record], leader_epoch: int | None = 0) -> Fetched:
    batch = batch_from_records(rows)
    return Fetched(PARTITION, batch, leader_epoch, batch.nbytes)


def some(*offsets: int, leader_epoch: int | None = 0) -> Fetched:
    return fetched(records(offsets), leader_epoch)


def unreadable(offset: int) -> RecordRefused:
    (record,) = records([offset])
    return RecordRefused(PARTITION, record, UnreadableRecord(f"the record at {offset} cannot be read", why="test"))

"""A partition whose writers die and whose log changes, in a store whose clients may die at any request."""

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from archiver.commit.commit import Held, PartitionIdentity, commit_chunk
from archiver.commit.operations import CompareAndSwap, Driver
from archiver.commit.recovery import take_over
from archiver.maintain.repair.plan import RepairPlan, RepairTarget
from archiver.maintain.repair.salvage import plan_salvage
from index_format import marker as markers
from index_format.records import Record
from tests.index_format.builders import record
from tests.support.archives import ARCHIVE_ID
from tests.support.chain import Chain, check_markers, read_chain
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.repairs import carry_out
from tests.support.simulator import Actor

MAX = 1 << 20
LOG = MemoryLog([record(n, b"%d" % n, timestamp=1000 + n) for n in range(100)])


class Died(BaseException):
    """The process is no more."""


class MortalStore(MemoryStore):
    """A store whose client dies before or after its n-th request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.dies_at: float | None = None
        """2.5: after the second request; 2: before it."""
        self.death: type[BaseException] = Died

    def dying(self, request: Callable[[], Any]) -> Any:
        self.requests += 1
        if self.dies_at == self.requests:
            raise self.death
        answer = request()
        if self.dies_at == self.requests + 0.5:
            raise self.death
        return answer

    def get(self, key: str) -> Any:
        return self.dying(lambda: super(MortalStore, self).get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        found: bytes = self.dying(lambda: super(MortalStore, self).get_range(key, start, end))
        return found

    def put_if_absent(self, key: str, body: Any, attempt: str) -> bool:
        stored: bool = self.dying(lambda: super(MortalStore, self).put_if_absent(key, body, attempt))
        return stored

    def compare_and_swap(self, key: str, body: bytes, expected: Any) -> Any:
        return self.dying(lambda: super(MortalStore, self).compare_and_swap(key, body, expected))


@dataclasses.dataclass
class World:
    """A partition whose writers die, and whose log loses its beginning."""

    identity: PartitionIdentity = dataclasses.field(default_factory=lambda: identity_of("topic", archive_id=ARCHIVE_ID))
    store: MortalStore = dataclasses.field(default_factory=MortalStore)
    log: MemoryLog = dataclasses.field(default_factory=lambda: MemoryLog(LOG.records))
    held: Held | None = None

    def __post_init__(self) -> None:
        body = {"format": "block-gzip-archive", "version": 1, "archive_id": ARCHIVE_ID, "cluster_id": None}
        key = "_blockgz/_archive.json" if self.keys.layout == "seed" else "_archive.json"
        self.store.put_if_absent(key, json.dumps({**body, "layout": self.keys.layout}).encode(), "-")

    @property
    def keys(self) -> Any:
        return self.identity.keys

    def run(self, protocol: Any) -> Any:
        return Driver(self.store, self.log, lambda attempt, cause: None, lambda: True).run(protocol)

    def chunk(self, rows: Sequence[int], start: int | None = None, end: int | None = None) -> Any:
        chosen = tuple(each for n in rows if (each := self.log.record_at(n)) is not None)
        if self.identity.record_format == "text":
            chosen = tuple(Record(r.offset, r.timestamp, r.timestamp_type, None, r.value, ()) for r in chosen)
        return finished_chunk(
            self.identity.record_format, chosen, rows[0] if start is None else start, end or rows[-1] + 1
        )

    def claim(self) -> Held:
        self.held = self.run(take_over(self.identity, "w", POLICY)).held
        assert self.held is not None
        return self.held

    def commit(self, rows: Sequence[int], **settings: Any) -> None:
        self.held = self.run(commit_chunk(self.identity, self.held or self.claim(), self.chunk(rows, **settings)))

    def die_committing(self, rows: Sequence[int], **settings: Any) -> None:
        """A writer claims, and leaves data and index behind."""
        claimed = self.claim()
        protocol = commit_chunk(self.identity, claimed, self.chunk(rows, **settings))
        dying = Actor("dying", protocol, self.store, self.log, random.Random(rows[0]))
        while not isinstance(dying.operation, CompareAndSwap):
            dying.step()

    def lose(self, low: int) -> None:
        """Retention takes what lies below, and the next writer finds out."""
        self.log.low = low
        self.claim()

    def plan(self) -> RepairPlan:
        return plan_salvage(RepairTarget(self.store, self.keys, MAX))

    def salvaged(self) -> RepairPlan:
        plan = self.plan()
        assert not carry_out(plan)
        return plan

    @property
    def marker(self) -> markers.Marker:
        return markers.decode_marker(self.store.bodies()[self.keys.marker])

    def chain(self) -> Chain:
        chain = read_chain(self.store.bodies(), self.keys.home, self.keys.chunks)
        assert chain is not None
        check_markers(self.store.versions, self.keys.home)
        return chain

    def offsets(self) -> list[int]:
        return [line.offset for line in self.chain().lines]

"""Garbage collection beside writers, zombies, lost answers, late and doubled requests: nothing committed is deleted.

Runs the real protocols over a store in memory, one operation at a time in random order. The sizes of catalogs are cut
down so that short runs fold several levels deep.
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from archiver.commit import operations as op
from archiver.commit.commit import FinishedChunk, Held, PartitionIdentity, commit_chunk, commit_progress
from archiver.commit.recovery import TakeoverPolicy, take_over
from archiver.errors import Fenced, OwnedByAnother
from archiver.maintain.garbage import ListedPart, find_dead
from archiver.maintain.gc import offsets_of, plan_sweep
from archiver.maintain.rewrite.tree import StoredChain, read_chain
from blockgz.errors import StoreUnavailable, UsageError
from blockgz.kafka import LogBounds
from blockgz.store.writer import ListedObject, ObjectHead, StoredObject
from index_format import marker as markers
from index_format import objects
from index_format.keys import (
    INDEX_SUFFIX,
    LAYOUTS,
    TOPIC_OBJECT,
    ChunkStart,
    ObjectKind,
    PartitionKeys,
    TopicFolder,
    archive_key,
    parse_key,
    topic_home,
)
from index_format.objects import ArchiveInfo, BlockEntry, ChunkIndex, Gap, TopicInfo
from tests.index_format.builders import record
from tests.support.chunks import archive_all, finished_chunk, identity_of
from tests.support.format_objects import chunk_entry
from tests.support.memory_store import MemoryBody, MemoryLog, MemoryStore
from tests.support.simulator import Actor

GRACE = 3600.0
SCHEDULES = int(os.environ.get("BLOCKGZ_GC_SCHEDULES", "25"))
STEPS = 400
HASH = "0" * 64
POLICY = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)


class SteppingStore(MemoryStore):
    """`after_each` is called after every operation that a collector makes."""

    after_each: Callable[[], None] = staticmethod(lambda: None)

    def get(self, key: str) -> StoredObject | None:
        found = super().get(key)
        self.after_each()
        return found

    def head(self, key: str) -> ObjectHead | None:
        found = super().head(key)
        self.after_each()
        return found

    def list(self, prefix: str) -> Iterator[ListedObject]:
        found = list(super().list(prefix))
        self.after_each()
        yield from found

    def delete(self, key: str) -> None:
        super().delete(key)
        self.after_each()


class World:
    """Writers of one partition of one topic and its re-creations, and a collector."""

    def __init__(self, layout: str, rng: random.Random, incarnations: int) -> None:
        self.layout = layout
        self.rng = rng
        self.store = SteppingStore()
        self.writers: list[Iterator[None]] = []
        self.late: list[Callable[[], object]] = []
        self.low = dict.fromkeys(range(1, incarnations + 1), 0)
        self.incarnations = 0
        self.collected = 0
        self.store.put_if_absent(
            archive_key(layout), objects.encode(ArchiveInfo(archive_id="a", cluster_id=None, layout=layout)), "-"
        )
        self.create_topic()

    def create_topic(self) -> None:
        self.incarnations += 1
        folder = TopicFolder("t", self.incarnations)
        info = TopicInfo(topic="t", topic_id=None, incarnation=self.incarnations)
        self.store.put_if_absent(topic_home(self.layout, folder) + TOPIC_OBJECT, objects.encode(info), "-")

    @property
    def chains(self) -> list[PartitionKeys]:
        return [LAYOUTS[self.layout](TopicFolder("t", number), 0) for number in range(1, self.incarnations + 1)]

    def step(self) -> None:
        """One thing happens."""
        rng = self.rng
        self.store.now += rng.choice([0, 60, 600, 1800])
        roll = rng.random()
        if self.late and roll < 0.05:
            self.late.pop(rng.randrange(len(self.late)))()
        elif roll < 0.08 and self.incarnations < len(self.low):
            self.create_topic()
        elif roll < 0.10 or not self.writers:
            self.writers.append(self.writer(rng.choice(self.chains)))
        elif roll < 0.13 and len(self.writers) > 1:
            self.writers.pop(rng.randrange(len(self.writers)))
        else:
            writer = rng.choice(self.writers)
            if next(writer, self) is self:
                self.writers.remove(writer)

    def writer(self, keys: PartitionKeys) -> Iterator[None]:
        """A process that claims the partition and commits until another one claims it."""
        identity = PartitionIdentity(keys, "a", None, "g", "text", "gzip", "read_committed", "")
        name = f"w{self.rng.getrandbits(32)}"
        try:
            held = (yield from self.run(take_over(identity, name, POLICY), keys)).held
            while True:
                held = yield from self.run(self.work(identity, held), keys)
        except OwnedByAnother:
            return

    def work(self, identity: PartitionIdentity, held: Held) -> op.Protocol[Held]:
        position = held.marker.next_offset or 0
        if self.rng.random() < 0.3:
            return commit_progress(identity, held, position + self.rng.randint(1, 3))
        start = held.marker.chain_end
        first = position + self.rng.randint(0, 2)
        last = first + self.rng.randint(0, 3)
        block = BlockEntry(1, 1, self.rng.randint(1, 9), 0, first, last, 0, 0, 0)
        chunk = FinishedChunk(
            MemoryBody.of(bytes(block.byte_length)),
            ChunkStart(position if start is None else start, first, 0),
            last + 1 + self.rng.randint(0, 2),
            (block,),
            (),
            "CreateTime",
            None,
            HASH,
        )
        return commit_chunk(identity, held, chunk)

    def run(self, protocol: op.Protocol[Any], keys: PartitionKeys) -> Iterator[None]:  # type: ignore[misc]
        """The protocol, an operation a step."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                operation = protocol.send(answer) if error is None else protocol.throw(error)
            except StopIteration as stop:
                return stop.value
            yield
            answer, error = None, None
            try:
                answer = self.carry_out(operation, keys)
            except (StoreUnavailable, Fenced) as raised:
                error = raised

    def carry_out(self, operation: op.Operation, keys: PartitionKeys) -> Any:  # noqa: PLR0911
        match operation:
            case op.Get(key):
                return self.store.get(key)
            case op.Head(key):
                return self.store.head(key)
            case op.PutIfAbsent(key, body, attempt):
                return self.deliver(lambda: self.store.put_if_absent(key, body, attempt))
            case op.CompareAndSwap(key, body, expected):
                return self.deliver(lambda: self.store.compare_and_swap(key, body, expected))
            case op.NewToken():
                return f"{self.rng.getrandbits(128):032x}"
            case op.StillAssigned():
                return self.rng.random() < 0.98
            case op.ReadLogBounds():
                low = self.low[keys.folder.incarnation] = self.low[keys.folder.incarnation] + self.rng.choice([0, 0, 9])
                return LogBounds(low, 2**40)
            case _:
                return None

    def deliver(self, request: Callable[[], Any]) -> Any:
        """A write that may get lost, arrive late, twice, or lose its answer."""
        match self.rng.randrange(12):
            case 0:
                self.late.append(request)
                raise StoreUnavailable("late")
            case 1:
                request()
                raise StoreUnavailable("the answer is lost")
            case 2:
                self.late.append(request)
        return request()

    def collect(self) -> None:
        """A collector, between whose requests the world goes on."""

        def go_on() -> None:
            self.store.after_each = lambda: None
            for _ in range(self.rng.choice([0, 0, 1, 5])):
                self.step()
            self.store.after_each = go_on

        self.store.after_each = go_on
        plan = plan_sweep(self.store, (), GRACE)
        assert not plan.problems
        for found in plan.garbage:
            if self.rng.random() < 0.2:
                self.late.append(lambda key=found.name.key: self.store.delete(key))  # type: ignore[misc]
        go_on()
        self.store.after_each = lambda: None
        plan.carry_out()
        self.collected += plan.deleted or 0

    def check(self) -> set[str]:
        """The keys of everything committed; all of it is there."""
        return {key for keys in self.chains for key in self.reachable(keys)}

    def reachable(self, keys: PartitionKeys) -> Iterator[str]:
        stored = self.store.get(keys.marker)
        if stored is None:
            return
        marker = markers.decode_marker(stored.body)
        waiting = [(span, level) for level, spans in enumerate(([*marker.tail], *marker.catalogs)) for span in spans]
        while waiting:
            span, level = waiting.pop()
            key = (keys.home if level else keys.chunks) + span.name
            yield key
            found = self.store.get(key)
            assert found is not None, f"{key} was deleted"
            if level:
                catalog = markers.decode_catalog(found.body, span, level)  # type: ignore[arg-type]
                waiting += [(entry, level - 1) for entry in catalog.entries]
                continue
            index = objects.decode(found.body, ChunkIndex, key)
            data = keys.chunks + index.data.name
            for each in (data, data.removesuffix(".gz") + INDEX_SUFFIX) if self.layout == "seed" else (data,):
                assert each in self.store.objects, f"{each} was deleted"
                yield each


@pytest.fixture
def small_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("small_catalogs")
@pytest.mark.parametrize(("layout", "incarnations"), [("topic", 1), ("seed", 1), ("seed", 3)])
def test_what_is_committed_is_never_deleted_and_what_is_not_goes_in_the_end(layout: str, incarnations: int) -> None:
    first = random.randrange(2**32)
    collected = spared = 0
    for seed in range(first, first + SCHEDULES):
        print(f"seed {seed}")
        world = World(layout, random.Random(seed), incarnations)
        for _ in range(STEPS):
            world.step()
            if world.rng.random() < 0.02:
                world.collect()
                world.check()
        for request in world.late:
            request()
        world.check()
        world.store.now += GRACE
        final = plan_sweep(world.store, (), GRACE)
        final.carry_out()
        committed = world.check()
        collected += world.collected + len(final.garbage)
        spared += len(final.spared)
        if incarnations == 1:
            assert not set(dead_chunks(world, committed)), "orphans below the chain's end are left"
    assert collected > 0, "schedules without garbage prove nothing"
    assert spared > 0 or layout == "seed", "and those without orphans in gaps as little"


def dead_chunks(world: World, committed: set[str]) -> Iterator[str]:
    """Chunk objects that nothing leads to, below the end of the chain."""
    stored = world.store.get(world.chains[0].marker)
    marker = markers.decode_marker(stored.body) if stored else None
    if marker is None or marker.chain_end is None or marker.start_offset is None:
        return
    for key in world.store.objects:
        name = parse_key(world.layout, key)
        if name is None or name.kind is ObjectKind.CATALOG or key in committed or name.number >= marker.chain_end:
            continue
        if name.number < marker.start_offset:
            continue  # may be an older chain's, whose marker was lost
        if any(gap.end > name.number for gap in all_gaps(world)):
            continue  # may be the ancestor's, or hold what the gap lacks
        yield key


def all_gaps(world: World) -> Sequence[Gap]:
    """Those of the first incarnation, folded ones included."""
    chain = read_chain(world.store, LAYOUTS[world.layout](TopicFolder("t"), 0))
    return chain.gaps if chain else ()


def new_marker(**fields: Any) -> markers.Marker:
    who = {"group_id": "g", "epoch": 1, "writer": "w", "nonce": "n"}
    return markers.Marker(archive_id="a", topic="t", topic_id=None, partition=0, **who, **fields)


def one_chunk(keys: PartitionKeys, start: int, end: int) -> markers.Marker:
    """The marker of a chain of one chunk."""
    name = keys.index_name(ChunkStart(start, start, 0))
    entry = chunk_entry(start, end, name=name, bytes=1, raw_bytes=1, min_timestamp=0, max_timestamp=0, sha256=HASH)
    return new_marker(start_offset=start, next_offset=end, tail=(entry,), last_chunk_index=name)


def test_the_bound_is_where_the_next_chunk_starts_even_where_next_offset_is_ahead() -> None:
    """Behind a gap, progress without records raises next_offset only: an upload in progress lies below it."""
    world = World("topic", random.Random(0), 1)
    (keys,) = world.chains
    gap = Gap(0, 40, "retention")
    before = new_marker(start_offset=0, next_offset=40, gaps=(gap,))
    marker = markers.advanced(before, 45, nonce="m", leader_epoch=None)
    assert (marker.chain_end, marker.next_offset) == (40, 45)
    world.store.compare_and_swap(keys.marker, markers.encode(marker), None)
    for position in (39, 40, 44, 45):
        world.store.put_if_absent(keys.chunks + keys.data_name(ChunkStart(position, 45, 0), ".gz"), b"1", "-")
    world.store.now += GRACE
    plan = plan_sweep(world.store, (), GRACE)
    assert [found.name.number for found in (*plan.garbage, *plan.spared)] == [39]


class TestGaps:
    """A writer died between a chunk's data and its index, or before the swap; then retention took the records."""

    IDENTITY = identity_of(archive_id="a", topic="t", partition=0)
    LOG = MemoryLog([record(n, b"%d" % n) for n in range(60)])

    def orphaned(self, *, low: int, operations: int, rows: Sequence[int] = range(10, 30)) -> World:
        """Offsets 0 to 9 and from `low` to 59 archived, and what a writer of `rows` left after so many operations."""
        world = World("topic", random.Random(0), 1)
        identity, log = self.IDENTITY, self.LOG
        first = Actor(
            "a", archive_all(identity, MemoryLog(log.records[:10]), "a", lambda: 11), world.store, log, world.rng
        )
        first.run_to_end()
        chunk = finished_chunk("json", tuple(log.records[n] for n in rows), 10, rows[-1] + 1)
        dying = Actor("b", commit_chunk(identity, first.result, chunk), world.store, log, world.rng)
        while operations:
            operations -= isinstance(dying.operation, op.PutIfAbsent)
            dying.step()
        rest = MemoryLog(log.records[low:], low=low)
        Actor("c", archive_all(identity, rest, "c", lambda: 99), world.store, rest, world.rng).run_to_end()
        world.store.now += GRACE
        return world

    @pytest.mark.parametrize(("operations", "names"), [(1, [".gz"]), (2, [".gz", ".index.json"])])
    def test_an_orphan_that_reaches_into_a_gap_is_spared(self, operations: int, names: list[str]) -> None:
        world = self.orphaned(low=20, operations=operations)
        plan = plan_sweep(world.store, (), GRACE)
        assert not plan.garbage
        stem = self.IDENTITY.keys.chunks + f"{10:020d}"
        assert sorted(found.name.key for found in plan.spared) == [stem + name for name in names]

    @pytest.mark.parametrize("operations", [1, 2])
    def test_one_that_holds_no_record_of_the_gap_goes(self, operations: int) -> None:
        """It starts below the gap's end, at a position without a record."""
        world = self.orphaned(low=20, operations=operations, rows=range(20, 30))
        plan = plan_sweep(world.store, (), GRACE)
        assert len(plan.garbage) == operations and not plan.spared

    def test_one_that_cannot_be_read_is_spared(self) -> None:
        world = self.orphaned(low=20, operations=1)
        (key,) = [found.name.key for found in plan_sweep(world.store, (), GRACE).spared]
        world.store.objects[key] = world.store.objects[key]._replace(body=b"nonsense")
        assert [found.name.key for found in plan_sweep(world.store, (), GRACE).spared] == [key]

    def test_offsets_that_it_lists_as_a_gap_itself_count_for_nothing(self) -> None:
        index = objects.decode(
            msgspec.json.encode(
                {
                    **json.loads(self.orphaned(low=20, operations=2).store.bodies()[self.index_key]),
                    "gaps": [{"from": 10, "to": 20, "reason": "skipped"}],
                }
            ),
            ChunkIndex,
            "the index",
        )
        assert all(piece.start >= 20 for piece in offsets_of(index))

    @property
    def index_key(self) -> str:
        return self.IDENTITY.keys.chunks + f"{10:020d}" + INDEX_SUFFIX


def test_a_grace_below_an_hour_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        plan_sweep(MemoryStore(), (), grace=3599)


def test_nothing_goes_without_a_marker_or_before_the_first_commit() -> None:
    world = World("topic", random.Random(0), 1)
    (keys,) = world.chains
    world.store.put_if_absent(keys.chunks + keys.data_name(ChunkStart(0, 0, 0), ".gz"), b"1", "-")
    world.store.now += GRACE
    assert not plan_sweep(world.store, (), GRACE).garbage
    claim = new_marker()
    world.store.compare_and_swap(keys.marker, markers.encode(claim), None)
    assert not plan_sweep(world.store, (), GRACE).garbage


def test_an_index_goes_before_its_data_and_neither_before_the_grace() -> None:
    world = World("topic", random.Random(0), 1)
    (keys,) = world.chains
    marker = new_marker(start_offset=2, next_offset=9, gaps=(Gap(2, 9, "retention"),))
    chain = StoredChain(keys, marker, (), frozenset(), ())
    for name in (keys.data_name(ChunkStart(3, 3, 0), ".gz"), keys.index_name(ChunkStart(3, 3, 0))):
        world.store.put_if_absent(keys.chunks + name, b"1", "-")
    found = [ListedPart(name, each) for each in world.store.list("") if (name := parse_key("topic", each.key))]
    assert not find_dead([chain], found, {}, {}, now=world.store.now + GRACE - 1, grace=GRACE)
    garbage = find_dead([chain], found, {}, {}, now=world.store.now + GRACE, grace=GRACE)
    assert [each.name.kind for each in garbage] == [ObjectKind.INDEX, ObjectKind.DATA]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chain_before_stays_where_an_archiver_was_started_after_its_marker_was_lost(layout: str) -> None:
    """Kafka holds its beginning no more: the new chain starts at 40, and goes on beyond all that was archived."""
    world = World(layout, random.Random(0), 1)
    (keys,) = world.chains
    for start in (0, 20, 50):
        for name in (keys.data_name(ChunkStart(start, start, 0), ".gz"), keys.index_name(ChunkStart(start, start, 0))):
            world.store.put_if_absent(keys.chunks + name, b"1", "-")
    world.store.compare_and_swap(keys.marker, markers.encode(one_chunk(keys, 40, 90)), None)
    world.store.now += GRACE
    assert {found.name.number for found in plan_sweep(world.store, (), GRACE).garbage} == {50}


def test_a_lost_marker_of_another_incarnation_keeps_what_has_the_same_names() -> None:
    world = World("seed", random.Random(0), 2)
    world.create_topic()
    first, second = world.chains
    world.store.put_if_absent(first.chunks + first.data_name(ChunkStart(5, 5, 0), ".gz"), b"1", "-")
    world.store.compare_and_swap(second.marker, markers.encode(one_chunk(second, 0, 90)), None)
    world.store.now += GRACE
    assert not plan_sweep(world.store, (), GRACE).garbage
    world.store.compare_and_swap(first.marker, markers.encode(one_chunk(first, 0, 90)), None)
    assert len(plan_sweep(world.store, (), GRACE).garbage) == 1

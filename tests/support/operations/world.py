"""An archive of one partition in memory, what may happen to it in years, and the model that it must agree with."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa

from archiver.commit import operations
from archiver.commit.archive import find_incarnation
from archiver.commit.commit import Held, commit_chunk, commit_progress
from archiver.commit.operations import Driver, Protocol, UnreadLog
from archiver.commit.recovery import take_over_last
from archiver.errors import Diverged, OwnedByAnother, SalvageRefused
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain import gc, planned
from archiver.maintain.compact import Compaction, Conversion, PlannedCompaction, compact
from archiver.maintain.erase import AtOffsets, ErasedPartition, Matching, RecordChoice, erase_in, find_records
from archiver.maintain.erase_status import remains_of
from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from archiver.maintain.planned import archived_partitions, one_by_one
from archiver.maintain.prune import Keep, PlannedPruning, prune_partition
from archiver.maintain.repair import chunk_indexes
from archiver.maintain.repair.diverged import LogSource, plan_diverged
from archiver.maintain.repair.losses import PlannedLossRepair
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget
from archiver.maintain.repair.refetch import RefetchSource
from archiver.maintain.repair.salvage import plan_salvage
from archiver.maintain.rewrite.chunks import OffsetRanges
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import maintenance_of
from archiver.maintain.rewrite.tree import read_chain, read_current
from blockgz.archive import lookup
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.cuts import find_cut
from blockgz.archive.follow import last_records
from blockgz.archive.group_tables import EndsAround
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import AT_START, AtTime, BeforeTime, OffsetRange
from blockgz.archive.selection import Selection
from blockgz.errors import UsageError
from blockgz.record_filter import KeyIn, RecordFilter
from index_format import objects
from index_format.keys import FLOORS_FOLDER, PartitionKeys, archive_key
from index_format.marker import MAX_RETIRED, decode_index, decode_marker
from index_format.objects import ArchiveInfo, Gap
from index_format.records import Record, batch_from_records, iter_records
from replayer.coverage import partition_coverage
from replayer.verify.report import Depth
from replayer.verify.verifying import verify_partition
from tests.support.chunks import GROUP, POLICY, finished_chunk, identity_of
from tests.support.lifecycle.blocking import OneAfterAnother
from tests.support.lifecycle.world import CLUSTER
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.operations.model import Answer, Model
from tests.support.operations.views import paged, plain, scanned, told
from tests.support.repairs import carry_out
from tests.support.selections import judged_cut

TOPIC, PARTITION = "orders", 3
GRACE = SHORTEST_GRACE_SECONDS
START = 1_760_000_000.0
"""When a world begins, in seconds since 1970."""
MAX_BLOCK_BYTES = 1 << 20
LARGE = 1 << 30
KEYS = [b"k%d" % number for number in range(6)]
FIRST_TIMESTAMP = 1_000
LOG_END = 120
LOGS = 8
"""So few that chunks of the same records are encoded once."""
OLD_READERS = 3


class Died(BaseException):
    """The process is no more."""


class Store(MemoryStore):
    """A store whose client may die before it swaps a marker."""

    dies_at_swap = False

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if self.dies_at_swap:
            raise Died
        return super().compare_and_swap(key, body, expected)


class Reader(MemoryReader):
    """Reads a store, and remembers what was read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.objects)  # type: ignore[arg-type]
        self.read = set[str]()

    def _body(self, key: str) -> bytes:
        self.read.add(key)
        return super()._body(key).body  # type: ignore[attr-defined,no-any-return]


class Tools(NamedTuple):
    """What all worlds of a process use."""

    loop: asyncio.Runner
    buffers: BufferFolder


@contextmanager
def tools(folder: Path) -> Iterator[Tools]:
    """No threads meanwhile, which cost more than what is done in them."""
    with ExitStack() as stack:
        for module in (operations, planned, chunk_indexes):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", OneAfterAnother))
        stack.enter_context(patch.object(asyncio, "to_thread", _at_once))
        buffers = BufferFolder(folder)
        stack.callback(buffers.close)
        yield Tools(stack.enter_context(asyncio.Runner()), buffers)


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


@dataclass
class OldReader:
    """Who read the marker some time ago, and what it led to then."""

    partition: ArchivedPartition
    model: Model
    good_until: float
    """So long everything is there that its marker leads to."""


@cache
def log_of(number: int, word: str, *, is_text: bool) -> tuple[Record, ...]:
    """The records of a log with holes; different words make different records at the same offsets."""
    rng, offset, records = random.Random(number), 0, list[Record]()
    while offset < LOG_END:
        key, headers = (None, ()) if is_text else (rng.choice([None, *KEYS]), rng.choice([(), (("h", b"x"),)]))
        # Some clocks are ahead, and some records come late.
        skew = 400 if offset % 17 == 3 else -300 if offset % 29 == 5 else 0
        timestamp = FIRST_TIMESTAMP + offset + skew
        records.append(Record(offset, timestamp, 0, key, f"{word} {offset}".encode(), headers))
        offset += rng.choice([1, 1, 1, 2, 6])
    return tuple(records)


class World:
    """What happens is drawn from `rng`; `trace` says it."""

    def __init__(self, rng: random.Random, layout: str, tools: "Tools") -> None:
        self.rng, self.buffers, self.run = rng, tools.buffers, tools.loop.get_loop().run_until_complete
        self.identity = identity_of(layout, topic=TOPIC, partition=PARTITION)
        self.store = Store()
        self.store.now = START
        info = ArchiveInfo(archive_id=self.identity.archive_id, cluster_id=CLUSTER, layout=layout)
        self.store.put_if_absent(archive_key(layout), objects.encode(info), "-")
        find_incarnation(self.store, layout=layout, topic=TOPIC, topic_id=self.identity.topic_id)
        self.log_number = rng.randrange(LOGS)
        self.log = MemoryLog(log_of(self.log_number, "value", is_text=self.is_text), low=rng.choice([0, 0, 7]))
        self.held: Held | None = None
        self.model = Model()
        self.old_readers: list[OldReader] = []
        self.is_rewritten = False
        self.turn: int | None = None
        """Where the partition continues in a second folder."""
        self.reports: list[ErasedPartition] = []
        self.trace: list[str] = []
        self.counts = Counter[str]()

    @property
    def layout(self) -> str:
        return self.identity.keys.layout

    @property
    def is_text(self) -> bool:
        return self.identity.record_format == "text"

    @property
    def folders(self) -> list[PartitionKeys]:
        return archived_partitions(self.store, None)

    def note(self, what: str, more: object = "") -> None:
        self.counts[what] += 1
        self.trace.append(f"{what} {more}".rstrip())

    # What writers do.

    def append(self) -> None:
        """A writer archives a few chunks, or passes over holes."""
        for _ in range(self.rng.randint(1, 4)):
            rows = self._next_records(self.rng.choice([1, 2, 2, 4]))
            if not rows:
                return
            self._as_writer(partial(self._progress if self.rng.random() < 0.1 else self._commit, rows))

    def die(self) -> None:
        """A writer stores data and index of a chunk and dies before it is committed."""
        rows = self._next_records(self.rng.choice([2, 4, 8]))
        if not rows:
            return
        self._as_writer(lambda held: held)
        assert self.held is not None
        protocol = commit_chunk(self.identity, self.held, self._chunk(rows, rows[-1].offset + 1, ()))
        self.store.dies_at_swap = True
        try:
            self._run(protocol)
        except Died:
            self.model.orphans |= {row.offset: self._readable(row) for row in rows}
            self.held = None
        finally:
            self.store.dies_at_swap = False
        self.note("died", rows[-1].offset + 1)
        if self.rng.random() < 0.6:
            self.lose()

    def lose(self) -> None:
        """Retention takes records before they are archived; another writer finds out."""
        rows = self._next_records(self.rng.choice([2, 3, 6]))
        if rows and self.model.began is not None:
            self.log.low, self.held = max(self.log.low, rows[-1].offset), None
            self._as_writer(lambda held: held)

    def _next_records(self, count: int) -> Sequence[Record]:
        start = max(self.model.next_offset, self.log.low)
        return [record for record in self.log.records if start <= record.offset][:count]

    def _run(self, protocol: Protocol[Any]) -> Any:
        return Driver(self.store, self.log, _wait, lambda: True, clock=self.store.clock).run(protocol)

    def _maintainer(self) -> Driver:
        return Driver(self.store, UnreadLog(), _wait, lambda: True, clock=self.store.clock)

    def _as_writer(self, work: Callable[[Held], Held]) -> None:
        """A writer that was fenced claims the partition again."""
        try:
            self.held = work(self.held or self._claim())
        except OwnedByAnother:
            self.held = work(self._claim())

    def _claim(self) -> Held:
        self.identity, claimed = self._run(take_over_last(self.identity, "writer", POLICY))
        model = self.model
        if model.began is not None:
            if claimed.gap is not None:
                assert claimed.gap.start == model.next_offset, (claimed.gap, model.next_offset)
                model.append((), claimed.gap.end, [range(claimed.gap.start, claimed.gap.end)])
                self.note("gap", claimed.gap.end)
            assert claimed.position == model.next_offset, (claimed.position, model.next_offset)
        held: Held = claimed.held
        return held

    def _commit(self, rows: Sequence[Record], held: Held) -> Held:
        following = next((each.offset for each in self.log.records if each.offset > rows[-1].offset), self.log.high)
        end = self.rng.choice([rows[-1].offset + 1, following])
        gaps = [Gap(a.offset + 1, b.offset, "skipped") for a, b in pairwise(rows) if b.offset - a.offset > 2]
        gaps = gaps if self.rng.random() < 0.3 else []
        held = self._run(commit_chunk(self.identity, held, self._chunk(rows, end, gaps, held.marker.chain_end)))
        if self.model.began is None:
            self.model.begin(rows[0].offset)
        self.model.append(map(self._readable, rows), end, [range(gap.start, gap.end) for gap in gaps])
        self.note("chunk", f"{rows[0].offset}..{end}")
        return held

    def _progress(self, rows: Sequence[Record], held: Held) -> Held:
        if self.model.began is None or rows[0].offset == self.model.next_offset:
            return self._commit(rows, held)
        held = self._run(commit_progress(self.identity, held, rows[0].offset))
        self.model.append((), rows[0].offset)
        self.note("progress", rows[0].offset)
        return held

    def _chunk(self, rows: Sequence[Record], end: int, gaps: Sequence[Gap], start: int | None = None) -> Any:
        if start is None:
            chain_end = self.held.marker.chain_end if self.held else None
            start = rows[0].offset if chain_end is None else chain_end
        return finished_chunk(self.identity.record_format, tuple(rows), start, end)._replace(gaps=tuple(gaps))

    def _readable(self, record: Record) -> Record:
        """As readers see it: record format text keeps values only."""
        return Record(record.offset, -1, -1, None, record.value, ()) if self.is_text else record

    # What maintainers do.

    @property
    def is_full(self) -> bool:
        """Whether a marker soon lists as many replaced catalogs as it may."""
        held = [read_current(self.store, keys) for keys in self.folders]
        return any(each is not None and len(maintenance_of(each.marker).retired) > MAX_RETIRED // 3 for each in held)

    def prune(self) -> None:
        """By size or by age."""
        since_offset = self.rng.randrange(self.model.next_offset + 1)
        size = sum(read_current(self.store, keys).marker.num_bytes for keys in self.folders)  # type: ignore[union-attr]
        keep = (
            Keep(since_ms=FIRST_TIMESTAMP + since_offset) if self.rng.random() < 0.5 else Keep(newest_bytes=size // 2)
        )
        maintainer = self._maintainer()
        tools = RewriteTools(maintainer, self.store, self.buffers, 0, MAX_BLOCK_BYTES)
        plan = self._unless_seed(
            lambda: PlannedPruning(
                *(self.store, None, keep, maintainer), one_by_one(lambda each: prune_partition(each, tools))
            )
        )
        if plan is None:
            return
        assert not plan.problems, plan.problems
        plan.carry_out()
        done = list(plan.ended.values())
        assert all(each.is_whole for each in done), done
        floor = max((self._within(each.plan.keys, each.plan.pruned_before) for each in done), default=0)
        if keep.since_ms is not None:
            gone = [record for at, record in self.model.living.items() if at < floor]
            assert all(record.timestamp < keep.since_ms for record in gone), "a record goes that is to stay"
        self.model.floor = max(self.model.floor, floor)
        self.is_rewritten |= bool(done)
        if done:
            self.note("prune", self.model.floor)

    def _within(self, keys: PartitionKeys, offset: int) -> int:
        is_older = self.turn is not None and keys.folder.incarnation == 1
        return min(offset, self.turn) if is_older and self.turn is not None else offset

    def compact(self) -> None:
        """Neighbours become one, or all chunks get another form."""
        if self.is_full:
            return
        rng = self.rng
        limits = MergeLimits(rng.choice([300, LARGE]), rng.choice([600, LARGE]))
        conversion = Conversion(
            rng.choice([300, 1 << 20]), rng.choice(["json", "arrow", None]), rng.choice(["zstd", None])
        )
        compaction = Compaction(limits, conversion if rng.random() < 0.4 else None)
        buffer_bytes, maintainer = rng.choice([1, LARGE]), self._maintainer()
        tools = RewriteTools(maintainer, self.store, self.buffers, buffer_bytes, MAX_BLOCK_BYTES)
        plan = self._unless_seed(
            lambda: PlannedCompaction(
                *(self.store, None, compaction, maintainer, buffer_bytes),
                lambda plans: (compact(each, compaction, tools) for each in plans),
            )
        )
        if plan is None:
            return
        assert not plan.problems, plan.problems
        plan.carry_out()
        done = list(plan.ended.values())
        assert all(each.is_whole for each in done), done
        self.is_rewritten |= bool(done)
        if done:
            self.note(compaction.kind, plan.totals())

    def erase(self) -> None:
        (wanted, is_wanted), found = self._wanted(), set[int]()
        if self.layout == "seed" or self.is_full:
            return
        meant = {record.offset for record in self.model.living.values() if is_wanted(record)}
        for keys in self.folders:
            chain = read_chain(self.store, keys)
            assert chain is not None
            records = find_records(self.store, chain, wanted, MAX_BLOCK_BYTES)
            if records.records:
                size = self.rng.choice([400, LARGE])
                tools = RewriteTools(self._maintainer(), self.store, self.buffers, size, MAX_BLOCK_BYTES)
                erase_in(keys, records.ranges, tools)
                found |= {offset for each in records.ranges for offset in each}
                self.reports.append(records)
        assert meant <= found, meant - found
        self.is_rewritten |= bool(found)
        self.model.erase(meant)
        if found:
            self.note("erase", sorted(meant))

    def _wanted(self) -> tuple[RecordChoice, Callable[[Record], bool]]:
        if self.rng.random() < 0.7:
            keys = self.rng.sample(KEYS, self.rng.choice([1, 1, 2, 5]))
            return Matching.all_of(KeyIn(keys)), lambda record: record.key in keys
        start = self.rng.randrange(self.model.next_offset + 1)
        offsets = range(start, start + self.rng.choice([1, 5, 40]))
        return AtOffsets(OffsetRanges([offsets])), lambda record: record.offset in offsets

    def collect(self) -> None:
        self.store.now += self.rng.choice([0.0, GRACE / 2, GRACE + 1, GRACE + 1])
        plan = gc.plan_sweep(self.store, (), GRACE, wait=_wait)
        assert not plan.problems, plan.problems
        plan.carry_out()
        assert not plan.problems, plan.problems
        self.note("gc", f"{plan.deleted or 0} of {plan.count}")
        self.counts["objects deleted"] += plan.deleted or 0

    def _unless_seed(self, plan: Callable[[], Any]) -> Any:
        """The plan; nothing in layout seed, where it is refused."""
        if self.layout != "seed":
            return plan()
        try:
            plan()
        except UsageError:
            return None
        raise AssertionError("an archive in layout seed would be rewritten")

    # Repairs.

    def salvage(self) -> None:
        """Records that a gap lists as lost come back from an object that a dead writer left."""
        plan = plan_salvage(RepairTarget(self.store, self.identity.keys, MAX_BLOCK_BYTES))
        assert all(isinstance(problem.error, SalvageRefused) for problem in plan.problems), plan.problems
        if not plan.steps:
            return
        assert not carry_out(plan)
        self.note("salvage", len(plan.steps))
        said = self.look_up(self.opened(), range(self.model.next_offset), self.model.answers_salvaged)
        before = len(self.model.living)
        self.model.observe(said)
        assert len(self.model.living) > before, "nothing was recovered"

    def repair_marker(self) -> None:
        """A marker is lost, or damaged, and made again."""
        folders = self.folders
        if self.turn is not None and self.model.next_offset == self.turn:
            folders = folders[1:]  # the older marker would not be made to lead to a folder without a chunk
        keys = self.rng.choice(folders)
        whole = self.store.objects[keys.marker]
        if self.rng.random() < 0.7:
            del self.store.objects[keys.marker]
        else:
            self.store.objects[keys.marker] = whole._replace(body=whole.body[: len(whole.body) // 2])
        plan = plan_marker(RepairTarget(self.store, keys, MAX_BLOCK_BYTES), GROUP)
        if plan.problems:  # no chunk is left, or folders of layout seed cannot be told apart: somebody puts it back
            self.store.objects[keys.marker] = whole
            self.counts["marker not repaired"] += 1
            return
        assert not carry_out(plan)
        self.held = None
        self.note("marker repaired", keys.folder)
        self._take_over_rebuilt()

    def _take_over_rebuilt(self) -> None:
        """What is there again after a repair is what a model allows; from now on it is as it is."""
        model = self.model
        floor = max((self._within(keys, self._stored_floor(keys)) for keys in self.folders), default=0)
        partition = self.opened()
        end = max(model.next_offset, partition.next_offset)
        lost = [at for at in model.living if at >= partition.next_offset]
        assert not lost, f"the records at {lost} are lost"

        def right(offset: int) -> set[Answer]:
            is_behind = offset >= partition.next_offset
            return {"notyet"} if is_behind else model.answers_rebuilt(offset, partition.floor)

        said = self.look_up(partition, range(model.began or 0, end), right)
        assert floor <= partition.floor <= max(model.floor, floor), (partition.floor, floor, model.floor)
        model.floor, model.next_offset, model.is_rebuilt = partition.floor, partition.next_offset, True
        model.held = {at: what for at, what in model.held.items() if at < model.next_offset}
        model.observe({at: what for at, what in said.items() if at < model.next_offset})
        for reader in self.old_readers:
            reader.good_until = 0.0  # the new marker does not say what the old one retired

    def _stored_floor(self, keys: PartitionKeys) -> int:
        folder = keys.home + FLOORS_FOLDER
        return max((int(key.removeprefix(folder)) for key in self.store.objects if key.startswith(folder)), default=0)

    def lose_data(self) -> None:
        """A chunk's data is gone or damaged: that alone cannot be read. It comes back from the log, or is given up."""
        rng, store = self.rng, self.store
        keys = rng.choice(self.folders)
        chain = read_chain(store, keys)
        entries = [each for each in chain.entries if each.next_offset > chain.marker.pruned_before] if chain else []
        if self.layout == "seed" or self.is_full or not entries:
            return
        entry = rng.choice(entries)
        index = decode_index(store.objects[keys.index_key(entry)].body, entry, TOPIC, PARTITION)
        blocks = [rng.choice(index.blocks)] if rng.random() < 0.5 else list(index.blocks)
        kept = store.objects.pop(keys.data_key(index))
        if len(blocks) < len(index.blocks):
            at = blocks[0].byte_offset + blocks[0].byte_length // 2
            body = kept.body[:at] + bytes([kept.body[at] ^ 0xFF]) + kept.body[at + 1 :]
            store.objects[keys.data_key(index)] = kept._replace(body=body)
        ends = [each.last_record_offset + 1 for each in blocks]
        taken = {at for each, end in zip(blocks, ends, strict=True) for at in range(each.first_record_offset, end)}
        if self.turn is not None and keys.folder.incarnation == 1:  # behind that, readers are in the other folder
            taken = {at for at in taken if at < self.turn}
        self.old_readers.clear()  # nobody can promise them anything
        chunk = range(entry.start_offset, entry.next_offset)
        self._told_of_loss(taken, chunk, "lost")

        def read(topic: str, number: int, level: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
            yield batch_from_records(
                [each for each in self.log.records if max(start, self.log.low) <= each.offset < end]
            )

        source = RefetchSource(lambda: CLUSTER, lambda _: self.identity.topic_id, read)
        for kind in rng.choice([["accept-loss"], ["refetch", "accept-loss"]]):
            plan = PlannedLossRepair(
                *(RepairTarget(store, keys, MAX_BLOCK_BYTES), "memory:", Path(tempfile.gettempdir())),
                kind=kind,
                source=source if kind == "refetch" else None,
                driver=self._maintainer(),
                wait=lambda _: None,
            )
            if plan.planned:
                plan.carry_out()
                assert not plan.problems, plan.problems
                self.is_rewritten = True
                self.note(kind, sorted(taken))
        self._told_of_loss(taken, chunk, "gap")
        for _ in range(3):  # a marker that is rebuilt does not lead to the old chunk again
            store.now += GRACE + 1
            self.collect()

    def _told_of_loss(self, taken: Collection[int], chunk: Collection[int], word: str) -> None:
        """Readers miss what was taken, and holes and erased records beside it, and from now on that is so."""
        model = self.model

        def right(offset: int) -> set[Answer]:
            is_beside = offset in chunk and not isinstance(model.held.get(offset), Record)
            return model.answers(offset) | ({word} if offset in taken or is_beside else set())

        said = self.look_up(self.opened(), range(model.floor, model.next_offset), right)
        if word == "lost":
            assert all(said[at] == word for at in taken & model.living.keys()), said
        else:
            model.observe(said)

    def truncate_log(self) -> None:
        """The log is truncated and written again: the partition continues in another folder."""
        self._as_writer(lambda held: held)
        model, old = self.model, self.log
        if self.turn is not None or model.next_offset - old.low < 2:
            return
        at = self.rng.randrange(old.low, model.next_offset)
        new = log_of(self.log_number, "new", is_text=self.is_text)
        rows = [row for row in old.records if row.offset < at] + [row for row in new if row.offset >= at]
        high = self.rng.choice([at + 1, LOG_END])
        self.log = MemoryLog([row for row in rows if row.offset < high], low=old.low, high=high)
        try:
            self._run(take_over_last(self.identity, "writer", POLICY))
        except Diverged:
            pass
        else:
            self.log, self.held = old, None  # what is archived is in the log still
            return
        source = LogSource(lambda *_: self.log, lambda _: self.identity.topic_id)
        plan = plan_diverged(RepairTarget(self.store, self.identity.keys, MAX_BLOCK_BYTES), source)
        assert (len(plan.steps), plan.problems) == (1, []), plan
        assert not carry_out(plan)
        self.log = MemoryLog(rows, low=old.low, high=rows[-1].offset + 1)
        self.held, self.turn = None, self.opened().next_offset
        assert self.turn <= at, "the log has other records there"
        model.cut(self.turn)
        self.note("log truncated", f"to {at}, continues from {self.turn}")

    # What readers do.

    def opened(self) -> ArchivedPartition:
        """The partition as a new reader finds it."""
        return self.run(ArchiveReader(Reader(self.store)).open_partition(TOPIC, PARTITION))

    def read(self) -> None:
        """Somebody reads the marker, and some of what it leads to, and will go on later; most is old by then."""
        self.store.now += self.rng.choice([0.0, GRACE + 1])
        partition = self.opened()
        self.look_up(partition, self._some_offsets(self.rng.choice([0, 3, 10])), self.model.answers)
        reader = OldReader(partition, self.model.copy(), self.store.now + GRACE)
        self.old_readers = [reader, *self.old_readers][:OLD_READERS]
        self.note("reader")

    def check(self) -> None:
        """A new reader and the old ones are told what is right."""
        if self.model.began is None:
            return
        partition = self.opened()
        assert partition.next_offset == self.model.next_offset, (partition.next_offset, self.model.next_offset)
        assert partition.floor == self.model.floor, (partition.floor, self.model.floor)
        if not self.is_rewritten:
            marker = self.store.objects[self.identity.keys.marker].body
            assert decode_marker(marker).version == 1, "the version changed without a rewrite"
        self.look_up(partition, self._some_offsets(3), self.model.answers)
        if self.rng.random() < 0.5:
            self._scan_some(partition, self.model)
        if self.old_readers:
            self._check_old(self.rng.choice(self.old_readers))

    def _scan_some(self, partition: ArchivedPartition, model: Model) -> None:
        start = self.rng.randint(model.floor, max(model.floor, model.next_offset))
        self.scan(partition, start, start + self.rng.choice([3, 10]), model)

    def _some_offsets(self, count: int) -> Collection[int]:
        low = max(0, (self.model.began or 0) - 1)
        return {self.rng.randint(low, self.model.next_offset + 1) for _ in range(count)}

    def _check_old(self, old: OldReader) -> None:
        """What it was promised, or what is right by now."""
        reader = old.partition.reader = Reader(self.store)
        is_promised = self.store.now <= old.good_until
        offsets = self._some_offsets(4)
        if self.turn is not None and not is_promised and old.partition.keys.folder.incarnation == 1:
            # What the log lost is the older folder's own, which maintainers change as well.
            offsets = {each for each in offsets if each < self.turn}

        def right(offset: int) -> set[Answer]:
            return old.model.answers(offset) | (set() if is_promised else self.model.answers(offset))

        self.look_up(old.partition, offsets, right)
        if is_promised:
            self._scan_some(old.partition, old.model)
            assert not any(keys.marker in reader.read for keys in self.folders), "the marker had to be read again"

    def look_up(
        self, partition: ArchivedPartition, offsets: Collection[int], right: Callable[[int], set[Answer]]
    ) -> dict[int, Answer]:
        """What is said of these offsets; all of it must be right."""
        if not offsets:
            return {}
        outcomes = self.run(lookup.look_up_all(partition, offsets))
        said = {offset: told(outcome) for offset, outcome in outcomes.items()}
        for offset, answer in said.items():
            assert answer in right(offset), f"offset {offset}: {outcomes[offset]}, not {right(offset)}"
        return said

    def scan(self, partition: ArchivedPartition, start: int, end: int, model: Model) -> None:
        """The records of a range are those of the model."""

        right = [record for at, record in sorted(model.living.items()) if start <= at < end]
        records = self.run(scanned(partition, start, end))
        assert records == right, f"from {start} to {end}: {records}, not {right}"

    def check_whole(self) -> None:
        """All look-ups, `verify`, and another view of the whole."""
        model = self.model
        if model.began is None:
            return
        partition = self.opened()
        said = self.look_up(partition, range(model.next_offset + 2), model.answers)
        gaps = {at for at, what in said.items() if what == "gap"}
        report = self.run(
            verify_partition(ArchiveReader(Reader(self.store)), TOPIC, PARTITION, Depth.RECORDS, _nothing)
        )
        assert (report.lost, report.damage) == ([], []), report
        assert (report.records, report.next_offset) == (len(model.living), model.next_offset), report
        assert (report.pruned_before or 0) == model.floor
        erased = {at for start, end in report.erased for at in range(start, end)}
        assert not erased & set(model.living)
        assert {at for at in model.erased if model.floor <= at and said.get(at) == "erased"} <= erased
        told_of = {at for gap in report.gaps for at in range(max(gap.start, model.floor), gap.end)}
        assert told_of >= gaps and not told_of & set(model.living), (told_of, gaps)
        self.rng.choice([self._check_records, self._check_pages, self._check_positions, self._check_coverage])(
            partition
        )

    def _check_records(self, partition: ArchivedPartition) -> None:
        self.scan(partition, self.model.floor, LOG_END, self.model)

    def _check_pages(self, partition: ArchivedPartition) -> None:
        for seen in self.run(paged(partition, self.rng.randint(3, 25))):
            assert list(seen) == list(range(partition.began_at, partition.next_offset))
            assert all(what in self.model.answers(at) for at, what in seen.items()), seen

    def _check_coverage(self, partition: ArchivedPartition) -> None:
        coverage = self.run(partition_coverage(partition))
        assert (coverage.records, coverage.damage) == (len(self.model.living), ())

    def _check_positions(self, partition: ArchivedPartition) -> None:
        """The first record, the last ones, and the first as late as a time."""
        living = [record for _, record in sorted(self.model.living.items())]
        first = told(self.run(lookup.look_up_position(partition, AT_START)))
        assert first == (living[0] if living else "afterlast"), first
        everything = Selection(partition, OffsetRange(partition.start_offset, partition.next_offset))
        last = self.run(last_records(everything, RecordFilter(), 3))
        assert [plain(record) for batch in last for record in iter_records(batch)] == living[-3:]
        if not self.is_text:
            time = self.rng.randrange(FIRST_TIMESTAMP, FIRST_TIMESTAMP + LOG_END)
            later = [record for record in living if record.timestamp >= time]
            found = told(self.run(lookup.look_up_position(partition, AtTime(time))))
            assert found == (later[0] if later else "afterlast"), found
            rows = [(record.offset, record.timestamp) for record in living]
            cut = self.run(find_cut(partition, BeforeTime(time), EndsAround()))
            assert cut.end == judged_cut(rows, time, partition.start_offset, partition.next_offset), cut

    def finish(self) -> None:
        """Graces pass, garbage is collected: all is still there that must be, and nothing holds what was erased."""
        for _ in range(3):
            self.store.now += GRACE + 1
            self.collect()
        for reader in self.old_readers:
            self._check_old(reader)
        self.check_whole()
        for erased in self.reports if not self.model.is_rebuilt else ():
            remains = remains_of(self.store, erased, ())
            assert (len(remains.not_erased), remains.retired, remains.is_rewriting) == (0, 0, False), remains


def _wait(attempt: int, cause: object) -> None:
    raise AssertionError(cause)


def _nothing(checked: int, passed: int) -> None:
    """The progress of a verification."""

"""Compact an archive: merge small neighbouring chunks into large ones, or encode all of them again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from archiver.commit.driver import Driver
from archiver.commit.operations import Protocol
from archiver.commit.recovery import following_folder
from archiver.ingest.buffer import BufferFolder
from archiver.maintain.planned import (
    FREED,
    Cell,
    PlannedRewrite,
    Problem,
    RewriteResult,
    name_of,
    rewritable_partitions,
)
from archiver.maintain.rewrite.chunks import (
    NO_KEYS,
    ChangedItem,
    ChunkFiles,
    DataOf,
    NewChunk,
    OldChunk,
    RewriteKeys,
    data_in,
)
from archiver.maintain.rewrite.compare import check_contents
from archiver.maintain.rewrite.encode import (
    ALIKE,
    SAME_PARTITION,
    ConvertSettings,
    MergeLimits,
    check_convertible,
    converted,
    is_as_asked,
    may_be_merged,
    merge_groups,
    merged,
    runs_alike,
)
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import OldCatalog, Rewrite, num_catalogs, old_catalogs, old_chunks, rewrite
from archiver.maintain.rewrite.tree import CatalogRun, RunLimits, find_run, level_1_lists, read_known, runs_of
from archiver.maintain.throttle import MaintenancePace
from blockgz.encryption.keyring import REMEDY
from blockgz.errors import BlockgzError, KeyMissing
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference, Marker

RUN_CHUNKS = 4096
"""Chunks that one rewrite takes at most: small chunks have small indexes."""
ISAL_LEVELS = 3
"""The highest level of ISA-L, which is ten times faster than zlib; zlib does the higher ones."""
IsDue = Callable[[Marker, Sequence[CatalogReference]], bool]
"""Return whether a partition needs a closer look, by its marker and its references to catalogs of level 1."""


@dataclass(frozen=True)
class Conversion:
    """How chunks are to be encoded; None leaves record format or codec as it is."""

    block_bytes: int
    record_format: str | None = None
    codec: str | None = None
    gzip_level: int = 1
    zstd_level: int = 2

    def settings_of(self, index: ChunkIndex) -> ConvertSettings:
        """Return how the chunk of an index is to be encoded."""
        library, level = ("isal" if self.gzip_level <= ISAL_LEVELS else "zlib"), self.gzip_level
        if (self.codec or index.codec) == "zstd":
            library, level = "zstd", self.zstd_level
        return ConvertSettings(self.record_format or index.record_format, library, level, self.block_bytes)

    @property
    def alike(self) -> tuple[str, ...]:
        """Fields of an index that have to be equal in chunks that become one."""
        kept = [field for field in ("record_format", "codec") if getattr(self, field) is None]
        return (*kept, *SAME_PARTITION)


@dataclass(frozen=True)
class Compaction:
    """The rules of a compaction: small neighbours are merged; with a `conversion`, all chunks are encoded again."""

    limits: MergeLimits
    conversion: Conversion | None = None
    keys: RewriteKeys = NO_KEYS

    @property
    def kind(self) -> str:
        """The kind of rewrite in the marker."""
        return "merge" if self.conversion is None else "convert"

    def groups(self, old: Sequence[OldChunk], turn: int | None = None) -> list[Sequence[OldChunk]]:
        """Return the chunks in order, grouped by what becomes one chunk; no group spans `turn`, where a folder ends."""
        fields = ALIKE if self.conversion is None else self.conversion.alike
        groups = list[Sequence[OldChunk]]()
        below = len(old) if turn is None else sum(chunk.entry.first_offset < turn for chunk in old)
        sides = (part for part in (old[:below], old[below:]) if part)
        openable = (
            list(part) for side in sides for _, part in groupby(side, lambda chunk: self.keys.opens(chunk.index))
        )
        for run in (run for part in openable for run in runs_alike(part, fields)):
            done = 0
            num_blocks = [len(chunk.index.blocks) for chunk in run] if self.conversion is None else ()
            for group in merge_groups([chunk.entry for chunk in run], self.limits, num_blocks):
                groups += [[chunk] for chunk in run[done : group.start]]
                groups.append(run[group.start : group.stop])
                done = group.stop
            groups += [[chunk] for chunk in run[done:]]
        return groups

    def is_due(self, group: Sequence[OldChunk]) -> bool:
        """Return whether the rules ask for a group to be stored again."""
        if len(group) > 1:
            return True
        index = group[0].index
        return self.conversion is not None and not is_as_asked(index, self.conversion.settings_of(index))

    def is_meant(self, group: Sequence[OldChunk]) -> bool:
        """Return whether a group is stored again: it is due, and the keys of its encrypted chunks were given."""
        return self.is_due(group) and all(self.keys.opens(chunk.index) for chunk in group)


class PlannedRun(NamedTuple):
    """Neighbouring catalogs that one rewrite replaces."""

    start: int
    end: int
    chunks: int
    chunks_after: int
    catalogs: int
    catalogs_after: int
    moved_bytes: int
    """Bytes of the chunks that are stored again."""


@dataclass(frozen=True)
class PartitionCompaction:
    """The plan for one partition."""

    keys: PartitionKeys
    runs: tuple[PlannedRun, ...]
    chunks: int
    """Chunks of the partition, in catalogs and in the tail."""
    catalogs: int
    """Catalogs of level 1."""
    encrypted: int
    """Chunks that would be stored again if their keys were known."""

    @property
    def chunks_after(self) -> int:
        return self.chunks - sum(run.chunks - run.chunks_after for run in self.runs)

    @property
    def catalogs_after(self) -> int:
        return self.catalogs - sum(run.catalogs - run.catalogs_after for run in self.runs)

    @property
    def moved_bytes(self) -> int:
        return sum(run.moved_bytes for run in self.runs)

    def key_missing(self) -> KeyMissing:
        """Return the error about chunks that stay as they are because their keys are missing."""
        return KeyMissing(
            f"{self.encrypted:,} chunks of {name_of(self.keys)} stay as they are",
            why="they are encrypted, and not all of their keys were given",
            remedy=REMEDY,
        )


class PlannedCompaction(PlannedRewrite[PartitionCompaction]):
    """A compaction of an archive."""

    participle = "compacted"
    after = FREED
    nothing = "nothing to compact"
    columns = ("topic", "partition", "chunks", "chunks after", "bytes to move", "catalogs", "catalogs after")
    droppable = ("catalogs", "catalogs after")

    def __init__(
        self,
        store: ToolStore,
        selection: TopicSelection | None,
        compaction: Compaction,
        driver: Driver,
        buffer_bytes: int,
        rewrite: Callable[[Sequence[PartitionCompaction]], Iterable[RewriteResult[PartitionCompaction]]],
    ) -> None:
        """Plan the selected topics, or all, as the markers are now; `rewrite` carries plans out.

        Reads catalogs, and indexes if there may be something to do. Raises NoArchiveThere, NotInArchive, UsageError for
        layout seed, and the errors of a listing.
        """
        partitions = rewritable_partitions(store, selection, "compacted", "leave it as it is")
        super().__init__(partitions, lambda keys: driver.run(plan_partition(keys, compaction, buffer_bytes)), rewrite)
        locked = [plan for plan in self.partitions if plan.encrypted]
        self.encrypted = sum(plan.encrypted for plan in locked)
        """Chunks, of all partitions, that stay as they are because their keys are missing."""
        self.untouched += sum(not plan.runs for plan in self.partitions)
        self.partitions = [plan for plan in self.partitions if plan.runs]
        self.problems += [Problem(name_of(plan.keys), plan.key_missing()) for plan in locked]

    @property
    def chunks(self) -> int:
        return sum(plan.chunks for plan in self.partitions)

    @property
    def chunks_after(self) -> int:
        return sum(plan.chunks_after for plan in self.partitions)

    @property
    def moved_bytes(self) -> int:
        return sum(plan.moved_bytes for plan in self.partitions)

    @property
    def question(self) -> str | None:
        if not self.partitions:
            return None
        return f"Store {self.moved_bytes:,} bytes again ({self.chunks:,} chunks become {self.chunks_after:,})?"

    def rows(self) -> list[tuple[Cell, ...]]:
        return [
            (
                *(str(plan.keys.folder), plan.keys.partition, plan.chunks, plan.chunks_after),
                *(bytes_text(plan.moved_bytes), plan.catalogs, plan.catalogs_after),
            )
            for plan in self.partitions
        ]

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "dry_run": dry_run,
            "chunks": self.chunks,
            "chunks_after": self.chunks_after,
            "moved_bytes": self.moved_bytes,
            "untouched": self.untouched,
            "encrypted_chunks": self.encrypted,
            "partitions": [self._partition_json(plan) for plan in self.partitions],
        }

    def _partition_json(self, plan: PartitionCompaction) -> dict[str, Any]:
        ended = self.ended.get(name_of(plan.keys))
        return {
            "topic": str(plan.keys.folder),
            "partition": plan.keys.partition,
            "chunks": plan.chunks,
            "chunks_after": plan.chunks_after,
            "catalogs": plan.catalogs,
            "catalogs_after": plan.catalogs_after,
            "moved_bytes": plan.moved_bytes,
            "rewrites": len(plan.runs),
            "rewrites_done": len(ended.done) if ended else 0,
            "compacted": self.is_whole(plan),
        }


def plan_partition(
    keys: PartitionKeys, compaction: Compaction, buffer_bytes: int, is_due: IsDue = lambda *_: True
) -> Protocol[PartitionCompaction | None]:
    """Return the plan for one partition under its current marker; None if it has no chunks or is not due.

    Raises the errors of reading it, and UsageError if a record format cannot be changed.
    """
    limits = RunLimits(RUN_CHUNKS, bytes=buffer_bytes)
    marker = (yield from read_known(keys)).marker
    if marker.next_offset is None:
        return None
    lists = yield from level_1_lists(keys, marker, 0, marker.next_offset)
    if not is_due(marker, [reference for each in lists for reference in each]):
        return None
    following = yield from following_folder(keys, marker)
    turn = following and following[1]
    runs, encrypted = list[PlannedRun](), 0
    for references in lists:
        catalogs = yield from old_catalogs(keys, references)
        meant = catalogs_in_question(catalogs, compaction)
        for chosen in runs_of(references, meant.__contains__, limits):
            some = [each for each in catalogs if each.reference in chosen]
            old = yield from old_chunks(keys, some)
            run = planned_run(some, old, compaction, turn)
            runs += [run] if run is not None else []
            groups = [group for group in compaction.groups(old) if compaction.is_due(group)]
            encrypted += sum(len(group) for group in groups if not compaction.is_meant(group))
    return PartitionCompaction(keys, tuple(runs), marker.num_chunks, sum(map(len, lists)), encrypted)


def catalogs_in_question(catalogs: Sequence[OldCatalog], compaction: Compaction) -> set[CatalogReference]:
    """Return the catalogs of one list in which there may be something to do, as far as catalogs show it."""
    if compaction.conversion is not None:
        return {each.reference for each in catalogs}
    places = [(each.reference, entry) for each in catalogs for entry in each.catalog.entries]
    meant = set[CatalogReference]()
    for (first, before), (second, after) in pairwise(places):
        if may_be_merged(before, after, compaction.limits):
            meant |= {first, second}
    return meant


def planned_run(
    catalogs: Sequence[OldCatalog], old: Sequence[OldChunk], compaction: Compaction, turn: int | None = None
) -> PlannedRun | None:
    """Return the rewrite of these catalogs, whose chunks are `old`, without those at either end that stay.

    None if nothing is to be done. Raises UsageError if a record format cannot be changed.
    """
    meant = [group for group in compaction.groups(old, turn) if compaction.is_meant(group)]
    if not meant:
        return None
    if compaction.conversion is not None:
        for chunk in (chunk for group in meant for chunk in group):
            check_convertible(chunk.index, compaction.conversion.settings_of(chunk.index))
    first, last = meant[0][0].entry.start_offset, meant[-1][-1].entry.start_offset
    chosen = [each.reference for each in catalogs if first < each.reference.next_offset]
    chosen = [each for each in chosen if each.start_offset <= last]
    start, end = chosen[0].start_offset, chosen[-1].next_offset
    chunks = sum(start <= chunk.entry.start_offset < end for chunk in old)
    chunks_after = chunks - sum(len(group) - 1 for group in meant)
    moved = sum(chunk.entry.bytes for group in meant for chunk in group)
    return PlannedRun(start, end, chunks, chunks_after, len(chosen), num_catalogs(chunks_after), moved)


class CompactedContents:
    """The contents and the check of one rewrite; its files are in the buffer until `discard`."""

    def __init__(
        self,
        data_of: DataOf,
        buffers: BufferFolder,
        compaction: Compaction,
        *,
        buffer_bytes: int,
        max_block_bytes: int,
        start: int = 0,
    ) -> None:
        """`buffer_bytes` are rewritten at once, unless a group has more; chunks below `start` stay as they are."""
        self._data_of = data_of
        self._files = ChunkFiles(buffers, buffer_bytes)
        self._compaction = compaction
        self._max_block_bytes = max_block_bytes
        self._start = start
        self.discard = self._files.discard
        self.left_from: int | None = None
        """Start of the first chunk that the buffer had no room for."""
        self.turn: int | None = None
        """The offset that no chunk may span; see `following_folder`."""

    def contents(self, old: Sequence[OldChunk]) -> Iterator[OldChunk | NewChunk]:
        """Yield new chunks, and old ones that stay because nothing is to be done or the buffer has no room."""
        before = [each for each in old if each.entry.start_offset < self._start]
        self.left_from = None
        yield from before
        for group in self._compaction.groups(old[len(before) :], self.turn):
            if self.left_from is None and self._compaction.is_meant(group):
                new = self._new_chunk(group)
                if new is not None:
                    yield new
                    continue
                self.left_from = group[0].entry.start_offset
            yield from group

    def _new_chunk(self, group: Sequence[OldChunk]) -> NewChunk | None:
        """Return the chunk that replaces a group; None if the buffer has no room."""
        buffer = self._files.new_file(sum(chunk.entry.bytes for chunk in group))
        if buffer is None:
            return None
        conversion, seal = self._compaction.conversion, self._compaction.keys.seal(group[0])
        if conversion is None:
            return merged(group, self._data_of, buffer, seal)
        settings = conversion.settings_of(group[0].index)
        return converted(group, settings, self._data_of, buffer, self._max_block_bytes, seal)

    def check(self, old: Sequence[OldChunk], new: ChangedItem) -> None:
        """Raise ContentsDiffer unless every record is in its place."""
        assert isinstance(new, NewChunk)
        check_contents(old, new, self._data_of, self._compaction.keys.data_of(new, old[0]), self._max_block_bytes)


@dataclass(frozen=True)
class Compactor:
    """A tool that compacts partitions as planned."""

    pace: MaintenancePace
    compaction: Compaction
    buffers: BufferFolder
    buffer_bytes: int
    """Bytes of old chunks that are stored again at once, unless a single new chunk has more."""
    max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES

    def compact(self, plan: PartitionCompaction) -> RewriteResult[PartitionCompaction]:
        """Compact a partition as planned, one rewrite for each run."""
        done, outcome = list[PlannedRun](), RewriteOutcome.COMMITTED
        try:
            for run in plan.runs:
                ended = self._compact(plan.keys, run)
                if ended is RewriteOutcome.COMMITTED:
                    done.append(run)
                else:
                    outcome = ended
                if ended not in (RewriteOutcome.COMMITTED, RewriteOutcome.NOTHING):
                    break
        except BlockgzError as error:
            return RewriteResult(plan, outcome, error, tuple(done))
        return RewriteResult(plan, outcome, None, tuple(done))

    def _compact(self, keys: PartitionKeys, run: PlannedRun) -> RewriteOutcome:
        """Rewrite one run, in parts if the buffer has no room for the whole of it."""

        def choose(marker: Marker) -> Protocol[CatalogRun | None]:
            following = yield from following_folder(keys, marker)
            work.turn = following and following[1]
            return (yield from find_run(keys, marker, run.start, run.end))

        start: int | None = run.start
        while start is not None:
            data_of = data_in(self.pace.ranges, keys, self.compaction.keys.keyring)
            new_contents = partial(CompactedContents, data_of, self.buffers, self.compaction, start=start)
            work = new_contents(buffer_bytes=self.buffer_bytes, max_block_bytes=self.max_block_bytes)
            what = Rewrite(self.compaction.kind, work.contents, work.check, is_repacked=True)
            try:
                outcome = self.pace.driver.run(rewrite(keys, choose, what))
            finally:
                work.discard()
            if outcome is not RewriteOutcome.COMMITTED:
                return outcome
            start = work.left_from
        return RewriteOutcome.COMMITTED

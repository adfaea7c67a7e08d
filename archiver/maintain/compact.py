"""Compact an archive: merge small neighbouring chunks into large ones, or encode all of them again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from archiver.commit.operations import Driver, Protocol
from archiver.commit.recovery import following_folder
from archiver.ingest.chunk_builder import BufferFile
from archiver.maintain.planned import FREED, Cell, PlannedRewrite, Problem, RewriteResult, rewritable_partitions
from archiver.maintain.rewrite import contents
from archiver.maintain.rewrite.chunks import NO_KEYS, Item, NewChunk, OldChunk, RewriteKeys
from archiver.maintain.rewrite.contents import ConvertSettings, MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import OldCatalog, Rewrite, num_catalogs, old_catalogs, old_chunks, rewrite
from archiver.maintain.rewrite.tree import CatalogRun, RunLimits, find_run, level_1_lists, read_known, runs_of
from blockgz.encryption.keyring import REMEDY
from blockgz.errors import BlockgzError, KeyMissing
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference, Marker
from index_format.objects import ChunkIndex

# Chunks that one rewrite takes at most: small chunks have small indexes.
RUN_CHUNKS = 4096
# The highest level of ISA-L, which is ten times faster than zlib; zlib does the higher ones.
ISAL_LEVELS = 3
# Return whether a partition needs a closer look, by its marker and its references to catalogs of level 1.
IsDue = Callable[[Marker, Sequence[CatalogReference]], bool]


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
        return (*kept, *contents.SAME_PARTITION)


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
        fields = contents.ALIKE if self.conversion is None else self.conversion.alike
        groups = list[Sequence[OldChunk]]()
        below = len(old) if turn is None else sum(chunk.entry.first_offset < turn for chunk in old)
        sides = (part for part in (old[:below], old[below:]) if part)
        openable = (
            list(part) for side in sides for _, part in groupby(side, lambda chunk: self.keys.opens(chunk.index))
        )
        for run in (run for part in openable for run in contents.runs_alike(part, fields)):
            done = 0
            num_blocks = [len(chunk.index.blocks) for chunk in run] if self.conversion is None else ()
            for group in contents.merge_groups([chunk.entry for chunk in run], self.limits, num_blocks):
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
        return self.conversion is not None and not contents.is_as_asked(index, self.conversion.settings_of(index))

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

    @property
    def cells(self) -> tuple[Cell, ...]:
        chunks = (self.chunks, self.chunks_after, bytes_text(self.moved_bytes))
        return (*chunks, self.catalogs, self.catalogs_after)

    @property
    def as_json(self) -> dict[str, Any]:
        names = ("chunks", "chunks_after", "catalogs", "catalogs_after", "moved_bytes")
        return {name: getattr(self, name) for name in names} | {"rewrites": len(self.runs)}

    def key_missing(self) -> KeyMissing:
        """Return the error about chunks that stay as they are because their keys are missing."""
        return KeyMissing(
            f"{self.encrypted:,} chunks of {self.keys} stay as they are",
            why="they are encrypted, and not all of their keys were given",
            remedy=REMEDY,
        )


class PlannedCompaction(PlannedRewrite[PartitionCompaction]):
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
        # Chunks, of all partitions, that stay as they are because their keys are missing.
        self.encrypted = sum(plan.encrypted for plan in locked)
        self.untouched += sum(not plan.runs for plan in self.partitions)
        self.partitions = [plan for plan in self.partitions if plan.runs]
        self.problems += [Problem(str(plan.keys), plan.key_missing()) for plan in locked]

    @property
    def question(self) -> str | None:
        if not self.partitions:
            return None
        totals = self.totals()
        chunks = f"{totals['chunks']:,} chunks become {totals['chunks_after']:,}"
        return f"Store {totals['moved_bytes']:,} bytes again ({chunks})?"

    def totals(self) -> dict[str, int]:
        names = ("chunks", "chunks_after", "moved_bytes")
        totals = {name: sum(getattr(plan, name) for plan in self.partitions) for name in names}
        return totals | {"encrypted_chunks": self.encrypted}

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        document = super().as_json(dry_run=dry_run)
        for plan, partition in zip(self.partitions, document["partitions"], strict=True):
            ended = self.ended.get(str(plan.keys))
            partition["rewrites_done"] = len(ended.done) if ended else 0
        return document


def plan_partition(
    keys: PartitionKeys, compaction: Compaction, buffer_bytes: int, is_due: IsDue = lambda *_: True
) -> Protocol[PartitionCompaction | None]:
    """Return the plan for one partition under its current marker; None if it has no chunks or is not due."""
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
        if contents.may_be_merged(before, after, compaction.limits):
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
            contents.check_convertible(chunk.index, compaction.conversion.settings_of(chunk.index))
    first, last = meant[0][0].entry.start_offset, meant[-1][-1].entry.start_offset
    chosen = [each.reference for each in catalogs if first < each.reference.next_offset]
    chosen = [each for each in chosen if each.start_offset <= last]
    start, end = chosen[0].start_offset, chosen[-1].next_offset
    chunks = sum(start <= chunk.entry.start_offset < end for chunk in old)
    chunks_after = chunks - sum(len(group) - 1 for group in meant)
    moved = sum(chunk.entry.bytes for group in meant for chunk in group)
    return PlannedRun(start, end, chunks, chunks_after, len(chosen), num_catalogs(chunks_after), moved)


class PartialCompaction(contents.ChunkRewrite):
    """The compaction of one run from an offset on; chunks below it stay as they are."""

    is_repacked = True

    def __init__(
        self, tools: RewriteTools, keys: PartitionKeys, compaction: Compaction, run: PlannedRun, start: int
    ) -> None:
        super().__init__(tools, keys, compaction.keys)
        self.kind = compaction.kind
        self._compaction, self._run, self._start = compaction, run, start
        # The offset that no chunk may span; see `following_folder`.
        self._turn: int | None = None
        # Start of the first chunk that the buffer had no room for.
        self.left_from: int | None = None

    def steps(self, what: Rewrite) -> Protocol[RewriteOutcome]:
        return rewrite(self.keys, self.choose, what)

    def choose(self, marker: Marker) -> Protocol[CatalogRun | None]:
        following = yield from following_folder(self.keys, marker)
        self._turn = following and following[1]
        return (yield from find_run(self.keys, marker, self._run.start, self._run.end))

    def contents(self, old: Sequence[OldChunk]) -> Iterator[Item]:
        before = [each for each in old if each.entry.start_offset < self._start]
        self.left_from = None
        yield from before
        for group in self._compaction.groups(old[len(before) :], self._turn):
            if self.left_from is None and self._compaction.is_meant(group):
                buffer = self.new_file(sum(chunk.entry.bytes for chunk in group))
                if buffer is not None:
                    yield self._new_chunk(group, buffer)
                    continue
                self.left_from = group[0].entry.start_offset
            yield from group

    def _new_chunk(self, group: Sequence[OldChunk], buffer: BufferFile) -> NewChunk:
        conversion, seal = self._compaction.conversion, self._compaction.keys.seal(group[0])
        if conversion is None:
            return contents.merged(group, self.data_of, buffer, seal)
        settings = conversion.settings_of(group[0].index)
        return contents.converted(group, settings, self.data_of, buffer, self.max_block_bytes, seal)


def compact(
    plan: PartitionCompaction, compaction: Compaction, tools: RewriteTools
) -> RewriteResult[PartitionCompaction]:
    """Compact a partition as planned: one rewrite for each run, or more if the buffer has no room for all of it."""
    done, outcome = list[PlannedRun](), RewriteOutcome.COMMITTED
    try:
        for run in plan.runs:
            start: int | None = run.start
            ended = RewriteOutcome.COMMITTED
            while start is not None and ended is RewriteOutcome.COMMITTED:
                part = PartialCompaction(tools, plan.keys, compaction, run, start)
                ended, start = part.run(), part.left_from
            if ended is RewriteOutcome.COMMITTED:
                done.append(run)
            else:
                outcome = ended
            if ended not in (RewriteOutcome.COMMITTED, RewriteOutcome.NOTHING):
                break
    except BlockgzError as error:
        return RewriteResult(plan, outcome, error, tuple(done))
    return RewriteResult(plan, outcome, None, tuple(done))

"""Chunks whose objects are gone or damaged: find them, bring them back from Kafka, or accept that they are lost."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from archiver.commit.archive import archive_info, layout_of, lost_marker, refuse_lost_marker
from archiver.commit.operations import Driver, GetAll, Protocol, retrying
from archiver.errors import RewriteRefused
from archiver.ingest.chunk_builder import BufferFile, BufferFolder
from archiver.maintain.erase import (
    LOSS_FORMAT,
    NO_REPORT,
    OffsetsRewrite,
    ReportFile,
    parse_offsets,
    ranges_text,
    rewrite_offsets,
)
from archiver.maintain.gc import pieces, scan
from archiver.maintain.planned import Cell, PlannedCommand, Problem
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.plan import RepairTarget, parse_place
from archiver.maintain.repair.refetch import NotTheSame, RefetchLog, RefetchSource, is_provable
from archiver.maintain.rewrite.chunks import (
    NO_KEYS,
    TEXT,
    BlockWriter,
    ChangedItem,
    EmptiedRun,
    Item,
    NewChunk,
    OffsetRanges,
    OldChunk,
    RewrappedChunk,
    RewriteKeys,
    data_in,
    opened_blocks,
)
from archiver.maintain.rewrite.contents import RewriteTools, check_contents, compressor_of_rest, erased_in, new_chunk
from archiver.maintain.rewrite.replace import parts_of
from archiver.maintain.rewrite.tree import StoredChain, read_chain
from blockgz.errors import BlockgzError, FormatError, NotInArchive, StoreUnfit, TooLarge, UnsupportedVersion, UsageError
from blockgz.store.probe import probe
from blockgz.store.writer import ToolStore
from blockgz.units import bytes_text, timestamp_text
from index_format import marker as markers
from index_format import objects
from index_format.blocks import decode_parts
from index_format.keys import (
    ENCRYPTED_SUFFIX,
    LAYOUTS,
    ObjectKind,
    PartitionKeys,
    TopicFolder,
    parse_key,
    parse_topic_folder,
)
from index_format.marker import ChunkEntry, Marker
from index_format.objects import LOST, VERSION, BlockEntry, ChunkIndex, DataObject, Gap, fields_of_blocks
from index_format.rebuild import FROM_DATA_ALONE, blocks_of
from index_format.records import TIMESTAMP_TYPES

# Seconds between the two times that the store has to say that an object is missing.
SECOND_LOOK_SECONDS = 600.0


@dataclass(frozen=True)
class UnindexedChunk(OldChunk):
    """A chunk whose index cannot be read; a stand-in lists the blocks in its data, and the runs of lost bytes."""

    whole: ChunkIndex
    """The stand-in with the one block that the entry describes."""
    lost: frozenset[int] = frozenset([0])
    """Numbers of the blocks that no data holds."""


@dataclass(frozen=True)
class Loss:
    """A chunk of which not everything can be read."""

    chunk: OldChunk
    key: str
    """The object that is missing or damaged."""
    is_missing: bool
    """True if the store says that the object does not exist, False if its bytes are wrong."""
    blocks: frozenset[int]
    """Numbers of the blocks that cannot be read; none if only bytes outside of all blocks are wrong."""

    @property
    def has_index(self) -> bool:
        return not isinstance(self.chunk, UnindexedChunk)

    @property
    def offsets(self) -> OffsetRanges:
        """The offsets of the unreadable blocks, without holes at either end."""
        entries = self.chunk.index.blocks
        return OffsetRanges(
            range(entries[n].first_record_offset, entries[n].last_record_offset + 1) for n in self.blocks
        )


class LossSearch:
    """A look at the objects of a partition's chunks, as they are now."""

    def __init__(self, target: RepairTarget, chain: StoredChain, keys: RewriteKeys, *, keeps: bool = False) -> None:
        """`keeps`: find the blocks of chunks without an index in their data. Without it, Kafka has to have them all."""
        self._store, self._keys, self._chain, self._keeps = target.store, target.keys, chain, keeps
        self._data_of, self._limit = data_in(target.store, target.keys, keys.keyring), target.max_block_bytes

    def read(self, keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Protocol[list[OldChunk]]:
        """Return the chunks of these entries, with a stand-in for each index that cannot be read."""
        bodies = yield from retrying(GetAll(tuple(map(keys.index_key, entries))))
        found = [self._indexed(entry, body.body) if body else None for entry, body in zip(entries, bodies, strict=True)]
        like = next((each.index for each in found if each), None)
        return [each or self._unindexed(entry, like) for entry, each in zip(entries, found, strict=True)]

    def _indexed(self, entry: ChunkEntry, body: bytes) -> OldChunk | None:
        if hashlib.sha256(body).hexdigest() != entry.sha256:
            return None
        return OldChunk(entry, markers.decode_index(body, entry, self._keys.folder.topic, self._keys.partition))

    def _unindexed(self, entry: ChunkEntry, like: ChunkIndex | None) -> UnindexedChunk:
        """Return a stand-in; what its entry does not tell is as in a neighbour's index."""
        whole = BlockEntry(
            *(entry.raw_bytes, entry.num_records, entry.bytes, 0, entry.first_offset, entry.last_offset),
            *(entry.min_timestamp, entry.max_timestamp, 0),
        )
        inside = [gap for gap in self._chain.gaps if entry.start_offset <= gap.start < entry.next_offset]
        own = {
            "start_offset": entry.start_offset,
            "next_offset": entry.next_offset,
            "data": DataObject("unknown", entry.bytes, "0" * 64),
            "previous": None,
            "gaps": tuple(Gap(gap.start, gap.end, gap.reason) for gap in sorted(inside, key=lambda gap: gap.start)),
            "erased": msgspec.UNSET,
            **fields_of_blocks([whole]),
        }
        index = replace(like or _index_like(self._chain.marker, own), **own)
        found = self.found_in_data(entry, index) if self._keeps and index.record_format != TEXT else None
        return found or UnindexedChunk(entry, index, index)

    def found_in_data(self, entry: ChunkEntry, whole: ChunkIndex) -> UnindexedChunk | None:
        """Return the chunk with the blocks of a data object that may be its own, if one has any that can be read."""
        index = parse_key(self._keys.layout, self._keys.index_key(entry))
        assert index is not None
        prefix = self._keys.chunks + f"{entry.start_offset:020d}"
        listed = [(parse_key(self._keys.layout, each.key), each.size) for each in self._store.list(prefix)]
        found = [(key, size) for key, size in listed if key is not None]
        # A writer that died may have left a chunk with the same start, of the same size.
        of_others = {self._data_of_index(key.key) for key, _ in found if key.kind is ObjectKind.INDEX and key != index}
        data = [
            key
            for key, size in found
            # A rewrite's index and data have its token in their names; what it replaced may be there still.
            if key.kind is ObjectKind.DATA and key.token == index.token and size == entry.bytes
        ]
        for key in data:
            if key.key.endswith(ENCRYPTED_SUFFIX) or key.key in of_others:
                continue
            form, codec = "arrow" if ".arrows." in key.key else "json", "zstd" if key.key.endswith(".zst") else "gzip"
            blocks = list[BlockEntry]()
            for member in scan(self._store, key, entry.bytes, self._limit):
                with suppress(FormatError):
                    blocks += blocks_of([member], form)
            with suppress(ValueError):
                listed_blocks, lost = _with_lost_blocks(entry, blocks)
                about = {"record_format": form, "codec": codec, "version": VERSION, "encryption": msgspec.UNSET}
                about["data"] = DataObject(key.key.removeprefix(self._keys.chunks), entry.bytes, "0" * 64)
                return UnindexedChunk(entry, replace(whole, **about, **fields_of_blocks(listed_blocks)), whole, lost)
        return None

    def _data_of_index(self, key: str) -> str | None:
        """Return the key of the data that an index names; None for an index that cannot be read."""
        stored = self._store.get(key)
        try:
            return self._keys.data_key(objects.decode(stored.body, ChunkIndex, key)) if stored else None
        except FormatError:
            return None

    def look_at(self, chunk: OldChunk) -> Loss | None:
        """Return the unreadable part of a chunk; None if its data has the hash in its index.

        Raises KeyMissing if an encrypted chunk is damaged, and the errors of a store that does not answer, refuses, or
        has the object in a cold tier, which is not a loss.
        """
        if isinstance(chunk, UnindexedChunk):
            key = self._keys.index_key(chunk.entry)
            return Loss(chunk, key, is_missing=self._store.head(key) is None, blocks=chunk.lost)
        index, key = chunk.index, self._keys.data_key(chunk.index)
        head = self._store.head(key)
        if head is None:
            return Loss(chunk, key, is_missing=True, blocks=frozenset(range(len(index.blocks))))
        digest = hashlib.sha256()
        for piece in pieces(self._store, key, head.size):
            digest.update(piece)
        if digest.hexdigest() == index.data.sha256:
            return None
        lost = frozenset(number for number in range(len(index.blocks)) if not self._is_readable(index, number))
        return Loss(chunk, key, is_missing=False, blocks=lost)

    def _is_readable(self, index: ChunkIndex, number: int) -> bool:
        try:
            for member, entry in opened_blocks(self._data_of(index), index.blocks, [number]):
                decode_parts(member, entry, index, self._limit)
        except (TooLarge, UnsupportedVersion):
            raise
        except FormatError:
            return False
        return True


def _with_lost_blocks(entry: ChunkEntry, found: Sequence[BlockEntry]) -> tuple[list[BlockEntry], frozenset[int]]:
    """Return the blocks of a chunk's data, with one for each run of bytes that is in none, and the numbers of these.

    Raises ValueError if the data is not that of the entry, or if nothing was found.
    """
    starts = [(0, entry.first_offset)] + [(block.byte_end, block.last_record_offset + 1) for block in found]
    ends = [(block.byte_offset, block.first_record_offset) for block in found] + [(entry.bytes, entry.last_offset + 1)]
    runs = sum(start[0] < end[0] for start, end in zip(starts, ends, strict=True))
    left = entry.num_records - sum(block.num_records for block in found)
    blocks, lost = list[BlockEntry](), set[int]()
    for (start, first), (end, behind), block in zip(starts, ends, [*found, None], strict=True):
        if start < end:
            runs -= 1
            records = min(behind - first, left - runs)
            left -= records
            lost.add(len(blocks))
            times = (entry.min_timestamp, entry.max_timestamp)
            # Raises ValueError for fewer than one record, or more than there are offsets.
            blocks.append(BlockEntry(1, records, end - start, start, first, behind - 1, *times, 0))
        blocks += [block] if block else []
    bounds = (blocks[0].first_record_offset, blocks[-1].last_record_offset)
    if not found or left or bounds != (entry.first_offset, entry.last_offset):
        raise ValueError(f"the data is not that of {entry.name}")
    return blocks, frozenset(lost)


def _index_like(marker: Marker, own: Mapping[str, Any]) -> ChunkIndex:
    """Return an index for a partition of which none can be read, with these fields of its own."""
    return ChunkIndex(
        archive_id=marker.archive_id,
        topic=marker.topic,
        topic_id=marker.topic_id,
        partition=marker.partition,
        epoch=FROM_DATA_ALONE,
        record_format="json",
        codec="gzip",
        isolation_level=marker.isolation_level or "read_committed",
        timestamp_type=TIMESTAMP_TYPES[0],
        **own,
    )


def identity_of(entry: ChunkEntry) -> tuple[str, str]:
    """Return what names a chunk for good: progress without records may still raise the end of its entry."""
    return entry.name, entry.sha256


@dataclass(frozen=True)
class PlannedLoss:
    """A loss, and the fate of its blocks."""

    loss: Loss
    back: frozenset[int] = frozenset()
    """Numbers of the blocks that Kafka has."""
    why: Mapping[int, str] = field(default_factory=dict)
    """The reasons why other blocks do not come back, if Kafka was queried."""

    @property
    def identity(self) -> tuple[str, str]:
        return identity_of(self.loss.chunk.entry)

    @property
    def lost(self) -> frozenset[int]:
        """The numbers of the blocks that stay lost."""
        return self.loss.blocks - self.back

    def rows(self, *, becomes_gap: bool) -> Iterator[dict[str, Any]]:
        """Yield each run of neighbouring blocks with one fate, as JSON."""
        loss, index = self.loss, self.loss.chunk.index
        for run in _runs(loss.blocks):
            for numbers in ([n for n in run if n in self.back], [n for n in run if n not in self.back]):
                blocks = [index.blocks[n] for n in numbers]
                if not blocks:
                    continue
                yield {
                    "from": blocks[0].first_record_offset,
                    "to": blocks[-1].last_record_offset + 1,
                    "records": sum(block.num_records for block in blocks),
                    "bytes": sum(block.byte_length for block in blocks),
                    "min_timestamp": min(block.min_timestamp for block in blocks),
                    "max_timestamp": max(block.max_timestamp for block in blocks),
                    "object": loss.key,
                    "why": "missing" if loss.is_missing else "damaged",
                    "result": self._fate(numbers[0], becomes_gap=becomes_gap),
                }

    def _fate(self, number: int, *, becomes_gap: bool) -> str:
        if number in self.back:
            is_proved = is_provable(self.loss.chunk.index, has_index=self.loss.has_index)
            return "comes back" if is_proved else "comes back, not proved"
        why = self.why.get(number)
        return ("becomes a gap" if becomes_gap else "stays lost") + (f": {why}" if why else "")


class LossRewrite(OffsetsRewrite):
    """One rewrite of chunks with unreadable blocks: each keeps all others."""

    def __init__(
        self,
        tools: RewriteTools,
        keys: PartitionKeys,
        rewrite_keys: RewriteKeys,
        search: LossSearch,
        planned: Sequence[PlannedLoss],
        records: RefetchLog | None,
        kind: str,
        drop: OffsetRanges,
    ) -> None:
        super().__init__(tools, keys, rewrite_keys, drop)
        self.kind, self._search, self._records = kind, search, records
        self._planned = {each.identity: each for each in planned}
        self._lost_now = dict[tuple[str, str], Loss]()

    def read(self, keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Protocol[list[OldChunk]]:
        return self._search.read(keys, entries)

    def changed(self, chunk: OldChunk, buffer: BufferFile) -> Item:
        """Return the chunk with all blocks that can be read or come back; the chunk itself if it is sound by now."""
        identity = identity_of(chunk.entry)
        planned = self._planned.get(identity)
        loss = self._search.look_at(chunk) if planned else None
        if planned is None or loss is None:
            return chunk
        is_same = loss.has_index or chunk.index.blocks == planned.loss.chunk.index.blocks
        if not is_same or loss.has_index != planned.loss.has_index or not loss.blocks <= planned.loss.blocks:
            raise RewriteRefused(
                f"{loss.key} is not what it was when the plan was made",
                why="other parts of the chunk can be read by now, or fewer",
                remedy="run the command again to make a new plan",
            )
        self._lost_now[identity] = loss
        writer = BlockWriter(buffer, self.rewrite_keys.seal(chunk))
        for number in range(len(chunk.index.blocks)):
            if number not in loss.blocks:
                for block in opened_blocks(self.data_of(chunk.index), chunk.index.blocks, [number]):
                    writer.copy(*block)
            elif number in planned.back:
                self._bring_back(loss, number, writer)
        if not writer.blocks:
            return EmptiedRun(chunk.entry.start_offset, chunk.entry.next_offset, LOST)
        new = new_chunk([chunk], writer)
        gaps = [*new.index.gaps, *_lost_gaps(chunk.index, loss.blocks - planned.back)]
        return NewChunk(replace(new.index, gaps=tuple(sorted(gaps, key=lambda gap: gap.start))), new.body)

    def _bring_back(self, loss: Loss, number: int, writer: BlockWriter) -> None:
        index = loss.chunk.index
        assert self._records is not None
        bounds = index.blocks[number] if index.record_format == TEXT else None
        try:
            for raw in self._records.blocks(loss.chunk, number, has_index=loss.has_index):
                writer.encode(raw, compressor_of_rest(index), bounds)
        except NotTheSame as error:
            raise RewriteRefused(
                f"the records of {loss.key} no longer come back",
                why=str(error),
                remedy="run the command again to make a new plan",
            ) from error

    def check(self, old: Sequence[OldChunk], new: ChangedItem) -> None:
        """Raise ContentsDiffer unless every record that can be read is in its place."""
        assert not isinstance(new, RewrappedChunk)
        data = self.rewrite_keys.data_of(new, old[0])
        renewed = self._lost_now[identity_of(old[0].entry)].offsets
        check_contents(old, new, self.data_of, data, self.max_block_bytes, renewed=renewed)


def _lost_gaps(index: ChunkIndex, lost: Collection[int]) -> list[Gap]:
    """Return gaps over blocks of a chunk, joined over holes, apart from its gaps and what was erased in it."""
    spans = [
        range(index.blocks[run[0]].first_record_offset, index.blocks[run[-1]].last_record_offset + 1)
        for run in _runs(lost)
    ]
    known = [range(gap.start, gap.end) for gap in index.gaps]
    left = OffsetRanges(spans) - OffsetRanges(known) - OffsetRanges(erased_in(index))
    return [Gap(each.start, each.stop, LOST) for each in left]


def _runs(numbers: Collection[int]) -> OffsetRanges:
    """Return the numbers in order, grouped by neighbours."""
    return OffsetRanges(range(number, number + 1) for number in numbers)


class PlannedLossRepair(PlannedCommand):
    """A rewrite of what is lost in a partition, whose report is written before anything is stored, and at the end."""

    nothing = "nothing is lost"
    undone = "nothing was changed"
    columns = ("offsets", "records", "from", "to", "size", "object", "why", "result")
    droppable = ("from", "to", "size")

    def __init__(
        self,
        target: RepairTarget,
        archive: str,
        buffers: Path,
        *,
        kind: Literal["refetch", "accept-loss"],
        within: OffsetRanges | None = None,
        source: RefetchSource | None = None,
        rewrite_keys: RewriteKeys = NO_KEYS,
        buffer_bytes: int = 2**63,
        file: ReportFile = NO_REPORT,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        driver: Driver | None = None,
    ) -> None:
        """Look at every chunk `within` these offsets, and ask Kafka if there is a `source`.

        `clock` and `wait` are in seconds. Raises UsageError for layout seed, MalformedObject if marker or catalogs
        cannot be read, RefetchRefused for another cluster, KeyMissing, and the errors of store and cluster.
        """
        file.check()
        self.problems = []
        self.notes: list[str] = []
        self._target, self._archive, self._buffers, self._file = target, archive, buffers, file
        self._kind, self._keys, self._buffer_bytes = kind, rewrite_keys, buffer_bytes
        self._clock, self._wait, self._driver = clock, wait, driver or Driver(target.store)
        self._is_done = False
        chain = chain_of(target)
        self._records = RefetchLog(target.store, target.keys, chain.marker, source) if source else None
        self._search = LossSearch(target, chain, rewrite_keys, keeps=kind == "accept-loss")
        self._looked_at = clock()
        found = [self._compared(loss) for loss in self._search_all(chain, within)]
        self.planned, self.others = list[PlannedLoss](), list[PlannedLoss]()
        for each in found:
            (self.planned if self._is_chosen(each, within) else self.others).append(each)
        if any(each.loss.is_missing for each in self.planned):
            self.notes.append(
                f"before anything is stored, the store is queried for missing objects a second time, "
                f"{SECOND_LOOK_SECONDS / 60:.0f} minutes after the first"
            )
        for loss in (each.loss for each in self.planned if not each.loss.has_index):
            kept = sum(block.num_records for n, block in enumerate(loss.chunk.index.blocks) if n not in loss.blocks)
            what = f"{kept:,} records that its data holds are kept" if kept else "the whole chunk counts as lost"
            self.notes.append(f"{loss.key} is lost and cannot be rebuilt: {what}")
        if kind == "accept-loss" and source is None and self.planned:
            self.notes.append("Kafka was not queried: with -b, nothing is accepted as lost that it still has")

    def _search_all(self, chain: StoredChain, within: OffsetRanges | None) -> list[Loss]:
        """Return the losses to which the current marker leads, and which only Kafka can bring back."""
        keys, floor = self._target.keys, chain.marker.pruned_before
        entries = [
            entry
            for entry in sorted(chain.entries, key=lambda entry: entry.start_offset)
            if entry.next_offset > floor and (within is None or within.meets(entry.start_offset, entry.next_offset))
        ]
        losses = list[Loss]()
        for some in parts_of(entries):
            losses += filter(None, map(self._search.look_at, self._driver.run(self._search.read(keys, some))))
        if not losses:
            return []
        still = {identity_of(entry) for entry in chain_of(self._target).entries}
        rebuilt = set[str]()
        if any(not each.has_index for each in losses):
            rebuilt = {step.key for step in plan_indexes(self._target).steps}
        return [
            loss for loss in losses if identity_of(loss.chunk.entry) in still and not self._may_come_back(loss, rebuilt)
        ]

    def _may_come_back(self, loss: Loss, rebuilt: Set[str]) -> bool:
        """Return whether a command brings an object back without Kafka, which becomes a problem."""
        sha256 = loss.chunk.index.data.sha256 if loss.has_index else loss.chunk.entry.sha256
        remedy: str | None = f"archiver repair index {self._target.keys}" if loss.key in rebuilt else None
        try:
            remedy = remedy or self._target.store.restoring(loss.key, sha256)
        except BlockgzError as error:
            self.notes.append(f"older versions of {loss.key} are not known: {error.reason}")
        if remedy:
            there = RewriteRefused(f"{loss.key} is not lost", why="it can be brought back as it was", remedy=remedy)
            self.problems.append(Problem(loss.key, there))
        return remedy is not None

    def _compared(self, loss: Loss) -> PlannedLoss:
        back, why = set[int](), dict[int, str]()
        chunk = loss.chunk
        whole = OldChunk(chunk.entry, chunk.whole) if isinstance(chunk, UnindexedChunk) else None
        for number in loss.blocks if self._records else ():
            assert self._records is not None
            try:
                self._check_data(chunk)
                for _ in self._records.blocks(whole or chunk, 0 if whole else number, has_index=not whole):
                    pass
            except NotTheSame as error:
                why[number] = str(error)
            else:
                back.add(number)
        return PlannedLoss(loss, frozenset(back), why)

    def _check_data(self, chunk: OldChunk) -> None:
        """Raise NotTheSame if the data of a chunk without an index holds other records than Kafka."""
        if not isinstance(chunk, UnindexedChunk) or chunk.whole.record_format == TEXT:
            return
        found = self._search.found_in_data(chunk.entry, chunk.whole)
        for number in range(len(found.index.blocks)) if found and self._records else ():
            assert found is not None and self._records is not None
            if number not in found.lost:
                for _ in self._records.blocks(found, number, has_index=True):
                    pass

    def _is_chosen(self, found: PlannedLoss, within: OffsetRanges | None) -> bool:
        """Return whether a loss is rewritten; if not, the reason becomes a problem."""
        keys, where = self._target.keys, f"offsets {ranges_text(found.loss.offsets)} of {self._target.keys}"
        if self._kind == "refetch":
            if found.back or not found.loss.blocks:
                return True
            why, remedy = "; ".join(sorted(set(found.why.values()))), f"archiver repair accept-loss {keys}"
            self._refuse(f"{where} do not come back", why, f"unless you have another copy: {remedy}")
            return False
        if found.back:
            remedy = f"archiver repair refetch {keys} -b HOST:PORT"
            self._refuse(f"{where} are not accepted as lost", "Kafka still has records of the same chunk", remedy)
            return False
        if within is not None and len(found.loss.offsets - within):
            missing = ranges_text(found.loss.offsets - within)
            self._refuse(f"{where} are not accepted as lost", f"{missing} of the same chunk are lost too", "name all")
            return False
        return True

    def _refuse(self, what: str, why: str, remedy: str) -> None:
        self.problems.append(Problem(str(self._target.keys), RewriteRefused(what, why=why, remedy=remedy)))

    @property
    def _num_lost(self) -> int:
        return sum(each.loss.chunk.index.blocks[n].num_records for each in self.planned for n in each.lost)

    @property
    def typed(self) -> str | None:  # type: ignore[override]
        """The partition's name, if records stay lost for good."""
        return str(self._target.keys) if self._num_lost else None

    def check_unattended(self) -> None:
        """Raise UsageError if records would be given up that nobody has seen in the plan."""
        if self._num_lost:
            raise UsageError(
                f"--yes brings records back, and {self._num_lost:,} of {self._target.keys} do not come back",
                why="they would become a gap for good",
                remedy="run it without --yes, and type the partition's name",
            )

    @property
    def question(self) -> str | None:
        if not self.planned:
            return None
        back = sum(each.loss.chunk.index.blocks[n].num_records for each in self.planned for n in each.back)
        came = f"Store {back:,} records of {self._target.keys} again? " if back or not self._num_lost else ""
        return came + (f"Accept that {self._num_lost:,} are lost for good?" if self._num_lost else "")

    def _runs_shown(self) -> list[dict[str, Any]]:
        shown = [(each, True) for each in self.planned] + [(each, False) for each in self.others]
        rows = [row for each, is_planned in shown for row in each.rows(becomes_gap=is_planned)]
        return sorted(rows, key=lambda row: row["from"])

    def rows(self) -> list[tuple[Cell, ...]]:
        return [
            (
                *(f"[{row['from']}..{row['to']})", row["records"]),
                *(timestamp_text(row["min_timestamp"]), timestamp_text(row["max_timestamp"])),
                *(bytes_text(row["bytes"]), row["object"], row["why"], row["result"]),
            )
            for row in self._runs_shown()
        ]

    def carry_out(self) -> None:
        """Look again where an object was missing, ten minutes after the first time, and rewrite what is still lost."""
        self.write_report()
        keys = self._target.keys
        try:
            if any(each.loss.is_missing for each in self.planned):
                self._wait(max(0.0, self._looked_at + SECOND_LOOK_SECONDS - self._clock()))
            entries = [each.loss.chunk.entry for each in self.planned]
            offsets = OffsetRanges(range(entry.start_offset, entry.next_offset) for entry in entries)
            with closing(BufferFolder(self._buffers)) as buffers:
                store, limit = self._target.store, self._target.max_block_bytes
                tools = RewriteTools(self._driver, store, buffers, self._buffer_bytes, limit)
                arguments = (tools, keys, self._keys, self._search, self.planned, self._records, self._kind)
                rewrite_offsets(keys, offsets, tools, partial(LossRewrite, *arguments), "repaired as a whole")
            left = {identity_of(entry) for entry in chain_of(self._target).entries}
            self._is_done = not any(each.identity in left for each in self.planned)
            if not self._is_done:
                why = "its objects can be read by now, or another maintainer rewrote it"
                self._refuse(f"not all that the plan shows of {keys} was rewritten", why, "run the command again")
        except BlockgzError as error:
            self.problems.append(Problem(str(keys), error))
        finally:
            self.write_report()

    def summary(self) -> str | None:
        if not self._is_done:
            return None
        return (
            f"repaired: {self._num_lost:,} records are lost for good; what was replaced is there until archiver gc "
            "deletes it after its grace period"
        )

    def write_report(self, *, dry_run: bool = False) -> None:
        """Write the report to its file, if one is wanted."""
        self._file.write({"archive": self._archive, **self.as_json(dry_run=dry_run)})

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        store, keys = self._target.store, self._target.keys
        return {
            "format": LOSS_FORMAT,
            "version": 1,
            "archive_id": archive_info(store, keys.layout).archive_id,
            "at": round(store.clock() * 1000),
            "dry_run": dry_run,
            "command": self._kind,
            "partition": str(keys),
            "records_lost": self._num_lost,
            "done": self._is_done,
            "lost": self._runs_shown(),
            "signed": self._file.sign_key is not None,
        }


def chain_of(target: RepairTarget) -> StoredChain:
    """Return the chain of a partition; raises MalformedObject if its marker is missing or damaged."""
    chain = read_chain(target.store, target.keys)
    if chain is None:
        refuse_lost_marker(target.store, target.keys)
        if next(target.store.list(target.keys.home), None) is None:
            raise NotInArchive(
                f"{target} is not in the archive",
                why=f"{target.store.url} has no folder of it",
                remedy="replayer ls shows what is archived",
            )
        raise lost_marker(target.keys)
    return chain


def loss_target(store: ToolStore, places: Sequence[str], max_block_bytes: int) -> tuple[RepairTarget, OffsetRanges]:
    """Return the partition of places such as `orders:3` or `orders:3:40-47`, and the ranges, without their ends."""
    layout = layout_of(store)
    if layout == "seed":
        raise UsageError(
            "what is lost in an archive of layout seed stays damaged",
            why="other tools read this layout, and they do not know rewritten chunks",
            remedy="replayer cat --on-damage skip reads the rest; archiver import copies it to another archive",
        )
    named, ranges = set[tuple[TopicFolder, int]](), list[range]()
    for place in places:
        topic, number, offsets = (*place.split(":", 2), "", "")[:3]
        name, partition = parse_place(f"{topic}:{number}")
        assert partition is not None
        named.add((parse_topic_folder(name), partition))
        try:
            ranges += parse_offsets([offsets.replace("-", "..")]) if offsets else ()
        except ValueError as error:
            raise UsageError(
                f"{place[:120]!r} names no offsets", why=str(error), remedy="write TOPIC:P:40-47"
            ) from error
    if len(named) != 1:
        raise UsageError("name one partition", why=f"{len(named)} are named", remedy="run the command for each")
    return RepairTarget(store, LAYOUTS[layout](*named.pop()), max_block_bytes), OffsetRanges(ranges)


def check_swaps(store: ToolStore) -> None:
    """Raise StoreUnfit for a store on which rewrites cannot be committed, as `--single-writer` accepts it."""
    try:
        probe(store, multipart=store.url.startswith("s3:"))
    except StoreUnfit as error:
        raise StoreUnfit(
            error.what,
            why="a rewrite is committed by a conditional write; archives of --single-writer cannot be rewritten",
            remedy="copy the archive to a store with conditional writes, and repair the copy",
        ) from error

"""Erase records: find them by what they hold or by offset, rewrite their chunks without them, and report it."""

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from typing import Protocol as Interface

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from archiver.commit.archive import archive_info, claimed_partitions, layout_of, lost_marker
from archiver.commit.operations import Driver, Protocol
from archiver.ingest.chunk_builder import BufferFile, BufferFolder
from archiver.maintain.planned import Cell, PlannedCommand, Problem, partitions_of, plan_each
from archiver.maintain.rewrite.chunks import (
    NO_KEYS,
    TEXT,
    Item,
    NewChunk,
    OffsetRanges,
    OldChunk,
    RewriteKeys,
    data_in,
    opened_blocks,
)
from archiver.maintain.rewrite.contents import ChunkRewrite, RewriteTools, without
from archiver.maintain.rewrite.intent import RewriteOutcome, fold_tail, not_done
from archiver.maintain.rewrite.replace import Rewrite, chunks_of, parts_of, rewrite
from archiver.maintain.rewrite.tree import (
    CatalogRun,
    References,
    RunLimits,
    StoredChain,
    first_run,
    level_1_lists,
    read_chain,
)
from blockgz.atomic_file import replace_file, write_private
from blockgz.encryption.keyring import Keyring
from blockgz.errors import BlockgzError, NotInArchive, UsageError
from blockgz.record_filter import Condition, RecordFilter, ValueMatches
from blockgz.signing import signature_of, signed
from blockgz.store.writer import ToolStore
from blockgz.units import bytes_text
from index_format.blocks import decode_parts
from index_format.keys import LAYOUTS, PartitionKeys, TopicFolder, parse_topic_folder, topic_folders
from index_format.marker import ChunkEntry, Marker
from index_format.objects import BlockEntry, ChunkIndex, Count, Offset, Sha256, Timestamp
from index_format.records import RecordsDigest

LARGEST_OFFSET = 2**63 - 1
# Rewrites that are tried again if another maintainer takes over.
ATTEMPTS = 3
SHOWN_RANGES = 4
NOT_YET = "not erased yet"
ERASE_FORMAT: Final = "block-gzip-erase-report"
# The format of the file that `archiver erase --status` writes to --report.
COMPLETION_FORMAT = "block-gzip-erase-completion"
# The format of the file that `archiver repair accept-loss` writes to --report.
LOSS_FORMAT = "block-gzip-loss-report"
# The only layout in which records are erased.
LAYOUT = "topic"


class ErasedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The records to erase in one partition's folder, without their content."""

    topic: str
    """`orders`, or `orders~2` for the second incarnation."""
    partition: Count
    records: Count
    offsets: tuple[tuple[Offset, Offset], ...]
    """Ranges [from, to) of the records' offsets."""
    content: Sha256
    positions: Sha256
    chunks: Count
    bytes: Count
    """Bytes of the chunks that held them, as stored."""
    blocks_read: Count
    blocks: Count
    """Blocks of the chunks that may hold such a record."""
    error: str | None = None
    """The reason why not all of them were erased."""

    def __post_init__(self) -> None:
        if any(start >= end for start, end in self.offsets):
            raise ValueError(f"a range of offsets of {self} is empty")
        if sum(end - start for start, end in self.offsets) != self.records:
            raise ValueError(f"{self} has {self.records} records and other offsets")

    @property
    def keys(self) -> PartitionKeys:
        return LAYOUTS[LAYOUT](parse_topic_folder(self.topic), self.partition)

    @property
    def ranges(self) -> OffsetRanges:
        """The records' offsets."""
        return OffsetRanges(range(start, end) for start, end in self.offsets)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class NotSearched(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: Count
    error: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON contract of `archiver erase --json` and `--report`."""

    format: Literal["block-gzip-erase-report"] = ERASE_FORMAT
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    archive: str
    archive_id: str
    at: Timestamp
    """The time of the report, by the clock of the archive's store, in ms."""
    dry_run: bool
    partitions: tuple[ErasedPartition, ...]
    """All partitions that were searched, even those without such a record: replaced or pruned objects may hold some."""
    not_searched: tuple[NotSearched, ...] = ()
    signed: bool = False
    """True if a signature was written to the file next to it, which must exist whenever the report is read."""


class RecordChoice(Interface):
    def in_chunk(self, entry: ChunkEntry) -> bool:
        """Return whether the chunk may hold one."""

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """Return whether the block may hold one."""

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each record whether it is one."""


@dataclass(frozen=True)
class Matching:
    """Records that match all conditions."""

    filter: RecordFilter

    @classmethod
    def all_of(cls, *conditions: Condition) -> "Matching":
        return cls(RecordFilter(conditions=conditions))

    def in_chunk(self, entry: ChunkEntry) -> bool:
        return self.filter.may_match(entry)

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """Return False if the record format lacks what a condition needs, or the block's filter lacks the key."""
        has_all = index.record_format != TEXT or all(isinstance(each, ValueMatches) for each in self.filter.conditions)
        return has_all and self.filter.may_match(block)

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        matching = self.filter.apply(batch).column("offset").to_numpy()
        return np.isin(batch.column("offset").to_numpy(), matching, assume_unique=True)


@dataclass(frozen=True)
class AtOffsets:
    offsets: OffsetRanges

    def in_chunk(self, entry: ChunkEntry) -> bool:
        return self.offsets.meets(entry.first_offset, entry.last_offset + 1)

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:  # noqa: ARG002
        return self.offsets.meets(block.first_record_offset, block.last_record_offset + 1)

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self.offsets.mask(batch.column("offset").to_numpy())


def places_of(store: ToolStore, text: str, *, by_offset: bool = False) -> list[PartitionKeys]:
    """Return the partitions of `orders`, `orders:1,3-5` or `orders~2:0`, in every incarnation unless one is named.

    With `by_offset`, one has to be named if there are several: each has offsets of its own. Raises UsageError or
    NotInArchive.
    """
    layout = layout_of(store)
    if layout == "seed":
        raise UsageError(
            "records of an archive in layout seed cannot be erased",
            why="tools that read this layout know neither rewritten chunks nor erased records",
            remedy="archive the topic again in layout topic",
        )
    name, separator, numbers = text.partition(":")
    wanted = _numbers(text, numbers) if separator else None
    folder = parse_topic_folder(name)
    folders = [folder] if "~" in name else _incarnations(store, folder.topic)
    if by_offset and len(folders) > 1:
        raise UsageError(
            f"topic {name} has several incarnations in the archive",
            why="each has offsets of its own",
            remedy=f"name one: {', '.join(f'{each.topic}~{each.incarnation}' for each in folders)}",
        )
    claimed = claimed_partitions(store, layout)
    here = [
        keys
        for each in folders
        for keys in partitions_of(store, layout, each, claimed.get(each, ()))
        if wanted is None or keys.partition in wanted
    ]
    missing = sorted((wanted or set()) - {keys.partition for keys in here})
    if not here or missing:
        raise NotInArchive(
            f"{name}:{missing[0]} is not in the archive" if missing else f"{name} is not in the archive",
            why=f"{store.url} has no folder of it",
            remedy="replayer ls shows what is archived",
        )
    return here


def _incarnations(store: ToolStore, topic: str) -> list[TopicFolder]:
    return [folder for folder in topic_folders(store.folders("")) if folder.topic == topic]


def _numbers(place: str, text: str) -> set[int]:
    numbers = set[int]()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = (first, last) if dash else (first, first)
        are_numbers = all(each.isascii() and each.isdigit() and len(each) < 10 for each in bounds)
        if not are_numbers or int(bounds[0]) > int(bounds[1]):
            raise UsageError(f"{place[:120]!r} names no partitions", remedy="write TOPIC, TOPIC:3 or TOPIC:0,2-4")
        numbers |= set(range(int(bounds[0]), min(int(bounds[1]), int(bounds[0]) + 1_000_000) + 1))
    return numbers


def parse_offsets(texts: Sequence[str]) -> OffsetRanges:
    """Return the offsets of `17`, `17..30` or several of these separated by commas; a range excludes its end."""
    ranges = list[range]()
    for part in (part.strip() for text in texts for part in text.split(",")):
        first, dots, end = part.partition("..")
        numbers = [first, end] if dots else [first]
        if not all(
            each.isascii() and each.isdigit() and len(each) < 20 and int(each) <= LARGEST_OFFSET for each in numbers
        ):
            raise ValueError(f"{part[:60]!r} is not an offset or a range of offsets: write 17 or 17..30")
        start, stop = int(first), int(end) if dots else int(first) + 1
        if start >= stop:
            raise ValueError(f"{part[:60]!r} is empty: the end of a range is not in it")
        ranges.append(range(start, stop))
    return OffsetRanges(ranges)


def find_records(
    store: ToolStore, chain: StoredChain, wanted: RecordChoice, max_block_bytes: int, keyring: Keyring | None = None
) -> ErasedPartition:
    """Return every record of a chain that is to be erased; one block and the indexes of a few chunks are in memory.

    Raises ObjectMissing or a FormatError if an index or a block is damaged, KeyMissing for an encrypted block without
    its key, and a StoreError.
    """
    keys, data_of = chain.keys, data_in(store, chain.keys, keyring)
    digest, found = RecordsDigest(), list[npt.NDArray[np.int64]]()
    num_chunks = num_bytes = blocks_read = blocks = 0
    entries = [entry for entry in chain.entries if wanted.in_chunk(entry)]
    for chunk in read_chunks(store, keys, sorted(entries, key=lambda entry: entry.start_offset)):
        index = chunk.index
        chosen = [number for number, block in enumerate(index.blocks) if wanted.in_block(block, index)]
        blocks, blocks_read = blocks + len(index.blocks), blocks_read + len(chosen)
        count = 0
        for member, entry in opened_blocks(data_of(index), index.blocks, chosen) if chosen else ():
            for batch in decode_parts(member, entry, index, max_block_bytes):
                mask = wanted.mask(batch)
                if mask.any():
                    digest.update(batch.filter(pa.array(mask)))
                    found.append(batch.column("offset").to_numpy()[mask])
                    count += int(mask.sum())
        num_chunks, num_bytes = num_chunks + bool(count), num_bytes + (chunk.entry.bytes if count else 0)
    ranges = OffsetRanges.of_offsets(np.concatenate(found) if found else np.array([], np.int64))
    return ErasedPartition(
        topic=str(keys.folder),
        partition=keys.partition,
        records=ranges.num_offsets,
        offsets=tuple((each.start, each.stop) for each in ranges),
        content=digest.content,
        positions=digest.positions,
        chunks=num_chunks,
        bytes=num_bytes,
        blocks_read=blocks_read,
        blocks=blocks,
    )


def read_chunks(store: ToolStore, keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Iterator[OldChunk]:
    """Yield the chunks of these entries, with their indexes. Raises ObjectMissing, a FormatError or a StoreError."""
    driver = Driver(store)
    for some in parts_of(entries):
        yield from driver.run(chunks_of(keys, some))


class OffsetsRewrite(ChunkRewrite):
    """One rewrite of the chunks at some offsets, as far as catalogs are neighbours and the buffer has room."""

    def __init__(self, tools: RewriteTools, keys: PartitionKeys, rewrite_keys: RewriteKeys, drop: OffsetRanges) -> None:
        """`drop` are the offsets."""
        super().__init__(tools, keys, rewrite_keys, drop)
        self._run: CatalogRun | None = None
        # Offsets of chunks that stay as they are because the buffer has no room.
        self._left: list[range] = []

    @property
    def done(self) -> OffsetRanges:
        """The offsets that are rewritten once this is committed; none if there was no run."""
        run = [range(self._run.start, self._run.stop)] if self._run else []
        return OffsetRanges(run) - OffsetRanges(self._left)

    def steps(self, what: Rewrite) -> Protocol[RewriteOutcome]:
        return rewrite(self.keys, self.choose, what)

    def choose(self, marker: Marker) -> Protocol[CatalogRun | None]:
        spans = list(self.drop)
        lists = yield from level_1_lists(self.keys, marker, spans[0].start, spans[-1].stop)
        chosen = next(filter(None, (run_of(references, self.drop) for references in lists)), None)
        self._run = CatalogRun(chosen) if chosen else None
        return self._run

    def contents(self, old: Sequence[OldChunk]) -> Iterator[Item]:
        for chunk in old:
            entry = chunk.entry
            is_meant = self.drop.meets(entry.start_offset, entry.next_offset)
            buffer = self.new_file(entry.bytes) if is_meant else None
            if is_meant and buffer is None:
                self._left.append(range(entry.start_offset, entry.next_offset))
            yield chunk if buffer is None else self.changed(chunk, buffer)

    @abstractmethod
    def changed(self, chunk: OldChunk, buffer: BufferFile) -> Item:
        """Return what replaces a chunk at these offsets."""


class _PartialErase(OffsetsRewrite):
    """One rewrite without some records."""

    kind = "erase"

    def changed(self, chunk: OldChunk, buffer: BufferFile) -> Item:
        seal = self.rewrite_keys.seal(chunk)
        new = without(chunk, self.drop, self.data_of, buffer, self.max_block_bytes, seal)
        is_same = isinstance(new, NewChunk) and new.index.num_records == chunk.index.num_records
        return chunk if is_same else new


def erase_in(
    keys: PartitionKeys, offsets: OffsetRanges, tools: RewriteTools, rewrite_keys: RewriteKeys = NO_KEYS
) -> None:
    """Erase the records at these offsets of a partition's folder, even if the chain changes at the same time.

    If such records are in the tail, a running writer is fenced, and claims the partition again. Raises RewriteRefused
    if not all could be erased, KeyMissing for an encrypted chunk without its key, ContentsDiffer, a
    FormatError or a StoreError. What was erased before the error stays erased.
    """
    rewrite_offsets(keys, offsets, tools, partial(_PartialErase, tools, keys, rewrite_keys), "erased as a whole")


def rewrite_offsets(
    keys: PartitionKeys,
    offsets: OffsetRanges,
    tools: RewriteTools,
    part_of: Callable[[OffsetRanges], OffsetsRewrite],
    what: str,
) -> None:
    """Fold the tail up to these offsets, then rewrite them part by part; raises RewriteRefused if not `what`."""
    tools.driver.run(fold_tail(keys, offsets, str(uuid.uuid4())))
    pending, attempts = offsets, 0
    while len(pending):
        part = part_of(pending)
        outcome = part.run()
        if outcome is RewriteOutcome.OVERTAKEN and (attempts := attempts + 1) < ATTEMPTS:
            continue
        if outcome not in (RewriteOutcome.COMMITTED, RewriteOutcome.NOTHING):
            raise not_done(str(keys), what, outcome)
        if not len(part.done):
            return  # no catalog has such an offset any longer: pruned, or rewritten by another
        pending -= part.done


def run_of(references: References, offsets: OffsetRanges) -> References:
    """Return neighbours that span such offsets, as many as one rewrite takes."""
    return first_run(references, lambda each: offsets.meets(each.start_offset, each.next_offset), RunLimits())


class ReportFile(NamedTuple):
    """The file for a report, and the key for its signature, if either is wanted."""

    path: Path | None
    sign_key: Path | None

    def check(self) -> None:
        """Raise UsageError if the report cannot be signed, or would replace one that is still needed."""
        if self.sign_key is not None:
            if self.path is None:
                raise UsageError("--sign-key has nothing to sign", remedy="add --report FILE")
            signed(b"", self.sign_key)
        if self.path is not None and self.path.exists() and not _may_be_replaced(self.path):
            raise UsageError(
                f"{self.path} exists already",
                why="it may be the report of another erase, which --status needs",
                remedy="name another file",
            )

    def write(self, value: object) -> None:
        """Write the value as JSON, and its signature; raises UsageError if that is not possible."""
        if self.path is None:
            return
        body = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
        try:
            replace_file(self.path, body)
            if self.sign_key is not None:
                write_private(signature_of(self.path), signed(body, self.sign_key))
            else:  # the signature of an older content
                signature_of(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written", why=error.strerror or str(error), remedy="name another file"
            ) from error


def _may_be_replaced(report: Path) -> bool:
    """Return whether a file is the report of a dry run, or of an unfinished command."""
    try:
        report_of = msgspec.json.decode(report.read_bytes(), type=dict[str, Any]).get
    except (OSError, msgspec.MsgspecError):
        return False
    unfinished = {ERASE_FORMAT: ("dry_run", True), COMPLETION_FORMAT: ("complete", False), LOSS_FORMAT: ("done", False)}
    return any(report_of("format") == kind and report_of(name) is is_so for kind, (name, is_so) in unfinished.items())


NO_REPORT = ReportFile(None, None)


class PlannedErase(PlannedCommand):
    """An erase of records, whose report is written before anything is erased, and at the end."""

    nothing = "no record to erase"
    undone = "nothing was erased"
    columns = ("topic", "partition", "records", "chunks", "size of chunks", "blocks read", "offsets")
    droppable = ("blocks read", "size of chunks")

    def __init__(
        self,
        store: ToolStore,
        archive: str,
        partitions: Sequence[PartitionKeys],
        wanted: RecordChoice,
        file: ReportFile,
        buffer_root: Path,
        *,
        buffer_bytes: int,
        max_block_bytes: int,
        rewrite_keys: RewriteKeys = NO_KEYS,
    ) -> None:
        """Search the partitions; one that cannot be searched is a problem. `buffer_root` is for rewritten chunks."""
        file.check()
        self.archive, self._store, self._file, self._buffer_root = archive, store, file, buffer_root
        self._rewrite_keys, self._buffer_bytes, self._max_block_bytes = rewrite_keys, buffer_bytes, max_block_bytes
        self._archive_id = archive_info(store, layout_of(store)).archive_id

        def search(keys: PartitionKeys) -> ErasedPartition:
            chain = read_chain(store, keys)
            if chain is None:
                raise lost_marker(keys)
            return find_records(store, chain, wanted, max_block_bytes, rewrite_keys.keyring)

        self.found, self.problems = plan_each(partitions, search)
        self._not_searched = tuple(
            NotSearched(topic=topic, partition=int(number), error=error.reason)
            for where, error in self.problems
            for topic, _, number in [where.rpartition(":")]
        )
        # The reason why not all records of a partition are erased, by its name.
        self.errors = {str(each): NOT_YET for each in self.found if each.records}

    @property
    def question(self) -> str | None:
        if not self.errors:
            return None
        records = sum(each.records for each in self.found)
        return f"Erase {records:,} records of {len(self.errors):,} partitions for good?"

    def rows(self) -> list[tuple[Cell, ...]]:
        return [
            (
                *(each.topic, each.partition, each.records, each.chunks, bytes_text(each.bytes)),
                *(f"{each.blocks_read:,} of {each.blocks:,}", ranges_text(each.ranges)),
            )
            for each in self.found
            if each.records
        ]

    def carry_out(self) -> None:
        with closing(BufferFolder(self._buffer_root)) as buffers:
            driver = Driver(self._store)
            tools = RewriteTools(driver, self._store, buffers, self._buffer_bytes, self._max_block_bytes)
            self.write_report()
            try:
                for each in (each for each in self.found if each.records):
                    try:
                        erase_in(each.keys, each.ranges, tools, self._rewrite_keys)
                    except BlockgzError as error:
                        self.errors[str(each)] = error.reason
                        self.problems.append(Problem(str(each), error))
                    else:
                        del self.errors[str(each)]
            finally:
                self.write_report()

    def summary(self) -> str | None:
        erased = sum(each.records for each in self.found if str(each) not in self.errors)
        lines = [f"erased {erased:,} record{'' if erased == 1 else 's'}"] if any(e.records for e in self.found) else []
        lines.append(
            "chunks that were replaced or pruned are there until archiver gc deletes them after its grace period; "
            + (
                f"archiver erase --status {self._file.path} tells when nothing holds such records"
                if self._file.path
                else "archiver gc --dry-run lists the rest"
            )
        )
        return "\n".join(lines)

    def report(self, *, dry_run: bool = False) -> EraseReport:
        return EraseReport(
            archive=self.archive,
            archive_id=self._archive_id,
            at=round(self._store.clock() * 1000),
            dry_run=dry_run,
            partitions=tuple(replace(each, error=self.errors.get(str(each))) for each in self.found),
            not_searched=self._not_searched,
            signed=self._file.sign_key is not None,
        )

    def write_report(self, *, dry_run: bool = False) -> None:
        """Write the report to its file, if one is wanted."""
        self._file.write(self.report(dry_run=dry_run))

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self.report(dry_run=dry_run))
        return value


def ranges_text(offsets: OffsetRanges) -> str:
    """Return the first few ranges, and how many more there are."""
    shown = [
        str(each.start) if len(each) == 1 else f"{each.start}..{each.stop}"
        for each, _ in zip(offsets, range(SHOWN_RANGES), strict=False)
    ]
    more = len(offsets) - len(shown)
    return ",".join(shown) + (f" and {more:,} more" if more else "")

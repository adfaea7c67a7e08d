"""The records in an old archive's objects: indexes are trusted as far as they fit, the rest is counted.

Functions that need bytes of a store are generators of `Fetch`: a caller runs them by `advance` and answers with the
bytes.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from index_format.errors import CorruptBlock, FormatError
from index_format.keys import TopicPartition
from index_format.objects import UNVERIFIED, Gap
from index_format.old_members import MAGIC, DamagedBytes, Member, MemberScanner, Scanned, ends_as_member, scan
from index_format.old_objects import FoundData, FoundPartition, OldBlock, OldFormat, decode_old_index, marker_offset
from index_format.records import batch_without_timestamps

# Fetched at once of an object that is read to its end.
READ_BYTES = 8 * 1024 * 1024
R = TypeVar("R")


class Fetch(NamedTuple):
    """Answer: the bytes [start, end) of the object; or all of it without an end, None if it is missing."""

    key: str
    start: int = 0
    end: int | None = None


Fetching = Generator[Fetch, bytes | None, R]


def advance(fetching: Fetching[R], answer: bytes | None) -> Fetch | R:
    """Run a generator to its next fetch, or return its result; the first answer is None."""
    try:
        return fetching.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


@dataclass(frozen=True)
class OldFile:
    """One data object: its blocks and the offsets [first_offset, next_offset) that they hold, counted."""

    key: str
    size: int
    first_offset: int
    blocks: tuple[OldBlock, ...]
    is_indexed: bool
    """True if an index gave the blocks, and fits the object; otherwise they were found by scanning or are cut short."""
    notes: tuple[str, ...] = ()
    """Oddities, for people."""
    damage: str | None = None
    """The reason why records behind its last block are left out, whose offsets are unknown."""

    @property
    def next_offset(self) -> int:
        return self.blocks[-1].next_offset if self.blocks else self.first_offset

    @property
    def num_records(self) -> int:
        return sum(block.num_records for block in self.blocks)

    @property
    def header_bytes(self) -> int:
        """Bytes before the first block: a fork's header. No member behind them: the index is not to be believed."""
        return self.blocks[0].byte_offset if self.blocks else 0


def indexed_file(found: FoundData, size: int, bodies: Mapping[str, bytes]) -> OldFile | None:
    """Return the file by its best index, of the `bodies` by key; None if it must be scanned."""
    short: OldFile | None = None
    notes: list[str] = []
    for key in found.index_keys:
        if key not in bodies:
            continue
        try:
            blocks = decode_old_index(bodies[key], key, found.first_offset)
        except FormatError as error:
            notes.append(f"{error.what}: {error.why}")
            continue
        where = [] if key == found.own_index_key else [f"{found.key}: its index is in another folder, {key}"]
        end = blocks[-1].byte_end if blocks else 0
        if end > size:
            # It is used if no better one exists: its offsets are right.
            note = f"{found.key}: it has {size} bytes, its index reaches to byte {end}"
            short = short or OldFile(
                found.key, size, found.first_offset, blocks, is_indexed=False, notes=(*notes, *where, note)
            )
            continue
        if end < size:
            continue  # a scan finds the records of the rest
        return OldFile(found.key, size, found.first_offset, blocks, is_indexed=True, notes=(*notes, *where))
    return short


def marker_notes(place: TopicPartition, key: str | None, body: bytes | None, files: Sequence[OldFile]) -> Iterator[str]:
    """Yield oddities of a partition's marker; all files are used in any case."""
    newest = marker_offset(body) if body is not None else None
    if key is None or body is None:
        yield f"{place} has no marker: all its files are imported"
    elif newest is None:
        yield f"{key} names no chunk: all files are imported"
    elif beyond := [file for file in files if file.first_offset > newest]:
        yield f"{key}: {len(beyond)} files come after the chunk that it names; they are imported too"


def read_file(found: FoundData, size: int, old_format: OldFormat, max_block_bytes: int) -> Fetching[OldFile]:
    """Return the file with its blocks: by its index, or by a scan if that cannot be used. Raises TooLarge."""
    bodies: dict[str, bytes] = {}
    for key in found.index_keys:
        body = yield Fetch(key)
        if body is not None:
            bodies[key] = body
    file = indexed_file(found, size, bodies)
    if file is not None:
        start, end = file.header_bytes, file.header_bytes + len(MAGIC)
        if not start or (end <= size and (yield Fetch(found.key, start, end)) == MAGIC):
            return file
    return (yield from scan_file(found, size, old_format, max_block_bytes))


def scan_file(found: FoundData, size: int, old_format: OldFormat, max_block_bytes: int) -> Fetching[OldFile]:
    """Return the file with its blocks counted: an index made from the data alone. Raises TooLarge."""
    scanner, counter = MemberScanner(max_block_bytes), _BlockCounter(found, old_format)
    for part in parts_of(found.key, size):
        for scanned in scanner.feed((yield part) or b""):
            is_lost = is_foreign_start(scanned) and (
                yield from _begins_with_a_block(found.key, scanned, max_block_bytes)
            )
            counter.add(scanned, is_lost=is_lost)
    for scanned in scanner.finish():
        counter.add(scanned)
    damage = counter.damage or ("it holds no gzip member" if size and not counter.blocks else None)
    return OldFile(
        found.key,
        size,
        found.first_offset,
        tuple(counter.blocks),
        is_indexed=False,
        notes=tuple(counter.notes),
        damage=damage,
    )


def is_foreign_start(scanned: Scanned) -> bool:
    """Return whether an object begins with something else than a member, such as a fork's header."""
    return isinstance(scanned, DamagedBytes) and scanned.start == 0 and not scanned.began_as_member


def _begins_with_a_block(key: str, scanned: Scanned, max_block_bytes: int) -> Fetching[bool]:
    end = scanned.end if isinstance(scanned, DamagedBytes) else 0
    return end > READ_BYTES or ends_as_member((yield Fetch(key, 0, end)) or b"", max_block_bytes)


def parts_of(key: str, size: int) -> Iterator[Fetch]:
    """Return the ranges of an object that is read to its end."""
    return (Fetch(key, start, min(size, start + READ_BYTES)) for start in range(0, size, READ_BYTES))


class _BlockCounter:
    def __init__(self, found: FoundData, old_format: OldFormat) -> None:
        self._found = found
        self._format = old_format
        self.blocks: list[OldBlock] = []
        self.notes = [f"{found.key}: no usable index, its blocks were scanned"]
        self.damage: str | None = None

    def add(self, scanned: Scanned, *, is_lost: bool = False) -> None:
        if self.damage is not None:
            return
        if isinstance(scanned, DamagedBytes) and is_foreign_start(scanned) and not is_lost:
            self.notes.append(f"{self._found.key}: {scanned.end} bytes before its first member are skipped")
            return
        if isinstance(scanned, DamagedBytes):
            self._end(
                f"damaged at bytes {scanned.start} to {scanned.end} ({scanned.why}); the offsets of what follows "
                "are unknown"
            )
            return
        try:
            count = self._format.count(scanned.raw)
        except CorruptBlock as error:
            self._end(f"the member at byte {scanned.byte_offset}: {error.what}")
            return
        start = self.blocks[-1].next_offset if self.blocks else self._found.first_offset
        self.blocks.append(OldBlock(scanned.byte_offset, len(scanned.stored), start, count, len(scanned.raw)))

    def _end(self, damage: str) -> None:
        self.damage = damage
        self.notes.append(f"{self._found.key}: {damage}")


class Piece(NamedTuple):
    """The offsets [start, end) that are taken from one file."""

    file: OldFile
    start: int
    end: int

    @property
    def num_records(self) -> int:
        spans = [(max(self.start, block.first_offset), min(self.end, block.next_offset)) for block in self.file.blocks]
        return sum(end - start for start, end in spans if start < end)


def choose(files: Sequence[OldFile]) -> tuple[list[Piece], list[Gap]]:
    """Choose every offset once; return parts of files, in offset order, and the gaps between them."""
    waiting = sorted((file for file in files if file.num_records), key=lambda file: file.first_offset, reverse=True)
    indexed = [file.first_offset for file in reversed(waiting) if file.is_indexed]
    here: list[tuple[bool, int, str, OldFile]] = []
    pieces: list[Piece] = []
    gaps: list[Gap] = []
    position = waiting[-1].first_offset if waiting else 0
    while waiting or here:
        while waiting and waiting[-1].first_offset <= position:
            file = waiting.pop()
            # Files whose index fits come first, then those that reach furthest.
            heappush(here, (not file.is_indexed, -file.next_offset, file.key, file))
        if not here:
            gaps.append(Gap(position, waiting[-1].first_offset, UNVERIFIED))
            position = gaps[-1].end
            continue
        best = here[0][-1]
        if best.next_offset <= position:
            heappop(here)
            continue
        following = bisect_right(indexed, position)
        # A later file whose index fits ends one whose index does not.
        is_cut = not best.is_indexed and following < len(indexed)
        end = min(best.next_offset, indexed[following]) if is_cut else best.next_offset
        pieces.append(Piece(best, position, end))
        position = end
    return pieces, gaps


def _overlaps(pieces: Sequence[Piece], files: Sequence[OldFile]) -> Iterator[str]:
    used: Counter[str] = Counter()
    for piece in pieces:
        used[piece.file.key] += piece.end - piece.start
    for file in sorted(files, key=lambda file: (file.first_offset, file.key)):
        unused = file.next_offset - file.first_offset - used[file.key]
        if file.num_records and file.key not in used:
            yield f"{file.key} is skipped: other files hold its offsets {file.first_offset} to {file.next_offset - 1}"
        elif file.num_records and unused:
            yield f"{file.key}: {unused} of its offsets are taken from other files that overlap it"


@dataclass(frozen=True)
class OldPartition:
    place: TopicPartition
    files: Sequence[OldFile]
    pieces: Sequence[Piece]
    """The parts of files that count, in offset order."""
    gaps: Sequence[Gap]
    """The gaps between them."""
    notes: tuple[str, ...]
    """Oddities of its objects, for people."""

    @classmethod
    def of(
        cls, place: TopicPartition, found: FoundPartition, files: Sequence[OldFile], marker: bytes | None
    ) -> "OldPartition":
        pieces, gaps = choose(files)
        notes = [note for file in files for note in file.notes]
        notes += [f"{key}: an index without its data" for key in found.indexes_without_data]
        notes += marker_notes(place, found.marker_key, marker, files)
        notes += [f"no file holds offsets {gap.start} to {gap.end - 1}" for gap in gaps]
        return cls(place, files, pieces, gaps, (*notes, *_overlaps(pieces, files)))

    @property
    def start_offset(self) -> int:
        """The first offset; 0 if it holds no record."""
        return self.pieces[0].start if self.pieces else 0

    @property
    def next_offset(self) -> int:
        """The offset after the last record; 0 if it holds none."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def num_records(self) -> int:
        """The number of records that its files say they hold, each counted once."""
        return sum(piece.num_records for piece in self.pieces)


class Unsure(NamedTuple):
    """Offsets whose records cannot be had, or not told apart."""

    start: int
    end: int
    reason: str
    is_damage: bool
    """True if bytes are wrong or missing; otherwise the records' offsets are ambiguous."""

    def gap(self) -> Gap:
        return Gap(self.start, self.end, UNVERIFIED)


def records_of(
    piece: Piece, data: Iterable[bytes], old_format: OldFormat, max_block_bytes: int, position: int = 0
) -> Iterator[pa.RecordBatch | Unsure]:
    """Yield a piece's records from `position` on, block by block, or Unsure for one; raises TooLarge."""
    # After a block that is damaged or ambiguous, the offsets of the next one are certain again.
    for found in _blocks_of(piece.file, scan(data, max_block_bytes), old_format):
        part = _within(found, max(position, piece.start), piece.end)
        if part is not None:
            yield part


def delimited_lines(batch: pa.RecordBatch, old_format: OldFormat) -> int:
    """Return how many records of an old file's batch come from lines with the key delimiter."""
    if old_format.name == "delimited":
        return int(batch.num_rows - batch.column("key").null_count)
    found: int | None = pc.sum(pc.match_substring(batch.column("value"), old_format.delimiter)).as_py()
    return found or 0


def _blocks_of(file: OldFile, scanned: Iterable[Scanned], old_format: OldFormat) -> Iterator[pa.RecordBatch | Unsure]:
    waiting = [block for block in file.blocks if block.num_records]
    for found in scanned:
        if isinstance(found, DamagedBytes):
            continue
        while waiting and waiting[0].byte_offset < found.byte_offset:
            yield _damaged(file, waiting.pop(0))
        if waiting and waiting[0].byte_offset == found.byte_offset:
            yield _decoded(file, waiting.pop(0), found, old_format)
    for block in waiting:
        yield _damaged(file, block)


def _within(found: pa.RecordBatch | Unsure, start: int, end: int) -> pa.RecordBatch | Unsure | None:
    if isinstance(found, Unsure):
        cut = found._replace(start=max(start, found.start), end=min(end, found.end))
        return cut if cut.start < cut.end else None
    first = found.column("offset")[0].as_py()
    skipped = max(0, start - first)
    count = min(found.num_rows, end - first) - skipped
    return found.slice(skipped, count) if count > 0 else None


def _decoded(file: OldFile, block: OldBlock, member: Member, old_format: OldFormat) -> pa.RecordBatch | Unsure:
    try:
        keys, values = old_format.parse(member.raw, block.num_records)
        return batch_without_timestamps(block.first_offset, keys, values)
    except CorruptBlock as error:
        reason = f"{file.key} at byte {block.byte_offset}: {error.why}"
        return Unsure(block.first_offset, block.next_offset, reason, is_damage=False)


def _damaged(file: OldFile, block: OldBlock) -> Unsure:
    reason = f"{file.key} at byte {block.byte_offset}: the block is damaged or missing"
    return Unsure(block.first_offset, block.next_offset, reason, is_damage=True)

"""Reading an archive that kafka-connect-s3 or a fork of it wrote: what it holds, and its records in offset order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from blockgz_runtime.errors import NoArchiveThere, UsageError
from blockgz_runtime.store.writer import ToolStore
from index_format.ancestor.files import (
    BlockCounter,
    Choice,
    OldFile,
    Unsure,
    choose,
    indexed_file,
    marker_notes,
    records_of,
    within,
)
from index_format.ancestor.keys import (
    FoundData,
    FoundPartition,
    Place,
    found_partitions,
    has_current_objects,
)
from index_format.ancestor.members import MAGIC, MemberScanner, Scanned
from index_format.ancestor.payloads import OldFormat
from index_format.chunk_index import UNVERIFIED, Gap

READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class OldReader:
    """How an old archive is read: where it is, and what its operator knows of it."""

    store: ToolStore
    old_format: OldFormat
    max_block_bytes: int

    def scan(self, key: str, size: int) -> Iterator[Scanned]:
        """The members of an object of that many bytes, and its damage."""
        scanner = MemberScanner(self.max_block_bytes)
        for start in range(0, size, READ_BYTES):
            yield from scanner.feed(self.store.get_range(key, start, min(size, start + READ_BYTES)))
        yield from scanner.finish()


@dataclass(frozen=True)
class OldPartition:
    """What an old archive holds of one partition."""

    place: Place
    choice: Choice
    notes: tuple[str, ...]
    """What is odd about its objects, for people."""

    @property
    def start_offset(self) -> int:
        """The first offset; 0 where it holds no record."""
        return self.choice.pieces[0].start if self.choice.pieces else 0

    @property
    def next_offset(self) -> int:
        """The offset after the last record; 0 where it holds none."""
        return self.choice.pieces[-1].end if self.choice.pieces else 0

    @property
    def num_records(self) -> int:
        """Records that its files say they hold, each counted once."""
        return sum(piece.num_records for piece in self.choice.pieces)


def survey(reader: OldReader, wanted: Callable[[Place], bool]) -> list[OldPartition]:
    """The partitions of an old archive; data is read only where no index can be used.

    Raises NoArchiveThere, UsageError for a current archive, TooLarge, and the store's errors.
    """
    sizes = {listed.key: listed.size for listed in reader.store.list("")}
    if has_current_objects(sizes):
        raise UsageError(
            f"{reader.store.url} is an archive of this program already", why="it has an _archive.json or its folders"
        )
    found = found_partitions(sizes)
    if not found:
        raise NoArchiveThere(
            f"there is no old archive at {reader.store.url}",
            why="no key there is like 2016-02-24/topic-00000-000000000000.gz",
            remedy="give the address that its date folders lie in, prefix included",
        )
    return [_partition(reader, place, each, sizes) for place, each in found.items() if wanted(place)]


def records(reader: OldReader, partition: OldPartition, position: int) -> Iterator[pa.RecordBatch | Unsure]:
    """The partition's records at or above `position`, in offset order, with what cannot be told in its place."""
    for piece in partition.choice.pieces:
        start = max(position, piece.start)
        if start >= piece.end:
            continue
        if position < piece.start and piece is not partition.choice.pieces[0]:
            yield Unsure(position, piece.start, "no file holds them", is_damage=True)
        for found in records_of(piece.file, reader.scan(piece.file.key, piece.file.size), reader.old_format):
            part = within(found, start, piece.end)
            if part is not None:
                yield part
        position = piece.end


def gap_of(unsure: Unsure) -> Gap:
    """How an archive records it."""
    return Gap(unsure.start, unsure.end, UNVERIFIED)


def old_file(reader: OldReader, data: FoundData, size: int) -> OldFile:
    """The file with its blocks: by its index, or by a scan where that cannot be used."""
    bodies = {key: stored.body for key in data.index_keys if (stored := reader.store.get(key)) is not None}
    file = indexed_file(data, size, bodies)
    header = file.header_bytes if file else 0
    if file is not None and (not header or reader.store.get_range(data.key, header, header + len(MAGIC)) == MAGIC):
        return file
    counter = BlockCounter(data, size, reader.old_format)
    for scanned in reader.scan(data.key, size):
        counter.add(scanned)
    return counter.file()


def _partition(reader: OldReader, place: Place, found: FoundPartition, sizes: dict[str, int]) -> OldPartition:
    files = [old_file(reader, data, sizes[data.key]) for data in found.data]
    choice = choose(files)
    marker = reader.store.get(found.marker_key) if found.marker_key else None
    notes = [note for file in files for note in file.notes]
    notes += [f"{key}: an index without its data" for key in found.indexes_without_data]
    notes += marker_notes(place, found.marker_key, marker.body if marker else None, files)
    return OldPartition(place, choice, (*notes, *choice.notes))

"""Archives of kafka-connect-s3 and its forks, presented as current ones: listed once, chunks decoded when asked for.

A chunk is read whole, decoded with the quirks of its writer, and encoded again in memory: look-ups, scans and
verifications then work on it as on any other.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from blockgz.archive.partition import ArchivedPartition, Chunk, Damage
from blockgz.errors import CorruptBlock, ObjectMissing
from blockgz.store.reader import ObjectReader, PassingReader
from index_format import objects, old_files
from index_format.blocks import BlockBuilder, IsalCompressor, RawBlock
from index_format.keys import SeedLayoutKeys, TopicFolder, TopicPartition
from index_format.marker import ChunkEntry, Marker
from index_format.objects import BlockEntry, ChunkIndex, DataObject, Gap, fields_of_blocks
from index_format.old_objects import FoundData, FoundPartition, OldFormat
from index_format.record_formats import record_format
from index_format.records import NO_TIMESTAMP, NO_TIMESTAMP_TYPE, TIMESTAMP_TYPES

# Encoded chunks that are kept; the newest one always is.
REMEMBERED_BYTES = 256 * 1024 * 1024
FILES_AT_ONCE = 16
BLOCK_BYTES = 1024 * 1024
UNKNOWN = "unknown"
NO_SHA256 = "0" * 64
# Takes the place of an unreadable block: it is not a gzip member, so that readers report the lost offsets.
DAMAGED = b"damaged"


class OldArchive:
    """An old archive, as one listing shows it."""

    def __init__(
        self,
        reader: ObjectReader,
        found: dict[TopicPartition, FoundPartition],
        old_format: OldFormat,
        max_block_bytes: int,
    ) -> None:
        self._reader = reader
        self._found = found
        self._format = old_format
        self._max_block_bytes = max_block_bytes
        self._opened: dict[TopicPartition, OldArchivePartition] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for readers of the partitions opened so far."""
        odd = [note for partition in self._opened.values() for note in partition.notes]
        return ("this is an old archive: its writer counted the offsets, and it has no timestamps", *odd)

    def folders(self) -> tuple[TopicFolder, ...]:
        return tuple(sorted({TopicFolder(place.topic) for place in self._found}))

    def partitions(self, folder: TopicFolder) -> tuple[int, ...]:
        """Return the numbers of a topic's partitions, in order."""
        return tuple(place.partition for place in self._found if TopicFolder(place.topic) == folder)

    async def open_partition(self, folder: TopicFolder, partition: int) -> ArchivedPartition | None:
        """Return one of its partitions, or None if it does not exist; reads its indexes, and data that has none."""
        place = TopicPartition(folder.topic, partition)
        found = self._found.get(place)
        if found is None or folder.incarnation != 1:
            return None
        if place not in self._opened:
            self._opened[place] = await self._open(place, found)
        return self._opened[place]

    async def _open(self, place: TopicPartition, found: FoundPartition) -> "OldArchivePartition":
        limit = asyncio.Semaphore(FILES_AT_ONCE)

        async def opened(data: FoundData) -> old_files.OldFile:
            async with limit:
                size = await self._reader.size(data.key)
                fetching = old_files.read_file(data, size, self._format, self._max_block_bytes)
                step = old_files.advance(fetching, None)
                while isinstance(step, old_files.Fetch):
                    step = await asyncio.to_thread(old_files.advance, fetching, await _fetched(self._reader, step))
                return step

        files = await asyncio.gather(*(opened(data) for data in found.data))
        marker = await _fetched(self._reader, old_files.Fetch(found.marker_key)) if found.marker_key else None
        held = old_files.OldPartition.of(place, found, files, marker)
        return OldArchivePartition(self._reader, held, self._format, self._max_block_bytes)


class OldArchivePartition(ArchivedPartition):
    """A partition of an old archive: its marker, entries and indexes are made up from what its objects hold."""

    def __init__(
        self, reader: ObjectReader, held: old_files.OldPartition, old_format: OldFormat, max_block_bytes: int
    ) -> None:
        pieces = held.pieces
        entries = [_entry(piece) for piece in pieces]
        keys = SeedLayoutKeys(TopicFolder(held.place.topic), held.place.partition)
        marker = _marker(held.place, entries, held.gaps)
        super().__init__(_EncodedReader(reader, self._encoded), keys, marker, max_block_bytes)
        self._notes = held.notes
        self._lines = self._delimited = 0
        # No gap says what damage costs if its offsets are unknown.
        self.damage = [Damage(file.key, file.damage) for file in held.files if file.damage]
        self._stored = reader
        self._format = old_format
        self._pieces = {entry.name: piece for entry, piece in zip(entries, pieces, strict=True)}
        self._remembered: OrderedDict[str, tuple[ChunkIndex, bytes]] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on oddities of its files, and on the format of what was read so far."""
        doubt = self._format.doubt(self._lines, self._delimited)
        return self._notes if doubt is None else (*self._notes, f"{self.topic}:{self.partition}: {doubt}")

    async def chunk(self, entry: ChunkEntry) -> Chunk:
        """See ArchivedPartition; raises CorruptBlock if not one block can be read."""
        index, _ = await self._encoded(entry.name)
        counted = replace(
            entry, first_offset=index.first_offset, last_offset=index.last_offset, num_records=index.num_records
        )
        return Chunk(counted, index, entry.name)

    async def _encoded(self, name: str) -> tuple[ChunkIndex, bytes]:
        async with self._one_at_a_time:
            if name not in self._remembered:
                piece = self._pieces[name]
                parts = old_files.parts_of(piece.file.key, piece.file.size)
                stored = [await _fetched(self._stored, part) or b"" for part in parts]
                self._remembered[name] = await asyncio.to_thread(self._encode, name, piece, stored)
                held = self._remembered
                while len(held) > 1 and sum(len(data) for _, data in held.values()) > REMEMBERED_BYTES:
                    held.popitem(last=False)
            self._remembered.move_to_end(name)
            return self._remembered[name]

    def _encode(self, name: str, piece: old_files.Piece, stored: Sequence[bytes]) -> tuple[ChunkIndex, bytes]:
        blocks, gaps, data = list[BlockEntry](), list[Gap](), bytearray()
        builder = BlockBuilder(record_format("json"), NO_TIMESTAMP_TYPE, BLOCK_BYTES)
        compressor = IsalCompressor(0)

        def write(raw_blocks: Iterable[RawBlock | None]) -> None:
            for block in raw_blocks:
                if block is not None:
                    member = compressor.compress(block.raw)
                    blocks.append(block.entry(len(data), len(member)))
                    data.extend(member)

        for part in old_files.records_of(piece, stored, self._format, self.max_block_bytes):
            if not isinstance(part, old_files.Unsure):
                self._lines += part.num_rows
                self._delimited += old_files.delimited_lines(part, self._format)
                write(builder.add(part))
                continue
            write([builder.finish()])
            if part.is_damage:
                blocks.append(_damaged_block(part.start, part.end, len(data)))
                data.extend(DAMAGED)
            else:
                gaps.append(part.gap())
        write([builder.finish()])
        if not blocks:
            raise CorruptBlock(
                f"no record of {piece.file.key} can be distinguished from the others",
                why=f"its index gives other numbers of records than its blocks hold with --old-format "
                f"{self._format.name}",
                remedy="try another --old-format",
            )
        return self._index(name, blocks, gaps, bytes(data)), bytes(data)

    def _index(self, name: str, blocks: Sequence[BlockEntry], gaps: Sequence[Gap], data: bytes) -> ChunkIndex:
        piece = self._pieces[name]
        return ChunkIndex(
            archive_id=UNKNOWN,
            topic=self.topic,
            topic_id=None,
            partition=self.partition,
            epoch=0,
            record_format="json",
            codec="gzip",
            isolation_level=UNKNOWN,
            timestamp_type=TIMESTAMP_TYPES[NO_TIMESTAMP_TYPE],
            start_offset=piece.start,
            next_offset=piece.end,
            data=DataObject(name, len(data), hashlib.sha256(data).hexdigest()),
            previous=None,
            gaps=tuple(gaps),
            **fields_of_blocks(blocks),
        )


class _EncodedReader(PassingReader):
    def __init__(self, reader: ObjectReader, encoded: Callable[[str], Awaitable[tuple[ChunkIndex, bytes]]]) -> None:
        super().__init__(reader)
        self._encoded = encoded

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        _, data = await self._encoded(key)
        return data[start:end]

    async def size(self, key: str) -> int:
        _, data = await self._encoded(key)
        return len(data)


def _entry(piece: old_files.Piece) -> ChunkEntry:
    is_first = piece.start == piece.file.first_offset
    return ChunkEntry(
        name=piece.file.key if is_first else f"{piece.file.key}@{piece.start}",
        start_offset=piece.start,
        next_offset=piece.end,
        first_offset=piece.start,
        last_offset=piece.end - 1,
        num_records=max(1, piece.num_records),
        bytes=piece.file.size,
        raw_bytes=0,
        min_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        sha256=NO_SHA256,
    )


def _marker(place: TopicPartition, entries: Sequence[ChunkEntry], gaps: Sequence[Gap]) -> Marker:
    return Marker(
        archive_id=UNKNOWN,
        topic=place.topic,
        topic_id=None,
        partition=place.partition,
        group_id=UNKNOWN,
        epoch=1,
        writer="kafka-connect-s3 or a fork",
        nonce=UNKNOWN,
        start_offset=entries[0].start_offset if entries else None,
        next_offset=entries[-1].next_offset if entries else None,
        last_chunk_index=entries[-1].name if entries else None,
        tail=tuple(entries),
        gaps=tuple(gaps),
    )


def _damaged_block(start: int, end: int, position: int) -> BlockEntry:
    return BlockEntry(
        byte_length_uncompressed=1,
        num_records=end - start,
        byte_length=len(DAMAGED),
        byte_offset=position,
        first_record_offset=start,
        last_record_offset=end - 1,
        min_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        crc32=0,
    )


async def _fetched(reader: ObjectReader, fetch: old_files.Fetch) -> bytes | None:
    if fetch.end is not None:
        return await reader.get_range(fetch.key, fetch.start, fetch.end)
    try:
        return await reader.get(fetch.key, objects.MAX_OBJECT_BYTES)
    except ObjectMissing:
        return None

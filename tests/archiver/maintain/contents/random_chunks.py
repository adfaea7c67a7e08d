"""Random neighbours of a partition: all record formats, codecs, timestamp types, holes, gaps, filters, erased, keys."""

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from archiver.ingest.chunk_builder import BufferFile, BufferFolder
from archiver.maintain.rewrite.chunks import ChunkData, NewChunk, OldChunk, data_of_body, size_and_hash
from blockgz.encryption.keyring import Keyring, Sealing, opened_block, opener_of
from blockgz.store.writer import Body
from index_format import marker as markers
from index_format import objects
from index_format.blocks import COMPRESSORS, BlockBuilder, decode_block
from index_format.objects import BlockEntry, ChunkIndex, DataObject, Erased, Gap, fields_of_blocks
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records, iter_records
from tests.index_format.builders import NASTY
from tests.support.encryption import sealed
from tests.support.format_objects import index_of

MAX = 1 << 22
LIBRARIES = ("isal", "zlib", "zstd")


class Partition:
    """Chunks, and the records that they hold."""

    def __init__(self, rng: random.Random, folder: Path, keyring: Keyring | None = None) -> None:
        """With a `keyring`, chunks are encrypted from one of them on."""
        self.rng = rng
        self.keyring = keyring
        self.is_encrypted = False
        self.format = rng.choice(["json", "arrow", "text"])
        self.library = rng.choice(LIBRARIES)
        self.timestamp_type = rng.choice(sorted(TIMESTAMP_TYPES))
        self.key_filter_bits = rng.choice([None, 3, 10])
        self.keys = [b"k%d" % number for number in range(8)]
        self.chunks: list[OldChunk] = []
        self.bodies: dict[str, bytes] = {}
        self.records: list[Record] = []
        self.buffers = BufferFolder(folder)

    @property
    def codec(self) -> str:
        return "zstd" if self.library == "zstd" else "gzip"

    def data_of(self, index: ChunkIndex) -> ChunkData:
        body = self.bodies[index.data.name]
        return ChunkData(lambda start, end: body[start:end], opener_of(index, index.data.name, self.keyring))

    def buffer(self) -> BufferFile:
        return self.buffers.new_file()

    def grow(self, count: int, *, gaps: bool = False) -> "Partition":
        """So many chunks more, each from where the one before it ends, or behind a gap."""
        for _ in range(count):
            start = self.chunks[-1].entry.next_offset if self.chunks else self.rng.choice([0, 7, 2**40])
            if gaps and self.chunks and self.rng.random() < 0.2:
                start += self.rng.randrange(1, 9)
            self._append(start)
        return self

    def _append(self, start: int) -> None:
        rng = self.rng
        offset, records = start + rng.choice([0, 0, 2]), list[Record]()
        for _ in range(rng.choice([1, 2, 10, 60])):
            records.append(self._record(offset))
            offset += rng.choice([1, 1, 1, 2, 5])
        end = records[-1].offset + rng.choice([1, 1, 4])
        blocks, body = self._blocks(records)
        extra: dict[str, Any] = {}
        self.is_encrypted = self.is_encrypted or (self.keyring is not None and rng.random() < 0.3)
        if self.is_encrypted and self.keyring is not None:
            seal = Sealing(self.keyring, "archive-1", "orders", 3).of_chunk(start)
            blocks, body = sealed(blocks, body, seal)
            extra = {"version": 2, "encryption": seal.encryption}
        occupied = {record.offset for record in records}
        holes = [each for each in range(start, end) if each not in occupied]
        erased = tuple(
            Erased(hole, hole + 1) for hole in holes if not {hole - 1, hole + 1} & set(holes) and rng.random() < 0.3
        )
        name = f"{start:020d}"
        self.bodies[name] = body
        index = index_of(
            blocks,
            body,
            topic_id="id-1",
            epoch=rng.randrange(1, 9),
            record_format=self.format,
            codec=self.codec,
            timestamp_type=TIMESTAMP_TYPES[self.timestamp_type],
            start_offset=start,
            next_offset=end,
            previous=self.chunks[-1].entry.name if self.chunks else None,
            gaps=tuple(Gap(hole, hole + 1, "skipped") for hole in holes if rng.random() < 0.2),
            **({"erased": erased} if erased else {}),
            **extra,
        )
        index = replace(index, data=replace(index.data, name=name))
        entry = markers.entry_of(index, name + ".index.json", objects.encode(index))
        if rng.random() < 0.3:  # the log went on without records
            entry = _longer(entry, rng.randrange(1, 4))
        self.chunks.append(OldChunk(entry, index))
        self.records += records

    def _record(self, offset: int) -> Record:
        rng = self.rng
        timestamp = rng.choice([-1, 0, 1_000_000 + rng.randrange(10_000)])
        if self.format == "text":
            return Record(offset, timestamp, self.timestamp_type, None, rng.randbytes(5).replace(b"\n", b""), ())
        key = rng.choice([None, *self.keys, *self.keys])
        value = rng.choice([None, *NASTY, rng.randbytes(rng.choice([1, 200]))])
        headers = [("h", rng.choice([None, b"", b"x"]))] * rng.choice([0, 0, 1, 2])
        kind = self.timestamp_type if rng.random() < 0.9 else rng.choice(sorted(TIMESTAMP_TYPES))
        return Record(offset, timestamp, kind, key, value, headers)

    def _blocks(self, records: Sequence[Record]) -> tuple[Sequence[BlockEntry], bytes]:
        rng = self.rng
        builder = BlockBuilder(
            record_format(self.format), self.timestamp_type, rng.choice([50, 900, 100_000]), self.key_filter_bits
        )
        blocks, body = list[BlockEntry](), b""
        compressor = COMPRESSORS[self.library](2)
        for raw in [*builder.add(batch_from_records(records)), builder.finish()]:
            if raw is not None:
                member = compressor.compress(raw.raw)
                blocks.append(raw.entry(len(body), len(member)))
                body += member
        return blocks, body


def _longer(entry: markers.ChunkEntry, by: int) -> markers.ChunkEntry:
    return replace(entry, next_offset=entry.next_offset + by)


def with_blocks(new: NewChunk, blocks: Sequence[BlockEntry], body: Body | None = None) -> NewChunk:
    """The same chunk of other blocks."""
    data = replace(new.index.data, bytes=blocks[-1].byte_end)
    return NewChunk(replace(new.index, data=data, **fields_of_blocks(blocks)), new.body if body is None else body)


def index_of_new(new: NewChunk) -> tuple[ChunkIndex, bytes]:
    """The index as a commit stores it, and the data."""
    body = data_of_body(new.body).read(0, new.index.data.bytes)
    assert (len(body), hashlib.sha256(body).hexdigest()) == size_and_hash(new.body)
    index = replace(new.index, data=DataObject("new", *size_and_hash(new.body)))
    assert objects.decode(objects.encode(index), ChunkIndex, "new") == index
    return index, body


def records_of(index: ChunkIndex, body: bytes, keyring: Keyring | None = None) -> list[Record]:
    """What a reader finds."""
    blocks = [
        opened_block(body[entry.byte_offset : entry.byte_end], number, index, "it", keyring)
        for number, entry in enumerate(index.blocks)
    ]
    batches = [decode_block(*block, index, MAX) for block in blocks]
    return [_plain(record) for batch in batches for record in iter_records(batch)]


def readable(partition: Partition, records: Sequence[Record]) -> list[Record]:
    """The records as a reader finds them: record format text keeps no timestamps."""
    if partition.format != "text":
        return [_plain(record) for record in records]
    return [Record(r.offset, -1, -1, None, r.value, ()) for r in records]


def _plain(record: Record) -> Record:
    return record._replace(headers=tuple(record.headers))

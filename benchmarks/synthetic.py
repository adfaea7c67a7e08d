"""An archive of very many chunks in memory: each step as the archiver's commit takes it, the marker encoded once."""

import hashlib
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

from benchmarks.data import START_MS, STEP_MS
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import objects
from index_format.blocks import BlockBuilder, IsalCompressor, member_crc32
from index_format.chunk_index import BlockEntry, ChunkIndex, DataObject
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, ChunkStart, TopicFolder, archive_key, data_suffix
from index_format.marker import Marker, appended, encode, entry_of, folded
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records, record_hash

TOPIC = "synthetic"
FORMAT, CODEC, CREATE_TIME = "json", "gzip", 0
RECORDS_IN_CHUNK = 10
_COMPRESSOR = IsalCompressor(1)
_VALUE = b"x" * 200


def archive_of(chunks: int) -> dict[str, bytes]:
    """All objects of an archive of one partition with `chunks` chunks of `RECORDS_IN_CHUNK` records each, by key."""
    keys = LAYOUTS["topic"](TopicFolder(TOPIC), 0)
    info = ArchiveInfo(archive_id="synthetic", cluster_id=None, layout="topic")
    stored = {archive_key("topic"): objects.encode(info)}
    marker = Marker(
        archive_id="synthetic",
        topic=TOPIC,
        topic_id="synthetic",
        partition=0,
        group_id="benchmark",
        epoch=1,
        writer="benchmark",
        nonce="0",
    )
    for number, offset in zip(range(chunks), count(0, RECORDS_IN_CHUNK)):
        records = [_record(each) for each in range(offset, offset + RECORDS_IN_CHUNK)]
        start = ChunkStart(offset, offset, records[0].timestamp)
        data_name, index_name = keys.data_name(start, data_suffix(FORMAT, CODEC)), keys.index_name(start)
        index, data = _chunk(records, marker, data_name)
        body = objects.encode(index)
        stored[keys.chunks + data_name], stored[keys.chunks + index_name] = data, body
        marker, pending = folded(marker)
        for catalog in pending:
            stored[keys.home + catalog.reference.name] = catalog.body
        entry = entry_of(index, index_name, body)
        tail_hash = record_hash(records[-1])
        marker = appended(marker, entry, (), nonce=str(number), leader_epoch=0, tail_hash=tail_hash)
    stored[keys.marker] = encode(marker)
    return stored


BARE_BYTES = 100
"""What a chunk without data pretends to hold."""
_BARE_KEYS = LAYOUTS["topic"](TopicFolder(TOPIC), 0)


def write_bare_chain(folder: Path, chunks: int) -> None:
    """Writes identity, marker and catalogs of so many chunks; the chunks themselves `BareReader` makes when asked."""

    def put(key: str, body: bytes) -> None:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(body)

    put(archive_key("topic"), objects.encode(ArchiveInfo(archive_id=TOPIC, cluster_id=None, layout="topic")))
    marker = Marker(
        archive_id=TOPIC,
        topic=TOPIC,
        topic_id=TOPIC,
        partition=0,
        group_id="benchmark",
        epoch=1,
        writer="benchmark",
        nonce="0",
    )
    for number in range(chunks):
        marker, pending = folded(marker)
        for catalog in pending:
            put(_BARE_KEYS.home + catalog.reference.name, catalog.body)
        index = _bare_index(number)
        entry = entry_of(index, _BARE_KEYS.index_name(_bare_start(number)), objects.encode(index))
        marker = appended(marker, entry, (), nonce=str(number), leader_epoch=0, tail_hash=None)
    put(_BARE_KEYS.marker, encode(marker))


class BareReader(LocalReader):
    """Reads a folder that `write_bare_chain` wrote of so many chunks: enough for all that looks at no block."""

    def __init__(self, address: LocalAddress, chunks: int) -> None:
        super().__init__(address)
        self._chunks = chunks

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        for number in range(self._chunks):
            start = _bare_start(number)
            for name in (_BARE_KEYS.data_name(start, data_suffix(FORMAT, CODEC)), _BARE_KEYS.index_name(start)):
                if _BARE_KEYS.chunks + name > after:
                    yield _BARE_KEYS.chunks + name
        async for key in super().list(prefix, after):
            yield key

    async def get(self, key: str, max_bytes: int) -> bytes:
        stem = key.removeprefix(_BARE_KEYS.chunks).split(".", 1)[0]
        return objects.encode(_bare_index(int(stem))) if stem.isdecimal() else await super().get(key, max_bytes)

    async def size(self, key: str) -> int:  # noqa: ARG002
        return BARE_BYTES


def _bare_start(number: int) -> ChunkStart:
    return ChunkStart(number, number, START_MS)


def _bare_index(number: int) -> ChunkIndex:
    data_name = _BARE_KEYS.data_name(_bare_start(number), data_suffix(FORMAT, CODEC))
    return ChunkIndex(
        archive_id=TOPIC,
        topic=TOPIC,
        topic_id=TOPIC,
        partition=0,
        epoch=1,
        record_format=FORMAT,
        codec=CODEC,
        isolation_level="read_committed",
        timestamp_type=TIMESTAMP_TYPES[CREATE_TIME],
        start_offset=number,
        next_offset=number + 1,
        first_offset=number,
        last_offset=number,
        num_records=1,
        min_timestamp=START_MS,
        max_timestamp=START_MS,
        data=DataObject(data_name, BARE_BYTES, "0" * 64),
        previous=_BARE_KEYS.index_name(_bare_start(number - 1)) if number else None,
        gaps=(),
        blocks=(BlockEntry(BARE_BYTES, 1, BARE_BYTES, 0, number, number, START_MS, START_MS, 0),),
    )


def _record(offset: int) -> Record:
    return Record(offset, START_MS + offset * STEP_MS, CREATE_TIME, b"key", _VALUE, ())


def _chunk(records: list[Record], marker: Marker, data_name: str) -> tuple[ChunkIndex, bytes]:
    builder = BlockBuilder(record_format(FORMAT), CREATE_TIME, 1 << 20)
    assert not list(builder.add(batch_from_records(records)))
    block = builder.finish()
    assert block is not None
    data = _COMPRESSOR.compress(block.raw)
    first, last = records[0], records[-1]
    entry = BlockEntry(
        byte_length_uncompressed=len(block.raw),
        num_records=len(records),
        byte_length=len(data),
        byte_offset=0,
        first_record_offset=first.offset,
        last_record_offset=last.offset,
        min_timestamp=first.timestamp,
        max_timestamp=last.timestamp,
        crc32=member_crc32(data),
    )
    index = ChunkIndex(
        archive_id=marker.archive_id,
        topic=TOPIC,
        topic_id=marker.topic_id,
        partition=0,
        epoch=marker.epoch,
        record_format=FORMAT,
        codec=CODEC,
        isolation_level="read_committed",
        timestamp_type=TIMESTAMP_TYPES[CREATE_TIME],
        start_offset=first.offset,
        next_offset=last.offset + 1,
        first_offset=first.offset,
        last_offset=last.offset,
        num_records=len(records),
        min_timestamp=first.timestamp,
        max_timestamp=last.timestamp,
        data=DataObject(data_name, len(data), hashlib.sha256(data).hexdigest()),
        previous=marker.last_chunk_index,
        gaps=(),
        blocks=(entry,),
    )
    return index, data

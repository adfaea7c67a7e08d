"""Archives of very many chunks, in memory or without the chunks; the marker is stored once."""

from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.data import START_MS
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import objects
from index_format.keys import LAYOUTS, ChunkStart, TopicFolder, data_suffix
from index_format.marker import appended, entry_of, folded
from index_format.objects import BlockEntry, ChunkIndex, DataObject
from tests.support.archives import ArchiveWriter, MemoryArchiveWriter, PartitionWriter, records
from tests.support.format_objects import index_of

TOPIC = "synthetic"
FORMAT, CODEC, CREATE_TIME = "json", "gzip", 0
RECORDS_IN_CHUNK = 10


class _Unstored(PartitionWriter):
    """Commits whose marker is not stored, and of which nothing is kept."""

    def store_marker(self) -> None:
        self.records.clear()
        self.indexes.clear()


def archive_of(chunks: int) -> dict[str, bytes]:
    """All objects of an archive of one partition with `chunks` chunks of `RECORDS_IN_CHUNK` records each, by key."""
    archive = MemoryArchiveWriter(has_inventory=False)
    stored = archive.partition(TOPIC, 0)
    partition = _Unstored(archive, stored.keys, FORMAT)
    for first in range(0, chunks * RECORDS_IN_CHUNK, RECORDS_IN_CHUNK):
        made = records(range(first, first + RECORDS_IN_CHUNK), value_bytes=200)
        partition.commit(made, block_bytes=1 << 20)
    stored.marker = partition.marker
    stored.store_marker()
    return archive.objects


BARE_BYTES = 100
"""What a chunk without data pretends to hold."""
_BARE_KEYS = LAYOUTS["topic"](TopicFolder(TOPIC), 0)


def write_bare_chain(folder: Path, chunks: int) -> None:
    """Writes identity, marker and catalogs of so many chunks; the chunks themselves `BareReader` makes when asked."""
    archive = ArchiveWriter(folder, has_inventory=False)
    partition = archive.partition(TOPIC, 0)
    marker = partition.marker
    for number in range(chunks):
        marker, pending = folded(marker)
        for catalog in pending:
            archive.put(_BARE_KEYS.home + catalog.reference.name, catalog.body)
        index = _bare_index(number)
        entry = entry_of(index, _BARE_KEYS.index_name(_bare_start(number)), objects.encode(index))
        marker = appended(marker, entry, (), nonce=str(number), leader_epoch=0, tail_hash=None)
    partition.marker = marker
    partition.store_marker()


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
    block = BlockEntry(BARE_BYTES, 1, BARE_BYTES, 0, number, number, START_MS, START_MS, 0)
    data_name = _BARE_KEYS.data_name(_bare_start(number), data_suffix(FORMAT, CODEC))
    previous = _BARE_KEYS.index_name(_bare_start(number - 1)) if number else None
    fields = {"topic": TOPIC, "topic_id": "id-1", "partition": 0, "previous": previous}
    return index_of([block], b"", **fields, data=DataObject(data_name, BARE_BYTES, "0" * 64))

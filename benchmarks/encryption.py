"""`python -m benchmarks.encryption`: what encrypting costs a record, written and read.

Prints a markdown table for blocks of 1 MiB of JSON lines. Written: records are encoded, compressed, their blocks
encrypted. Read: blocks are decrypted, inflated and decoded. Archived: a whole chunk goes through the archiver's buffer
and commit into a folder. Scanned: the replayer reads it from there. Plain and encrypted take turns; the least counts.
"""

import argparse
import asyncio
import base64
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from archiver.commit.commit import PartitionIdentity, commit_chunk
from archiver.commit.operations import Driver, UnreadLog
from archiver.commit.recovery import TakeoverPolicy, take_over
from archiver.ingest.chunk_builder import BufferFolder, ChunkBuilder, ChunkSettings, RollLimits
from benchmarks.data import batches
from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from blockgz.archive.archive import ArchivePlace, opened
from blockgz.archive.selection import scan
from blockgz.process import share_heaps
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalStore
from blockgz.store.retry import bounded_backoff
from index_format.blocks import COMPRESSORS, BlockBuilder, Compressor, decode_block
from index_format.encryption import CIPHER, BlockCipher, opened_with
from index_format.keys import LAYOUTS, TopicFolder
from index_format.objects import AUTHENTICATED, BlockEntry, Encryption, WrappedKey, block_crc32
from index_format.record_formats import record_format

BLOCK_BYTES = 1024 * 1024
CREATE_TIME = 0
BATCH_RECORDS = 4000
KEYS = "env:BLOCKGZ_BENCHMARK_KEYS"
POLICY = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)
WHAT = ("written", "read", "archived", "scanned")
CIPHER_OF_ALL = BlockCipher(bytes(32), "archive", "orders", 0, 0)
KINDS = {
    "gzip, values of 200 B": (200, "gzip", "isal", 1),
    "gzip, values of 1 KB": (1000, "gzip", "isal", 1),
    "zstd, values of 1 KB": (1000, "zstd", "zstd", 2),
}


class Encoding(NamedTuple):
    """How the blocks are encoded."""

    codec: str
    encryption: Encryption | None
    record_format: str = "json"
    timestamp_type: str = "CreateTime"


class StoredBlock(NamedTuple):
    """A block as it is stored, and its entry."""

    stored: bytes
    entry: BlockEntry


def written(parts: Sequence[pa.RecordBatch], compressor: Compressor, cipher: BlockCipher | None) -> list[StoredBlock]:
    """The blocks of some batches, as an open chunk stores them."""
    builder, blocks = BlockBuilder(record_format("json"), CREATE_TIME, BLOCK_BYTES), list[StoredBlock]()
    for part in parts:
        for raw in builder.add(part):
            member = compressor.compress(raw.raw)
            entry = raw.entry(0, len(member), AUTHENTICATED if cipher else None)
            if cipher is not None:
                member = cipher.sealed(len(blocks), member)
                entry = replace(entry, byte_length=len(member), crc32=block_crc32(member))
            blocks.append(StoredBlock(member, entry))
    return blocks


def read(blocks: Sequence[StoredBlock], codec: str, cipher: BlockCipher | None) -> int:
    """Decodes the blocks; gives the number of their records."""
    encryption = Encryption(CIPHER, WrappedKey("id", b"")) if cipher else None
    encoding, count = Encoding(codec, encryption), 0
    for number, (stored, entry) in enumerate(blocks):
        opened = (stored, entry) if cipher is None else opened_with(cipher, number, stored, entry)
        count += decode_block(*opened, encoding, 1 << 28).num_rows
    return count


def archived(parts: Sequence[pa.RecordBatch], codec: str, compressor: Compressor, keys: str | None, root: Path) -> None:
    """A chunk of some batches, built and committed as an archiver does."""
    folder, buffers = LAYOUTS["topic"](TopicFolder("orders"), 0), BufferFolder(root / "buffer")
    formats = ("json", codec, "read_committed")
    identity = PartitionIdentity(folder, "benchmark", None, "benchmark", *formats, "", keys)
    settings = ChunkSettings(record_format("json"), compressor, BLOCK_BYTES, RollLimits(1 << 40, 1e9))
    try:
        builder = ChunkBuilder(settings, buffers.new_file(), 0, sealing=identity.sealing)
        for part in parts:
            builder.add(part, None, 0.0)
        chunk = builder.finish(len(parts) * BATCH_RECORDS)
        store = LocalStore(root / "archive")
        driver = Driver(store, UnreadLog(), bounded_backoff(store.url), lambda: True)
        held = driver.run(take_over(identity, "benchmark", POLICY)).held
        driver.run(commit_chunk(identity, held, chunk))
    finally:
        buffers.close()


def scanned(keys: str | None, root: Path) -> int:
    """Reads a whole partition as a replayer does; gives the number of its records."""

    async def count() -> int:
        async with opened(ArchivePlace(LocalAddress(str(root / "archive")), keys=keys)) as archive:
            partition = await archive.open_partition("orders", 0)
            return sum([batch.num_rows async for batch in scan(partition, 0, 2**62)])

    return asyncio.run(count())


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Kind(NamedTuple):
    """Records of one kind, and how they are compressed."""

    parts: Sequence[pa.RecordBatch]
    codec: str
    compressor: Compressor

    def times(self, cipher: BlockCipher | None, keys: str | None) -> tuple[float, ...]:
        blocks: list[StoredBlock] = []
        with tempfile.TemporaryDirectory(prefix="blockgz-") as folder:
            return (
                seconds(lambda: blocks.extend(written(self.parts, self.compressor, cipher))),
                seconds(lambda: read(blocks, self.codec, cipher)),
                seconds(lambda: archived(self.parts, self.codec, self.compressor, keys, Path(folder))),
                seconds(lambda: scanned(keys, Path(folder))),
            )


def rows(count: int, rounds: int) -> list[tuple[str, ...]]:
    """A row of each of WHAT for each kind of records."""
    found = []
    os.environ[KEYS.partition(":")[2]] = base64.b64encode(bytes(32)).decode()
    for name, (value_bytes, codec, library, level) in KINDS.items():
        kind = Kind([*batches(count, BATCH_RECORDS, value_bytes)], codec, COMPRESSORS[library](level))
        turns = [(kind.times(None, None), kind.times(CIPHER_OF_ALL, KEYS)) for _ in range(rounds)]
        for number, what in enumerate(WHAT):
            plain, encrypted = (
                min(turn[side][number] for turn in turns) / (count * BATCH_RECORDS) * 1e9 for side in (0, 1)
            )
            found.append((f"{name}, {what}", f"{plain:,.0f}", f"{encrypted:,.0f}", f"{encrypted / plain:.3f}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encryption", description=__doc__)
    parser.add_argument("--batches", type=int, default=10, help=f"batches of {BATCH_RECORDS} records")
    parser.add_argument("--rounds", type=int, default=9, help="rounds; the least counts")
    given = parser.parse_args()
    share_heaps()  # as the programs do
    print(f"{measured_on()}, one core\n")
    head = ("", "ns a record, plain", "ns, encrypted", "ratio")
    print(as_markdown(Table("Encryption", head, rows(given.batches, given.rounds))))


if __name__ == "__main__":
    main()

"""Open chunks that are encrypted: in the buffer already, and each part of one that is cut with a key of its own."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.commit.commit import FinishedChunk
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.chunk_builder import ChunkBuilder, ChunkSettings, FinishedEncoding, RollLimits, part_below
from blockgz.encryption.keyring import Sealing
from blockgz.errors import BufferFull
from index_format.blocks import IsalCompressor, decode_block
from index_format.chunk_index import Encryption
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records, iter_records, record_hash
from tests.archiver.ingest.test_chunk_builder import Moody
from tests.support.archives import records
from tests.support.encryption import sealing
from tests.support.sampling import mostly_long

LIMITS = RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
SETTINGS = ChunkSettings(record_format("json"), IsalCompressor(1), 400, LIMITS)
SEALING = sealing(1, 2)


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[BufferFolder]:
    folder = BufferFolder(tmp_path)
    yield folder
    folder.close()


def opened(chunk: FinishedChunk, ring: Sealing = SEALING) -> list[Record]:
    """The records of a finished chunk."""
    assert isinstance(chunk.encryption, Encryption)
    data = chunk.body.path.read_bytes()
    encoding = FinishedEncoding("json", "gzip", chunk.timestamp_type, chunk.encryption)
    opener = ring.opener(chunk.start.position, chunk.encryption)
    found: list[Record] = []
    for number, entry in enumerate(chunk.blocks):
        member, plain = opener(number, data[entry.byte_offset : entry.byte_end], entry)
        found += iter_records(decode_block(member, plain, encoding, 1 << 20))
    return found


def test_its_buffer_holds_nothing_that_is_plain(buffer: BufferFolder) -> None:
    chunk = ChunkBuilder(SETTINGS, buffer.new_file(), 10, sealing=SEALING)
    rows = records(range(10, 60))
    chunk.add(batch_from_records(rows), 3, 0.0)
    finished = chunk.finish(60)
    assert len(finished.blocks) > 5
    assert opened(finished) == rows
    assert finished.tail_hash == record_hash(rows[-1], SEALING.keyring.tail.secret)
    assert finished.tail_key == SEALING.keyring.tail.wrapped
    data = finished.body.path.read_bytes()
    assert b"\x1f\x8b\x08" not in {data[block.byte_offset : block.byte_offset + 3] for block in finished.blocks}
    assert finished.body.size == finished.blocks[-1].byte_end


def test_every_chunk_has_another_key(buffer: BufferFolder) -> None:
    wrapped = set()
    for _ in range(3):
        chunk = ChunkBuilder(SETTINGS, buffer.new_file(), 0, sealing=SEALING)
        chunk.add(batch_from_records(records([0])), 0, 0.0)
        encryption = chunk.finish(1).encryption
        assert isinstance(encryption, Encryption)
        wrapped.add(encryption.key.wrapped)
    assert len(wrapped) == 3


@pytest.mark.parametrize("seed", mostly_long(range(10), 3))
def test_the_parts_of_a_chunk_that_is_cut(buffer: BufferFolder, seed: int) -> None:
    rng = random.Random(seed)
    rows = records(range(200))
    file = Moody(buffer.new_file()._path, buffer)
    chunk, finished = ChunkBuilder(SETTINGS, file, 0, sealing=SEALING), list[FinishedChunk]()
    for begin in range(0, len(rows), 5):
        file.refusals = file.refusals or int(rng.random() < 0.3)
        chunk.add(batch_from_records(rows[begin : begin + 5]), 0, 0.0)
        if chunk.full is not None:
            parts = chunk.cut(another := Moody(buffer.new_file()._path, buffer))
            if parts is not None:
                finished.append(parts[0])
                chunk, file = parts[1], another
            file.refusals = 0
            chunk.write_again()
    file.refusals = 0
    finished.append(chunk.finish(200))
    assert len(finished) > 2
    assert [record for part in finished for record in opened(part)] == rows
    assert len({repr(part.encryption) for part in finished}) == len(finished)


def test_a_block_that_the_buffer_refused_is_the_same_when_it_is_written_again(buffer: BufferFolder) -> None:
    file = Moody(buffer.new_file()._path, buffer)
    chunk = ChunkBuilder(SETTINGS, file, 0, sealing=SEALING)
    file.refusals = 1
    chunk.add(batch_from_records(records([0, 1])), 0, 0.0)
    with pytest.raises(BufferFull):
        chunk.finish(2)
    chunk.write_again()
    assert opened(chunk.finish(2)) == records([0, 1])


def test_the_records_below_an_offset(buffer: BufferFolder) -> None:
    chunk = ChunkBuilder(SETTINGS, buffer.new_file(), 0, sealing=SEALING)
    rows = records(range(50))
    chunk.add(batch_from_records(rows), 0, 0.0)
    finished = chunk.finish(50)
    part = part_below(21, finished, "gzip", SETTINGS, buffer.new_file(), SEALING)
    assert part is not None
    assert opened(part[1]) == rows[:21]
    assert part[1].encryption != finished.encryption

"""An open chunk: what its blocks, index entries, gaps and tail say of the records that went in."""

import gzip
import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from archiver.commit.commit import FinishedChunk
from archiver.errors import UnencodableRecord
from archiver.ingest.buffer import BufferFile, BufferFolder
from archiver.ingest.chunk_builder import ENTRY_BYTES, ChunkBuilder, ChunkSettings, RollLimits
from blockgz.errors import BufferFull
from index_format.blocks import IsalCompressor
from index_format.chunk_index import Gap
from index_format.key_filter import hashes_of, key_filter
from index_format.keys import ChunkStart
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records, record_hash
from tests.index_format.builders import record
from tests.support.archives import records
from tests.support.sampling import mostly_long

Builder = Callable[..., ChunkBuilder]


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[BufferFolder]:
    folder = BufferFolder(tmp_path)
    yield folder
    folder.close()


@pytest.fixture
def builder(buffer: BufferFolder) -> Iterator[Builder]:
    with ExitStack() as made:

        def build(format_name: str = "json", **changes: Any) -> ChunkBuilder:
            settings: dict[str, Any] = {
                "record_format": record_format(format_name),
                "compressor": IsalCompressor(1),
                "block_bytes": 400,
                "limits": RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0),
                "bad_records_are_skipped": False,
            }
            chunk = ChunkBuilder(ChunkSettings(**settings | changes), buffer.new_file(), 10, opened_at=5.0)
            made.callback(chunk.discard)
            return chunk

        yield build


def add(chunk: ChunkBuilder, rows: Sequence[Record], leader_epoch: int | None = None, now: float = 6.0) -> None:
    chunk.add(batch_from_records(rows), leader_epoch, now)


def stored_offsets(chunk: FinishedChunk) -> list[int]:
    lines = gzip.decompress(chunk.body.path.read_bytes()).splitlines()
    return [json.loads(line)["offset"] for line in lines]


def test_a_chunk_of_several_batches(builder: Builder, buffer: BufferFolder) -> None:
    chunk = builder()
    rows = records([12, *range(13, 30), 40])
    add(chunk, rows[:5], leader_epoch=3)
    add(chunk, rows[5:], leader_epoch=4)
    assert chunk.num_records == len(rows)
    assert chunk.compressed_bytes == buffer.used_bytes > 0
    finished = chunk.finish(45)
    assert stored_offsets(finished) == [row.offset for row in rows]
    assert finished.start == ChunkStart(10, 12, rows[0].timestamp)
    assert (finished.next_offset, finished.leader_epoch, finished.gaps) == (45, 4, ())
    assert (finished.timestamp_type, finished.tail_hash) == ("CreateTime", record_hash(rows[-1]))
    content = finished.body.path.read_bytes()
    assert (finished.body.size, finished.body.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_every_block_inflates_alone_to_what_its_entry_says(builder: Builder) -> None:
    chunk = builder()
    add(chunk, records(range(10, 60)))
    finished = chunk.finish(60)
    data = finished.body.path.read_bytes()
    assert len(finished.blocks) > 5
    for block in finished.blocks:
        lines = gzip.decompress(data[block.byte_offset : block.byte_end]).splitlines(keepends=True)
        offsets = [json.loads(line)["offset"] for line in lines]
        assert sum(map(len, lines)) == block.byte_length_uncompressed <= 400
        assert (offsets[0], offsets[-1]) == (block.first_record_offset, block.last_record_offset)
        assert len(lines) == block.num_records
    assert finished.blocks[-1].byte_end == len(data)


def test_the_facts_count_compressed_bytes_of_whole_blocks_only(builder: Builder) -> None:
    chunk = builder(block_bytes=10**6)
    add(chunk, records(range(10, 60)), now=7.0)
    assert (chunk.compressed_bytes, chunk.num_blocks, chunk.num_records) == (0, 0, 50)
    assert (chunk.opened_at, chunk.last_record_at) == (5.0, 7.0)
    open_bytes = chunk.open_block_bytes
    assert chunk.encoded_bytes == open_bytes > 0
    chunk.end_block()
    assert (chunk.open_block_bytes, chunk.num_blocks, chunk.encoded_bytes) == (0, 1, open_bytes)
    assert chunk.compressed_bytes > 0
    chunk.end_block()
    assert chunk.num_blocks == 1, "an empty block is none"
    chunk.finish(60)


def test_without_records_there_is_no_chunk(builder: Builder) -> None:
    chunk = builder()
    chunk.skip(10)
    assert chunk.num_records == 0
    with pytest.raises(ValueError, match="without records"):
        chunk.finish(11)


def test_discarding_gives_the_buffer_back(builder: Builder, buffer: BufferFolder) -> None:
    chunk = builder()
    add(chunk, records(range(10, 60)))
    body = chunk.finish(60).body
    chunk.discard()
    chunk.discard()
    assert buffer.used_bytes == 0 and not body.path.exists()


BAD = [
    record(10, b"good", timestamp=10),
    record(11, b"two\nlines", timestamp=11),
    record(12, None, timestamp=12),
    record(13, b"good", timestamp=13),
    record(14, b"keyed", b"k", timestamp=14),
    record(15, b"good", timestamp=15),
    record(16, b"headed", headers=(("h", b""),), timestamp=16),
]


def test_a_record_that_the_format_cannot_hold_stops_by_default(builder: Builder) -> None:
    chunk = builder("text")
    with pytest.raises(UnencodableRecord, match="offset 11") as caught:
        add(chunk, BAD)
    assert "newline" in caught.value.why and "--on-bad-record skip" in caught.value.remedy
    assert chunk.num_records == 1, "the record before it is taken"
    assert chunk.finish(11).tail_hash == record_hash(BAD[0])


def test_skipped_records_become_gaps_and_a_run_of_them_one_gap(builder: Builder) -> None:
    chunk = builder("text", bad_records_are_skipped=True)
    add(chunk, BAD)
    assert chunk.skipped == 4 and chunk.num_records == 3
    finished = chunk.finish(17)
    assert finished.gaps == (Gap(11, 13, "skipped"), Gap(14, 15, "skipped"), Gap(16, 17, "skipped"))
    assert gzip.decompress(finished.body.path.read_bytes()) == b"good\ngood\ngood\n"
    assert [(block.first_record_offset, block.num_records) for block in finished.blocks] == [(10, 1), (13, 1), (15, 1)]
    assert finished.tail_hash == record_hash(BAD[5])


def test_skipped_records_with_none_between_are_one_gap(builder: Builder) -> None:
    chunk = builder("text", bad_records_are_skipped=True)
    add(chunk, BAD[1:2])
    add(chunk, BAD[2:3])
    chunk.skip(13)
    chunk.skip(20)
    add(chunk, [record(21, b"good", timestamp=21)])
    chunk.skip(22)
    add(chunk, [record(23, None, timestamp=23), record(24, b"good", timestamp=24)])
    add(chunk, [record(30, None, timestamp=30)])
    assert chunk.gaps == (Gap(11, 21, "skipped"), Gap(22, 24, "skipped"), Gap(30, 31, "skipped"))
    assert (chunk.skipped, chunk.num_gaps) == (7, 3), "an offset that was not there was not skipped"


def test_an_open_chunk_whose_block_ended_holds_no_record_in_memory(builder: Builder) -> None:
    chunk = builder()
    add(chunk, [record(10, b"warm up")])
    batch = batch_from_records([record(11, b"x" * 2**20)])
    tracemalloc.start()
    try:
        chunk.add(batch, None, 6.0)
        chunk.end_block()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**19


class Moody(BufferFile):
    """Does not take so many of the next blocks."""

    refusals = 0

    def append(self, block: bytes) -> None:
        if self.refusals:
            self.refusals -= 1
            raise BufferFull("no space")
        super().append(block)


@pytest.mark.parametrize("format_name", ["json", "arrow"])
@pytest.mark.parametrize("seed", mostly_long(range(20), 5))
def test_a_chunk_that_is_cut_where_the_buffer_was_full(buffer: BufferFolder, format_name: str, seed: int) -> None:
    rng = random.Random(seed)
    rows = records(sorted(rng.sample(range(500), 300)))
    settings = ChunkSettings(
        record_format(format_name), IsalCompressor(1), 400, RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
    )
    file = Moody(buffer.new_file()._path, buffer)
    chunk, finished, begin, epoch = ChunkBuilder(settings, file, rows[0].offset), list[FinishedChunk](), 0, 0
    while begin < len(rows):
        size = rng.randint(1, 8)
        epoch += 1
        file.refusals = file.refusals or int(rng.random() < 0.2)
        add(chunk, rows[begin : begin + size], leader_epoch=epoch)
        begin += size
        if chunk.full is not None:
            parts = chunk.cut(another := Moody(buffer.new_file()._path, buffer))
            if parts is not None:
                finished.append(parts[0])
                chunk, file = parts[1], another
            file.refusals = 0
            chunk.write_again()
            assert chunk.full is None
    file.refusals = 0
    finished.append(chunk.finish(rows[-1].offset + 1))
    assert len(finished) > 3
    by_offset = {row.offset: row for row in rows}
    for part in finished:
        first, last = by_offset[part.blocks[0].first_record_offset], by_offset[part.blocks[-1].last_record_offset]
        assert part.start[1:] == (first.offset, first.timestamp)
        assert part.tail_hash == record_hash(last)
        assert part.leader_epoch is not None and part.body.path.stat().st_size == part.blocks[-1].byte_end
    assert [part.start.position for part in finished[1:]] == [part.next_offset for part in finished[:-1]]
    assert [part.leader_epoch for part in finished] == sorted(part.leader_epoch or 0 for part in finished)
    entries = [block for part in finished for block in part.blocks]
    assert sum(entry.num_records for entry in entries) == len(rows)
    if format_name == "json":
        assert [offset for part in finished for offset in stored_offsets(part)] == [row.offset for row in rows]


def test_gaps_go_with_the_part_that_they_lie_in(buffer: BufferFolder) -> None:
    settings = ChunkSettings(
        record_format("json"), IsalCompressor(1), 150, RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0), True
    )
    file = Moody(buffer.new_file()._path, buffer)
    chunk = ChunkBuilder(settings, file, 0)
    chunk.skip(0)
    add(chunk, records([1]))
    chunk.end_block()
    chunk.skip(2)
    file.refusals = 1
    add(chunk, records([3]))
    chunk.end_block()
    chunk.skip(4)
    parts = chunk.cut(buffer.new_file())
    assert parts is not None
    short, rest = parts
    rest.write_again()
    assert (short.next_offset, short.gaps) == (2, (Gap(0, 1, "skipped"),))
    assert rest.finish(5).gaps == (Gap(2, 3, "skipped"), Gap(4, 5, "skipped"))
    assert (chunk.num_records, rest.num_records) == (1, 1)


def test_a_full_chunk_is_not_finished(buffer: BufferFolder) -> None:
    settings = ChunkSettings(
        record_format("json"), IsalCompressor(1), 400, RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
    )
    file = Moody(buffer.new_file()._path, buffer)
    chunk = ChunkBuilder(settings, file, 0)
    file.refusals = 1
    add(chunk, records([1]))
    with pytest.raises(BufferFull):
        chunk.finish(2)
    assert chunk.cut(buffer.new_file()) is None, "nothing is in the buffer"
    assert chunk.open_block_bytes > 0


@pytest.mark.parametrize("bits", [None, 10])
def test_blocks_have_key_filters_where_they_are_asked_for(builder: Builder, bits: int | None) -> None:
    chunk = builder(key_filter_bits=bits)
    rows = [record(offset, bytes(100), b"key-%d" % (offset // 3)) for offset in range(12, 40)]
    for start in range(0, len(rows), 5):
        add(chunk, rows[start : start + 5])
    finished = chunk.finish(40)
    assert len(finished.blocks) > 3
    for block in finished.blocks:
        inside = range(block.first_record_offset, block.last_record_offset + 1)
        keys = hashes_of({b"key-%d" % (offset // 3) for offset in inside})
        assert block.key_filter == (key_filter(keys, bits) if bits else msgspec.UNSET)


def test_key_filters_of_a_chunk_are_bounded(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.ingest.chunk_builder.MAX_KEY_FILTERS", 20)
    chunk = builder(key_filter_bits=32)
    add(chunk, [record(offset, bytes(100), b"%d" % offset) for offset in range(12, 40)])
    finished = chunk.finish(40)
    sizes = [len(block.key_filter) if isinstance(block.key_filter, bytes) else 0 for block in finished.blocks]
    assert sizes[0] and not any(sizes[sizes.index(0) :])
    assert sum(sizes) <= 20 + max(sizes)
    assert chunk.open_index_bytes == ENTRY_BYTES * len(sizes) + sum(sizes)

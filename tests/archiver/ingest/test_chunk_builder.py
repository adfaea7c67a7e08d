"""Open chunks, encrypted too: blocks, gaps, when they end; the buffer folder that they are in."""

import gzip
import hashlib
import io
import json
import logging
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from archiver.commit.commit import FinishedChunk
from archiver.errors import UnencodableRecord
from archiver.ingest.chunk_builder import (
    ENTRY_BYTES,
    MAX_BLOCKS,
    MAX_GAPS,
    BufferFile,
    BufferFolder,
    ChunkBuilder,
    ChunkSettings,
    FinishedEncoding,
    RollLimits,
    is_due,
    largest,
    part_below,
    rows_that_fit,
)
from archiver.logs import log_to
from blockgz.encryption.keyring import Sealing
from blockgz.errors import BufferFailed, BufferFull, StoreError
from index_format.blocks import IsalCompressor, decode_block
from index_format.key_filter import hashes_of, key_filter
from index_format.keys import ChunkStart
from index_format.objects import Encryption, Gap
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records, iter_records, record_hash
from tests.index_format.builders import record
from tests.support.archives import records
from tests.support.encryption import sealing
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


LIMITS = RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
SETTINGS = ChunkSettings(record_format("json"), IsalCompressor(1), 400, LIMITS)
SEALING = sealing(1, 2)


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


ROLL_LIMITS = RollLimits(chunk_bytes=1000, chunk_records=10, chunk_interval_seconds=60.0)
CHUNK = {
    "compressed_bytes": 1,
    "encoded_bytes": 1,
    "num_records": 1,
    "num_blocks": 0,
    "num_gaps": 0,
    "opened_at": 100.0,
    "last_record_at": 100.0,
}


def ends(limits: RollLimits, now: float, **facts: Any) -> bool:
    chunk: Any = SimpleNamespace(**CHUNK | facts)
    return is_due(chunk, limits, now)


@pytest.mark.parametrize(
    ("facts", "age", "is_ended"),
    [
        ({"num_records": 0, "compressed_bytes": 5000}, 99, False),
        ({}, 59.9, False),
        ({"compressed_bytes": 999, "num_records": 9}, 0, False),
        ({"compressed_bytes": 1000}, 0, True),
        ({"compressed_bytes": 5000}, 99, True),
        ({"num_records": 10}, 0, True),
        ({}, 60, True),
        ({"num_blocks": MAX_BLOCKS - 1}, 0, False),
        ({"num_blocks": MAX_BLOCKS}, 0, True),
        ({"num_gaps": MAX_GAPS - 1}, 0, False),
        ({"num_gaps": MAX_GAPS}, 0, True),
        ({"num_gaps": MAX_GAPS, "num_records": 0}, 0, False),
    ],
)
def test_the_first_limit_that_is_reached_ends_a_chunk(facts: dict[str, Any], age: float, is_ended: bool) -> None:
    assert ends(ROLL_LIMITS, 100.0 + age, **facts) is is_ended


@pytest.mark.parametrize(
    ("encoded_bytes", "idle_for", "is_ended"), [(500, 10, True), (500, 9.9, False), (499, 59, False)]
)
def test_idling_ends_no_tiny_chunk(encoded_bytes: int, idle_for: float, is_ended: bool) -> None:
    limits = replace(ROLL_LIMITS, chunk_idle_seconds=10.0, tiny_bytes=500)
    assert ends(limits, 100.0 + idle_for, encoded_bytes=encoded_bytes) is is_ended


@pytest.mark.parametrize(("num_records", "capacity"), [(0, 10), (9, 1), (10, 0), (11, 0)])
def test_capacity_for_records(num_records: int, capacity: int) -> None:
    assert rows_that_fit(np.arange(50), num_records, 0, ROLL_LIMITS) == capacity


def test_without_limits_all_rows_fit() -> None:
    assert rows_that_fit(np.arange(50), 10**9, 0, replace(ROLL_LIMITS, chunk_records=None)) == 50


@pytest.mark.parametrize(
    ("timestamps", "first", "fitting"),
    [
        ([5, 50, 104, 105, 3], None, 3),
        ([5, 50, 104, 105, 3], 5, 3),
        ([5, 50], None, 2),
        ([100, 50], 0, 0),
        ([99, -1, 100], 0, 2),
    ],
)
def test_a_chunk_ends_before_the_record_that_would_stretch_it_beyond_its_span(
    timestamps: list[int], first: int | None, fitting: int
) -> None:
    limits = replace(ROLL_LIMITS, chunk_records=None, chunk_span_ms=100)
    assert rows_that_fit(np.array(timestamps), 1, first, limits) == fitting


@pytest.mark.parametrize(
    ("open_bytes", "committing", "ending"),
    [
        ({}, "", ""),
        ({"a": 79}, "", ""),
        ({"a": 80}, "", "a"),
        ({"a": 30, "b": 50, "c": 10}, "", "b"),
        ({"a": 30, "b": 50, "c": 10}, "b", "a"),
        ({"a": 30, "b": 50, "c": 10}, "abc", ""),
        ({"a": 20, "b": 15, "c": 70}, "c", "ab"),
        (dict.fromkeys("abcdefghij", 9), "", "ab"),
        ({"a": 0, "b": 90}, "b", ""),
    ],
)
def test_open_chunks_that_fill_the_buffer_end_largest_first(
    open_bytes: dict[str, int], committing: str, ending: str
) -> None:
    assert "".join(largest(open_bytes, 80, committing)) == ending


OWNER = """
import sys
from pathlib import Path
from archiver.ingest.chunk_builder import BufferFolder
folder = BufferFolder(Path(sys.argv[1]))
folder.new_file().append(b"block")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a buffer folder under `root`, alive."""
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """A disk that takes no more: the nearest to a full one that needs no disk of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_a_file_holds_what_was_appended(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path / "deep" / "down")
    file = buffer.new_file()
    file.append(b"one")
    file.append(b"two")
    assert buffer.used_bytes == file.size == 6
    body = file.finish()
    assert body.path.read_bytes() == b"onetwo"
    assert (body.size, body.sha256) == (6, hashlib.sha256(b"onetwo").hexdigest())
    body.check_size()
    file.discard()
    assert (buffer.used_bytes, body.path.exists()) == (0, False)
    buffer.close()


def test_closing_removes_everything(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"x")
    file.finish()
    buffer.mark_alive()
    buffer.close()
    buffer.close()
    assert not folders(tmp_path)


@pytest.mark.slow
def test_folders_of_living_processes_are_kept_and_those_of_dead_ones_removed(tmp_path: Path) -> None:
    with another_process(tmp_path) as living, another_process(tmp_path) as dying:
        both = folders(tmp_path)
        assert len(both) == 2
        dying.kill()
        dying.wait()
        written = io.StringIO()
        log_to(written, level=logging.WARNING, log_format="json")
        BufferFolder(tmp_path).close()
        line = json.loads(written.getvalue())
        assert (line["event"], line["pid"], line["bytes"]) == ("process_died", str(dying.pid), len(b"block"))
        assert abs(datetime.fromisoformat(line["last_seen"]).timestamp() - time.time()) < 60
        (kept,) = folders(tmp_path)
        assert kept in both and list((tmp_path / kept).glob("*.chunk"))
        living.kill()
        living.wait()
    BufferFolder(tmp_path).close()
    assert not folders(tmp_path)


def test_what_died_before_it_had_a_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "blockgz-buffer-0123").mkdir()
    BufferFolder(tmp_path).close()
    assert not folders(tmp_path)


def test_nothing_of_anybody_else_is_touched(tmp_path: Path) -> None:
    for name in ("photos", "0123456789abcdef0123456789abcdef"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").write_bytes(b"")
        (tmp_path / name / "precious").write_bytes(b"1")
    BufferFolder(tmp_path).close()
    assert folders(tmp_path) == {"photos", "0123456789abcdef0123456789abcdef"}
    assert (tmp_path / "photos" / "precious").exists()


def test_two_folders_in_one_process_do_not_meet(tmp_path: Path) -> None:
    first, second = BufferFolder(tmp_path), BufferFolder(tmp_path)
    file = first.new_file()
    file.append(b"x")
    second.close()
    assert file.finish().path.exists()
    first.close()


def test_a_file_that_was_cut_behind_our_back(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"x" * 100_000)
    (path,) = tmp_path.glob("*/*.chunk")
    with path.open("r+b") as behind:
        behind.truncate(10)
    with pytest.raises(BufferFailed, match="has"):
        file.finish()
    file.discard()
    assert buffer.used_bytes == 0
    buffer.close()


@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_finished_file_that_changed_behind_our_back(tmp_path: Path, change: str) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"content")
    body = file.finish()
    if change == "cut":
        body.path.write_bytes(b"con")
    else:
        body.path.unlink()
    with pytest.raises(BufferFailed, match="changed"):
        body.check_size()
    with pytest.raises(BufferFailed, match="changed"):
        body.check_content(hashlib.sha256(b"con").hexdigest())
    file.discard()
    buffer.close()


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    with files_no_larger_than(50_000):
        with pytest.raises(BufferFailed) as caught:
            for _ in range(3):
                file.append(b"x" * 40_000)
            file.finish()
        file.discard()
    assert isinstance(caught.value, StoreError) and "--buffer-dir" in caught.value.remedy
    assert buffer.used_bytes == 0 and not list(tmp_path.glob("*/*.chunk"))
    buffer.close()


def test_bytes_that_the_disk_does_not_take_are_missed_at_once(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    with files_no_larger_than(50):
        with pytest.raises(BufferFailed):
            file.append(b"x" * 100)
        file.discard()
    assert buffer.used_bytes == 0
    buffer.close()


def test_a_block_that_fitted_in_part_is_cut_off_and_may_be_written_again(tmp_path: Path) -> None:
    buffer = BufferFolder(tmp_path)
    file = buffer.new_file()
    file.append(b"a" * 60)
    (path,) = tmp_path.glob("*/*.chunk")
    with files_no_larger_than(100):
        with pytest.raises(BufferFull):
            file.append(b"b" * 60)
        assert path.read_bytes() == b"a" * 60
        with path.open("ab") as torn:  # where even cutting failed
            torn.write(b"b" * 10)
        file._is_torn = True
        assert file.finish().size == 60
    file.append(b"c" * 60)
    body = file.finish()
    content = b"a" * 60 + b"c" * 60
    assert path.read_bytes() == content and body.sha256 == hashlib.sha256(content).hexdigest()
    buffer.close()


@pytest.mark.parametrize("place", ["file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BufferFailed):
        BufferFolder(tmp_path / place)

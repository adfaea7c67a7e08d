"""Neighbours merged: nothing that a reader finds changes, and no byte of a block."""

import gzip
import random
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace

from archiver.maintain.rewrite.chunks import OldChunk, data_of_body
from archiver.maintain.rewrite.compare import check_contents
from archiver.maintain.rewrite.encode import MergeLimits, erased_of, merge_groups, merged, runs_alike, why_apart
from index_format.chunk_index import Gap
from index_format.errors import CorruptBlock
from index_format.marker import ChunkEntry
from tests.archiver.maintain.contents.random_chunks import MAX, Partition, index_of_new, readable, records_of
from tests.index_format.builders import SHA256
from tests.support.sampling import mostly_long


def entry(start: int, size: int, *, end: int | None = None) -> ChunkEntry:
    return ChunkEntry(
        name=str(start),
        start_offset=start,
        next_offset=start + 10 if end is None else end,
        first_offset=start,
        last_offset=start,
        num_records=1,
        bytes=size,
        raw_bytes=size,
        min_timestamp=0,
        max_timestamp=0,
        sha256=SHA256,
    )


def test_small_neighbours_become_chunks_of_about_the_wanted_size() -> None:
    entries = [entry(10 * n, 30) for n in range(10)]
    assert merge_groups(entries, MergeLimits(50, 100)) == [range(3), range(3, 6), range(6, 9)]
    assert merge_groups(entries, MergeLimits(50, 1000)) == [range(10)]
    assert merge_groups(entries, MergeLimits(50, 1000, max_chunks=4)) == [range(4), range(4, 8), range(8, 10)]
    assert merge_groups(entries, MergeLimits(30, 1000)) == []
    assert merge_groups([], MergeLimits(30, 1000)) == []
    assert merge_groups(entries, MergeLimits(50, 1000, max_blocks=7), [2] * 10) == [range(3), range(3, 6), range(6, 9)]
    assert merge_groups(entries, MergeLimits(50, 1000, max_blocks=7), [8, 3, 3, *[8] * 7]) == [range(1, 3)]


def test_neither_large_chunks_nor_gaps_are_merged_over() -> None:
    entries = [entry(0, 1), entry(10, 1), entry(20, 99), entry(30, 1), entry(40, 1), entry(55, 1), entry(65, 1)]
    assert merge_groups(entries, MergeLimits(50, 1000)) == [range(2), range(3, 5), range(5, 7)]


def test_what_is_large_beside_its_neighbours_is_not_copied_again() -> None:
    mib = 1 << 20
    limits = MergeLimits(1 << 30, 1 << 40)

    def groups(*sizes: int) -> list[range]:
        return merge_groups([entry(10 * n, size) for n, size in enumerate(sizes)], limits)

    assert groups(mib, mib // 2, mib // 2) == [range(3)]
    assert groups(mib, mib // 2, mib // 3) == [range(1, 3)]
    assert groups(1, 2, 9 * mib, 3, 4) == [range(2), range(3, 5)]
    assert groups(mib - 1, 1) == [range(2)], "little is copied every day"
    assert groups(9 * mib, 1) == groups(1, 9 * mib, 2) == []


@pytest.mark.slow
def test_what_comes_daily_is_copied_a_few_times() -> None:
    """And stays few chunks: as many as there are powers of two in their bytes."""
    sizes, copied, day = list[int](), 0, 10_000_000
    for _ in range(1000):
        sizes += [day // 100] * 100
        groups = merge_groups([entry(10 * n, size) for n, size in enumerate(sizes)], MergeLimits(1 << 50, 1 << 60))
        for group in reversed(groups):
            total = sum(sizes[group.start : group.stop])
            sizes[group.start : group.stop] = [total]
            copied += total
    assert sum(sizes) == 1000 * day
    assert copied < 11 * sum(sizes)
    assert len(sizes) <= 10


def test_groups_of_random_entries_keep_the_limits() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        entries, start = list[ChunkEntry](), 0
        for _ in range(rng.randrange(30)):
            start += rng.choice([0, 0, 0, 3])
            entries.append(entry(start, rng.randrange(1, 60)))
            start += 10
        limits = MergeLimits(rng.randrange(70), rng.randrange(200), rng.randrange(2, 9))
        groups = merge_groups(entries, limits)
        assert all(before.stop <= after.start for before, after in pairwise(groups))
        for group in groups:
            chosen = entries[group.start : group.stop]
            assert 2 <= len(chosen) <= limits.max_chunks
            assert sum(each.bytes for each in chosen) <= limits.chunk_bytes
            assert all(each.bytes < limits.small_bytes for each in chosen)
            assert all(before.next_offset == after.start_offset for before, after in pairwise(chosen))


@pytest.mark.parametrize("run", mostly_long(range(8), 3))
def test_a_merged_chunk_holds_the_same_bytes_of_every_block(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    for number in range(8):
        partition = Partition(rng, tmp_path / str(number)).grow(rng.randrange(2, 6))
        old = partition.chunks
        buffer = partition.buffer()
        new = merged(old, partition.data_of, buffer)
        index, body = index_of_new(new)
        assert body == b"".join(partition.bodies[chunk.index.data.name] for chunk in old)
        assert records_of(index, body) == readable(partition, partition.records)
        assert [replace(block, byte_offset=0) for block in index.blocks] == [
            replace(block, byte_offset=0) for chunk in old for block in chunk.index.blocks
        ]
        assert (index.start_offset, index.next_offset) == (old[0].entry.start_offset, old[-1].entry.next_offset)
        assert index.epoch == max(chunk.index.epoch for chunk in old)
        assert index.gaps == tuple(gap for chunk in old for gap in chunk.index.gaps)
        assert {offset for each in new.erased for offset in range(each.start, each.end)} == {
            offset for chunk in old for each in chunk.index.erased or () for offset in range(each.start, each.end)
        }
        _decompresses_as_a_whole(partition, body)
        check_contents(old, new, partition.data_of, data_of_body(new.body), MAX)
        buffer.discard()
        assert partition.buffers.used_bytes == 0
        partition.buffers.close()


def _decompresses_as_a_whole(partition: Partition, body: bytes) -> None:
    if partition.codec == "gzip":
        raw = gzip.decompress(body)
    else:
        with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as reader:
            raw = reader.read()
    assert len(raw) == sum(chunk.index.raw_bytes for chunk in partition.chunks)


def test_a_gap_that_was_filled_since_is_not_listed_by_the_chunk_over_it(tmp_path: Path) -> None:
    partition = Partition(random.Random(1), tmp_path).grow(2)
    first, second = partition.chunks
    filled = Gap(first.entry.start_offset, first.entry.next_offset, "retention")
    after = OldChunk(second.entry, replace(second.index, gaps=(filled, *second.index.gaps)))
    new = merged([first, after], partition.data_of, partition.buffer())
    assert filled not in new.gaps
    assert new.gaps == (*first.index.gaps, *second.index.gaps)
    partition.buffers.close()


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("record_format", "other"),
        ("codec", "other"),
        ("timestamp_type", "other"),
        ("isolation_level", "other"),
        ("topic_id", None),
    ],
)
def test_chunks_that_differ_stay_apart(what: str, value: str | None, tmp_path: Path) -> None:
    partition = Partition(random.Random(2), tmp_path).grow(4)
    old = list(partition.chunks)
    assert runs_alike(old) == [old]
    old[2] = OldChunk(old[2].entry, replace(old[2].index, **{what: value}))
    assert runs_alike(old) == [old[:2], old[2:3], old[3:]]
    assert what in (why_apart(old[1], old[2]) or "")
    with pytest.raises(ValueError, match=what):
        merged(old, partition.data_of, partition.buffer())
    partition.buffers.close()


def test_chunks_on_both_sides_of_a_gap_stay_apart(tmp_path: Path) -> None:
    old = Partition(random.Random(3), tmp_path).grow(3).chunks
    assert runs_alike([old[0], old[2]]) == [[old[0]], [old[2]]]
    assert erased_of(old) is not None


def test_damaged_data_is_not_merged(tmp_path: Path) -> None:
    partition = Partition(random.Random(4), tmp_path).grow(2)
    name = partition.chunks[1].index.data.name
    partition.bodies[name] = partition.bodies[name][:-1] + b"?"
    with pytest.raises(CorruptBlock, match="is damaged"):
        merged(partition.chunks, partition.data_of, partition.buffer())
    partition.buffers.close()

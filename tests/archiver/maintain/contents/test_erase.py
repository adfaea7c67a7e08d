"""Chunks without some of their records: all others stay, byte for byte where their block has none of them."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from archiver.maintain.rewrite.chunks import ErasedRun, NewChunk, OffsetRanges, data_of_body
from archiver.maintain.rewrite.compare import check_contents
from archiver.maintain.rewrite.encode import without
from index_format.errors import CorruptBlock
from index_format.key_filter import hashes_of, holds_all
from index_format.records import RecordsDigest, batch_from_records
from tests.archiver.maintain.contents.random_chunks import MAX, Partition, index_of_new, readable, records_of
from tests.support.sampling import mostly_long


def some_offsets(rng: random.Random, partition: Partition) -> OffsetRanges:
    start, end = partition.chunks[0].entry.start_offset, partition.chunks[-1].entry.next_offset
    match rng.randrange(4):
        case 0:
            return OffsetRanges([range(start, end)])
        case 1:
            first = rng.randrange(start, end)
            return OffsetRanges([range(first, first + rng.randrange(1, 30))])
        case 2:
            return OffsetRanges(range(each, each + 1) for each in range(start, end) if rng.random() < 0.3)
        case _:
            return OffsetRanges([range(offset := rng.randrange(start, end), offset + 1)])


@pytest.mark.parametrize("run", mostly_long(range(8), 3))
def test_only_the_records_asked_for_are_gone(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    for number in range(10):
        partition = Partition(rng, tmp_path / str(number)).grow(1)
        (old,), drop = partition.chunks, some_offsets(rng, partition)
        print(partition.format, partition.codec, drop)
        dropped = [r for r in partition.records if any(r.offset in each for each in drop)]
        kept = [r for r in partition.records if r not in dropped]
        buffer = partition.buffer()
        new = without(old, drop, partition.data_of, buffer, MAX)
        digest = check_contents([old], new, partition.data_of, _reading(new), MAX, drop)
        expected = RecordsDigest()
        expected.update(batch_from_records(readable(partition, dropped)))
        assert (digest.content, digest.positions) == (expected.content, expected.positions)
        assert (new.start_offset, new.next_offset) == (old.entry.start_offset, old.entry.next_offset)
        if not kept:
            assert isinstance(new, ErasedRun)
        else:
            assert isinstance(new, NewChunk)
            _holds(partition, new, kept, dropped)
        partition.buffers.close()


def _reading(new: NewChunk | ErasedRun):  # type: ignore[no-untyped-def]
    return data_of_body(new.body) if isinstance(new, NewChunk) else None


def _holds(partition: Partition, new: NewChunk, kept: list, dropped: list) -> None:  # type: ignore[type-arg]
    old = partition.chunks[0].index
    index, body = index_of_new(new)
    assert records_of(index, body) == readable(partition, kept)
    before = {offset for each in old.erased or () for offset in range(each.start, each.end)}
    now = {offset for each in new.erased for offset in range(each.start, each.end)}
    assert now == before | {record.offset for record in dropped}
    gone = {record.offset for record in dropped}
    copied = {(b.crc32, b.byte_length, b.key_filter) for b in index.blocks}
    for block in old.blocks:
        has_none = not any(block.first_record_offset <= offset <= block.last_record_offset for offset in gone)
        if has_none:
            assert (block.crc32, block.byte_length, block.key_filter) in copied
            assert partition.bodies[old.data.name][block.byte_offset : block.byte_end] in body
    for block in index.blocks:
        assert isinstance(block.key_filter, bytes) == (partition.key_filter_bits is not None)
        keys = {
            r.key
            for r in kept
            if r.key is not None and block.first_record_offset <= r.offset <= block.last_record_offset
        }
        if isinstance(block.key_filter, bytes):
            assert holds_all(block.key_filter, hashes_of(keys))
    assert old.min_timestamp <= index.min_timestamp <= index.max_timestamp <= old.max_timestamp


def test_erasing_again_adds_to_what_was_erased(tmp_path: Path) -> None:
    rng, number = random.Random(5), 0
    while len((partition := Partition(rng, tmp_path / str(number)).grow(1)).records) < 60:
        partition.buffers.close()
        number += 1
    (old,) = partition.chunks
    offsets = [record.offset for record in partition.records]
    first, second = (OffsetRanges([range(n, n + 1)]) for n in (offsets[3], offsets[20]))
    new = without(old, first, partition.data_of, partition.buffer(), MAX)
    assert isinstance(new, NewChunk)
    index, body = index_of_new(new)
    partition.bodies["new"] = body
    again = without(replace_index(old, index), second, partition.data_of, partition.buffer(), MAX)
    assert isinstance(again, NewChunk)
    assert OffsetRanges(again.erased) == OffsetRanges(old.index.erased or ()) | first | second
    partition.buffers.close()


def replace_index(old, index):  # type: ignore[no-untyped-def]
    return type(old)(replace(old.entry, num_records=index.num_records), index)


def test_nothing_is_erased_from_damaged_data(tmp_path: Path) -> None:
    partition = Partition(random.Random(6), tmp_path).grow(1)
    (old,) = partition.chunks
    body = partition.bodies[old.index.data.name]
    partition.bodies[old.index.data.name] = body[:30] + bytes([body[30] ^ 1]) + body[31:]
    with pytest.raises(CorruptBlock):
        without(old, OffsetRanges(), partition.data_of, partition.buffer(), MAX)
    partition.buffers.close()

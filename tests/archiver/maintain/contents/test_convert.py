"""Converted chunks: every record is the same in another record format, codec, level or block size."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from archiver.maintain.rewrite.chunks import data_of_body
from archiver.maintain.rewrite.compare import check_contents
from archiver.maintain.rewrite.encode import ConvertSettings, converted
from blockgz.errors import UsageError
from index_format.key_filter import hashes_of, holds_all, probes_of
from tests.archiver.maintain.contents.random_chunks import (
    LIBRARIES,
    MAX,
    Partition,
    index_of_new,
    readable,
    records_of,
)
from tests.support.sampling import mostly_long


@pytest.mark.parametrize("run", mostly_long(range(8), 3))
def test_a_converted_chunk_holds_the_same_records(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    for number in range(8):
        partition = Partition(rng, tmp_path / str(number)).grow(2)
        old = partition.chunks[1]
        held = [each for each in partition.records if each.offset >= old.entry.start_offset]
        settings = ConvertSettings(
            record_format="text" if partition.format == "text" else rng.choice(["json", "arrow"]),
            compression_library=rng.choice(LIBRARIES),
            compression_level=rng.choice([1, 3]),
            block_bytes=rng.choice([60, 700, 1 << 20]),
            key_filter_bits=rng.choice([None, 5]),
        )
        print(settings)
        new = converted([old], settings, partition.data_of, partition.buffer(), MAX)
        index, body = index_of_new(new)
        assert (index.record_format, index.codec) == (settings.record_format, settings.codec)
        assert records_of(index, body) == readable(partition, held)
        assert (index.start_offset, index.next_offset) == (old.entry.start_offset, old.entry.next_offset)
        assert (index.min_timestamp, index.max_timestamp) == (old.index.min_timestamp, old.index.max_timestamp)
        assert (new.gaps, new.erased) == (old.index.gaps, old.index.erased or ())
        check_contents([old], new, partition.data_of, data_of_body(new.body), MAX)
        _has_filters(partition, new.blocks, held, settings.key_filter_bits)
        _blocks_have_the_wanted_size(new.blocks, settings)
        partition.buffers.close()


def _has_filters(partition, blocks, held, asked) -> None:  # type: ignore[no-untyped-def]
    bits = partition.key_filter_bits if partition.format == "text" else asked or partition.key_filter_bits
    for block in blocks:
        assert isinstance(block.key_filter, bytes) == (bits is not None)
        if isinstance(block.key_filter, bytes):
            assert block.key_filter[0] == probes_of(bits)
            inside = [r for r in held if block.first_record_offset <= r.offset <= block.last_record_offset]
            assert holds_all(block.key_filter, hashes_of({r.key for r in inside if r.key is not None}))


def _blocks_have_the_wanted_size(blocks, settings) -> None:  # type: ignore[no-untyped-def]
    if settings.record_format == "json":
        assert all(b.num_records == 1 or b.byte_length_uncompressed <= settings.block_bytes for b in blocks)
        for before, after in pairwise(blocks):
            both = before.byte_length_uncompressed + after.byte_length_uncompressed
            assert both > settings.block_bytes or settings.block_bytes < 1000


@pytest.mark.parametrize(("before", "after"), [("text", "json"), ("json", "text")])
def test_values_alone_do_not_become_records_nor_records_values(before: str, after: str, tmp_path: Path) -> None:
    rng, number = random.Random(0), 0
    while (partition := Partition(rng, tmp_path / str(number))).format != before:
        partition.buffers.close()
        number += 1
    partition.grow(1)
    with pytest.raises(UsageError, match=f"{before} cannot be converted to {after}") as caught:
        settings = ConvertSettings(after, "isal", 2, 100)
        converted(partition.chunks, settings, partition.data_of, partition.buffer(), MAX)
    assert f"--record-format {before}" in caught.value.remedy
    partition.buffers.close()

"""What a compaction puts in the place of chunks: fewer of them, as asked for, and every record in its place."""

import dataclasses
import gzip
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.operations import Driver
from archiver.errors import ContentsDiffer
from archiver.maintain.compact import Compaction, Conversion, PartialCompaction, PlannedRun
from archiver.maintain.rewrite.chunks import (
    NO_KEYS,
    EmptiedRun,
    NewChunk,
    OffsetRanges,
    OldChunk,
    Replacement,
    RewriteKeys,
    data_in,
    data_of_body,
)
from archiver.maintain.rewrite.contents import (
    ConvertSettings,
    MergeLimits,
    RewriteTools,
    check_contents,
    converted,
    erased_in,
    erased_of,
    is_as_asked,
    merge_groups,
    merged,
    runs_alike,
    without,
)
from archiver.maintain.rewrite.replace import taken
from blockgz.encryption.keyring import Keyring, opened_block
from blockgz.errors import BlockgzError, CorruptBlock, KeyMissing, UsageError
from index_format import marker as markers
from index_format import objects
from index_format.blocks import COMPRESSORS, BlockBuilder
from index_format.encryption import CIPHER
from index_format.key_filter import hashes_of, holds_all, key_filter, probes_of
from index_format.keys import LAYOUTS, TopicFolder
from index_format.marker import ChunkEntry
from index_format.objects import BlockEntry, ChunkIndex, Encryption, Erased, Gap, WrappedKey
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.archiver.maintain.contents.random_chunks import (
    LIBRARIES,
    MAX,
    Partition,
    index_of_new,
    readable,
    records_of,
    with_blocks,
)
from tests.support.encryption import key_of
from tests.support.format_objects import chunk_entry
from tests.support.memory_store import MemoryStore
from tests.support.sampling import mostly_long, seeded_random

LARGE = 1 << 30


def contents_of(
    partition: Partition,
    *,
    limits: MergeLimits,
    conversion: Conversion | None = None,
    keys: RewriteKeys = NO_KEYS,
    buffer_bytes: int = LARGE,
    start: int = 0,
) -> PartialCompaction:
    store = MemoryStore()
    tools = RewriteTools(Driver(store), store, partition.buffers, buffer_bytes, MAX)
    compaction, run = Compaction(limits, conversion, keys), PlannedRun(0, 0, 0, 0, 0, 0, 0)
    work = PartialCompaction(tools, LAYOUTS["topic"](TopicFolder("orders"), 3), compaction, run, start)
    work.data_of = partition.data_of
    return work


def conversion_for(partition: Partition, rng: random.Random) -> Conversion:
    form = None if partition.format == "text" else rng.choice(["json", "arrow", None])
    return Conversion(rng.choice([500, 1 << 20]), form, rng.choice(["gzip", "zstd", None]))


def records_in(partition: Partition, replacement: Replacement) -> list[Record]:
    found = list[Record]()
    for item in replacement:
        if isinstance(item, OldChunk):
            found += records_of(item.index, partition.bodies[item.index.data.name], partition.keyring)
        elif isinstance(item, NewChunk):
            found += records_of(*index_of_new(item), partition.keyring)
    return found


@pytest.mark.parametrize("run", mostly_long(range(6), 3))
def test_random_runs_keep_every_record(run: int, tmp_path: Path) -> None:
    rng = seeded_random()
    for number in range(5):
        keyring = rng.choice([None, Keyring([key_of(1), key_of(2)])])
        keys = RewriteKeys(keyring, encrypts_all=keyring is not None and rng.random() < 0.3)
        partition = Partition(rng, tmp_path / str(number), keyring).grow(rng.randrange(1, 9), gaps=True)
        conversion = conversion_for(partition, rng) if rng.random() < 0.6 else None
        limits = MergeLimits(rng.choice([1, 1500, LARGE]), rng.choice([3000, LARGE]))
        print(partition.format, partition.codec, conversion, limits, keys)
        buffer_bytes = rng.choice([1, 4000, LARGE])
        work = contents_of(partition, limits=limits, conversion=conversion, keys=keys, buffer_bytes=buffer_bytes)
        replacement = list(work.contents(partition.chunks))
        for new in replacement:
            if isinstance(new, NewChunk):
                work.check(taken(partition.chunks, new), new)
        assert records_in(partition, replacement) == readable(partition, partition.records)
        assert len(replacement) <= len(partition.chunks)
        is_encrypted = {chunk.entry.start_offset: bool(chunk.index.encryption) for chunk in partition.chunks}
        new = [item for item in replacement if isinstance(item, NewChunk)]
        assert all(
            bool(item.index.encryption) == (keys.encrypts_all or is_encrypted[item.start_offset]) for item in new
        )
        spans = [_span(item) for item in replacement]
        assert spans[0][0] == partition.chunks[0].entry.start_offset
        assert spans[-1][1] == partition.chunks[-1].entry.next_offset
        work.discard()
        assert partition.buffers.used_bytes == 0
        partition.buffers.close()


def _span(item: object) -> tuple[int, int]:
    if isinstance(item, OldChunk):
        return item.entry.start_offset, item.entry.next_offset
    assert isinstance(item, NewChunk)
    return item.start_offset, item.next_offset


def partition_of(folder: Path, form: str, chunks: int = 6) -> Partition:
    rng, number = random.Random(3), 0
    while True:
        partition = Partition(rng, folder / str(number)).grow(chunks)
        if partition.format == form and partition.codec == "gzip":
            return partition
        partition.buffers.close()
        number += 1


def test_all_that_is_small_becomes_one_chunk_of_few_blocks(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json")
    conversion = Conversion(1 << 20, "arrow", "zstd", zstd_level=3)
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE), conversion=conversion)
    (new,) = work.contents(partition.chunks)
    assert isinstance(new, NewChunk)
    assert (len(new.index.blocks), new.index.record_format, new.index.codec) == (1, "arrow", "zstd")
    index, body = index_of_new(new)
    assert is_as_asked(index, conversion.settings_of(index))
    partition.bodies["new"] = body
    again = OldChunk(entry_of(index), index)
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE), conversion=conversion)
    assert list(work.contents([again])) == [again]
    partition.buffers.close()


def entry_of(index: ChunkIndex) -> markers.ChunkEntry:
    return markers.entry_of(index, "new.index.json", objects.encode(index))


def test_what_has_no_room_stays_until_the_next_time(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json")
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE, max_chunks=2), buffer_bytes=1)
    first, *others = work.contents(partition.chunks)
    assert isinstance(first, NewChunk)
    assert others == list(partition.chunks[2:])
    assert work.left_from == partition.chunks[2].entry.start_offset
    work.discard()
    rest = contents_of(partition, limits=MergeLimits(LARGE, LARGE), start=work.left_from)
    *kept, new = rest.contents(partition.chunks)
    assert (kept, rest.left_from) == (list(partition.chunks[:2]), None)
    assert isinstance(new, NewChunk) and new.start_offset == work.left_from
    rest.discard()
    partition.buffers.close()


def test_chunks_of_two_formats_become_one_only_if_they_are_converted(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json", chunks=2)
    other = partition.chunks[1]
    mixed = [partition.chunks[0], OldChunk(other.entry, replace(other.index, codec="zstd"))]
    limits = MergeLimits(LARGE, LARGE)
    assert Compaction(limits).groups(mixed) == [[mixed[0]], [mixed[1]]]
    assert Compaction(limits, Conversion(100, record_format="arrow")).groups(mixed) == [[mixed[0]], [mixed[1]]]
    assert Compaction(limits, Conversion(100, codec="gzip")).groups(mixed) == [mixed]
    partition.buffers.close()


@pytest.mark.parametrize(
    ("settings", "is_fine"),
    [
        (ConvertSettings("json", "isal", 2, 1 << 20), False),
        (ConvertSettings("json", "isal", 2, 900), True),
        (ConvertSettings("json", "isal", 2, 50), False),
        (ConvertSettings("json", "zstd", 2, 900), False),
        (ConvertSettings("arrow", "isal", 2, 900), False),
    ],
)
def test_a_chunk_is_converted_if_it_is_not_as_asked(settings: ConvertSettings, is_fine: bool, tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json", chunks=12)
    assert sum(chunk.index.raw_bytes for chunk in partition.chunks) > 4000
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE), conversion=Conversion(900, "json", "gzip"))
    (new,) = work.contents(partition.chunks)
    index = index_of_new(new)[0] if isinstance(new, NewChunk) else partition.chunks[0].index
    assert is_as_asked(index, settings) == is_fine
    partition.buffers.close()


def test_a_replacement_without_a_record_is_caught(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json", chunks=3)
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE))
    (new,) = work.contents(partition.chunks)
    assert isinstance(new, NewChunk)
    with pytest.raises(ContentsDiffer):
        work.check(partition.chunks, with_blocks(new, new.index.blocks[:-1]))
    partition.buffers.close()


@pytest.mark.parametrize("is_converted", [False, True])
def test_encrypted_chunks_without_their_keys_stay_as_they_are(tmp_path: Path, is_converted: bool) -> None:
    partition = partition_of(tmp_path, "json")
    for number in (2, 3):
        chunk = partition.chunks[number]
        data = replace(chunk.index.data, name=f"{chunk.entry.start_offset:020d}.gz.enc")
        encryption = Encryption(CIPHER, WrappedKey("id", b"wrapped"))
        index = replace(chunk.index, version=2, data=data, encryption=encryption)
        partition.chunks[number] = OldChunk(chunk.entry, index)
        with pytest.raises(KeyMissing, match="is encrypted"):
            data_in(MemoryStore(), LAYOUTS["topic"](TopicFolder("orders"), 3))(index)
    conversion = Conversion(1 << 20, "arrow", "zstd") if is_converted else None
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE), conversion=conversion)
    before, *kept, behind = work.contents(partition.chunks)
    assert isinstance(before, NewChunk) and isinstance(behind, NewChunk)
    assert kept == partition.chunks[2:4]
    for new in (before, behind):
        work.check(taken(partition.chunks, new), new)
    work.discard()
    partition.buffers.close()


def encrypted_partition(folder: Path, chunks: int) -> tuple[Partition, RewriteKeys]:
    """All of its chunks are encrypted."""
    keyring, number = Keyring([key_of(1)]), 0
    while True:
        partition = Partition(random.Random(number), folder / str(number), keyring)
        partition.is_encrypted = True
        if partition.grow(chunks).format == "json" and min(len(chunk.index.blocks) for chunk in partition.chunks) > 1:
            return partition, RewriteKeys(keyring)
        partition.buffers.close()
        number += 1


@pytest.mark.slow
def test_a_merged_chunk_has_a_key_of_its_own_and_its_blocks_belong_to_it(tmp_path: Path) -> None:
    partition, keys = encrypted_partition(tmp_path, 4)
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE, max_chunks=2), keys=keys)
    new = [index_of_new(item) for item in work.contents(partition.chunks) if isinstance(item, NewChunk)]
    of_old = {chunk.index.encryption.key.wrapped for chunk in partition.chunks if chunk.index.encryption}
    of_new = {index.encryption.key.wrapped for index, _ in new if index.encryption}
    assert (len(new), len(of_new), of_old & of_new) == (2, 2, set())
    (first, body), (second, other) = new
    old = partition.chunks[0].index
    assert opened_block(body[: first.blocks[0].byte_end], 0, first, "it", keys.keyring)
    for foreign in (
        other[: second.blocks[0].byte_end],
        partition.bodies[old.data.name][: old.blocks[0].byte_end],
        body[first.blocks[1].byte_offset : first.blocks[1].byte_end],
    ):
        with pytest.raises(CorruptBlock):
            opened_block(foreign, 0, first, "it", keys.keyring)
    work.discard()
    partition.buffers.close()


def test_a_chunk_that_became_plain_is_caught(tmp_path: Path) -> None:
    partition, keys = encrypted_partition(tmp_path, 2)
    work = contents_of(partition, limits=MergeLimits(LARGE, LARGE), keys=keys)
    (new,) = work.contents(partition.chunks)
    assert isinstance(new, NewChunk)
    with pytest.raises(ContentsDiffer) as caught:
        work.check(partition.chunks, dataclasses.replace(new, index=replace(new.index, version=1, encryption=UNSET)))
    assert caught.value.why == "its blocks are not encrypted"
    work.check(partition.chunks, new)
    work.discard()
    partition.buffers.close()


@pytest.mark.parametrize(
    ("conversion", "encoded"),
    [
        (Conversion(100), ("json", "isal", 1)),
        (Conversion(100, gzip_level=6), ("json", "zlib", 6)),
        (Conversion(100, codec="zstd", zstd_level=9), ("json", "zstd", 9)),
        (Conversion(100, record_format="arrow"), ("arrow", "isal", 1)),
    ],
)
def test_what_is_not_given_stays(conversion: Conversion, encoded: tuple[str, str, int], tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json", chunks=1)
    settings = conversion.settings_of(partition.chunks[0].index)
    assert (settings.record_format, settings.compression_library, settings.compression_level) == encoded
    partition.buffers.close()


def partition_of_comparison(folder: Path, form: str) -> Partition:
    rng, number = random.Random(8), 0
    while True:
        partition = Partition(rng, folder / str(number)).grow(3)
        if partition.format == form and partition.key_filter_bits and len(partition.records) > 60:
            return partition
        partition.buffers.close()
        number += 1


def encoded(partition: Partition, new: NewChunk, records: list[Record]) -> NewChunk:
    """The same chunk of other records."""
    builder = BlockBuilder(record_format(partition.format), partition.timestamp_type, 1 << 20)
    blocks, body = list[BlockEntry](), b""
    for raw in [*builder.add(batch_from_records(records)), builder.finish()]:
        if raw is not None:
            member = COMPRESSORS[partition.library](1).compress(raw.raw)
            blocks.append(raw.entry(len(body), len(member)))
            body += member
    return with_blocks(new, blocks, body)


def _changed(change: Callable[[list[Record]], list[Record]]) -> Callable[[Partition, NewChunk], NewChunk]:
    return lambda partition, new: encoded(partition, new, change(list(partition.records)))


def _block(**fields: object) -> Callable[[Partition, NewChunk], NewChunk]:
    def change(_: Partition, new: NewChunk) -> NewChunk:
        return with_blocks(new, [*new.index.blocks[:-1], replace(new.index.blocks[-1], **fields)])

    return change


def _with(new: NewChunk, **fields: object) -> NewChunk:
    return dataclasses.replace(new, index=replace(new.index, **fields))


def _extra_bytes(_: Partition, new: NewChunk) -> NewChunk:
    body = data_of_body(new.body).read(0, new.index.data.bytes)
    return dataclasses.replace(new, body=body + b"more")


MISTAKES: dict[str, Callable[[Partition, NewChunk], NewChunk]] = {
    "a record less": _changed(lambda records: records[:5] + records[6:]),
    "the last record less": _changed(lambda records: records[:-1]),
    "the first record less": _changed(lambda records: records[1:]),
    "another value": _changed(lambda records: [records[0]._replace(value=b"other"), *records[1:]]),
    "another key": _changed(lambda records: [*records[:-1], records[-1]._replace(key=b"other")]),
    "another timestamp": _changed(lambda records: [*records[:-1], records[-1]._replace(timestamp=12)]),
    "another timestamp type": _changed(
        lambda records: [*records[:-1], records[-1]._replace(timestamp_type=(records[-1].timestamp_type + 2) % 3 - 1)]
    ),
    "a header more": _changed(lambda records: [records[0]._replace(headers=[("x", b"y")] * 3), *records[1:]]),
    "a record moved": _changed(lambda records: [*records[:-1], records[-1]._replace(offset=records[-1].offset + 1)]),
    "a gap more": lambda _, new: _with(
        new, gaps=(*new.index.gaps, Gap(new.next_offset - 1, new.next_offset, "skipped"))
    ),
    "an erased range more": lambda _, new: _with(
        new, erased=(*erased_in(new.index), Erased(new.next_offset - 1, new.next_offset))
    ),
    "it starts elsewhere": lambda _, new: _with(new, next_offset=new.next_offset + 1),
    "a block with other timestamps": _block(max_timestamp=2**60),
    "a block with another filter": _block(key_filter=key_filter(hashes_of([]), 10)),
    "a block with another checksum": _block(crc32=1),
    "bytes behind the last block": _extra_bytes,
}


@pytest.fixture(scope="module", params=mostly_long(["arrow", "json"]))
def merged_partition(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Partition, NewChunk]]:
    partition = partition_of_comparison(tmp_path_factory.mktemp("partition"), request.param)
    new = merged(partition.chunks, partition.data_of, partition.buffer())
    check_contents(partition.chunks, new, partition.data_of, data_of_body(new.body), MAX)
    yield partition, new
    partition.buffers.close()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str, merged_partition: tuple[Partition, NewChunk]) -> None:
    partition, new = merged_partition
    if mistake == "a record moved":
        new = _with(new, next_offset=new.next_offset + 2)
    broken = MISTAKES[mistake](partition, new)
    with pytest.raises(BlockgzError) as caught:
        check_contents(partition.chunks, broken, partition.data_of, data_of_body(broken.body), MAX)
    if mistake != "a block with another checksum":
        assert isinstance(caught.value, ContentsDiffer)
        assert "nothing was committed" in caught.value.remedy


def test_an_erase_that_took_too_much_or_too_little_is_caught(tmp_path: Path) -> None:
    partition = partition_of_comparison(tmp_path, "json")
    old = max(partition.chunks, key=lambda chunk: chunk.index.num_records)
    offsets = [r.offset for r in partition.records if old.entry.start_offset <= r.offset < old.entry.next_offset]
    asked = OffsetRanges(range(n, n + 1) for n in offsets[3:5])
    for done in (offsets[3:6], offsets[3:4], []):
        drop = OffsetRanges(range(n, n + 1) for n in done)
        new = without(old, drop, partition.data_of, partition.buffer(), MAX)
        assert isinstance(new, NewChunk)
        check_contents([old], new, partition.data_of, data_of_body(new.body), MAX, drop)
        with pytest.raises(ContentsDiffer):
            check_contents([old], new, partition.data_of, data_of_body(new.body), MAX, asked)
    whole = EmptiedRun(old.entry.start_offset, old.entry.next_offset)
    with pytest.raises(ContentsDiffer):
        check_contents([old], whole, partition.data_of, None, MAX, asked)
    partition.buffers.close()


@pytest.mark.parametrize("run", mostly_long(range(8), 3))
def test_a_converted_chunk_holds_the_same_records(run: int, tmp_path: Path) -> None:
    rng = seeded_random()
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
        assert (index.gaps, index.erased) == (old.index.gaps, old.index.erased)
        check_contents([old], new, partition.data_of, data_of_body(new.body), MAX)
        _has_filters(partition, index.blocks, held, settings.key_filter_bits)
        _blocks_have_the_wanted_size(index.blocks, settings)
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


def entry(start: int, size: int, *, end: int | None = None) -> ChunkEntry:
    times = {"min_timestamp": 0, "max_timestamp": 0, "last_offset": start, "num_records": 1}
    return chunk_entry(start, start + 10 if end is None else end, bytes=size, raw_bytes=size, **times)


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


def timed(*bounds: tuple[int, int]) -> list[ChunkEntry]:
    """Small neighbours with those lowest and highest timestamps."""
    pairs = enumerate(bounds)
    return [replace(entry(10 * n, 1), min_timestamp=low, max_timestamp=high) for n, (low, high) in pairs]


def test_merged_chunks_span_a_limited_time() -> None:
    limits = MergeLimits(50, 1000, span_ms=100)
    steady = timed(*((40 * n, 40 * n + 30) for n in range(6)))
    assert merge_groups(steady, limits) == [range(2), range(2, 4), range(4, 6)]
    assert merge_groups(steady, limits._replace(span_ms=None)) == [range(6)]
    (first, second), third = steady[:2], timed((0, 0), (0, 70), (80, 110))[2]
    merged = replace(first, next_offset=second.next_offset, max_timestamp=second.max_timestamp)
    assert merge_groups([merged, third], limits) == [], "not by several runs either"


def test_wrong_timestamps_neither_prevent_merges_nor_join_what_is_far_apart() -> None:
    limits = MergeLimits(50, 1000, span_ms=100)
    late = timed((0, 1000), (10, 1050), (5, 1090), (20, 1200))
    assert merge_groups(late, limits) == [range(3)]
    ahead = timed((1000, 1010), (1010, 1020), (1020, 9000), (1030, 1040), (1040, 1050))
    assert merge_groups(ahead, limits) == [range(2), range(3, 5)]
    undated = timed((-1, -1), (-1, -1), (1000, 1010), (-1, 1010))
    assert merge_groups(undated, limits) == [range(2), range(2, 4)]


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
    rng = seeded_random()
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
    rng = seeded_random()
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
        assert {offset for each in erased_in(new.index) for offset in range(each.start, each.end)} == {
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
    assert filled not in new.index.gaps
    assert new.index.gaps == (*first.index.gaps, *second.index.gaps)
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
    rng = seeded_random()
    for number in range(10):
        partition = Partition(rng, tmp_path / str(number)).grow(1)
        (old,), drop = partition.chunks, some_offsets(rng, partition)
        print(partition.format, partition.codec, drop)
        dropped = [r for r in partition.records if any(r.offset in each for each in drop)]
        kept = [r for r in partition.records if r not in dropped]
        buffer = partition.buffer()
        new = without(old, drop, partition.data_of, buffer, MAX)
        check_contents([old], new, partition.data_of, _reading(new), MAX, drop)
        assert (new.start_offset, new.next_offset) == (old.entry.start_offset, old.entry.next_offset)
        if not kept:
            assert isinstance(new, EmptiedRun)
        else:
            assert isinstance(new, NewChunk)
            _holds(partition, new, kept, dropped)
        partition.buffers.close()


def _reading(new: NewChunk | EmptiedRun):  # type: ignore[no-untyped-def]
    return data_of_body(new.body) if isinstance(new, NewChunk) else None


def _holds(partition: Partition, new: NewChunk, kept: list, dropped: list) -> None:  # type: ignore[type-arg]
    old = partition.chunks[0].index
    index, body = index_of_new(new)
    assert records_of(index, body) == readable(partition, kept)
    before = {offset for each in old.erased or () for offset in range(each.start, each.end)}
    now = {offset for each in erased_in(new.index) for offset in range(each.start, each.end)}
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
    assert OffsetRanges(erased_in(again.index)) == OffsetRanges(old.index.erased or ()) | first | second
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


def test_sets_of_offsets_agree_with_plain_sets() -> None:
    rng = seeded_random()
    for _ in range(300):
        spans = [range(start, start + rng.randrange(0, 6)) for start in rng.choices(range(40), k=rng.randrange(6))]
        plain = {offset for span in spans for offset in span}
        ranges = OffsetRanges(spans)
        assert {offset for span in ranges for offset in span} == plain
        assert all(before.stop < after.start for before, after in zip(ranges, list(ranges)[1:], strict=False))
        assert ranges.num_offsets == len(plain)
        singles = rng.sample(sorted(plain), len(plain))
        assert OffsetRanges.of_offsets(np.array(singles, np.int64)) == ranges
        offsets = np.arange(50)
        assert ranges.mask(offsets).tolist() == [offset in plain for offset in range(50)]
        start, end = sorted(rng.choices(range(50), k=2))
        assert ranges.meets(start, end) == any(start <= offset < end for offset in plain)
        others = {offset for offset in range(50) if rng.random() < 0.4}
        taken = OffsetRanges(range(offset, offset + 1) for offset in others)
        assert {offset for span in ranges - taken for offset in span} == plain - others
        assert {offset for span in ranges | taken for offset in span} == plain | others


def test_ranges_that_touch_are_one_as_an_index_lists_them() -> None:
    assert OffsetRanges([range(5, 7), Erased(0, 3), range(3, 4)]).erased() == (Erased(0, 4), Erased(5, 7))
    assert len(OffsetRanges()) == 0
    assert not OffsetRanges().meets(0, 10)

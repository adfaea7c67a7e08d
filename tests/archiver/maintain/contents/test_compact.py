"""What a compaction puts in the place of chunks: fewer of them, as asked for, and every record in its place."""

import dataclasses
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer, RewriteRefused
from archiver.maintain.contents.chunks import NewChunk, OldChunk, Replacement
from archiver.maintain.contents.compact import CompactedContents, Compaction, Conversion
from archiver.maintain.contents.convert import ConvertSettings, is_as_asked
from archiver.maintain.contents.data import data_in
from archiver.maintain.contents.merge import MergeLimits
from archiver.maintain.rewrite.layout import taken
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import ChunkIndex, Encryption, WrappedKey
from index_format.encryption import CIPHER
from index_format.keys import LAYOUTS, TopicFolder
from index_format.records import Record
from tests.archiver.maintain.contents.random_chunks import MAX, Partition, index_of_new, readable, records_of
from tests.support.memory_store import MemoryStore

LARGE = 1 << 30


def contents_of(
    partition: Partition,
    *,
    limits: MergeLimits,
    conversion: Conversion | None = None,
    buffer_bytes: int = LARGE,
    start: int = 0,
) -> CompactedContents:
    return CompactedContents(
        partition.data_of,
        partition.buffers,
        Compaction(limits, conversion),
        buffer_bytes=buffer_bytes,
        max_block_bytes=MAX,
        start=start,
    )


def conversion_for(partition: Partition, rng: random.Random) -> Conversion:
    form = None if partition.format == "text" else rng.choice(["json", "arrow", None])
    return Conversion(rng.choice([500, 1 << 20]), form, rng.choice(["gzip", "zstd", None]))


def records_in(partition: Partition, replacement: Replacement) -> list[Record]:
    found = list[Record]()
    for item in replacement:
        if isinstance(item, OldChunk):
            found += records_of(item.index, partition.bodies[item.index.data.name])
        elif isinstance(item, NewChunk):
            found += records_of(*index_of_new(item))
    return found


@pytest.mark.parametrize("run", range(6))
def test_random_runs_keep_every_record(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    for number in range(5):
        partition = Partition(rng, tmp_path / str(number)).grow(rng.randrange(1, 9), gaps=True)
        conversion = conversion_for(partition, rng) if rng.random() < 0.6 else None
        limits = MergeLimits(rng.choice([1, 1500, LARGE]), rng.choice([3000, LARGE]))
        print(partition.format, partition.codec, conversion, limits)
        work = contents_of(partition, limits=limits, conversion=conversion, buffer_bytes=rng.choice([1, 4000, LARGE]))
        replacement = list(work.contents(partition.chunks))
        for new in replacement:
            if isinstance(new, NewChunk):
                work.check(taken(partition.chunks, new), new)
        assert records_in(partition, replacement) == readable(partition, partition.records)
        assert len(replacement) <= len(partition.chunks)
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
    assert (len(new.blocks), new.record_format, new.codec) == (1, "arrow", "zstd")
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
        work.check(partition.chunks, dataclasses.replace(new, blocks=new.blocks[:-1]))
    partition.buffers.close()


@pytest.mark.parametrize("is_converted", [False, True])
def test_encrypted_chunks_stay_as_they_are(tmp_path: Path, is_converted: bool) -> None:
    partition = partition_of(tmp_path, "json")
    for number in (2, 3):
        chunk = partition.chunks[number]
        index = replace(chunk.index, version=2, encryption=Encryption(CIPHER, WrappedKey("id", b"wrapped")))
        partition.chunks[number] = OldChunk(chunk.entry, index)
        with pytest.raises(RewriteRefused, match="is encrypted"):
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

"""What a compaction puts in the place of chunks: fewer of them, as asked for, and every record in its place."""

import dataclasses
import random
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from archiver.errors import ContentsDiffer
from archiver.maintain.compact import CompactedContents, Compaction, Conversion
from archiver.maintain.rewrite.chunks import NO_KEYS, NewChunk, OldChunk, Replacement, RewriteKeys, data_in
from archiver.maintain.rewrite.encode import ConvertSettings, MergeLimits, is_as_asked
from archiver.maintain.rewrite.replace import taken
from blockgz.encryption.keyring import Keyring, opened_block
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import ChunkIndex, Encryption, WrappedKey
from index_format.encryption import CIPHER
from index_format.errors import CorruptBlock, KeyMissing
from index_format.keys import LAYOUTS, TopicFolder
from index_format.records import Record
from tests.archiver.maintain.contents.random_chunks import MAX, Partition, index_of_new, readable, records_of
from tests.support.encryption import key_of
from tests.support.memory_store import MemoryStore
from tests.support.sampling import mostly_long

LARGE = 1 << 30


def contents_of(
    partition: Partition,
    *,
    limits: MergeLimits,
    conversion: Conversion | None = None,
    keys: RewriteKeys = NO_KEYS,
    buffer_bytes: int = LARGE,
    start: int = 0,
) -> CompactedContents:
    return CompactedContents(
        partition.data_of,
        partition.buffers,
        Compaction(limits, conversion, keys),
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
            found += records_of(item.index, partition.bodies[item.index.data.name], partition.keyring)
        elif isinstance(item, NewChunk):
            found += records_of(*index_of_new(item), partition.keyring)
    return found


@pytest.mark.parametrize("run", mostly_long(range(6), 3))
def test_random_runs_keep_every_record(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
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
        assert all(bool(item.encryption) == (keys.encrypts_all or is_encrypted[item.start_offset]) for item in new)
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
        work.check(partition.chunks, dataclasses.replace(new, encryption=UNSET))
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

"""Finding the records to erase: none is missed, and blocks that cannot hold one are not read."""

import random
from pathlib import Path

import pytest

from archiver.maintain.erase import AtOffsets, ErasedPartition, Matching, RecordChoice, find_records
from archiver.maintain.gc import read_chain
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.record_filter import KeyIn
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings
from index_format.errors import CorruptBlock
from index_format.records import Record, RecordsDigest, batch_from_records
from tests.support.archives import ArchiveWriter, PartitionWriter

MAX = 1 << 22


def archive_of(folder: Path, record_format: str, key_filter_bits: int | None) -> PartitionWriter:
    """66 chunks of ten records, every key in one of them, but for `often`, which is in each."""
    writer = ArchiveWriter(folder).partition("orders", 0, record_format=record_format)
    writer.key_filter_bits = key_filter_bits
    for chunk in range(66):
        keys = [b"often", None, b"", *(b"%d-%d" % (chunk, n) for n in range(7))]
        if record_format == "text":
            keys = [None] * 10
        rows = [Record(20 * chunk + 2 * n, 1000 + n, 0, key, b"v" * 10, ()) for n, key in enumerate(keys)]
        writer.commit(rows, block_bytes=300)
    return writer


def found_in(writer: PartitionWriter, wanted: RecordChoice) -> ErasedPartition:
    store = open_existing_store(str(writer.archive.root), S3Settings())
    chain = read_chain(store, writer.keys)
    assert chain is not None
    return find_records(store, chain, wanted, MAX)


@pytest.mark.slow
@pytest.mark.parametrize("record_format", ["json", "arrow"])
@pytest.mark.parametrize("bits", [None, 10])
def test_every_record_with_one_of_the_keys_is_found(record_format: str, bits: int | None, tmp_path: Path) -> None:
    writer = archive_of(tmp_path, record_format, bits)
    for keys in ({b"3-2"}, {b"often"}, {b""}, {b"60-1", b"often", b"unknown"}, {b"unknown"}):
        found = found_in(writer, Matching.all_of(KeyIn([*keys])))
        expected = [record for record in writer.records if record.key in keys]
        assert [offset for each in found.ranges for offset in each] == [record.offset for record in expected]
        digest = RecordsDigest()
        if expected:
            digest.update(batch_from_records(expected))
        assert (found.content, found.positions) == (digest.content, digest.positions)
        assert found.records == len(expected)


@pytest.mark.slow
def test_filters_leave_few_blocks_to_read(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", 10)
    found = found_in(writer, Matching.all_of(KeyIn([b"3-2"])))
    assert found.chunks == 1
    assert found.blocks > 190
    assert found.blocks_read < found.blocks / 20
    whole = found_in(archive_of(tmp_path / "without", "json", None), Matching.all_of(KeyIn([b"3-2"])))
    assert whole.blocks_read == whole.blocks


@pytest.mark.slow
def test_offsets_without_a_record_are_not_found(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", None)
    found = found_in(writer, AtOffsets(OffsetRanges([range(1, 2), range(20, 23), range(5000, 6000)])))
    assert list(found.ranges) == [range(20, 21), range(22, 23)]
    assert found.blocks_read <= 2


@pytest.mark.slow
def test_text_holds_no_keys_so_only_offsets_find_its_records(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "text", None)
    assert found_in(writer, Matching.all_of(KeyIn([b"often"]))).blocks_read == 0
    assert found_in(writer, AtOffsets(OffsetRanges([range(20, 23)]))).records == 2


@pytest.mark.slow
def test_a_damaged_block_is_an_error_and_not_a_record_less(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", None)
    data = tmp_path / writer.keys.chunks / writer.indexes[5].data.name
    body = bytearray(data.read_bytes())
    body[40] ^= 1
    data.write_bytes(body)
    with pytest.raises(CorruptBlock):
        found_in(writer, Matching.all_of(KeyIn([b"unknown"])))


@pytest.mark.slow
def test_random_keys_are_found_in_random_archives(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(5):
        writer = ArchiveWriter(tmp_path / str(number)).partition(
            "orders", 0, record_format=rng.choice(["json", "arrow"])
        )
        writer.key_filter_bits = rng.choice([None, 1, 8])
        offset, pool = 0, [None, *(rng.randbytes(rng.randrange(4)) for _ in range(30))]
        for _ in range(rng.choice([2, 70])):
            rows = []
            for _ in range(rng.choice([1, 15])):
                rows.append(Record(offset, 1000, 0, rng.choice(pool), b"v", ()))
                offset += rng.choice([1, 2])
            writer.commit(rows, block_bytes=rng.choice([60, 500]))
        keys = {key for key in rng.sample(pool, 3) if key is not None} or {b"x"}
        found = found_in(writer, Matching.all_of(KeyIn([*keys])))
        expected = [record.offset for record in writer.records if record.key in keys]
        assert [offset for each in found.ranges for offset in each] == expected

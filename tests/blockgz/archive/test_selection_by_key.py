"""Searches by key read only blocks whose filter says that they may hold the key, and miss no record."""

import random

import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.request import DamagePolicies, selected_batches
from blockgz.archive.selection import Positions, select
from blockgz.record_filter import KeyIn, Not, RecordFilter
from tests.index_format.builders import record
from tests.support.archives import ArchiveWriter
from tests.support.opened import Opened


def found(opened: Opened, *conditions: KeyIn | Not) -> list[int]:
    async def read(archive: Archive) -> list[int]:
        chosen = await select(archive, "orders", None, Positions())
        batches = selected_batches(chosen, RecordFilter(conditions=conditions), None, DamagePolicies())
        return [offset async for each in batches for offset in each.batch.column("offset").to_pylist()]

    return opened.read(read)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 12])
def test_only_blocks_that_may_hold_the_key_are_read(writer: ArchiveWriter, opened: Opened, bits: int | None) -> None:
    partition = writer.partition("orders", 0)
    partition.key_filter_bits = bits
    rows = [record(offset, bytes(50), b"user-%d" % (offset // 4)) for offset in range(400)]
    for start in range(0, 400, 100):
        partition.commit(rows[start : start + 100])
    all_bytes = sum(index.data.bytes for index in partition.indexes)
    assert found(opened, KeyIn([b"user-50"])) == [200, 201, 202, 203]
    assert opened.counts.data_bytes_fetched < all_bytes / 10 if bits else opened.counts.data_bytes_fetched == all_bytes
    assert found(opened, KeyIn([b"user-0", b"user-99"])) == [0, 1, 2, 3, 396, 397, 398, 399]
    assert found(opened, KeyIn([b"nobody"])) == []
    assert found(opened, Not(KeyIn([b"user-50"]))) == [offset for offset in range(400) if offset // 4 != 50]


@pytest.mark.slow
def test_no_record_is_missed_by_any_search(writer: ArchiveWriter, opened: Opened) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    partition = writer.partition("orders", 0)
    keys = [None, b"", *(b"%d" % number for number in range(40))]
    offset, rows = 0, []
    for _ in range(12):
        partition.key_filter_bits = rng.choice([None, 1, 2, 8])
        chunk = []
        for _ in range(rng.randint(1, 30)):
            chunk.append(record(offset, bytes(rng.randint(0, 80)), rng.choice(keys)))
            offset += rng.choice([1, 1, 2])
        partition.commit(chunk, next_offset=offset)
        rows += chunk
    for _ in range(40):
        wanted = rng.sample(keys, rng.randint(1, 3))
        assert found(opened, KeyIn(wanted)) == [row.offset for row in rows if row.key in wanted]

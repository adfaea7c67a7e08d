import random
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format.blocks import BlockBuilder
from index_format.key_filter import column_hashes, hashes_of, holds_all, key_filter, may_hold
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.index_format.builders import contents, record, record_lists

KEYS = [b"", b"42", b"4711", "schlüssel😀".encode(), b"\x00\xff" * 300]
bits = st.integers(1, 32)


def plain_filter(keys: set[bytes], bits: int, probes: int) -> bytes:
    """As FORMAT.md has it, word for word and bit by bit."""
    size = (len(keys) * bits + 7) // 8
    array = bytearray(size)
    for key in keys:
        for place in plain_places(key, probes, size):
            array[place // 8] |= 1 << place % 8
    return bytes([probes]) + bytes(array)


def plain_places(key: bytes, probes: int, size: int) -> list[int]:
    x = zlib.crc32(key) + 2**32 * len(key)
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    x = x ^ x >> 31
    a, b = x % 2**32, x // 2**32 | 1
    return [(a + i * b) % 2**64 % (8 * size) for i in range(probes)]


def test_golden_vector() -> None:
    """In use for ever: what is stored must be found by every later release."""
    assert key_filter(hashes_of(KEYS), 10).hex() == "07ff20933a03c854"
    hashes = "0000000000000000 ff42e1bf63bd2925 48e2530ced0601b7 3b5d953c77a740d7 25870e338ea26618"
    assert [f"{number:016x}" for number in hashes_of(KEYS).tolist()] == hashes.split()


@given(st.sets(st.binary(max_size=40), max_size=50), bits)
def test_the_filter_is_the_specified_one(keys: set[bytes], bits: int) -> None:
    stored = key_filter(hashes_of(keys), bits)
    assert stored == plain_filter(keys, bits, stored[0])
    assert stored[0] == max(1, round(bits * 0.6931471805599453))


@given(st.lists(contents, max_size=60), st.lists(st.binary(max_size=4)), bits)
def test_no_key_is_ever_missed(keys: list[bytes | None], others: list[bytes], bits: int) -> None:
    column = pa.array(keys, pa.binary())
    stored = key_filter(column_hashes(column), bits)
    assert holds_all(stored, column_hashes(column))
    for key in keys:
        if key is not None:
            assert may_hold(stored, hashes_of([key]))
            assert may_hold(stored, hashes_of([*others, key]))


@pytest.mark.parametrize("keys", [[], [None, None]])
def test_a_block_without_keys_holds_none(keys: list[bytes | None]) -> None:
    stored = key_filter(column_hashes(pa.array(keys, pa.binary())), 10)
    assert stored == b"\x07"
    assert not may_hold(stored, hashes_of([b"", b"42"]))
    assert holds_all(stored, hashes_of([])) and not holds_all(stored, hashes_of([b""]))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "most"), [(8, 0.035), (10, 0.015), (12, 0.007)])
def test_few_other_keys_pass(bits: int, most: float) -> None:
    rng = random.Random(bits)
    keys = [b"user-%d" % rng.randrange(10**9) for _ in range(5_000)]
    stored = key_filter(hashes_of(keys), bits)
    passed = sum(may_hold(stored, hashes_of([b"user-x%d" % number])) for number in range(5_000))
    assert passed / 5_000 < most
    assert len(stored) == 1 + -(-len(set(keys)) * bits // 8)


@pytest.mark.slow
@given(
    record_lists(), st.sampled_from([60, 200, 1 << 20]), st.lists(st.integers(1, 4)), st.sampled_from(["json", "arrow"])
)
def test_each_block_knows_its_own_keys(rows: list[Record], block_bytes: int, sizes: list[int], name: str) -> None:
    builder = BlockBuilder(record_format(name), rows[0].timestamp_type, block_bytes, key_filter_bits=10)
    blocks, start = [], 0
    for size in [*sizes, len(rows)]:
        blocks += builder.add(batch_from_records(rows[start : start + size]))
        start += size
    last = builder.finish()
    for block in [*blocks, *([last] if last else [])]:
        first, end = block.first_offset, block.last_offset
        keys = {row.key for row in rows if first <= row.offset <= end and row.key is not None}
        assert block.key_filter == key_filter(hashes_of(keys), 10)
        assert block.entry(0, 5).key_filter == block.key_filter


def test_none_is_made_unless_asked_for() -> None:
    builder = BlockBuilder(record_format("json"), 0, 1 << 20)
    list(builder.add(batch_from_records([record(0, key=b"42")])))
    block = builder.finish()
    assert block is not None and not isinstance(block.entry(0, 5).key_filter, bytes)

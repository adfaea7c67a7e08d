"""What is encrypted opens again, in its own place alone, and no changed bit goes unnoticed."""

import random
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from index_format.blocks import COMPRESSORS, decode_block
from index_format.encryption import (
    CIPHER,
    KEY_BYTES,
    BlockCipher,
    check_stored,
    cipher_of,
    opened_with,
    unwrapped_key,
    wrapped_key,
)
from index_format.errors import CorruptBlock, KeyMissing, UnsupportedVersion
from index_format.objects import AUTHENTICATED, BlockEntry, ChunkIndex, Encryption, Stored, WrappedKey, block_crc32
from index_format.records import iter_records
from tests.index_format.builders import record
from tests.support.format_objects import chunk_of

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
PLACE: dict[str, Any] = {"archive_id": "archive-1", "topic": "orders", "partition": 3, "start_offset": 40}
ROWS = [record(40 + number, b"value %d" % number * 20) for number in range(12)]
ENCRYPTION = Encryption(CIPHER, WrappedKey("id", b"wrapped"))


def cipher(key: bytes = KEY, **place: Any) -> BlockCipher:
    return BlockCipher(key, **PLACE | place)


def encrypted(codec: str = "gzip", form: str = "json") -> tuple[ChunkIndex, list[bytes]]:
    """A chunk's index and its stored blocks."""
    compressor = COMPRESSORS["zstd" if codec == "zstd" else "isal"](1)
    index, data = chunk_of(ROWS, form, 400, compressor, codec=codec)
    own = BlockCipher(KEY, index.archive_id, index.topic, index.partition, index.start_offset)
    stored, entries, at = [], [], 0
    for number, entry in enumerate(index.blocks):
        sealed = own.sealed(number, data[entry.byte_offset : entry.byte_end])
        entries.append(replace(entry, byte_offset=at, byte_length=len(sealed), crc32=block_crc32(sealed)))
        stored.append(sealed)
        at += len(sealed)
    whole = replace(index.data, bytes=at)
    return replace(index, version=2, encryption=ENCRYPTION, blocks=tuple(entries), data=whole), stored


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_a_block_opens_where_it_was_sealed(member: bytes, number: int) -> None:
    sealed = cipher().sealed(number, member)
    assert len(sealed) == len(member) + 16, "a tag is added"
    assert cipher().opened(number, sealed) == cipher().opened(number, memoryview(sealed)) == member


@pytest.mark.parametrize(
    "other",
    [
        {"key": OTHER},
        {"archive_id": "archive-2"},
        {"topic": "order"},
        {"archive_id": "archive-1o", "topic": "rders"},
        {"partition": 4},
        {"start_offset": 41},
    ],
)
def test_a_block_opens_nowhere_else(other: dict[str, Any]) -> None:
    sealed = cipher().sealed(1, b"member")
    with pytest.raises(CorruptBlock, match="cannot be decrypted"):
        cipher(**other).opened(1, sealed)
    with pytest.raises(CorruptBlock):
        cipher().opened(2, sealed)


def test_no_changed_bit_and_no_cut_goes_unnoticed() -> None:
    sealed = cipher().sealed(0, b"a member")
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBlock):
            cipher().opened(0, changed)
    for end in range(len(sealed)):
        with pytest.raises(CorruptBlock):
            cipher().opened(0, sealed[:end])
    with pytest.raises(CorruptBlock):
        cipher().opened(0, sealed + b"x")


def opened_block(stored: bytes, number: int, index: ChunkIndex, secret: bytes) -> tuple[Stored, BlockEntry]:
    return opened_with(cipher_of(index, secret), number, stored, index.blocks[number])


@pytest.mark.parametrize(("codec", "form"), [("gzip", "json"), ("zstd", "json"), ("gzip", "arrow"), ("gzip", "text")])
def test_the_records_of_an_encrypted_chunk(codec: str, form: str) -> None:
    index, stored = encrypted(codec, form)
    assert len(stored) > 2
    found = []
    for number, sealed in enumerate(stored):
        check_stored(sealed, index.blocks[number])
        member, entry = opened_block(sealed, number, index, KEY)
        assert entry.crc32 == AUTHENTICATED
        found += iter_records(decode_block(member, entry, index, 1 << 20))
    assert [each.value for each in found] == [each.value for each in ROWS]


def test_blocks_that_change_places_are_refused_even_with_an_index_that_fits() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    index, stored = encrypted()
    order = list(range(len(stored)))
    while order == sorted(order):
        rng.shuffle(order)
    place = next(place for place, number in enumerate(order) if place != number)
    moved = stored[order[place]]
    entries = list(index.blocks)
    entries[place] = replace(entries[place], byte_length=len(moved), crc32=block_crc32(moved))
    starts = accumulate((entry.byte_length for entry in entries), initial=0)
    blocks = tuple(replace(entry, byte_offset=start) for entry, start in zip(entries, starts, strict=False))
    forged = replace(index, blocks=blocks, data=replace(index.data, bytes=blocks[-1].byte_end))
    with pytest.raises(CorruptBlock, match="cannot be decrypted"):
        opened_block(moved, place, forged, KEY)


def test_a_damaged_block_is_told_from_a_changed_one() -> None:
    index, stored = encrypted()
    with pytest.raises(CorruptBlock, match="not the one its index describes"):
        opened_block(stored[0][:-1] + b"\x00\x00", 0, index, KEY)
    with pytest.raises(CorruptBlock, match="not the one its index describes"):
        opened_block(bytes([stored[0][0] ^ 1]) + stored[0][1:], 0, index, KEY)


def test_without_opening_it_no_block_is_decoded() -> None:
    index, stored = encrypted()
    with pytest.raises(KeyMissing):
        decode_block(stored[0], index.blocks[0], index, 1 << 20)


def test_an_unknown_cipher_is_named() -> None:
    index, stored = encrypted()
    other = replace(index, encryption=replace(ENCRYPTION, cipher="ROT13"))
    with pytest.raises(UnsupportedVersion, match="ROT13"):
        opened_block(stored[0], 0, other, KEY)


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.integers(0, 40 * 8 - 1))
def test_wrapped_keys(secret: bytes, bit: int) -> None:
    wrapped = wrapped_key(secret, KEY)
    assert unwrapped_key(wrapped, KEY) == secret
    changed = bytearray(wrapped)
    changed[bit // 8] ^= 1 << bit % 8
    for bad, wrapping in ((bytes(changed), KEY), (wrapped, OTHER), (wrapped[:-8], KEY), (b"", KEY)):
        with pytest.raises(ValueError):
            unwrapped_key(bad, wrapping)


def test_a_wrapped_key_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        unwrapped_key(wrapped_key(bytes(16), KEY), KEY)


def test_only_the_index_of_an_encrypted_chunk_has_version_2() -> None:
    index, _ = encrypted()
    with pytest.raises(ValueError, match="version 2"):
        replace(index, version=1)

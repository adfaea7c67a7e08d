"""An encrypted chunk and its marker with fixed keys, in the folder `encrypted`: their bytes never change."""

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.encryption.keyring import ChunkSeal, Keyring
from index_format import objects
from index_format.blocks import decode_block
from index_format.encryption import CIPHER, BlockCipher, cipher_of, opened_with
from index_format.errors import KeyMissing
from index_format.keys import data_suffix
from index_format.marker import Marker, appended, decode_index, decode_marker, encode, entry_of
from index_format.objects import ChunkIndex, DataObject, Encryption, Gap
from index_format.records import Record, iter_records, record_hash
from tests.golden.test_ancestor import same_zlib
from tests.golden.test_current_format import INDEX, KEYS, MARKER, RECORDS, START, chunk, marker
from tests.support.encryption import key_of, sealed

ENCRYPTED = Path(__file__).parent / "encrypted"
MASTER, DATA_KEY, TAIL_KEY = key_of(1), bytes(range(32)), bytes(range(32, 64))
DATA = KEYS.data_name(START, data_suffix("json", "gzip", encrypted=True))


def stored(name: str) -> bytes:
    return (ENCRYPTED / name).read_bytes()


def made() -> dict[str, bytes]:
    """The folder, by name."""
    plain, data = chunk()
    cipher = BlockCipher(DATA_KEY, plain.archive_id, plain.topic, plain.partition, plain.start_offset)
    encryption = Encryption(CIPHER, MASTER.wrap(DATA_KEY))
    blocks, body = sealed(plain.blocks, data, ChunkSeal(cipher, encryption, TAIL_KEY, MASTER.wrap(TAIL_KEY)))
    whole = DataObject(DATA, len(body), hashlib.sha256(body).hexdigest())
    index = replace(plain, version=2, encryption=encryption, blocks=blocks, data=whole)
    return {DATA: body, INDEX: objects.encode(index), MARKER: encode(marker_of(objects.encode(index)))}


def marker_of(index: bytes) -> Marker:
    """The marker of the current format's folder with the encrypted chunk in the place of the plain one."""
    before = replace(marker(), tail=(), next_offset=100, last_chunk_index=None, gaps=marker().gaps[:-1])
    return appended(
        before,
        entry_of(objects.decode(index, ChunkIndex, INDEX), INDEX, index),
        (Gap(105, 106, "skipped"),),
        nonce="f3a1d0c4-9e0b-47d5-8a7e-3b7c1e2d4f14",
        leader_epoch=4,
        tail_hash=record_hash(RECORDS[-1], TAIL_KEY),
        tail_key=MASTER.wrap(TAIL_KEY),
    )


@same_zlib
@pytest.mark.parametrize("name", [DATA, INDEX, MARKER])
def test_bytes_are_as_they_were(name: str) -> None:
    assert made()[name] == stored(name)


def test_what_is_stored_is_read_with_its_key() -> None:
    found = decode_marker(stored(MARKER))
    index = decode_index(stored(INDEX), found.tail[0], "orders", 3)
    ring, body = Keyring([MASTER]), stored(DATA)
    assert index.encryption and found.tail_key
    secret, tail = ring.unwrap(index.encryption.key, "it"), ring.unwrap(found.tail_key, "it")
    read: list[Record] = []
    for number, entry in enumerate(index.blocks):
        opened = opened_with(cipher_of(index, secret), number, body[entry.byte_offset : entry.byte_end], entry)
        read += iter_records(decode_block(*opened, index, 1 << 20))
    assert [each._replace(headers=list(each.headers)) for each in read] == RECORDS
    assert record_hash(read[-1], tail) == found.tail_hash


def test_without_its_key_it_is_not() -> None:
    index = objects.decode(stored(INDEX), ChunkIndex, INDEX)
    assert index.encryption
    with pytest.raises(KeyMissing):
        Keyring([key_of(2)]).unwrap(index.encryption.key, "it")

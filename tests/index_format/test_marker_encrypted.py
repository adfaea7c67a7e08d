"""Markers whose newest chunk is encrypted: the key of their `tail_hash`, and their version."""

import json

from msgspec import UNSET
from msgspec.structs import replace

from index_format.marker import Maintenance, advanced, appended, decode_marker, encode, rebased, revised
from index_format.objects import WrappedKey
from tests.index_format.test_marker import GOOD
from tests.support.format_objects import chunk_entry

KEY = WrappedKey("k", b"wrapped")


def test_a_marker_with_the_key_of_its_tail_hash_is_of_version_2() -> None:
    marker = decode_marker(json.dumps(GOOD).encode())
    entry = chunk_entry(40, 50)
    sealed = appended(marker, entry, (), nonce="n", leader_epoch=None, tail_hash="0" * 64, tail_key=KEY)
    assert (marker.version, sealed.version, sealed.tail_key) == (1, 2, KEY)
    assert decode_marker(encode(sealed)) == sealed
    moved = advanced(sealed, 60, nonce="m", leader_epoch=None)
    assert (moved.version, moved.tail_key, moved.gaps) == (2, KEY, sealed.gaps)


def test_it_stays_so_whatever_maintainers_do() -> None:
    marker = replace(decode_marker(json.dumps(GOOD).encode()), version=2, tail_key=KEY)
    maintained = replace(marker, maintenance=Maintenance(revision=3))
    assert rebased(marker, maintained) == maintained
    assert rebased(marker, replace(marker, version=1, tail_key=UNSET)) == marker
    assert revised(maintained).tail_key == KEY

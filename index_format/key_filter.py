"""Filters of the keys in a block: a Bloom filter in the index, of a few bits a key (FORMAT.md, "Key filters")."""

import math
import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UnsetType

Hashes = npt.NDArray[np.uint64]
_LENGTHS = 2**32


def hashes_of(keys: Iterable[bytes]) -> Hashes:
    return _mixed(np.fromiter((zlib.crc32(key) | len(key) % _LENGTHS << 32 for key in keys), np.uint64))


def column_hashes(keys: pa.Array) -> Hashes:
    """Return the hashes of the keys in a column, each once; nulls have none."""
    return hashes_of(key for key in keys.unique().to_pylist() if key is not None)


def probes_of(bits: int) -> int:
    """Return the number of bits to look at for a key, by the bits for each: fewest other keys pass."""
    return max(1, round(bits * math.log(2)))


def bits_of(stored: bytes | UnsetType) -> int | None:
    """Return the bits for each key that give a new filter as many probes as a stored one, or None without one."""
    return None if isinstance(stored, UnsetType) else max(1, round(stored[0] / math.log(2)))


def key_filter(hashes: Hashes, bits: int) -> bytes:
    """Return the filter of these hashes, with that many bits for each different one."""
    distinct = np.unique(hashes)
    probes = probes_of(bits)
    array = np.zeros(-(-len(distinct) * bits // 8), np.uint8)
    if len(distinct):
        for places in _places(distinct, probes, 8 * len(array)):
            np.bitwise_or.at(array, places >> np.uint64(3), _bit(places))
    return bytes([probes]) + array.tobytes()


def may_hold(stored: bytes, hashes: Hashes) -> bool:
    """Return whether a block with this filter may hold a key with one of the hashes; never False if it holds one."""
    array = np.frombuffer(stored, np.uint8, offset=1)
    return bool(len(array)) and bool(_probe(array, stored[0], hashes).any())


def holds_all(stored: bytes, hashes: Hashes) -> bool:
    """Return whether the filter knows all of these hashes, as it must for the block's own keys."""
    array = np.frombuffer(stored, np.uint8, offset=1)
    return not len(hashes) or (bool(len(array)) and bool(_probe(array, stored[0], hashes).all()))


def _probe(array: npt.NDArray[np.uint8], probes: int, hashes: Hashes) -> npt.NDArray[np.bool_]:
    found = np.ones(len(hashes), np.bool_)
    for places in _places(hashes, probes, 8 * len(array)):
        found &= (array[places >> np.uint64(3)] & _bit(places)) != 0
    return found


def _places(hashes: Hashes, probes: int, bits: int) -> Iterable[Hashes]:
    # The step is odd and so never 0: with 0, all probes would look at one bit.
    place, step = hashes & np.uint64(_LENGTHS - 1), (hashes >> np.uint64(32)) | np.uint64(1)
    for _ in range(probes):
        yield place % np.uint64(bits)
        place = place + step


def _bit(places: Hashes) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))

"""The murmur2 hash that Java's producer takes of a key (Utils.murmur2 of kafka-clients), many keys at a time."""

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
SHIFT = 24
LONGEST_VECTORISED = 512
"""Bytes. Longer keys are rare, and one of them would make everything wait for its every word."""
_MASK = 0xFFFFFFFF

Hashes = npt.NDArray[np.uint32]


def murmur2(key: bytes) -> int:
    """The hash of one key, as the 32 bits that Java has in an int, unsigned here."""
    end = len(key) & ~3
    state = SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:end]):
        mixed = word * MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> SHIFT) * MULTIPLIER & _MASK
        state = (state * MULTIPLIER & _MASK) ^ mixed
    if end < len(key):
        state = (state ^ int.from_bytes(key[end:], "little")) * MULTIPLIER & _MASK
    state = (state ^ state >> 13) * MULTIPLIER & _MASK
    return state ^ state >> 15


def key_hashes(keys: pa.BinaryArray) -> Hashes:
    """The hash of each key of a binary array; those of nulls mean nothing."""
    starts, lengths, content = _layout(keys)
    hashes = np.empty(len(keys), np.uint32)
    # By falling length, the keys that still have a word at some position are a slice from the front.
    order = np.argsort(-lengths, kind="stable")
    num_long = int(np.count_nonzero(lengths > LONGEST_VECTORISED))
    for row in order[:num_long].tolist():
        hashes[row] = murmur2(content[starts[row] : starts[row] + lengths[row]].tobytes())
    short = order[num_long:]
    hashes[short] = _vectorised(starts[short], lengths[short], content)
    return hashes


def _layout(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each key starts in the bytes of all, and how long it is; padded so that a word can be read anywhere."""
    _, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    if len(offsets) == 0:
        offsets = np.zeros(1, np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    content = np.zeros(end - first + 4, np.uint8)
    if data is not None:
        content[:-4] = np.frombuffer(data, np.uint8)[first:end]
    return offsets[:-1] - first, np.diff(offsets), content


def _vectorised(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]
) -> Hashes:
    """The hashes of keys in falling order of length."""
    multiplier, shift = np.uint32(MULTIPLIER), np.uint32(SHIFT)
    state: Hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths // 4
    for position in range(int(words[0]) if len(words) else 0):
        count = int(np.searchsorted(-words, -position, side="left"))
        mixed = _words_at(content, starts[:count] + 4 * position) * multiplier
        mixed ^= mixed >> shift
        mixed *= multiplier
        state[:count] = state[:count] * multiplier ^ mixed
    left = lengths % 4
    last = _words_at(content, starts + 4 * words) & (np.uint32(1) << (8 * left).astype(np.uint32)) - np.uint32(1)
    state = np.where(left > 0, (state ^ last) * multiplier, state)
    state ^= state >> np.uint32(13)
    state *= multiplier
    state ^= state >> np.uint32(15)
    return state


def _words_at(content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> Hashes:
    """The little-endian words that begin at these bytes."""
    word = content[places].astype(np.uint32)
    for byte in range(1, 4):
        word |= content[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word

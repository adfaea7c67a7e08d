"""Blocks as they are stored, opened with the keys at hand where their chunk is encrypted."""

from collections.abc import Callable
from functools import partial

from blockgz.encryption.keyring import Keyring, required
from index_format.blocks import Stored
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.encryption import cipher_of, opened_with

Opener = Callable[[int, Stored, BlockEntry], tuple[Stored, BlockEntry]]
"""From number, stored bytes and entry of a block to its member and entry, as `blocks.decode_block` takes them."""


def plain(number: int, stored: Stored, entry: BlockEntry) -> tuple[Stored, BlockEntry]:  # noqa: ARG001
    """Opens the blocks of a chunk that is not encrypted: they are what they are."""
    return stored, entry


def opener_of(index: ChunkIndex, data_key: str, keyring: Keyring | None) -> Opener:
    """What opens the blocks of a chunk.

    `data_key` is what the error calls the chunk. Raises KeyMissing, a FormatError, and what a key service raises.
    """
    if not index.encryption:
        return plain
    secret = required(keyring, data_key).unwrap(index.encryption.key, data_key)
    return partial(opened_with, cipher_of(index, secret))


def opened_block(
    stored: Stored, number: int, index: ChunkIndex, data_key: str, keyring: Keyring | None
) -> tuple[Stored, BlockEntry]:
    """One block of a chunk, opened; see `opener_of`. Raises CorruptBlock, too."""
    return opener_of(index, data_key, keyring)(number, stored, index.blocks[number])

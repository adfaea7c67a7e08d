"""Blocks as they are stored, opened with the keys at hand where their chunk is encrypted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from blockgz.encryption.keyring import Keyring, required
from index_format.blocks import Stored, block_crc32
from index_format.chunk_index import BlockEntry, ChunkIndex, Encryption, WrappedKey
from index_format.encryption import CIPHER, BlockCipher, cipher_of, opened_with

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


@dataclass(frozen=True)
class ChunkSeal:
    """The cipher of one chunk, and what is stored beside it."""

    cipher: BlockCipher
    encryption: Encryption
    tail_secret: bytes = field(repr=False)
    tail_key: WrappedKey

    def sealed(self, number: int, member: Stored, entry: BlockEntry) -> tuple[bytes, BlockEntry]:
        """A block as it is stored, and its entry; never two different ones under one number."""
        stored = self.cipher.sealed(number, member)
        return stored, replace(entry, byte_length=len(stored), crc32=block_crc32(stored), key_filter=UNSET)


@dataclass(frozen=True)
class Sealing:
    """Whose chunks are encrypted, and the keys."""

    keyring: Keyring
    archive_id: str
    topic: str
    partition: int

    def of_chunk(self, start_offset: int) -> ChunkSeal:
        """With a new key; raises what a key service raises."""
        key, tail = self.keyring.new_key(), self.keyring.tail
        cipher = BlockCipher(key.secret, self.archive_id, self.topic, self.partition, start_offset)
        return ChunkSeal(cipher, Encryption(CIPHER, key.wrapped), tail.secret, tail.wrapped)

    def opener(self, start_offset: int, encryption: Encryption) -> Opener:
        """What opens the blocks of a chunk that was encrypted so."""
        secret = self.keyring.unwrap(encryption.key, f"{self.topic}:{self.partition}")
        return partial(opened_with, BlockCipher(secret, self.archive_id, self.topic, self.partition, start_offset))

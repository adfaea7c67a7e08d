"""Blocks as they are stored: decrypted if their chunk is encrypted, and encrypted by one new key for each chunk."""

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
"""A function from number, stored bytes and entry of a block to its member and entry, for `blocks.decode_block`."""


def plain(number: int, stored: Stored, entry: BlockEntry) -> tuple[Stored, BlockEntry]:  # noqa: ARG001
    """Return the block of a plain chunk unchanged."""
    return stored, entry


def opener_of(index: ChunkIndex, data_key: str, keyring: Keyring | None) -> Opener:
    """Return the function that opens the blocks of a chunk.

    `data_key` names the chunk in errors. Raises KeyMissing, a FormatError, and what a key service raises.
    """
    if not index.encryption:
        return plain
    secret = required(keyring, data_key).unwrap(index.encryption.key, data_key)
    return partial(opened_with, cipher_of(index, secret))


def opened_block(
    stored: Stored, number: int, index: ChunkIndex, data_key: str, keyring: Keyring | None
) -> tuple[Stored, BlockEntry]:
    """Return one block of a chunk, opened; see `opener_of`. Raises CorruptBlock, too."""
    return opener_of(index, data_key, keyring)(number, stored, index.blocks[number])


@dataclass(frozen=True)
class ChunkSeal:
    """The cipher of one chunk, and what is stored with it."""

    cipher: BlockCipher
    encryption: Encryption
    tail_secret: bytes = field(repr=False)
    tail_key: WrappedKey

    def sealed(self, number: int, member: Stored, entry: BlockEntry) -> tuple[bytes, BlockEntry]:
        """Return a block as it is stored, and its entry; never give two different blocks one number."""
        stored = self.cipher.sealed(number, member)
        return stored, replace(entry, byte_length=len(stored), crc32=block_crc32(stored), key_filter=UNSET)


@dataclass(frozen=True)
class Sealing:
    """A partition whose chunks are encrypted, and the keys."""

    keyring: Keyring
    archive_id: str
    topic: str
    partition: int

    def of_chunk(self, start_offset: int) -> ChunkSeal:
        """Return the seal of a chunk, with a new key; raises what a key service raises."""
        key, tail = self.keyring.new_key(), self.keyring.tail
        cipher = BlockCipher(key.secret, self.archive_id, self.topic, self.partition, start_offset)
        return ChunkSeal(cipher, Encryption(CIPHER, key.wrapped), tail.secret, tail.wrapped)

    def opener(self, start_offset: int, encryption: Encryption) -> Opener:
        """Return the function that opens the blocks of a chunk encrypted this way."""
        secret = self.keyring.unwrap(encryption.key, f"{self.topic}:{self.partition}")
        return partial(opened_with, BlockCipher(secret, self.archive_id, self.topic, self.partition, start_offset))

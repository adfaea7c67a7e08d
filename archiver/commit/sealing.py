"""What encrypts the chunks of a partition: one key for each chunk, which its index tells wrapped."""

from dataclasses import dataclass, field
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from blockgz.encryption.keyring import Keyring
from blockgz.encryption.opening import Opener
from index_format.blocks import Stored, block_crc32
from index_format.chunk_index import BlockEntry, Encryption, WrappedKey
from index_format.encryption import CIPHER, BlockCipher, opened_with


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

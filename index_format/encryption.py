"""Encrypted chunks: bytes and keys in, bytes out (FORMAT.md, "Encrypted chunks").

Each chunk has a key of its own, each of its blocks a nonce of its own; what a block belongs to is authenticated.
"""

import base64
import hashlib
import struct
from dataclasses import dataclass, field

from msgspec.structs import replace

from index_format.errors import CorruptBlock, UnsupportedVersion
from index_format.objects import AUTHENTICATED, BlockEntry, ChunkIndex, Stored, WrappedKey, block_crc32

CIPHER = "AES-256-GCM"
KEY_BYTES = 32
NONCE_BYTES = 12
ID_DIGITS = 16


def key_id(secret: bytes) -> str:
    """Return the id of a key, which may be shown: the beginning of its SHA-256."""
    return hashlib.sha256(secret).hexdigest()[:ID_DIGITS]


def parse_key(text: str) -> bytes:
    """Return a key that is written in base64; raises ValueError unless it has 32 bytes."""
    secret = base64.b64decode(text, validate=True)
    if len(secret) != KEY_BYTES:
        raise ValueError(f"it has {len(secret)} bytes, not {KEY_BYTES}")
    return secret


@dataclass(frozen=True)
class StoredKey:
    """A key, and what is stored of it."""

    secret: bytes = field(repr=False)
    wrapped: WrappedKey


class BlockCipher:
    """Encrypts and decrypts the blocks of one chunk; releases the GIL, so it may run in threads."""

    def __init__(self, secret: bytes, archive_id: str, topic: str, partition: int, start_offset: int) -> None:
        # Here, because it loads slowly and few archives are encrypted.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._cipher = AESGCM(secret)
        self._bound_to = b"".join([_text(archive_id), _text(topic), struct.pack(">QQ", partition, start_offset)])

    def sealed(self, number: int, member: Stored) -> bytes:
        """Return a member or frame as it is stored; never give two different ones one number."""
        return self._cipher.encrypt(
            number.to_bytes(NONCE_BYTES, "big"), member, self._bound_to + struct.pack(">Q", number)
        )

    def opened(self, number: int, stored: Stored) -> bytes:
        """Return the member that `sealed` got; raises CorruptBlock for other bytes, another number or chunk."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        nonce = number.to_bytes(NONCE_BYTES, "big")
        try:
            return self._cipher.decrypt(nonce, stored, self._bound_to + struct.pack(">Q", number))
        except (InvalidTag, ValueError) as error:
            raise CorruptBlock(
                "a block cannot be decrypted",
                why="its bytes are not what was encrypted as this block of this chunk, or its key is another one",
            ) from error


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">Q", len(encoded)) + encoded


def check_stored(stored: Stored, entry: BlockEntry) -> None:
    """Raise CorruptBlock unless these are the bytes that the index of an encrypted chunk describes; needs no key."""
    if len(stored) != entry.byte_length:
        raise _another_length()
    if block_crc32(stored) != entry.crc32:
        raise CorruptBlock("a block is not the one its index describes", why="its CRC-32 differs")


def _another_length() -> CorruptBlock:
    return CorruptBlock("a block is not the one its index describes", why="its length differs")


def cipher_of(index: ChunkIndex, secret: bytes) -> BlockCipher:
    """Return the cipher of an encrypted chunk; raises UnsupportedVersion for another cipher."""
    if not index.encryption or index.encryption.cipher != CIPHER:
        name = index.encryption.cipher if index.encryption else None
        raise UnsupportedVersion(f"cipher {name!r} is unknown", remedy="use a newer release of blockgz")
    return BlockCipher(secret, index.archive_id, index.topic, index.partition, index.start_offset)


def opened_with(cipher: BlockCipher, number: int, stored: Stored, entry: BlockEntry) -> tuple[bytes, BlockEntry]:
    """Return a block's member or frame and its entry, opened with the chunk's cipher. Raises CorruptBlock."""
    try:
        member = cipher.opened(number, stored)
    except CorruptBlock:
        check_stored(stored, entry)  # it distinguishes a flipped bit from another key
        raise
    if len(stored) != entry.byte_length:
        raise _another_length()
    return member, replace(entry, byte_length=len(member), crc32=AUTHENTICATED)


def wrapped_key(secret: bytes, wrapping: bytes) -> bytes:
    """Return a key encrypted with another one (RFC 3394)."""
    from cryptography.hazmat.primitives.keywrap import aes_key_wrap  # noqa: PLC0415 - as above

    return aes_key_wrap(wrapping, secret)


def unwrapped_key(wrapped: bytes, wrapping: bytes) -> bytes:
    """Return the key of a wrapped one; raises ValueError if another key wrapped it, or it was changed."""
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap  # noqa: PLC0415 - as above

    try:
        secret = aes_key_unwrap(wrapping, wrapped)
    except InvalidUnwrap as error:
        raise ValueError("it was wrapped with another key, or was changed") from error
    if len(secret) != KEY_BYTES:
        raise ValueError(f"it has {len(secret)} bytes, not {KEY_BYTES}")
    return secret

"""The master keys of encrypted archives: in a file, in the environment, or at AWS KMS (docs/encryption.md).

Settings say where they are. Each machine looks them up when it needs them, and nothing shows them.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Protocol

from msgspec import UNSET
from msgspec.structs import replace

from blockgz.errors import KeyMissing, MalformedObject, UsageError
from index_format.encryption import (
    CIPHER,
    KEY_BYTES,
    BlockCipher,
    StoredKey,
    cipher_of,
    key_id,
    opened_with,
    parse_key,
    unwrapped_key,
    wrapped_key,
)
from index_format.objects import BlockEntry, ChunkIndex, Encryption, Stored, WrappedKey, block_crc32

FORMS = "file:/path, env:NAME or kms:ARN, several separated by commas, the newest last"
REMEDY = "give its keys: --keys KEYS, --encrypt KEYS to write, or `encrypt` in the configuration file"
MAKE_ONE = "make one: openssl rand -base64 32 >> FILE"

_log = logging.getLogger(__name__)


def parse_keys(text: str) -> tuple[str, ...]:
    """Return the sources that a setting names, without reading them. Raises ValueError."""
    sources = tuple(_source(part.strip()) for part in text.split(","))
    if len(set(sources)) != len(sources):
        raise ValueError("it names a source twice")
    return sources


def _source(text: str) -> str:
    kind, separator, name = text.partition(":")
    if kind not in ("file", "env", "kms") or not separator or not name:
        raise ValueError(f"{text[:80]!r} is not {FORMS}")
    if kind == "file" and not Path(name).expanduser().is_absolute():
        raise ValueError(f"{name[:200]!r} is not an absolute path")
    if kind == "kms" and not (name.startswith("arn:") and name.count(":") == 5 and ":key/" in name):
        raise ValueError(f"{name[:200]!r} is not the ARN of a key, such as arn:aws:kms:REGION:ACCOUNT:key/ID")
    return text


class MasterKey(Protocol):
    """A key that wraps others."""

    @property
    def id(self) -> str:
        """The id of the key in stored keys."""

    def wrap(self, secret: bytes) -> WrappedKey:
        """Return a key as it is stored."""

    def unwrap(self, wrapped: WrappedKey) -> bytes:
        """Return the key of a stored one; raises ValueError if it was changed."""


@dataclass(frozen=True)
class LocalKey:
    """A master key of 32 bytes that this process has."""

    secret: bytes = field(repr=False)

    @cached_property
    def id(self) -> str:
        return key_id(self.secret)

    def wrap(self, secret: bytes) -> WrappedKey:
        return WrappedKey(self.id, wrapped_key(secret, self.secret))

    def unwrap(self, wrapped: WrappedKey) -> bytes:
        if wrapped.session:
            raise ValueError("it was wrapped by a key service")
        return unwrapped_key(wrapped.wrapped, self.secret)


class Keyring:
    """Master keys, at least one: the last one wraps new keys, all of them unwrap. For many threads."""

    def __init__(self, masters: Sequence[MasterKey], name: str = "the keys") -> None:
        """Create a keyring; `name` is the source of the keys in errors."""
        self._masters = {each.id: each for each in masters}
        self._newest = masters[-1]
        self._name = name

    @property
    def newest_id(self) -> str:
        """The id of the key that wraps new ones."""
        return self._newest.id

    def has(self, wrapped: WrappedKey) -> bool:
        """Return whether the master key of a stored key is one of these, by its id."""
        return wrapped.id in self._masters

    def new_key(self) -> StoredKey:
        secret = os.urandom(KEY_BYTES)
        return StoredKey(secret, self._newest.wrap(secret))

    @cached_property
    def tail(self) -> StoredKey:
        """The key of `tail_hash` of all that this process writes."""
        return self.new_key()

    def unwrap(self, wrapped: WrappedKey, what: str) -> bytes:
        """Return a stored key, of `what`; raises KeyMissing without its master, MalformedObject if changed."""
        master = self._masters.get(wrapped.id)
        if master is None:
            raise KeyMissing(
                f"{what} is encrypted with a key that {self._name} does not have",
                why=f"the id of that key is {wrapped.id}",
                remedy="add the key: see docs/encryption.md",
            )
        try:
            return master.unwrap(wrapped)
        except ValueError as error:
            raise MalformedObject(f"the key of {what} cannot be unwrapped", why=str(error)) from error

    def rewrapped(self, wrapped: WrappedKey, what: str) -> WrappedKey:
        """Return a stored key wrapped with the newest of these; raises as `unwrap` does."""
        return self._newest.wrap(self.unwrap(wrapped, what))


@cache
def load_keyring(keys: str) -> Keyring:
    """Return the keys that a setting names here, one keyring a setting and process; raises UsageError."""
    masters: list[MasterKey] = []
    for source in _parsed(keys):
        if source.startswith("kms:"):
            # Here, because a client of AWS takes long to load.
            from blockgz.encryption.key_service import ServiceKey  # noqa: PLC0415

            masters.append(ServiceKey(source.removeprefix("kms:")))
        else:
            masters += _local_keys(source, os.environ)
    return Keyring(masters, keys)


def keyring_of(keys: str | None) -> Keyring | None:
    """Return the keyring that a setting names, or None without a setting."""
    return None if keys is None else load_keyring(keys)


def joined_keys(keys: str | None, newer: str | None) -> str | None:
    """Return the sources of two settings as one setting, those of `newer` last; None if both are missing."""
    if keys is None or newer is None:
        return keys or newer
    last = _parsed(newer)
    return ",".join((*(source for source in _parsed(keys) if source not in last), *last))


def _parsed(keys: str) -> tuple[str, ...]:
    try:
        return parse_keys(keys)
    except ValueError as error:
        raise UsageError("the keys cannot be used", why=str(error), remedy=f"write {FORMS}") from error


def _local_keys(source: str, environ: Mapping[str, str]) -> list[LocalKey]:
    kind, _, name = source.partition(":")
    text = environ.get(name) if kind == "env" else _file_text(name)
    if text is None:
        raise UsageError(
            f"the environment variable {name} is not set",
            why=f"{source} names it for keys",
            remedy=f"set {name} where the program runs",
        )
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    if not words:
        raise UsageError(f"{source} holds no key", why="it is empty", remedy=MAKE_ONE)
    return [_local_key(word, number, source) for number, word in enumerate(words, 1)]


def _local_key(word: str, number: int, source: str) -> LocalKey:
    try:
        return LocalKey(parse_key(word))
    except ValueError:  # its text may be a part of a key
        raise UsageError(
            f"key {number} in {source} cannot be used",
            why=f"a key has {KEY_BYTES} bytes, written in base64",
            remedy=MAKE_ONE,
        ) from None


def _file_text(name: str) -> str:
    path = Path(name).expanduser()
    try:
        text = path.read_text("utf-8")
        if path.stat().st_mode & 0o004:
            _log.warning("warning: every user can read the keys in %s; chmod o-r", name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"the keys in {name} cannot be read", why=str(reason), remedy=f"make it readable here, or {MAKE_ONE}"
        ) from error
    return text


def required(keyring: Keyring | None, what: str, wrapped: WrappedKey | None = None) -> Keyring:
    """Return the keyring; raises KeyMissing without one. `what` is encrypted, with the key `wrapped` if known."""
    if keyring is None:
        named = f", and the id of its key is {wrapped.id}" if wrapped else ""
        raise KeyMissing(f"{what} is encrypted", why=f"no keys were given{named}", remedy=REMEDY)
    return keyring


def missing_key(index: ChunkIndex, what: str, keyring: Keyring | None) -> KeyMissing | None:
    """Return the error of opening a chunk whose master key is not in the keyring; None if it opens or is plain."""
    key = index.encryption.key if index.encryption else None
    try:
        if key is not None and not (keyring and keyring.has(key)):
            required(keyring, what, key).unwrap(key, what)
    except KeyMissing as error:
        return error
    return None


# A function from number, stored bytes and entry of a block to its member and entry, for `blocks.decode_block`.
Opener = Callable[[int, Stored, BlockEntry], tuple[Stored, BlockEntry]]


def plain(number: int, stored: Stored, entry: BlockEntry) -> tuple[Stored, BlockEntry]:  # noqa: ARG001
    """Return the block of a plain chunk unchanged."""
    return stored, entry


def opener_of(index: ChunkIndex, data_key: str, keyring: Keyring | None) -> Opener:
    """Return the function that opens a chunk's blocks; raises KeyMissing, FormatError, a key service's errors."""
    if not index.encryption:
        return plain
    key = index.encryption.key
    secret = required(keyring, data_key, key).unwrap(key, data_key)
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

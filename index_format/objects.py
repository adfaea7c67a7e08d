"""Reading and writing the JSON objects of an archive: bounded before parsing, checked, versions refused by name."""

import re
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from index_format.errors import MalformedObject, TooLarge, UnsupportedVersion

VERSION = 1
# No JSON object larger than this is parsed. 64 MiB hold the index of 300,000 blocks.
MAX_OBJECT_BYTES = 64 * 1024 * 1024

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Timestamp = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
# Printed in errors and made into keys, so it holds no control characters.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
# A value of an open enumeration; the suffix of a data name is made of two of them.
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]

T = TypeVar("T", bound=msgspec.Struct)


class FormatHead(msgspec.Struct):
    """The two fields that every object of the format opens with, and the one that may close it."""

    format: str
    version: Count
    crc32: Count | None = None


class Sealed(msgspec.Struct, frozen=True):
    """Objects that no other one vouches for by its hash: as stored they end with a checksum of their own."""


_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {FormatHead: msgspec.json.Decoder(FormatHead)}


def stored(kind: type[T]) -> type[T]:
    """Register a kind of object, and make its decoder where the kind is defined."""
    # msgspec describes a type on first use and without a lock: two threads that decode at once crash the process.
    _decoders[kind] = msgspec.json.Decoder(kind)
    return kind


_SEAL = re.compile(rb',"crc32":([0-9]{1,10})}\Z')
_SEAL_RENAMED = re.compile(rb',"(.*)":[0-9]{1,10}}', re.DOTALL)
_SEAL_BYTES = 32


def encode(value: msgspec.Struct) -> bytes:
    """Return the object as compact JSON in its fields' order; raises TooLarge if `decode` would refuse it."""
    body = _encoder.encode(value)
    if isinstance(value, Sealed):
        body = b'%b,"crc32":%d}' % (body[:-1], zlib.crc32(body[:-1]))
    if len(body) > MAX_OBJECT_BYTES:
        raise TooLarge(
            f"a {type(value).__name__} of {len(body)} bytes cannot be stored",
            why=f"readers refuse objects of more than {MAX_OBJECT_BYTES} bytes",
        )
    return body


def decode(body: bytes, kind: type[T], name: str) -> T:
    """Return an object, which errors call `name`; raises TooLarge, UnsupportedVersion or MalformedObject."""
    if len(body) > MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} has {len(body)} bytes", why=f"such objects have at most {MAX_OBJECT_BYTES} bytes")
    expected = kind.__struct_defaults__[0]
    try:
        head: FormatHead = _decoders[FormatHead].decode(body)
        if head.format != expected:
            raise MalformedObject(f"{name} is not a {expected} object", why=f"its format says {head.format[:80]!r}")
        versions: Sequence[int] = getattr(kind, "VERSIONS", (VERSION,))
        # The version is checked before the fields: a newer one may have changed them.
        if head.version not in versions:
            raise UnsupportedVersion(
                f"{name} has version {head.version}",
                why=f"this release reads version {' and '.join(map(str, versions))}",
                remedy="use a newer release of blockgz",
            )
        if head.crc32 is not None:
            _check_seal(body, name)
        elif issubclass(kind, Sealed):
            _check_unsealed(body, kind, name)
        value: T = _decoders[kind].decode(body)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MalformedObject | UnsupportedVersion):
            raise
        raise MalformedObject(f"{name} is damaged", why=str(error)[:300]) from error
    return value


def _check_seal(body: bytes, name: str) -> None:
    seal = _SEAL.search(body, max(0, len(body) - _SEAL_BYTES))
    if seal is None or int(seal[1]) != zlib.crc32(body[: seal.start()]):
        raise MalformedObject(
            f"{name} is damaged",
            why="its crc32 is not that of the bytes before it",
            remedy="if it was edited by hand, remove the field crc32",
        )


def _check_unsealed(body: bytes, kind: type[Sealed], name: str) -> None:
    # Damage in the name of the checksum would make an unknown field of it, which is ignored.
    last = _SEAL_RENAMED.fullmatch(body, max(0, body.rfind(b',"')))
    if last is not None and last[1].decode(errors="replace") not in kind.__struct_encode_fields__:
        raise MalformedObject(
            f"{name} is damaged", why=f"it ends with a number under {last[1]!r} where its crc32 should be"
        )

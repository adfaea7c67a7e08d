"""How records lie inside a block of an old archive. Nothing in the files says which way it is: the operator does."""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from index_format.errors import CorruptBlock, TooLarge

OLD_FORMATS = ("lines", "delimited", "binary", "binary-keys")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([t\\]))")
MAX_RECORDS = 8 * 1024 * 1024
"""In one block: a few bytes of gzip make hundreds of millions of empty lines."""
_LENGTH = struct.Struct(">i")

Field = bytes | None


class Payload(NamedTuple):
    """The keys and values of one block, in order."""

    keys: Sequence[Field]
    values: Sequence[Field]


@dataclass(frozen=True)
class OldFormat:
    """One of OLD_FORMATS: `lines` are values, `delimited` are lines of key, delimiter and value.

    `binary` is a 4-byte big-endian length and the value, over and over; `binary-keys` the same with the key first.
    """

    name: str = "lines"
    delimiter: bytes = b"\t"

    def __post_init__(self) -> None:
        if self.name not in OLD_FORMATS:
            raise ValueError(f"{self.name!r} is not one of {', '.join(OLD_FORMATS)}")
        if not self.delimiter or b"\n" in self.delimiter:
            raise ValueError("a key delimiter has at least one byte and no newline")

    @classmethod
    def of_options(cls, name: str, delimiter: str) -> "OldFormat":
        r"""As an operator writes it: the delimiter's `\t`, `\\` and `\x1f` mean those bytes. Raises ValueError."""

        def byte(escape: re.Match[bytes]) -> bytes:
            return bytes.fromhex(escape[1].decode()) if escape[1] else {b"t": b"\t"}.get(escape[2], escape[2])

        return cls(name, _ESCAPE.sub(byte, delimiter.encode()))

    def count(self, raw: bytes) -> int:
        """How many records a block holds, told without decoding them; raises CorruptBlock."""
        if self._is_of_lines:
            return raw.count(b"\n") + (bool(raw) and not raw.endswith(b"\n"))
        fields = sum(1 for _ in _binary_fields(raw))
        if self.name == "binary":
            return fields
        if fields % 2:
            raise CorruptBlock("a block ends after a key", why="each key is followed by a value in this format")
        return fields // 2

    def parse(self, raw: bytes, num_records: int) -> Payload:
        """The records of a block whose number is known; raises CorruptBlock where that leaves them ambiguous.

        Raises TooLarge, before they are decoded, for more than any writer put into a block.
        """
        if num_records == 1 and self._is_of_lines and raw:
            return self._of_lines([raw.removesuffix(b"\n")])
        if (count := self.count(raw)) != num_records:
            raise CorruptBlock(
                "a block does not hold the records that its index says",
                why=f"the index says {num_records} records, found {count}: their offsets are unknown",
            )
        if count > MAX_RECORDS:
            raise TooLarge(f"a block claims to hold {count} records", why=f"a reader accepts at most {MAX_RECORDS}")
        if self._is_of_lines:
            return self._of_lines(raw.removesuffix(b"\n").split(b"\n") if raw else [])
        fields = list(_binary_fields(raw))
        return Payload([None] * count, fields) if self.name == "binary" else Payload(fields[::2], fields[1::2])

    def doubt(self, lines: int, delimited: int) -> str | None:
        """Why this may be the wrong format for that many lines, of which so many hold the delimiter; else None."""
        delimiter = self.delimiter.decode(errors="backslashreplace")
        if self.name == "lines" and 0 < lines == delimited:
            return f"every line holds {delimiter!r}: if it separates key and value, read with --old-format delimited"
        if self.name == "delimited" and lines and not delimited:
            return f"no line holds {delimiter!r}: without keys, use --old-format lines; otherwise check --key-delimiter"
        return None

    @property
    def _is_of_lines(self) -> bool:
        return self.name in ("lines", "delimited")

    def _of_lines(self, lines: Sequence[bytes]) -> Payload:
        if self.name == "lines":
            return Payload([None] * len(lines), lines)
        parted = [line.partition(self.delimiter) for line in lines]
        keys: list[Field] = [key if found else None for key, found, _ in parted]
        return Payload(keys, [value if found else key for key, found, value in parted])


ANCESTORS_FORMAT = OldFormat()


def _binary_fields(raw: bytes) -> Iterator[Field]:
    """Length-prefixed fields; an empty one was null, and some forks wrote -1 for it. Raises CorruptBlock."""
    position = 0
    while position < len(raw):
        end = position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(raw, position) if end <= len(raw) else (-2,)
        position, end = end, end + max(0, length)
        if length < -1 or end > len(raw):
            raise CorruptBlock(
                "a block does not consist of length-prefixed fields",
                why=f"the length at byte {position - 4} leads nowhere",
            )
        yield raw[position:end] if length > 0 else None
        position = end

"""Finding the GZIP members of an object whose index is missing or not to be trusted."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from isal import isal_zlib

from index_format.blocks import GZIP_WINDOW
from index_format.errors import TooLarge

MAGIC = b"\x1f\x8b\x08"
# Fewer are no stream with a checksum and a size.
MEMBER_BYTES = 10
# So far from its start a damaged member's stream is looked for.
SEARCHED_BYTES = 256
# Fed to an inflater at once: what it leaves over is copied.
STEP_BYTES = 64 * 1024


class Member(NamedTuple):
    """One complete GZIP member whose checksum is right: its place, its stored bytes, and the inflated ones."""

    byte_offset: int
    stored: bytes
    raw: bytes

    @property
    def byte_end(self) -> int:
        return self.byte_offset + len(self.stored)


class DamagedBytes(NamedTuple):
    """Bytes [start, end) in which no complete member begins."""

    start: int
    end: int
    began_as_member: bool
    """True if a member's magic is at `start`; otherwise the bytes are of another kind, such as a header."""
    why: str


Scanned = Member | DamagedBytes


class MemberScanner:
    """A scanner that takes an object piece by piece, and gives its members and its damage, in order and apart."""

    def __init__(self, max_bytes: int) -> None:
        """Create a scanner that refuses members which decompress to more than `max_bytes`."""
        self._max_bytes = max_bytes
        self._held = bytearray()
        # The place of `_held` in the object.
        self._position = 0
        # Bytes of `_held` that the inflater has taken.
        self._fed = 0
        self._inflater: Any = None
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._damage: DamagedBytes | None = None

    def feed(self, piece: bytes) -> Iterator[Scanned]:
        """Yield what the next bytes complete; iterate to the end before the next call. Raises TooLarge."""
        self._held += piece
        yield from self._advance()

    def finish(self) -> Iterator[Scanned]:
        """Yield the rest after all bytes were fed."""
        while self._inflater is not None:
            # A header in the rubble may have swallowed a good member behind it.
            self._give_up("the bytes end inside it")
            yield from self._advance()
        if self._held:
            self._note_foreign()
            self._drop(len(self._held))
        yield from self._end_damage()

    def _advance(self) -> Iterator[Scanned]:
        while self._inflater is not None or self._begin():
            if self._fed == len(self._held):
                return
            yield from self._inflate()

    def _begin(self) -> bool:
        start = self._held.find(MAGIC)
        if start == 0:
            self._inflater, self._fed, self._raw, self._raw_bytes = isal_zlib.decompressobj(GZIP_WINDOW), 0, [], 0
            return True
        is_magic_so_far = MAGIC.startswith(bytes(self._held[: len(MAGIC)]))
        if start < 0 and is_magic_so_far and len(self._held) < len(MAGIC):
            return False
        self._note_foreign()
        self._drop(start if start > 0 else max(1, len(self._held) - len(MAGIC) + 1))
        return self._begin() if self._held else False

    def _inflate(self) -> Iterator[Scanned]:
        step = bytes(self._held[self._fed : self._fed + STEP_BYTES])
        self._fed += len(step)
        try:
            raw = bytes(self._inflater.decompress(step, self._max_bytes + 1 - self._raw_bytes))
        except (isal_zlib.error, zlib.error) as error:  # type: ignore[misc]
            self._give_up(str(error))
            return
        self._raw.append(raw)
        self._raw_bytes += len(raw)
        if self._raw_bytes > self._max_bytes:
            raise TooLarge(
                f"a member at byte {self._position} decompresses to more than {self._max_bytes} bytes",
                why=f"this reader accepts at most {self._max_bytes}",
                remedy="raise the limit on block sizes if you trust the archive and expect such blocks",
            )
        if self._inflater.eof:
            length = self._fed - len(self._inflater.unused_data)
            member = Member(self._position, bytes(self._held[:length]), b"".join(self._raw))
            self._inflater = None
            yield from self._end_damage()
            self._drop(length)
            yield member

    def _give_up(self, why: str) -> None:
        self._inflater = None
        # The search continues one byte further: the magic may be inside a damaged member.
        damage = DamagedBytes(self._position, self._position, began_as_member=True, why=why)
        self._damage = self._damage or damage
        self._drop(1)

    def _note_foreign(self) -> None:
        damage = DamagedBytes(self._position, self._position, began_as_member=False, why="no member begins there")
        self._damage = self._damage or damage

    def _end_damage(self) -> Iterator[DamagedBytes]:
        if self._damage is not None:
            yield self._damage._replace(end=self._position)
            self._damage = None

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._position += count
        self._fed = 0


def ends_as_member(body: bytes, max_bytes: int) -> bool:
    """Return whether bytes end as a member of at most `max_bytes` does whose header was damaged (RFC 1952)."""
    if len(body) < MEMBER_BYTES:
        return False
    view = memoryview(body)
    crc, size = int.from_bytes(body[-8:-4], "little"), int.from_bytes(body[-4:], "little")
    if size > max_bytes:
        return False
    # A deflate stream is tried behind each of the first bytes, with its CRC-32 and size at the very end.
    for start in range(min(len(body) - 8, SEARCHED_BYTES)):
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            raw = inflater.decompress(view[start:-8], size + 1)
        except zlib.error:
            continue
        if inflater.eof and not inflater.unused_data and (len(raw), zlib.crc32(raw)) == (size, crc):
            return True
    return False


def scan(data: Iterable[bytes], max_bytes: int) -> Iterator[Scanned]:
    """Yield the members of an object whose bytes come piece by piece, and its damage. Raises TooLarge."""
    scanner = MemberScanner(max_bytes)
    for piece in data:
        yield from scanner.feed(piece)
    yield from scanner.finish()

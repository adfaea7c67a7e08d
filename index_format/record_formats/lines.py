"""What the record formats of lines share: records cut out of one run of bytes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from index_format.errors import CorruptBlock
from index_format.kernel_choice import KERNEL

COUNTED_AT_ONCE = 256 * 1024
NEWLINE = 10


class EncodedLines(NamedTuple):
    """The lines of consecutive records, and each line's end in them."""

    data: bytes
    ends: npt.NDArray[np.int64]

    def piece(self, start: int, stop: int) -> memoryview:
        """The lines of rows [start, stop); a copy where a view would keep more than as much again in memory."""
        lines = memoryview(self.data)[int(self.ends[start - 1]) if start else 0 : int(self.ends[stop - 1])]
        return lines if 2 * len(lines) >= len(self.data) else memoryview(bytes(lines))


class LineFormat:
    """The half of a RecordFormat that is the same for all formats of lines."""

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytearray]:
        """See RecordFormat; a line that does not end in the piece where it begins is a part of its own."""
        begun = bytearray()
        for piece in raw:
            first, last = piece.find(b"\n") + 1, piece.rfind(b"\n") + 1
            if begun and first:
                begun += piece[:first]
                yield begun
                begun = bytearray()
            else:
                first = 0
            if last > first:
                yield bytearray(piece[first:last])
            begun += piece[last:]
        if begun:
            yield begun

    def merge(self, pieces: Sequence[bytes]) -> bytes:
        return b"".join(pieces)

    join = merge

    def count(self, raw: bytes | bytearray) -> int:
        """How many lines a block holds; raises CorruptBlock where the last one does not end."""
        if raw and not raw.endswith(b"\n"):
            raise CorruptBlock(
                "a block does not hold the records that its index says", why="its last line does not end"
            )
        if KERNEL:
            return int(KERNEL.module.count_lines(raw))
        # Numpy compares and counts without the interpreter's lock; a piece at a time stays in the processor's cache.
        found = np.frombuffer(raw, np.uint8)
        pieces = (found[start : start + COUNTED_AT_ONCE] for start in range(0, len(raw), COUNTED_AT_ONCE))
        return sum(int(np.count_nonzero(piece == NEWLINE)) for piece in pieces)

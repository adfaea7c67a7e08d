"""Sets of offsets as sorted half-open ranges: which records to erase, and which were erased."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from index_format.chunk_index import Erased

Offsets = npt.NDArray[np.int64]


class OffsetRanges:
    """A set of offsets, its ranges in order and apart from each other."""

    def __init__(self, ranges: Iterable[range | Erased] = ()) -> None:
        """From ranges in any order, which may overlap or touch."""
        spans = sorted((each.start, each.stop if isinstance(each, range) else each.end) for each in ranges)
        joined: list[list[int]] = []
        for start, end in spans:
            if start >= end:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        table = np.array(joined, np.int64).reshape(-1, 2)
        self._starts, self._ends = table[:, 0], table[:, 1]

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> "OffsetRanges":
        """From single offsets in any order."""
        distinct = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(distinct) != 1)
        ranges = cls()
        ranges._starts = distinct[np.concatenate(([0], breaks + 1))] if len(distinct) else distinct
        ranges._ends = distinct[np.concatenate((breaks, [len(distinct) - 1]))] + 1 if len(distinct) else distinct
        return ranges

    def __iter__(self) -> Iterator[range]:
        return map(range, self._starts.tolist(), self._ends.tolist())

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"OffsetRanges({list(self)})"

    def __or__(self, other: "OffsetRanges") -> "OffsetRanges":
        return OffsetRanges([*self, *other])

    def __sub__(self, other: "OffsetRanges") -> "OffsetRanges":
        left, taken = list[range](), list(other)
        place = 0
        for each in self:
            start = each.start
            while place < len(taken) and taken[place].stop <= start:
                place += 1
            at = place
            while at < len(taken) and taken[at].start < each.stop:
                left.append(range(start, taken[at].start))
                start = taken[at].stop
                at += 1
            left.append(range(start, each.stop))
        return OffsetRanges(left)

    @property
    def num_offsets(self) -> int:
        return int((self._ends - self._starts).sum())

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset whether it is in the set."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.bool_)
        place = np.searchsorted(self._starts, offsets, side="right") - 1
        found: Any = (place >= 0) & (offsets < self._ends[np.maximum(place, 0)])
        return np.asarray(found, np.bool_)

    def meets(self, start: int, end: int) -> bool:
        """Whether an offset of [start, end) is in the set."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        return start < end and place < len(self._starts) and int(self._starts[place]) < end

    def erased(self) -> tuple[Erased, ...]:
        """As an index lists them."""
        return tuple(Erased(each.start, each.stop) for each in self)

"""The run map: the target offsets of records by source partition.

A run is a row of records of one source partition that lie side by side in one lane (target partition). Pure: what was
handed over is matched with what the cluster says that it took, lane by lane and in order.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

M = TypeVar("M")

Acknowledged = Mapping[int, Any]
"""Target offsets of records by lane, as int64 arrays in the order in which they were sent."""


class Run(NamedTuple):
    """A run of records: offsets [start, end) of a source partition are in `lane` from `target_start` on.

    Fewer records than offsets where routing, filters or the log left some out. `end` is that of the last record.
    """

    source: int
    start: int
    end: int
    lane: int
    target_start: int
    records: int

    @property
    def target_end(self) -> int:
        """The target offset after the last record."""
        return self.target_start + self.records


class _Mark(NamedTuple, Generic[M]):
    """Content that is true once the cluster has taken this many records of each lane, counted from the first."""

    needed: Mapping[int, int]
    content: M


@dataclass
class _Lane:
    """Records of one lane that were handed over, and of those the offsets that the cluster gave them."""

    sent: int = 0
    taken: int = 0
    mapped: int = 0
    """Records taken that are in runs returned already."""
    pieces: deque[tuple[int, Any]] = field(default_factory=deque)
    """Source partition and source offsets of records that are not mapped yet."""
    offsets: deque[Any] = field(default_factory=deque)
    """Target offsets of what is taken and not mapped yet."""


class Outstanding(Generic[M]):
    """Records that were handed over and are not committed, with the marks at which a commit is possible.

    A mark of all that was handed over before it is due once the cluster took all of that.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._marks: deque[_Mark[M]] = deque()

    def sent(self, lane: int, source: int, offsets: Any) -> None:
        """Note records of a source partition that were handed over for a lane; `offsets` are their own, an int64
        array.
        """
        known = self._lanes.setdefault(lane, _Lane())
        known.sent += len(offsets)
        known.pieces.append((source, offsets))

    def mark(self, content: M) -> None:
        """Add a mark: `content` holds once all records that were handed over so far are taken."""
        self._marks.append(_Mark({number: lane.sent for number, lane in self._lanes.items()}, content))

    def took(self, acknowledged: Acknowledged | None) -> None:
        """Note records that the cluster took since; None: all that were handed over, at unknown offsets."""
        if acknowledged is None:
            for lane in self._lanes.values():
                lane.taken = lane.mapped = lane.sent
                lane.pieces.clear()
            return
        for number, offsets in acknowledged.items():
            if len(offsets):
                lane = self._lanes[number]
                lane.taken += len(offsets)
                lane.offsets.append(offsets)

    def due(self) -> tuple[list[Run], M | None]:
        """Return the runs up to the newest mark that is due, and its content; each mark is returned once."""
        newest: _Mark[M] | None = None
        while self._marks and self._covered(self._marks[0]):
            newest = self._marks.popleft()
        if newest is None:
            return [], None
        runs = [run for number, upto in newest.needed.items() for run in self._mapped(number, upto)]
        return runs, newest.content

    def rest(self) -> list[Run]:
        """Return the runs of all taken records that no earlier call returned, regardless of marks."""
        return [run for number, lane in self._lanes.items() for run in self._mapped(number, lane.taken)]

    def _covered(self, mark: _Mark[M]) -> bool:
        return all(self._lanes[number].taken >= needed for number, needed in mark.needed.items())

    def _mapped(self, number: int, upto: int) -> Iterator[Run]:
        lane = self._lanes[number]
        count = upto - lane.mapped
        if count <= 0:
            return
        lane.mapped = upto
        targets = _first(lane.offsets, count)
        pieces = []
        while count:
            source, offsets = lane.pieces.popleft()
            if len(offsets) > count:
                lane.pieces.appendleft((source, offsets[count:]))
                offsets = offsets[:count]
            pieces.append((source, offsets))
            count -= len(offsets)
        yield from runs_of(number, pieces, targets)


def runs_of(lane: int, pieces: Sequence[tuple[int, Any]], targets: Any) -> Iterator[Run]:
    """Yield the runs of pieces (source partition and source offsets), whose records are at `targets`, in order."""
    breaks = set((np.flatnonzero(np.diff(targets) != 1) + 1).tolist())
    begins = 0
    for _, offsets in pieces:
        breaks.add(begins)
        begins += len(offsets)
    edges = sorted({*breaks, begins})
    sources = np.repeat([source for source, _ in pieces], [len(offsets) for _, offsets in pieces])
    offsets = np.concatenate([offsets for _, offsets in pieces])
    parts = (
        Run(int(sources[a]), int(offsets[a]), int(offsets[b - 1]) + 1, lane, int(targets[a]), b - a)
        for a, b in pairwise(edges)
    )
    return joined(parts)


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Join neighbouring runs of one lane and source partition."""
    last: Run | None = None
    for run in runs:
        if last is not None and _continues(last, run):
            last = last._replace(end=run.end, records=last.records + run.records)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _continues(last: Run, run: Run) -> bool:
    return (last.source, last.lane, last.target_end) == (
        run.source,
        run.lane,
        run.target_start,
    ) and last.end <= run.start


def _first(parts: deque[Any], count: int) -> Any:
    """Remove and return the first `count` numbers of arrays."""
    taken = []
    while count:
        part = parts.popleft()
        if len(part) > count:
            parts.appendleft(part[count:])
            part = part[:count]
        taken.append(part)
        count -= len(part)
    return np.concatenate(taken)

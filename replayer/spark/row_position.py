"""A sink's ledger: what a job has written of one source partition, if it is given rows rather than an archive.

A sink sees rows and nothing else: neither their start nor the rows of other tasks. So it remembers the ranges of
source offsets that it wrote, drops what lies inside, and refuses what it would have to guess about. Pure: no clock, no
Kafka.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from blockgz.archive.positions import OffsetRange
from index_format.objects import disjoint
from replayer.errors import ReplayRefused

VERSION = 1
# Older ranges than these are joined: what lies between them counts as Kafka's own holes then. They fit in 4 KiB.
MAX_RANGES = 48
# Below every offset.
NOTHING = -1

Offsets = npt.NDArray[np.int64]

REMEDY = (
    'give each source partition to one task, in order: .repartition("partition")'
    '.sortWithinPartitions("partition", "offset")'
)
BEGIN_AGAIN = f"{REMEDY}; and start another job with an empty topic, since it is unknown what this one lacks"


class TaskRun(NamedTuple):
    """A writer: a run of the job (a write, or a batch of a stream), and the number of its task."""

    run: str
    task: int


@dataclass(frozen=True)
class RowPosition:
    """The position of a source partition: `written` records are in the target, from the ranges `done` and `newest`.

    `newest` is what one task wrote without a break, `rows` how many records that were; `writer` came last.
    """

    topic: str
    writer: TaskRun
    written: int
    done: tuple[OffsetRange, ...]
    newest: OffsetRange
    rows: int
    incarnation: int | None = None
    """The incarnation of the topic; None if the rows did not say."""

    def encoded(self) -> str:
        return msgspec.json.encode({"v": VERSION} | {name: getattr(self, name) for name in _STORED}).decode()


_STORED = ("topic", "writer", "done", "newest", "rows", "incarnation")


def decode_row_position(written: int, metadata: str) -> RowPosition:
    """Return the position that `encoded` made; raises ReplayRefused for other metadata."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(metadata)
        if fields["v"] != VERSION:
            raise ValueError(f"its version is {fields['v']}")
        return msgspec.convert({**fields, "written": written}, RowPosition)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise ReplayRefused(
            "the job's recorded position cannot be read",
            why=f"{metadata[:80]!r}: {error or type(error).__name__}",
            remedy="give the job another name, or use what began it",
        ) from error


class RowLedger:
    """One task's work on one source partition, begun at what is committed.

    Offsets must rise. Rows in a range are dropped; rows between ranges, or before all, were passed over once and
    are refused: they can no longer be written in order. A task that comes through the whole newest range must have met
    as many rows there as were written: others mean that another task had a part of them.
    """

    def __init__(
        self,
        committed: RowPosition | None,
        topic: str,
        partition: int,
        writer: TaskRun,
        last: int = NOTHING,
        *,
        incarnation: int | None = None,
    ) -> None:
        """`last` is where the task's ledger before this one ended, if it had one for this partition.

        Raises ReplayRefused if the partition is another topic's or incarnation's, or another task's of the same run.
        """
        self._where = f"partition {partition} of {topic}{'' if incarnation is None else f'~{incarnation}'}"
        self._topic, self._writer, self._incarnation = topic, writer, incarnation
        if committed is not None:
            self._refuse_other(committed, topic, writer)
        self._committed = committed
        self._position = committed
        self._last = last
        # True if this task has come through the newest range from its start.
        self._meets_newest = False
        # Rows that it met there.
        self._met = 0
        # True if the next rows belong to the newest range.
        self._continues = False

    @property
    def last(self) -> int:
        return self._last

    def refuse_other_topic(self, topic: str) -> None:
        """Raise ReplayRefused for rows of another topic than this ledger's."""
        if topic != self._topic:
            raise _other_topic(self._topic, topic)

    def accept(self, offsets: Offsets) -> int:
        """Count the leading rows of a batch that are written, and mark the rest as written; may raise ReplayRefused."""
        if not len(offsets):
            return 0
        self._refuse_disorder(offsets)
        split = 0
        if self._position is not None:
            split = int(np.searchsorted(offsets, self._position.newest.end))
            self._pass_over(offsets[:split], self._position)
        self._last = int(offsets[-1])
        if split < len(offsets):
            self._add(int(offsets[split]), self._last + 1, len(offsets) - split)
        return split

    def finish(self) -> None:
        """End the rows; raises ReplayRefused as `accept` does."""
        if self._position is not None and self._last >= self._position.newest.end - 1:
            self._refuse_other_rows(self._position)

    def position(self) -> RowPosition | None:
        """Return the position to commit with the rows accepted so far; None if nothing has changed."""
        if self._position is None:
            return None
        position = replace(self._position, writer=self._writer, incarnation=self._incarnation)
        return None if position == self._committed else position

    def committed(self, position: RowPosition) -> None:
        """Note that this position, as `position` gave it, stands."""
        self._committed = self._position = position

    def _pass_over(self, offsets: Offsets, position: RowPosition) -> None:
        """Rows below the end of the newest range: all of them must have been written."""
        if not len(offsets):
            return
        first = position.newest.start
        older = offsets[: int(np.searchsorted(offsets, first))]
        missing = older[~_inside(older, position.done)]
        if len(missing):
            raise ReplayRefused(
                f"offset {missing[0]} of {self._where} was not written, and later ones were",
                why="earlier rows came in another order, or were other rows",
                remedy=BEGIN_AGAIN,
            )
        if len(older) or offsets[0] == first:
            self._meets_newest = True
        self._continues = True
        self._met += len(offsets) - len(older)
        if self._met > position.rows:
            self._refuse_other_rows(position)

    def _add(self, start: int, end: int, rows: int) -> None:
        position = self._position
        if position is None:
            self._position = RowPosition(self._topic, self._writer, rows, (), OffsetRange(start, end), rows)
        else:
            written = position.written + rows
            if self._continues:
                self._refuse_other_rows(position)
                newest = OffsetRange(position.newest.start, end)
                self._position = replace(position, written=written, newest=newest, rows=position.rows + rows)
            else:
                done = _joined((*position.done, position.newest))
                self._position = replace(
                    position, written=written, done=done, newest=OffsetRange(start, end), rows=rows
                )
        self._continues = self._meets_newest = True
        self._met = self._position.rows

    def _refuse_other_rows(self, position: RowPosition) -> None:
        if self._meets_newest and self._met != position.rows:
            start, end = position.newest
            raise ReplayRefused(
                f"{self._where} has other rows than were written before",
                why=f"{position.rows} were written at offsets [{start}..{end}), and these are {self._met}",
                remedy=BEGIN_AGAIN,
            )

    def _refuse_disorder(self, offsets: Offsets) -> None:
        falls = np.flatnonzero(np.diff(offsets, prepend=self._last) <= 0)
        if len(falls):
            row = int(falls[0])
            raise ReplayRefused(
                f"{self._where} is not in order",
                why=f"offset {offsets[row]} comes after offset {offsets[row - 1] if row else self._last}",
                remedy=REMEDY,
            )

    def _refuse_other(self, committed: RowPosition, topic: str, writer: TaskRun) -> None:
        if committed.topic != topic:
            raise _other_topic(committed.topic, topic)
        if committed.incarnation not in (None, self._incarnation):
            raise ReplayRefused(
                f"the job's position is of incarnation {committed.incarnation} of {topic}, the rows are of another",
                why=f"they are of {self._incarnation or 'one that they do not name'}, and offsets of both are the same",
                remedy=f"read with includeIncarnation, and write with recordedIncarnation {committed.incarnation}",
            )
        if committed.writer.run == writer.run and committed.writer.task != writer.task:
            raise ReplayRefused(
                f"two tasks write {self._where}",
                why="neither knows what the other has, so order and completeness are not guaranteed",
                remedy=BEGIN_AGAIN,
            )


def _other_topic(known: str, topic: str) -> ReplayRefused:
    return ReplayRefused(
        f"the job writes records of {known}, not of {topic}",
        why="rows of one would be taken for rows of the other",
        remedy="write each topic with its own job",
    )


def _inside(offsets: Offsets, ranges: tuple[OffsetRange, ...]) -> npt.NDArray[np.bool_]:
    if not ranges:
        return np.zeros(len(offsets), bool)
    starts, ends = (np.array(bounds, np.int64) for bounds in zip(*ranges, strict=True))
    place = np.searchsorted(starts, offsets, side="right") - 1
    return np.asarray((place >= 0) & (offsets < ends[place]))


def _joined(ranges: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
    """Rising ranges without those that touch, and with as few as are kept."""
    merged = [OffsetRange(*each) for each in disjoint(ranges)]
    surplus = len(merged) - MAX_RANGES
    if surplus > 0:
        merged = [OffsetRange(merged[0].start, merged[surplus].end), *merged[surplus + 1 :]]
    return tuple(merged)

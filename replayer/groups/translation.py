"""Translates positions of a source topic along a job's run map: to the first record of the copy at or after each.

A position is the offset of the next record that a group reads. In a lane (target partition) with one source partition
the translation is exact. Where several source partitions feed a lane, it is exact unless a record that the group has
read stands above one that it has not.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blockgz.archive.damage import SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection, selected
from blockgz.record_filter import RecordFilter
from replayer.errors import ReplayRefused
from replayer.replay.jobs.lane_maps import LaneMap
from replayer.replay.ledger import SourceProgress
from replayer.replay.pipeline import Pipeline, ScannedBatch, WholePartitions
from replayer.replay.plan import describe_source
from replayer.replay.run_map import Run

Positions = Mapping[int, int | None]
"""By source partition the offset of the next record; None where a group has no position."""


class RecordsBelow(NamedTuple):
    """A question to the archive: how many records of a run have a source offset below this one?"""

    run: Run
    offset: int


CountRecords = Callable[[RecordsBelow], Awaitable[int]]
CountArchived = Callable[[int, OffsetRange], Awaitable[int]]
"""Gives how many records the archive has of a source partition between two offsets."""


@dataclass(frozen=True)
class LaneTranslation:
    """Where a group goes on in a lane: at `offset`, or nowhere (None).

    `doubts` say why it is not exact; then `offset` lies low enough that no unread record of the copy is passed, and
    `read_again` records that the group has read stand at or above it. `skipped` records that it has not read are in the
    archive below the copy. `notes` say what else an operator should know.
    """

    lane: int
    offset: int | None
    read_again: int = 0
    skipped: int = 0
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.doubts


@dataclass(frozen=True)
class MappedLane:
    """A lane's runs as a table of int64, one row a run with the fields of `Run`, and the progress of its sources."""

    number: int
    runs: npt.NDArray[np.int64]
    end: int
    """The target offset behind the last record of the job."""
    sources: Mapping[int, SourceProgress]

    def of_source(self, source: int) -> npt.NDArray[np.int64]:
        """The runs of one source partition, in order."""
        mine: npt.NDArray[np.bool_] = self.runs[:, Run._fields.index("source")] == source
        return np.asarray(self.runs[mine], np.int64)


def mapped_lane(number: int, lane_map: LaneMap, sources: Mapping[int, SourceProgress]) -> MappedLane:
    """The lane as the job recorded it; raises ReplayRefused where its run map is damaged."""
    if lane_map.faults:
        raise ReplayRefused(
            f"the run map of target partition {number} cannot be relied on",
            why=lane_map.faults[0],
            remedy="see replayer verify --job, and set the groups' positions by time",
        )
    return MappedLane(number, lane_map.table, lane_map.end, sources)


async def translate(
    lane: MappedLane, positions: Positions, count: CountRecords, archived: CountArchived
) -> LaneTranslation:
    """Return the position of one group in a lane, from its positions in the lane's source partitions.

    Raises what `count` and `archived` raise.
    """
    if all(positions.get(source) is None for source in lane.sources):
        return LaneTranslation(lane.number, None)
    doubts, notes, skipped = [], [], 0
    found: dict[int, int] = {}
    for source, progress in sorted(lane.sources.items()):
        position = positions.get(source)
        if position is None:
            if len(lane.of_source(source)):
                doubts.append(f"the group has no position in source partition {source}")
            position = progress.start
        elif position > progress.end:
            notes.append(f"source partition {source}: {position} lies above the copy, which ends before {progress.end}")
            position = progress.end
        elif position < progress.start:
            where = f"source partition {source}: {position} lies below the copy, which starts at {progress.start}"
            unread = await archived(source, OffsetRange(position, progress.start))
            (doubts if unread else notes).append(f"{where}: {unread:,} unread records are skipped" if unread else where)
            skipped += unread
        if position > progress.next:
            doubts.append(f"records of source partition {source} below {position} are not in the copy yet")
        found[source] = await _first_at_or_after(lane, source, position, count)
    offset = min(found.values())
    read_again = {source: _records_between(lane.of_source(source), offset, end) for source, end in found.items()}
    doubts += [
        f"{records} records of source partition {source} that the group has read lie above ones that it has not"
        for source, records in read_again.items()
        if records
    ]
    return LaneTranslation(lane.number, offset, sum(read_again.values()), skipped, tuple(doubts), tuple(notes))


async def _first_at_or_after(lane: MappedLane, source: int, position: int, count: CountRecords) -> int:
    """The target offset of the first record of a source at or after a position; the lane's end where there is none."""
    runs = lane.of_source(source)
    row = int(np.searchsorted(runs[:, Run._fields.index("end")], position, side="right"))
    if row == len(runs):
        return lane.end
    run = Run(*runs[row].tolist())
    if position <= run.start:
        return run.target_start
    return run.target_start + await count(RecordsBelow(run, position))


def _records_between(runs: npt.NDArray[np.int64], start: int, end: int) -> int:
    """How many records of these runs stand at target offsets [start, end)."""
    starts = runs[:, Run._fields.index("target_start")]
    ends = starts + runs[:, Run._fields.index("records")]
    return int(np.maximum(np.minimum(ends, end) - np.maximum(starts, start), 0).sum())


class ArchivedRuns:
    """Counts records of runs in the archive; each answer is checked against the run, and remembered."""

    def __init__(self, pipeline: Pipeline, record_filter: RecordFilter, selections: Mapping[int, Selection]) -> None:
        """What the job did to records, and its source partitions."""
        self._pipeline, self._filter = pipeline, record_filter
        self._selections = selections
        self._known: dict[RecordsBelow, int] = {}
        self._archived: dict[tuple[int, OffsetRange], int] = {}
        self._whole = not pipeline.stages and record_filter.passes_all and isinstance(pipeline.router, WholePartitions)
        """Whether every record goes to one lane: then indexes tell how many there are."""

    async def count(self, question: RecordsBelow) -> int:
        """See CountRecords; raises ReplayRefused where the archive does not hold what the run says."""
        if question not in self._known:
            answer = await self._by_indexes(question) if self._whole else None
            self._known[question] = answer if answer is not None else await self._by_reading(question)
        return self._known[question]

    async def archived(self, source: int, offsets: OffsetRange) -> int:
        """See CountArchived: reads no more than the blocks at both edges."""
        asked = source, offsets
        if asked not in self._archived:
            skipping = Reading(on_damage=lambda _: SkipDamage())
            self._archived[asked] = (await describe_source(self._selection(source, *offsets), skipping)).records
        return self._archived[asked]

    async def _by_indexes(self, question: RecordsBelow) -> int | None:
        """The answer without reading but one block; None where the run lacks archived records, as damage explains."""
        run, offset = question
        below = await self.archived(run.source, OffsetRange(run.start, offset))
        above = await self.archived(run.source, OffsetRange(offset, run.end))
        return below if below + above == run.records else None

    async def _by_reading(self, question: RecordsBelow) -> int:
        run, offset = question
        below = total = 0
        selection = self._selection(run.source, run.start, run.end)
        async with aclosing(selected(selection, self._filter, SkipDamage())) as batches:
            async for batch in batches:
                for piece in self._pipeline(ScannedBatch(run.source, batch)):
                    if piece.target == run.lane:
                        offsets: Any = piece.records.column("offset").to_numpy()
                        total += len(offsets)
                        below += int(np.searchsorted(offsets, offset))
        if total != run.records:
            raise ReplayRefused(
                f"source partition {run.source} [{run.start}..{run.end}) cannot be translated",
                why=f"the job sent {run.records} of its records to target partition {run.lane}, "
                f"and the archive has {total} now",
                remedy="see replayer verify --deep and replayer verify --job",
            )
        return below

    def _selection(self, source: int, start: int, end: int) -> Selection:
        return Selection(self._selections[source].partition, OffsetRange(start, end))

"""Proving a share of a lane: pieces of its run map chosen at random, the first and the last of them among these."""

import math
import random
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from blockgz.archive.damage import SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection
from replayer.replay.jobs.lane_maps import LaneMap
from replayer.replay.pipeline import WholePartitions
from replayer.replay.plan import describe_source
from replayer.replay.proof.proving import Asked, LaneProof, LaneTask, prove_lane
from replayer.replay.run_map import Run

PIECE_RECORDS = 10_000

ReadTarget = Callable[[int, int], AsyncGenerator[pa.RecordBatch]]
"""The readable records of a lane between two of its offsets."""


class Sample(NamedTuple):
    """A share (0..1] of each lane; the same seed chooses the same pieces."""

    share: float
    seed: int

    def chosen(self, lane: int, pieces: int) -> frozenset[int]:
        """Which of so many pieces of a lane are looked at; there is at least one."""
        drawn = random.Random(f"{self.seed}:{lane}").sample(range(pieces), math.ceil(self.share * pieces))
        return frozenset({0, pieces - 1, *drawn})


@dataclass
class Window:
    """Pieces side by side, and what is looked at with them: offsets of the lane, and of its source partitions."""

    map: LaneMap
    start: int
    end: int
    sources: dict[int, OffsetRange] = field(default_factory=dict)


def pieces(lane_map: LaneMap) -> Iterator[Run]:
    """The runs that count, in order; long ones in pieces, where no offset in them is without a record."""
    for run in lane_map.runs:
        if run.records != run.end - run.start:
            yield run
            continue
        for first in range(0, run.records, PIECE_RECORDS):
            count = min(PIECE_RECORDS, run.records - first)
            start = run.start + first
            yield Run(run.source, start, start + count, run.lane, run.target_start + first, count)


def windows(
    lane_map: LaneMap, chosen: Container[int], lane: OffsetRange, sources: Mapping[int, OffsetRange]
) -> list[Window]:
    """What is looked at of a lane that has a run: the chosen pieces, with what lies right before each.

    The last one has all that follows, too: up to the end of the lane, and of what is required of its sources.
    """
    found, is_open = list[Window](), False
    at, read = lane.start, {number: offsets.start for number, offsets in sources.items()}
    for number, piece in enumerate(pieces(lane_map)):
        if number in chosen:
            if not is_open:
                found.append(Window(LaneMap(at), at, at))
            window = found[-1]
            window.map.add(piece)
            window.end = piece.target_end
            if piece.source in sources:
                begin = window.sources.get(piece.source, OffsetRange(read[piece.source], 0)).start
                window.sources[piece.source] = OffsetRange(begin, piece.end)
        is_open = number in chosen
        at, read[piece.source] = piece.target_end, piece.end
    last = found[-1]
    last.end = lane.end
    for number, offsets in sources.items():
        begin = last.sources.get(number, OffsetRange(read[number], 0)).start
        last.sources[number] = OffsetRange(begin, offsets.end)
    return found


async def prove_share(
    task: LaneTask, asked: Asked, progress: Callable[[int], None], sample: Sample, lane: OffsetRange, read: ReadTarget
) -> LaneProof:
    """Proves chosen pieces, and by the archive's indexes that the map has as many records as the archive.

    `lane` are the offsets since the job began. What is not that simple is proved in whole: a lane whose numbers differ,
    one with records that were sent twice or that is not complete, and a job that changed or chose records.
    """
    count = sum(1 for _ in pieces(task.map))
    chosen = sample.chosen(task.lane, count) if count else frozenset[int]()
    is_simple = task.rolls_back or not task.map.repeats
    if len(chosen) == count or not is_simple or task.open_end or task.map.faults or not await _as_many(task, asked):
        return await prove_lane(task, asked, progress)
    whole = LaneProof(task.lane, not_compared=task.map.records)
    required = {
        number: OffsetRange(each.offsets.start, task.required[number]) for number, each in task.selections.items()
    }
    for window in windows(task.map, chosen, lane, required):
        part = replace(
            task,
            map=window.map,
            found=read(window.start, window.end),
            selections={
                number: task.selections[number]._replace(offsets=offsets) for number, offsets in window.sources.items()
            },
            required={number: offsets.end for number, offsets in window.sources.items()},
        )
        whole.add(await prove_lane(part, asked, progress))
        whole.not_compared -= window.map.records
    return whole


async def _as_many(task: LaneTask, asked: Asked) -> bool:
    """Whether the archive's indexes have as many records for the lane as its map."""
    pipeline = asked.pipeline
    if pipeline.stages or not asked.filter.passes_all or not isinstance(pipeline.router, WholePartitions):
        return False
    archived = 0
    for number, selection in task.selections.items():
        offsets = OffsetRange(selection.offsets.start, task.required[number])
        skipping = Reading(on_damage=lambda _: SkipDamage())
        archived += (await describe_source(Selection(selection.partition, offsets), skipping)).records
    return archived == task.map.records

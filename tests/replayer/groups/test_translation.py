"""Positions along run maps, against a copy that is looked through record by record: exact, or said not to be."""

import asyncio
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.record_filter import Condition, KeyIn, Not, RecordFilter
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.records import Record, batch_from_records
from replayer.errors import ReplayRefused
from replayer.groups.planning import ArchivedRuns, LaneTranslation, MappedLane, mapped_lane, translate
from replayer.replay.job import Run, SourceProgress, runs_of
from replayer.replay.jobs.folder import LaneEnd, Segment
from replayer.replay.pipeline import DropTombstones, Pipeline, Router, Routing, ScannedBatch
from replayer.replay.recorded_job import LaneMap, lane_maps
from tests.support.archives import ArchiveWriter, records

ARCHIVES = int(os.environ.get("BLOCKGZ_TRANSLATED_ARCHIVES", "20"))
"""Random archives a run; `make long` takes 2,000."""
POSITIONS = 12


@dataclass
class Copy:
    """What a job made: by lane the records that stand there, as (source, source offset, target offset)."""

    sources: dict[int, list[Record]]
    ranges: dict[int, OffsetRange]
    pipeline: Pipeline
    filter: RecordFilter
    nexts: dict[int, int]
    lanes: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    maps: dict[int, LaneMap] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def mapped(self, lane: int) -> MappedLane:
        progress = {
            source: SourceProgress(offsets.start, self.nexts[source], offsets.end)
            for source, offsets in self.ranges.items()
            if lane in self.pipeline.targets(source)
        }
        return mapped_lane(lane, self.maps[lane], progress)


def random_copy(chance: random.Random, root: Path) -> Copy:
    """An archive with holes of every kind, and what a job with random settings makes of it, crashes included."""
    writer = ArchiveWriter(root)
    sources: dict[int, list[Record]] = {}
    ranges: dict[int, OffsetRange] = {}
    for partition in range(chance.randint(1, 4)):
        start = chance.choice([0, 0, 5, 1000])
        density = chance.choice([1.0, 0.9, 0.4])
        kept = [each for each in range(start, start + chance.randint(1, 120)) if chance.random() < density] or [start]
        made = records(kept, value_bytes=chance.choice([0, 30]))
        committing = writer.partition("orders", partition)
        at = 0
        while at < len(made):
            step = chance.randint(1, 50)
            chunk = made[at : at + step]
            at += step
            more = made[at].offset if at < len(made) else chunk[-1].offset + chance.choice([1, 1, 4])
            next_offset = chance.choice([chunk[-1].offset + 1, more])
            committing.commit(chunk, next_offset=next_offset, block_bytes=chance.choice([100, 700]))
        end = committing.marker.next_offset or 0
        low, high = sorted(chance.choices(range(start, end + 1), k=2)) if chance.random() < 0.3 else (start, end)
        sources[partition] = made
        ranges[partition] = OffsetRange(low, high)
    filters: list[tuple[Condition, ...]] = [(), (), (KeyIn((None,)),), (Not(KeyIn((None,))),)]
    stages = chance.choice([(), (), (DropTombstones(),)])
    copy = Copy(
        sources,
        ranges,
        Pipeline(stages, random_router(chance, len(sources))),
        RecordFilter(conditions=chance.choice(filters)),
        {source: offsets.end for source, offsets in ranges.items()},
    )
    replay(chance, copy)
    return copy


def random_router(chance: random.Random, partitions: int) -> Router:
    return chance.choice(
        [
            Routing(),
            Routing("number", chance.randint(1, 3)),
            Routing("by-key", chance.randint(1, 3)),
            Routing("map", places=tuple({source: chance.randint(0, 2) for source in range(partitions)}.items())),
        ]
    )


def replay(chance: random.Random, copy: Copy) -> None:
    """Sends everything in random turns, with transaction markers, and with records that are sent and do not count."""
    pending = {source: list(pieces(copy, source)) for source in copy.ranges}
    numbers = sorted({lane for source in copy.ranges for lane in copy.pipeline.targets(source)})
    ends = {lane: chance.choice([0, 7]) for lane in numbers}
    segments = [Segment(attempt="a", lanes={lane: LaneEnd(0, end) for lane, end in ends.items()})]
    written = dict.fromkeys(numbers, 0)
    copy.lanes = {lane: [] for lane in numbers}
    stops_early = chance.random() < 0.2
    while any(pending.values()):
        source = chance.choice([each for each, left in pending.items() if left])
        number = chance.randint(1, 20)
        taken, pending[source] = pending[source][:number], pending[source][number:]
        for lane in numbers:
            offsets = [offset for offset, to in taken if to == lane]
            if not offsets:
                continue
            targets = np.arange(ends[lane], ends[lane] + len(offsets))
            for run in runs_of(lane, [(source, np.array(offsets))], targets):
                segments.append(Segment(attempt="a", runs=(run,)))
            copy.lanes[lane] += zip([source] * len(offsets), offsets, targets.tolist(), strict=True)
            written[lane] += len(offsets)
            ends[lane] += len(offsets) + chance.choice([0, 0, 1])
        copy.nexts[source] = pending[source][0][0] if pending[source] else copy.ranges[source].end
        if stops_early and chance.random() < 0.2:
            break
        if chance.random() < 0.1:
            # A crash: some records are in the lanes that the job does not count, and it continues behind them.
            for lane in numbers:
                ends[lane] += chance.randint(0, 5)
            begins = {lane: LaneEnd(written[lane], ends[lane]) for lane in numbers}
            segments.append(Segment(attempt="b", lanes=begins))
    copy.ends = ends
    copy.maps = lane_maps(segments, written)


def pieces(copy: Copy, source: int) -> Iterator[tuple[int, int]]:
    """Source offset and lane of every record that the job sends of a partition."""
    start, end = copy.ranges[source]
    inside = [record for record in copy.sources[source] if start <= record.offset < end]
    for record in inside:
        batch = copy.filter.apply(batch_from_records([record]))
        if batch.num_rows:
            for piece in copy.pipeline(ScannedBatch(source, batch)):
                yield record.offset, piece.target


def expected(copy: Copy, lane: int, positions: Mapping[int, int | None]) -> tuple[int | None, bool]:
    """The highest target offset that passes no unread record of the lane, and whether none is read again from there."""
    feeding = [source for source in copy.ranges if lane in copy.pipeline.targets(source)]
    if all(positions.get(source) is None for source in feeding):
        return None, True
    standing = sorted(copy.lanes[lane], key=lambda each: each[2])
    unread = [target for source, offset, target in standing if is_unread(positions.get(source), offset)]
    behind = standing[-1][2] + 1 if standing else copy.maps[lane].began
    start = min(unread, default=behind)
    read_again = [each for each in standing if each[2] >= start and not is_unread(positions.get(each[0]), each[1])]
    known = all(
        positions.get(source) is not None or not any(each[0] == source for each in standing) for source in feeding
    )
    arrived = all(min(positions.get(each) or 0, copy.ranges[each].end) <= copy.nexts[each] for each in feeding)
    is_whole = all(skipped_of(copy, source, positions.get(source)) == 0 for source in feeding)
    return start, not read_again and known and arrived and is_whole


def skipped_of(copy: Copy, source: int, position: int | None) -> int:
    """How many archived records lie below the copy that the group has not read."""
    start = copy.ranges[source].start
    return sum(position is not None and position <= each.offset < start for each in copy.sources[source])


def is_unread(position: int | None, offset: int) -> bool:
    return position is None or offset >= position


def random_positions(chance: random.Random, copy: Copy) -> dict[int, int | None]:
    positions: dict[int, int | None] = {}
    for source, offsets in copy.ranges.items():
        edges = [offsets.start, offsets.end, offsets.end + 3, max(offsets.start - 2, 0), copy.nexts[source]]
        inside = chance.randint(offsets.start, max(offsets.end, offsets.start))
        positions[source] = chance.choice([inside, inside, inside, *edges, None])
    if chance.random() < 0.3:
        # As a group stands that has read the copy's lanes in the order in which they were written.
        positions = dict(copy.nexts)
    return positions


async def translations(
    copy: Copy, root: Path, asked: list[dict[int, int | None]]
) -> list[tuple[dict[int, int | None], LaneTranslation]]:
    opened = await ArchiveReader(LocalReader(LocalAddress(str(root)))).open_topic("orders")
    selections = {each.partition: Selection(each, copy.ranges[each.partition]) for each in opened}
    runs = ArchivedRuns(copy.pipeline, copy.filter, selections)
    lanes = [copy.mapped(lane) for lane in copy.lanes]
    return [
        (positions, await translate(lane, positions, runs.count, runs.archived))
        for positions in asked
        for lane in lanes
    ]


@pytest.mark.slow
@pytest.mark.timeout(120 + ARCHIVES)
def test_random_jobs_and_positions_against_brute_force(tmp_path: Path) -> None:
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    print(f"BLOCKGZ_SEED={seed}")
    chance = random.Random(seed)
    exact = refused = 0
    for number in range(ARCHIVES):
        root = tmp_path / str(number)
        copy = random_copy(chance, root)
        asked = [random_positions(chance, copy) for _ in range(POSITIONS)]
        for positions, found in asyncio.run(translations(copy, root, asked)):
            offset, is_exact = expected(copy, found.lane, positions)
            case = (number, positions, copy.ranges, copy.nexts, found)
            assert (found.offset, found.exact) == (offset, is_exact), case
            feeding = [source for source in copy.ranges if found.lane in copy.pipeline.targets(source)]
            skipped = sum(skipped_of(copy, source, positions.get(source)) for source in feeding)
            assert found.skipped == (0 if offset is None else skipped), case
            exact += found.exact
            refused += not found.exact
    assert exact > ARCHIVES
    assert refused > 0


def a_lane(*runs: Run, **sources: Any) -> MappedLane:
    progress = sources.get("progress", {0: SourceProgress(0, 100, 100)})
    return MappedLane(0, np.array(runs, np.int64).reshape(-1, len(Run._fields)), 50, progress)


async def not_asked(*_: object) -> int:
    raise AssertionError("the archive is not needed")


def test_a_position_above_the_copy_becomes_its_end() -> None:
    found = asyncio.run(translate(a_lane(Run(0, 0, 90, 0, 5, 45)), {0: 120}, not_asked, not_asked))
    assert (found.offset, found.exact) == (50, True)
    assert found.notes == ("source partition 0: 120 lies above the copy, which ends before 100",)


@pytest.mark.parametrize(("unread", "more"), [(0, ""), (1226, ": 1,226 unread records are skipped")])
def test_a_position_below_the_copy_is_exact_only_if_nothing_is_skipped(unread: int, more: str) -> None:
    async def archived(source: int, offsets: OffsetRange) -> int:
        assert (source, offsets) == (0, OffsetRange(3, 10))
        return unread

    lane = a_lane(Run(0, 12, 90, 0, 5, 45), progress={0: SourceProgress(10, 100, 100)})
    found = asyncio.run(translate(lane, {0: 3}, not_asked, archived))
    assert (found.offset, found.exact, found.skipped) == (5, not unread, unread)
    told = f"source partition 0: 3 lies below the copy, which starts at 10{more}"
    assert (found.doubts, found.notes) == (((told,), ()) if unread else ((), (told,)))


def test_without_any_position_there_is_none() -> None:
    assert asyncio.run(translate(a_lane(Run(0, 0, 90, 0, 5, 45)), {1: 7}, not_asked, not_asked)).offset is None


def test_what_is_read_again_is_counted() -> None:
    progress = {source: SourceProgress(0, 10, 10) for source in range(2)}
    lane = a_lane(Run(0, 0, 10, 0, 0, 10), Run(1, 0, 10, 0, 10, 10), Run(0, 10, 20, 0, 20, 10), progress=progress)
    found = asyncio.run(translate(lane, {0: 0, 1: 10}, not_asked, not_asked))
    assert (found.offset, found.read_again) == (0, 10)
    assert found.doubts == ("10 records of source partition 1 that the group has read lie above ones that it has not",)


def test_a_damaged_run_map_is_refused() -> None:
    with pytest.raises(ReplayRefused, match="the run map of target partition 3 cannot be relied on"):
        mapped_lane(3, LaneMap(0, faults=["the run map is empty where 7 records are committed"]), {})


def test_an_archive_that_lost_records_of_a_run_is_refused(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(20)))

    async def counted() -> int:
        (opened,) = await ArchiveReader(LocalReader(LocalAddress(str(tmp_path)))).open_topic("orders")
        runs = ArchivedRuns(Pipeline(), RecordFilter(), {0: Selection(opened, OffsetRange(0, 20))})
        lane = replace(a_lane(Run(0, 0, 20, 0, 0, 21)))
        found = await translate(lane, {0: 7}, runs.count, runs.archived)
        return found.offset or 0

    with pytest.raises(ReplayRefused, match=r"source partition 0 \[0..20\) cannot be translated"):
        asyncio.run(counted())

from collections.abc import Iterable

import pytest

from index_format.records import Record, batch_from_records
from replayer.replay.job import Job, LanePosition, SourceProgress
from replayer.replay.pipeline import Routing, ScannedBatch
from replayer.spark import lanes
from replayer.spark.lanes import LaneStore, OfSource, places_for, source_lane

JOB = Job("j", "copy", "0" * 16)


def test_lanes_stand_at_the_targets_partitions_and_continue_in_further_groups() -> None:
    lanes = [source_lane(JOB, source, 2) for source in range(5)]
    assert [(lane.job.group_id, lane.number) for lane in lanes] == [
        ("blockgz-j", 0),
        ("blockgz-j", 1),
        ("blockgz-j.1", 0),
        ("blockgz-j.1", 1),
        ("blockgz-j.2", 0),
    ]
    assert len({lane.job.transactional_id(lane.number) for lane in lanes}) == 5


def test_records_of_a_lane_are_those_of_its_source() -> None:
    records = batch_from_records([Record(offset, 1, 0, None, b"", []) for offset in range(6)])
    router = Routing("by-key", 3)
    lane = OfSource(router, 7)
    assert lane.route(ScannedBatch(0, records)) == router.route(ScannedBatch(7, records))
    assert lane.targets(0) == range(3)
    assert OfSource(Routing("number", 4), 7).targets(0) == (3,)
    assert lane.fingerprint == router.fingerprint


def test_places_depend_on_what_makes_the_job_and_on_nothing_that_grows() -> None:
    assert [places_for(Routing("by-key", 3), sources) for sources in ([0], [0, 9])] == [3, 3]
    assert [places_for(Routing("number", 4), sources) for sources in ([0], [0, 9])] == [4, 4]
    assert places_for(Routing("map", places=tuple({0: 2, 1: 0}.items())), [1]) == 3
    # Partition n of the source stands at partition n of the target, of however many there are.
    assert source_lane(JOB, 7, places_for(Routing(), [2, 7])).number == 7


class Positions:
    """As CommittedPositions, over a dictionary by group and lane."""

    held: dict[tuple[str, int], LanePosition]

    def __init__(self, group: str) -> None:
        self._group = group

    def read(self, lanes: Iterable[int]) -> dict[int, LanePosition]:
        return {lane: self.held[self._group, lane] for lane in lanes if (self._group, lane) in self.held}

    def write(self, positions: dict[int, LanePosition]) -> None:
        self.held.update({(self._group, lane): position for lane, position in positions.items()})

    def close(self) -> None:
        """Nothing is open."""


class Fence:
    """As TransactionalSink, for a driver that only begins."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self.fenced: list[int] = []

    def begin(self, lanes: Iterable[int]) -> dict[int, LanePosition]:
        self.fenced += lanes
        return self._positions.read(lanes)

    def commit(self, positions: dict[int, LanePosition]) -> None:
        self._positions.write(positions)

    def stop(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("transactional", [True, False])
def test_a_job_begins_with_the_lanes_that_have_no_position(
    transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences: list[Fence] = []

    def fence(_: object, __: object, positions: Positions) -> Fence:
        fences.append(Fence(positions))
        return fences[-1]

    monkeypatch.setattr(lanes, "CommittedPositions", lambda _, job, __: Positions(job.group_id))
    monkeypatch.setattr(lanes, "TransactionalSink", fence)
    first = {n: LanePosition("0" * 16, "0" * 16, 0, {n: SourceProgress(0, 0, 9)}) for n in (0, 1, 2)}
    moved = first[2].advanced(4, {2: 4})
    Positions.held = {("blockgz-j.1", 0): moved}
    store = LaneStore({}, [source_lane(JOB, source, 2) for source in first])
    assert store.read() == {2: moved}
    assert store.begin(first, transactional=transactional) == {**first, 2: moved}
    assert Positions.held == {("blockgz-j", 0): first[0], ("blockgz-j", 1): first[1], ("blockgz-j.1", 0): moved}
    assert [each.fenced for each in fences] == ([[0, 1], [0]] if transactional else [])
    store.close()

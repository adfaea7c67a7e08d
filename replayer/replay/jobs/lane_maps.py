"""The run map of a job by lanes: which runs count, and where records lie that were sent again. Pure."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockgz.archive.positions import OffsetRange
from replayer.replay.jobs.folder import Segment, runs_in
from replayer.replay.run_map import Run

FIELDS = len(Run._fields)


@dataclass
class LaneMap:
    """One lane: `began` is its end when the job began, `repeats` hold what was sent and did not count.

    48 bytes a run.
    """

    began: int
    records: int = 0
    repeats: list[OffsetRange] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _numbers: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def runs(self) -> Iterator[Run]:
        """Those that count, in order."""
        for start in range(0, len(self._numbers), FIELDS):
            yield Run(*self._numbers[start : start + FIELDS])

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """The same as a table, a row for each run; a copy."""
        return np.array(self._numbers, np.int64).reshape(-1, FIELDS)

    @property
    def end(self) -> int:
        """The target's offset behind the last run that counts."""
        return Run(*self._numbers[-FIELDS:]).target_end if self._numbers else self.began

    def add(self, run: Run) -> None:
        self._numbers.extend(run)
        self.records += run.records

    def cut(self, written: int) -> None:
        """Runs above so many records do not count."""
        while self.records > written and self._numbers:
            self.records -= Run(*self._numbers[-FIELDS:]).records
            del self._numbers[-FIELDS:]
        if self.records != written:
            self.faults.append(f"the run map has {self.records} records where {written} are committed")

    def goes_on(self, written: int, end: int) -> None:
        """The job went on after so many records, while the lane ended there."""
        self.cut(written)
        if end > self.end:
            self.repeats.append(OffsetRange(self.end, end))


def lane_maps(segments: Iterable[Segment], written: Mapping[int, int]) -> dict[int, LaneMap]:
    """By lane; `written` are the committed records of the lanes where they are known."""
    lanes: dict[int, LaneMap] = {}
    for segment in segments:
        for number, begin in (segment.lanes or {}).items():
            if number in lanes:
                lanes[number].goes_on(begin.written, begin.end)
            else:
                lanes[number] = LaneMap(began=begin.end)
                lanes[number].cut(begin.written)
        for run in runs_in(segment):
            if run.lane not in lanes:
                lanes[run.lane] = LaneMap(run.target_start, faults=["the run map does not say where the job started"])
            lanes[run.lane].add(run)
    for number, records in written.items():
        if number in lanes:
            lanes[number].cut(records)
        elif records:
            lanes[number] = LaneMap(0, faults=[f"the run map is empty where {records} records are committed"])
    return lanes

"""A job as its folder and the cluster recorded it: its changes to records, and their places in the target."""

import asyncio
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.store.writer import Store
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import Job, LanePosition, Run, decode_position
from replayer.replay.jobs.folder import JobFolder, JobRequest, Segment, no_such_job, refuse_changed_target, runs_in
from replayer.replay.pipeline import LeftOut, Pipeline
from replayer.replay.request import ReplayRequest, Surroundings, kept_request
from replayer.replay.sinks.transactional import CommittedPositions
from replayer.replay.target_topic import make_stages

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
        """Yield the runs that count, in order."""
        for start in range(0, len(self._numbers), FIELDS):
            yield Run(*self._numbers[start : start + FIELDS])

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """Return a copy of the runs as a table with a row for each."""
        return np.array(self._numbers, np.int64).reshape(-1, FIELDS)

    @property
    def end(self) -> int:
        """The target's offset after the last run that counts."""
        return Run(*self._numbers[-FIELDS:]).target_end if self._numbers else self.began

    def add(self, run: Run) -> None:
        self._numbers.extend(run)
        self.records += run.records

    def cut(self, written: int) -> None:
        """Drop the runs above `written` records."""
        while self.records > written and self._numbers:
            self.records -= Run(*self._numbers[-FIELDS:]).records
            del self._numbers[-FIELDS:]
        if self.records != written:
            self.faults.append(f"the run map has {self.records} records where {written} are committed")

    def goes_on(self, written: int, end: int) -> None:
        """Note that the job continued after `written` records, when the lane's end was `end`."""
        self.cut(written)
        if end > self.end:
            self.repeats.append(OffsetRange(self.end, end))


def lane_maps(segments: Iterable[Segment], written: Mapping[int, int]) -> dict[int, LaneMap]:
    """Return the map of each lane; `written` are committed records by lane, if they are known."""
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


@dataclass(frozen=True)
class RecordedJob:
    """A job as recorded: what it did to records (`asked`, `pipeline`), and by lane its positions and its run map.

    `request` is what it was begun with; the ranges of a job that follows its archive are those that it has come to.

    `feeding` says by lane which source partitions may go there; `forgotten` are lanes that have no position.
    """

    request: JobRequest
    target: TopicFacts
    asked: ReplayRequest
    pipeline: Pipeline
    feeding: Mapping[int, Sequence[int]]
    positions: Mapping[int, LanePosition]
    maps: Mapping[int, LaneMap]

    @property
    def forgotten(self) -> list[int]:
        return sorted(self.feeding.keys() - self.positions.keys())

    @property
    def complete(self) -> bool:
        return not self.forgotten and all(each.complete for each in self.positions.values())


def kept_job(name: str, jobs: Store) -> tuple[JobRequest, JobFolder]:
    """Return what a job was begun with, and its folder; raises UsageError if there is none."""
    folder = JobFolder(jobs, Job(name, "", "").name)
    kept = folder.request()
    if kept is None:
        raise no_such_job(name, jobs.url)
    return kept, folder


async def recorded_job(name: str, around: Surroundings) -> RecordedJob:
    """Read what was recorded of a job; raises UsageError, TargetChanged, or ReplayRefused for what cannot be read."""
    kept, folder = await asyncio.to_thread(kept_job, name, around.jobs)
    facts = await asyncio.to_thread(lambda: around.refresh_admin().topic(kept.target))
    refuse_changed_target(kept, facts)
    assert facts is not None
    asked, pipeline = _asked(kept)
    lanes = {*pipeline.feeding(kept.ranges), *(range(facts.num_partitions) if kept.follows is True else ())}
    positions = await asyncio.to_thread(_positions, kept, folder, around.properties, sorted(lanes))
    written = {lane: each.written for lane, each in positions.items()}
    maps = await asyncio.to_thread(lambda: lane_maps((each for _, each in folder.segments()), written))
    if kept.follows is True:
        kept = msgspec.structs.replace(kept, ranges=_ranges_now(kept, positions, maps))
    return RecordedJob(kept, facts, asked, pipeline, pipeline.feeding(kept.ranges), positions, maps)


def _ranges_now(
    kept: JobRequest, positions: Mapping[int, LanePosition], maps: Mapping[int, LaneMap]
) -> dict[int, tuple[int, int]]:
    """Return the ranges of a job that follows its archive; each partition goes to the same one of its target."""
    moved = {
        source: (progress.start, progress.end)
        for position in positions.values()
        for source, progress in position.sources.items()
    }
    return {**dict.fromkeys(maps, (0, 0)), **kept.ranges, **moved}


async def source_selections(archive: ArchiveReader, kept: JobRequest) -> dict[int, Selection]:
    """Return by source partition what the job was to send; raises ReplayRefused if it is another archive's job."""
    topic = kept.folder if kept.follows is True else await archive.whole_topic(kept.folder)
    opened = await archive.open_topic(topic, sorted(kept.ranges))
    for partition in opened:
        if partition.marker.archive_id != kept.archive_id:
            raise ReplayRefused(
                f"job {kept.job} was started from another archive",
                why=f"that has id {kept.archive_id}, this one {partition.marker.archive_id}",
                remedy="check -a/--archive",
            )
    return {each.partition: Selection(each, OffsetRange(*kept.ranges[each.partition])) for each in opened}


def _asked(kept: JobRequest) -> tuple[ReplayRequest, Pipeline]:
    asked = kept_request(kept.asked, kept.job, kept.folder, kept.target)
    router = asked.routing.for_target(kept.target, int(kept.asked["target_partitions"]))
    pipeline = Pipeline(tuple(make_stages(asked, LeftOut())), router)
    if pipeline.fingerprint != kept.asked["pipeline"]:
        raise ReplayRefused(
            f"what job {kept.job} did to records is not known",
            why="this version handles records differently from the one that started the job",
            remedy="use that version, or compare with verify --against-topic",
        )
    return asked, pipeline


def _positions(
    kept: JobRequest, folder: JobFolder, kafka: Mapping[str, str], lanes: list[int]
) -> dict[int, LanePosition]:
    if not kept.transactional:
        return folder.positions.read()
    with closing(CommittedPositions(kafka, kept.names, decode_position)) as positions:
        return positions.settled(lanes)

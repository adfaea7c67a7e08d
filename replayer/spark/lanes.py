"""Lanes: the records of one source partition go to a topic in transactions, each with the position after it.

The job `replayer replay --spark` and the format `blockgz-kafka` are exactly-once by it alike: which group and partition
keep a lane's position, the producer that fences the one before it, what is committed then, and the end of both. The one
producer of a lane writes to every target partition that its records go to, so no other needs to read them.

Only what a position says differs. A job knows the range that it replays, and its LanePosition is that of `replayer
replay`, which can resume it. A write is given rows and knows no range: its RowPosition says which offsets stand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from replayer.replay.job import Job, LanePosition, Position, decode_position
from replayer.replay.pipeline import RoutedBatch, Router, Routing, ScannedBatch
from replayer.replay.run import RecordSink
from replayer.replay.sinks.producer import KafkaSink
from replayer.replay.sinks.transactional import CommittedPositions, TransactionalSink

P = TypeVar("P", bound=Position)


class SourceLane(NamedTuple):
    """The place of one source partition's position: partition `number` of the target, in the group of `job`."""

    source: int
    job: Job
    number: int


def places_for(router: Router, sources: Sequence[int]) -> int:
    """How many partitions of the target can keep positions of a job that routes like this, now and when it resumes."""
    match router:
        case Routing(rule="map") | Routing(partitions=int()):
            return router.partitions_for(0)
        case _:
            return max(sources) + 1


def source_lane(job: Job, source: int, places: int) -> SourceLane:
    """Return the lane of a source partition, where positions can be kept at the target's first `places` partitions.

    `places` must stay the same for all of a job's life. What does not fit goes to further groups, `{job}.1` and so on.
    """
    page, number = divmod(source, places)
    return SourceLane(source, replace(job, name=f"{job.name}.{page}") if page else job, number)


@dataclass(frozen=True)
class OfSource:
    """A router for a lane: its records are those of `source`, regardless of the lane's number."""

    router: Router
    source: int

    @property
    def fingerprint(self) -> str:
        return self.router.fingerprint

    @property
    def divides(self) -> bool:
        return self.router.divides

    def targets(self, partition: int) -> Sequence[int]:  # noqa: ARG002  # the lane's, which is not asked for
        return self.router.targets(self.source)

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        return self.router.route(batch._replace(partition=self.source))


@contextmanager
def lane_sink(
    lane: SourceLane,
    properties: Mapping[str, str],
    router: Router,
    max_message_bytes: int | None,
    decode: Callable[[int, str], P],
) -> Iterator[TransactionalSink[P]]:
    """Yield the transactional producer of a lane, not begun; records that are not committed at the end are given up.

    `max_message_bytes` is the topic's limit, if it is known; `decode` makes a position of a committed offset and its
    metadata. Raises UsageError.
    """
    with closing(CommittedPositions(properties, lane.job, decode)) as positions:
        sink = TransactionalSink(properties, lane.job, positions, max_message_bytes, OfSource(router, lane.source))
        try:
            yield sink
        finally:
            sink.stop()


@contextmanager
def untransactional_sink(
    lane: SourceLane, properties: Mapping[str, str], router: Router, max_message_bytes: int | None
) -> Iterator[RecordSink]:
    """Yield a producer without transactions; the position is still in the cluster, so that every machine sees it."""
    with closing(CommittedPositions(properties, lane.job, decode_position)) as positions:
        yield KafkaSink(properties, lane.job.target, positions, max_message_bytes, OfSource(router, lane.source))


class LaneStore:
    """The positions of all lanes of a job, for its driver; each lane's own producer writes what comes after."""

    def __init__(self, properties: Mapping[str, str], lanes: Sequence[SourceLane]) -> None:
        """Raise UsageError."""
        self._properties = properties
        # For each group's job, sources by lane.
        self._pages: dict[Job, dict[int, int]] = {}
        for lane in lanes:
            self._pages.setdefault(lane.job, {})[lane.number] = lane.source
        self._positions = {job: CommittedPositions(properties, job, decode_position) for job in self._pages}

    def read(self) -> dict[int, LanePosition]:
        """Return the recorded positions by source; raises as CommittedPositions."""
        found = {}
        for job, sources in self._pages.items():
            for number, position in self._positions[job].read(sources).items():
                found[sources[number]] = position
        return found

    def begin(self, first: Mapping[int, LanePosition], *, transactional: bool) -> dict[int, LanePosition]:
        """Record `first` of every lane without a position, so that the job's end is fixed; return all positions.

        If transactional, it fences earlier writers of every lane. Raises as TransactionalSink or CommittedPositions.
        """
        standing = {}
        for job, sources in self._pages.items():
            wanted = {number: first[source] for number, source in sources.items()}
            found = self._fence(job, wanted) if transactional else self._positions[job].read(wanted)
            if not transactional:
                self._positions[job].write({n: position for n, position in wanted.items() if n not in found})
            standing.update({sources[number]: position for number, position in {**wanted, **found}.items()})
        return standing

    def close(self) -> None:
        for positions in self._positions.values():
            positions.close()

    def _fence(self, job: Job, wanted: Mapping[int, LanePosition]) -> Mapping[int, LanePosition]:
        sink = TransactionalSink(self._properties, job, self._positions[job])
        try:
            found = sink.begin(wanted)
            sink.commit({number: position for number, position in wanted.items() if number not in found})
        finally:
            sink.stop()
        return found

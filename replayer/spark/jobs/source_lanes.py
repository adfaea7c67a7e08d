"""Lanes by source partition, for jobs whose source partitions are replayed by machines of their own.

The one producer of such a lane writes to every target partition that its records go to, so no other needs to read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from replayer.replay.job import Job
from replayer.replay.ledger import LanePosition, decode_position
from replayer.replay.pipeline import RoutedBatch, Router, ScannedBatch
from replayer.replay.routing import FoldPartitions, MapPartitions, SpreadByKey
from replayer.replay.sinks.bounded_calls import Calls, NoAnswer
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.replay.sinks.transactional import TransactionalSink


class SourceLane(NamedTuple):
    """Where the position of one source partition is kept: at partition `number` of the target, for `job`'s group."""

    source: int
    job: Job
    number: int


def places_for(router: Router, sources: Sequence[int]) -> int:
    """How many partitions of the target can keep positions of a job that routes like this, now and when it goes on."""
    match router:
        case SpreadByKey() | FoldPartitions():
            return router.partitions
        case MapPartitions():
            return max(router.places.values()) + 1
        case _:
            return max(sources) + 1


def source_lane(job: Job, source: int, places: int) -> SourceLane:
    """The lane of a source partition, where positions can be kept at the target's first `places` partitions.

    `places` must stay the same for all of a job's life. What does not fit goes to further groups, `{job}.1` and so on.
    """
    page, number = divmod(source, places)
    return SourceLane(source, replace(job, name=f"{job.name}.{page}") if page else job, number)


@dataclass(frozen=True)
class OfSource:
    """A router for a lane: whatever the lane's number, its records are those of `source`."""

    router: Router
    source: int

    @property
    def fingerprint(self) -> str:
        """See Router."""
        return self.router.fingerprint

    def targets(self, partition: int) -> Sequence[int]:  # noqa: ARG002  # the lane's, which is not asked for
        """See Router."""
        return self.router.targets(self.source)

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        """See Router."""
        return self.router.route(batch._replace(partition=self.source))


CLOSE_SECONDS = 5.0


class LaneStore:
    """Asked and told by whoever leads the job; each lane's own producer writes what comes after."""

    def __init__(self, properties: Mapping[str, str], lanes: Sequence[SourceLane]) -> None:
        """Raises UsageError."""
        self._properties = properties
        self._pages: dict[Job, dict[int, int]] = {}
        """For each group's job, sources by lane."""
        for lane in lanes:
            self._pages.setdefault(lane.job, {})[lane.number] = lane.source
        self._positions = {job: CommittedPositions(properties, job, decode_position) for job in self._pages}

    def read(self) -> dict[int, LanePosition]:
        """What is recorded, by source; raises as CommittedPositions."""
        found = {}
        for job, sources in self._pages.items():
            for number, position in self._positions[job].read(sources).items():
                found[sources[number]] = position
        return found

    def begin(self, first: Mapping[int, LanePosition], *, transactional: bool) -> dict[int, LanePosition]:
        """Records `first` of every lane that has no position, so that the job's end stands; what is recorded then.

        Transactional, it fences whoever wrote to any lane before. Raises as TransactionalSink or CommittedPositions.
        """
        for job, sources in self._pages.items():
            wanted = {number: first[source] for number, source in sources.items()}
            if transactional:
                self._fence(job, wanted)
            else:
                found = self._positions[job].read(wanted)
                self._positions[job].write({n: position for n, position in wanted.items() if n not in found})
        return self.read()

    def close(self) -> None:
        """Leave; a cluster that does not answer is not waited for."""
        for positions in self._positions.values():
            try:
                Calls().make(positions.close, CLOSE_SECONDS)
            except NoAnswer:
                return

    def _fence(self, job: Job, wanted: Mapping[int, LanePosition]) -> None:
        sink = TransactionalSink(self._properties, job, self._positions[job])
        try:
            found = sink.begin(wanted)
            sink.commit({number: position for number, position in wanted.items() if number not in found})
        finally:
            sink.stop()

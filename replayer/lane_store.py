"""The positions of all lanes of a job by source partition, in as many groups as it takes."""

from collections.abc import Mapping, Sequence

from .job import Job
from .kafka_calls import Calls, NoAnswer
from .kafka_positions import CommittedPositions
from .kafka_transactions import TransactionalSink
from .lane_position import LanePosition, decode_position
from .source_lanes import SourceLane

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

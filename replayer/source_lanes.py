"""Lanes by source partition, for jobs whose source partitions are replayed by machines of their own.

The one producer of such a lane writes to every target partition that its records go to, so no other needs to read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .job import Job
from .pipeline import RoutedBatch, Router, ScannedBatch
from .routing import FoldPartitions, MapPartitions, SpreadByKey


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

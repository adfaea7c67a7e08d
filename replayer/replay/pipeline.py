"""What stands between scan and sink: stages that change or drop records, and a router that says where each one goes.

The core writes a transaction's records and the position after them together, and after a crash it scans again from
the lowest position of any lane. All of exactly-once rests on three promises of stages and routers:

- the `offset` column stays the source's own, in rising order: rows may go away, none is added or moved;
- what happens to a record depends on that record and its source partition alone, never on its neighbours, on a
  counter, or on the clock: batches begin and end elsewhere on the next run;
- the same `fingerprint` means the same outcome for every record: a job with another one is not resumed.

What a stage drops counts as done: the position moves past it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa


class ScannedBatch(NamedTuple):
    """Records of one source partition, in offset order, as a batch of `records.SCHEMA`."""

    partition: int
    records: pa.RecordBatch


class RoutedBatch(NamedTuple):
    """Records for one target partition, in the source's order; `offset` is still the source's."""

    target: int
    records: pa.RecordBatch


class Stage(Protocol):
    """A filter, a transform or a policy: from records to fewer or other ones. Called by one thread at a time."""

    @property
    def fingerprint(self) -> str:
        """Says in one line what the stage does to any record, settings included."""

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        """The changed batch, perhaps empty; the partition stays. Raises a BlockgzError to end the replay."""


class Router(Protocol):
    """Where each record goes."""

    @property
    def fingerprint(self) -> str:
        """Says in one line where any record goes, settings included."""

    def targets(self, partition: int) -> Sequence[int]:
        """The target partitions that may get records of this source partition, whatever the records are."""

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        """The batch split by target; every record in one piece, every target at most once."""


class WholePartitions:
    """A source partition goes to one target as it is: the order of its records stays."""

    def targets(self, partition: int) -> Sequence[int]:
        return (self.target(partition),)

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        return (RoutedBatch(self.target(batch.partition), batch.records),)

    def target(self, partition: int) -> int:
        """Where a source partition goes."""
        return partition


class KeepPartitions(WholePartitions):
    """Partition n goes to partition n."""

    fingerprint = "keep"


@dataclass(frozen=True)
class Pipeline:
    """Stages in order, then the router; the default changes nothing."""

    stages: tuple[Stage, ...] = ()
    router: Router = field(default_factory=KeepPartitions)

    @property
    def fingerprint(self) -> str:
        """Everything that decides what becomes of a record."""
        return "\n".join([*(stage.fingerprint for stage in self.stages), self.router.fingerprint])

    def targets(self, partition: int) -> Sequence[int]:
        return self.router.targets(partition)

    def feeding(self, partitions: Iterable[int]) -> dict[int, list[int]]:
        """By target partition, which of these source partitions may go there, in order."""
        found: dict[int, list[int]] = {}
        for source in sorted(partitions):
            for lane in self.targets(source):
                found.setdefault(lane, []).append(source)
        return found

    def __call__(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        """What becomes of a batch: pieces with records, at most one a target."""
        for stage in self.stages:
            batch = stage(batch)
            if not batch.records.num_rows:
                return ()
        return [piece for piece in self.router.route(batch) if piece.records.num_rows]

"""What a replay is asked for, what is known before the first record, and the plan that comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from index_format.chunk_index import Gap
from replayer.kafka.topic_facts import TopicFacts, Watermarks
from replayer.replay.pipeline import KeepPartitions, Router

LOSSLESS_FORMATS = frozenset({"json", "arrow"})
"""Record formats that keep keys, headers and timestamps."""


class TimeBounds(NamedTuple):
    """The smallest and largest timestamp of some records, ms since the epoch, -1 for a record that has none."""

    min: int
    max: int


@dataclass(frozen=True)
class SourcePartition:
    """Archived records of offsets [start, end) of one partition.

    `records` and `bytes` (encoded, uncompressed) count whole blocks at the edges, so they are upper bounds there.
    """

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    timestamps: TimeBounds | None
    """Of the blocks that are read; None where there are none."""
    gaps: tuple[Gap, ...] = ()
    """Recorded gaps that begin or end inside."""
    record_formats: frozenset[str] = frozenset({"json"})


class RecordPlace(NamedTuple):
    """Where a record stands in the archive."""

    partition: int
    offset: int


class SoloBlock(NamedTuple):
    """A record that fills a block of its own, and the block's compressed size in bytes."""

    place: RecordPlace
    bytes: int


@dataclass(frozen=True)
class Findings:
    """What the records themselves have to say where the target's configuration asks; None: nothing found, or not asked.

    `without_key` is a record that has no key, `largest_solo` the largest record that fills a block of its own.
    """

    without_key: RecordPlace | None = None
    largest_solo: SoloBlock | None = None


@dataclass(frozen=True)
class Request:
    """What was asked for; `into_source` is the operator's word that the source topic itself is meant."""

    topic: str
    target: str
    into_source: bool = False
    append: bool = False
    """The operator's word that the target may hold records already."""


@dataclass(frozen=True)
class JobState:
    """The job that the replay belongs to, and what is recorded of it; `written` are records in the target."""

    name: str
    transactional: bool
    resume: bool
    written: int = 0
    begun: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Preflight:
    """Everything that is known before the first record; the checks of `republish_refusals` look at this.

    `target` is None where the cluster has no such topic; `now_ms` is the time, ms since the epoch.
    """

    request: Request
    sources: tuple[SourcePartition, ...]
    target: TopicFacts | None
    watermarks: Mapping[int, Watermarks]
    findings: Findings
    now_ms: int
    router: Router = field(default_factory=KeepPartitions)
    job: JobState = JobState("unnamed", transactional=False, resume=False)
    creates: bool = False
    """Whether the replay makes the target; `target` tells then what it will be like."""
    notes: tuple[str, ...] = ()
    """What is done to records and target that a plan should show."""
    can_hold: bool = True
    """Whether the target's retention can be held for the time of the replay."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """The target partitions that may get records, rising."""
        return tuple(sorted({lane for source in self.sources for lane in self.router.targets(source.partition)}))


@dataclass(frozen=True)
class RepublishPlan:
    """Which records go where, by `router`: order is kept inside a partition."""

    topic: str
    target: str
    target_partitions: int
    sources: tuple[SourcePartition, ...]
    warnings: tuple[str, ...]
    router: Router
    job: JobState
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Records of all partitions; an upper bound, as each source's."""
        return sum(source.records for source in self.sources)

    @property
    def bytes(self) -> int:
        """Encoded bytes of all partitions; an upper bound."""
        return sum(source.bytes for source in self.sources)

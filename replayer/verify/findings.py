"""What a verification finds, as values: verdicts, lost and readable offsets, damaged objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from blockgz.archive.damage import Damage, LostRange, Verdict, worst
from blockgz.archive.inventory import MissingPartition
from blockgz.archive.positions import OffsetRange
from index_format.chunk_index import Gap
from index_format.records import Record


class AbsentPartition(NamedTuple):
    """A partition that the topic has and the archive has not: nothing of it was archived yet, or all of it is gone."""

    topic: str
    partition: int


class Orphan(NamedTuple):
    """An object above the end of a chain that no marker leads to: of a writer at work, or left of one that died."""

    key: str
    start: int
    end: int | None
    """Offsets [start, end) that it holds; None where only its name tells of them."""


@dataclass(frozen=True)
class Digests:
    """The digests of all records of a partition: see index_format.canonical."""

    content: str
    positions: str


@dataclass
class PartitionReport:
    """What was found of one partition.

    `records` are those that can be read, as far as was checked; `checked_chunks` of the `chunks` were.
    """

    topic: str
    partition: int
    records: int = 0
    chunks: int = 0
    checked_chunks: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    gaps: Sequence[Gap] = ()
    """Without those of erased records, and mere holes."""
    pruned_before: int | None = None
    """The floor, below which nothing is kept; None where nothing was pruned."""
    erased: list[OffsetRange] = field(default_factory=list)
    """Offsets whose records were erased, as far as was checked: in order and apart."""
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    digests: Digests | None = None
    """Where every record was decoded."""
    orphans: list[Orphan] = field(default_factory=list)
    """What lies above the marker; it is no fault."""
    incarnation: int | None = None
    chain: str | None = None
    """The digest of the chain, see `replayer.verify.partition.ChainDigest`; None where not all of it can be read."""
    checked: list[OffsetRange] = field(default_factory=list)
    """The offsets of the chunks that were checked, in order and apart."""
    unopened: int = 0
    """Encrypted chunks whose contents were to be looked at, and were not, for want of keys."""

    @property
    def verdict(self) -> Verdict:
        if self.lost or self.damage:
            return Verdict.FAILURE
        if self.gaps or self.unopened:
            return Verdict.WARNING
        return Verdict.OK if self.checked_chunks == self.chunks else Verdict.SAMPLED

    @property
    def readable(self) -> list[OffsetRange]:
        """The offsets, holes among them, that are neither lost nor in a gap."""
        if self.first_offset is None or self.next_offset is None:
            return []
        taken = sorted([(lost.start, lost.end) for lost in self.lost] + [(gap.start, gap.end) for gap in self.gaps])
        runs, position = [], self.first_offset
        for start, end in [*taken, (self.next_offset, self.next_offset)]:
            if min(start, self.next_offset) > position:
                runs.append(OffsetRange(position, min(start, self.next_offset)))
            position = max(position, end)
        return runs


class EarlierDifference(NamedTuple):
    """A partition whose state in an earlier report, offsets [start, end), is not the beginning of what it is now."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


@dataclass
class EarlierFindings:
    """What the comparison with an earlier report found; `partitions` were compared."""

    created: str
    earlier_verdict: Verdict
    """The report's own: of what it had not read, the comparison says that it is the same, not that it is right."""
    partitions: int = 0
    differences: list[EarlierDifference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        failures = [Verdict.FAILURE for _ in self.differences[:1]]
        return worst(failures + [Verdict.WARNING for _ in self.warnings[:1]])


@dataclass
class ArchiveReport:
    """What was found of the whole; `damage` is that of objects above the partitions."""

    partitions: list[PartitionReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    absent: list[AbsentPartition] = field(default_factory=list)
    missing: list[MissingPartition] = field(default_factory=list)
    """Partitions that the inventory has and the archive has not."""
    unmet: list[str] = field(default_factory=list)
    """Topics that were demanded and of which nothing is here."""
    warnings: list[str] = field(default_factory=list)
    rebuilt_at: int | None = None
    """When the inventory was made from a listing, in ms: what was lost before is not missed."""
    archive_id: str | None = None
    since_report: EarlierFindings | None = None

    @property
    def chunks(self) -> int:
        return sum(each.chunks for each in self.partitions)

    @property
    def checked_chunks(self) -> int:
        return sum(each.checked_chunks for each in self.partitions)

    @property
    def verdict(self) -> Verdict:
        if self.damage or self.missing or self.unmet:
            return Verdict.FAILURE
        above = [Verdict.WARNING] if self.absent or self.warnings else []
        earlier = [] if self.since_report is None else [self.since_report.verdict]
        return worst([report.verdict for report in self.partitions] + above + earlier)


class Relation(Enum):
    """What the topic is to the archive."""

    SOURCE = "source"
    """The topic that was archived: offsets and timestamp types are compared too."""
    COPY = "copy"
    """Another one: key, value, headers and timestamp are compared, record by record in order."""


class Difference(NamedTuple):
    """The first difference of a partition: both sides, None where that side has no such record."""

    archived: Record | None
    found: Record | None
    fields: tuple[str, ...]
    """The columns that differ, where both sides have the record."""


class Excused(NamedTuple):
    """Offsets [start, end) of a source whose records one side rightly lacks."""

    start: int
    end: int
    reason: str


@dataclass
class PartitionComparison:
    """What a comparison found; the numbers but `zero_timestamps` count records.

    `records` are equal on both sides; `missing` only the archive has, `extra` only the topic. Of a copy these two are
    the difference of the counts, and after a lost record those behind it count as `differing`.
    `zero_timestamps` are equal records whose timestamp 0 came as 1, the nearest that a client can send.
    """

    partition: int
    records: int = 0
    archived: int = 0
    found: int = 0
    differing: int = 0
    missing: int = 0
    extra: int = 0
    zero_timestamps: int = 0
    lost: list[LostRange] = field(default_factory=list)
    """What the archive cannot read any more: nothing is known of these records."""
    excused: list[Excused] = field(default_factory=list)
    first_difference: Difference | None = None
    missing_offsets: list[OffsetRange] = field(default_factory=list)
    """Where in the archive the missing records are: the first of these ranges."""
    extra_offsets: list[OffsetRange] = field(default_factory=list)
    """Where in the topic the extra records are, likewise."""
    not_archived_yet: OffsetRange | None = None
    """What a source holds behind all that is archived."""
    archived_digests: Digests | None = None
    found_digests: Digests | None = None
    """Of the records that were read of each side."""

    @property
    def verdict(self) -> Verdict:
        """FAILURE where the two sides differ, WARNING where something was excused."""
        if self.differing or self.missing or self.extra or self.lost:
            return Verdict.FAILURE
        return Verdict.WARNING if self.excused else Verdict.OK


@dataclass
class ComparisonReport:
    """What was found of a whole topic."""

    relation: Relation
    partitions: list[PartitionComparison] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return worst([each.verdict for each in self.partitions] + [Verdict.WARNING for _ in self.warnings[:1]])

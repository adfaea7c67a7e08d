"""What a verification finds, as values: verdicts, lost and readable offsets, damaged objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from index_format.chunk_index import Gap
from replayer.read.damage import Damage, LostRange
from replayer.read.positions import OffsetRange


class Verdict(Enum):
    """FAILURE is damage or a difference; WARNING is what was recorded when it happened, or is excused."""

    OK = "OK"
    WARNING = "WARNING"
    FAILURE = "FAILURE"


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of several verdicts; OK of none."""
    return next((each for each in (Verdict.FAILURE, Verdict.WARNING) if each in verdicts), Verdict.OK)


class AbsentPartition(NamedTuple):
    """A partition that the topic has and the archive has not: nothing of it was archived yet, or all of it is gone."""

    topic: str
    partition: int


@dataclass(frozen=True)
class Digests:
    """The digests of all records of a partition: see index_format.digest."""

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
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    digests: Digests | None = None
    """Where every record was decoded."""

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        if self.lost or self.damage:
            return Verdict.FAILURE
        return Verdict.WARNING if self.gaps else Verdict.OK

    @property
    def readable(self) -> list[OffsetRange]:
        """The offsets, holes among them, that are neither lost nor in a gap."""
        if self.first_offset is None or self.next_offset is None:
            return []
        taken = sorted([(lost.start, lost.end) for lost in self.lost] + [(gap.start, gap.end) for gap in self.gaps])
        runs, position = [], self.first_offset
        for start, end in [*taken, (self.next_offset, self.next_offset)]:
            if start > position:
                runs.append(OffsetRange(position, start))
            position = max(position, end)
        return runs


@dataclass
class ArchiveReport:
    """What was found of the whole; `damage` is that of objects above the partitions."""

    partitions: list[PartitionReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    absent: list[AbsentPartition] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        above = [Verdict.FAILURE for _ in self.damage[:1]] + [Verdict.WARNING for _ in self.absent[:1]]
        return worst([report.verdict for report in self.partitions] + above)

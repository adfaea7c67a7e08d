"""What is asked of an archive: which records of a topic, and what happens at damage."""

import hashlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import NamedTuple

import pyarrow as pa

from blockgz.archive.archive import Archive
from blockgz.archive.blocks import READ_AHEAD, ReadAhead
from blockgz.archive.damage import STOP, DamagePolicy, LostRange, SkipDamage
from blockgz.archive.offset_file import parse_offset_file
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import Rule
from blockgz.archive.selection import Positions, Selection, resolved, selected
from blockgz.archive.topics import TopicPartitions
from blockgz.record_filter import Condition, RecordFilter
from index_format.keys import parse_topic_folder

STOPS, SKIPS = "stop", "skip"


@dataclass(frozen=True)
class SelectionRequest:
    """Which records are meant: positions, a file with some for single partitions, partitions, and a filter.

    `now` is what durations before now count from, ms since the epoch; `zone` is that of times in the file that
    name none, UTC if None.
    """

    positions: Positions = field(default_factory=Positions)
    offset_file: bytes | None = None
    partitions: str | None = None
    filter: RecordFilter = field(default_factory=RecordFilter)
    now: int = 0
    zone: tzinfo | None = None

    async def select(self, archive: Archive, topic: TopicPartitions) -> list[Selection]:
        """The offsets that are meant of a topic; raises UsageError, NotInArchive, or what opening raises."""
        return await self.resolve(archive, topic, await self.open(archive, topic))

    async def open(self, archive: Archive, topic: TopicPartitions) -> tuple[ArchivedPartition, ...]:
        """Open the partitions that are meant of a topic; raises as `select`."""
        wanted = topic.narrowed(self.partitions)
        return await archive.open_topic(wanted.topic, wanted.partitions)

    async def resolve(
        self, archive: Archive, topic: TopicPartitions, opened: Sequence[ArchivedPartition]
    ) -> list[Selection]:
        """Return the offsets that are meant in the partitions that `open` gave; raises as `select`."""
        positions = self.positions
        if self.offset_file is not None:
            plain = parse_topic_folder(topic.topic).topic
            named = parse_offset_file(self.offset_file, plain, self.now, self.zone)
            positions = replace(positions, of_partitions=named)
        return await resolved(archive, opened, positions)

    @property
    def asked(self) -> tuple[str, ...]:
        """Everything that decides which offsets and records are meant, as it was written, partitions aside."""
        zone = "" if self.zone is None else f" in {self.zone}"
        file = () if self.offset_file is None else (f"positions {hashlib.sha256(self.offset_file).hexdigest()}{zone}",)
        only = () if self.filter.passes_all else (f"records {self.filter}",)
        return (*self.positions.asked, *file, *only)

    @property
    def narrows(self) -> bool:
        """Whether anything but partitions is chosen."""
        return self.positions != Positions() or self.offset_file is not None or not self.filter.passes_all

    @property
    def ends(self) -> bool:
        """Whether the selection has an end before the archive's."""
        return self.positions.end is not None or self.filter.until is not None

    def ruled(self, rule: Rule | None) -> "SelectionRequest":
        """Return the same request with a rule for `--at`."""
        return replace(self, positions=self.positions.ruled(rule))

    def narrowed(self, *conditions: Condition) -> "SelectionRequest":
        """The same with more conditions."""
        return replace(self, filter=replace(self.filter, conditions=(*self.filter.conditions, *conditions)))


class SelectedBatch(NamedTuple):
    """Records of one partition, in offset order; never empty."""

    partition: ArchivedPartition
    batch: pa.RecordBatch


async def selected_batches(
    chosen: Iterable[Selection],
    record_filter: RecordFilter,
    limit: int | None,
    damage: "DamagePolicies",
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[SelectedBatch]:
    """At most `limit` records that are meant, partition after partition.

    Close it (`aclosing`) when you stop early. Raises as `selected` does.
    """
    left = limit
    for each in chosen:
        if left == 0:
            return
        async with aclosing(selected(each, record_filter, damage.of(each.partition), ahead)) as batches:
            async for batch in batches:
                part = batch if left is None else batch.slice(0, left)
                left = None if left is None else left - part.num_rows
                yield SelectedBatch(each.partition, part)
                del batch, part
                if left == 0:
                    return


class DamagePolicies:
    """What each partition's scan does at damage (`stop` or `skip`), and what all of them skipped."""

    def __init__(self, on_damage: str = STOPS) -> None:
        self._skips = on_damage == SKIPS
        self._partitions: list[tuple[ArchivedPartition, SkipDamage]] = []

    def of(self, partition: ArchivedPartition) -> DamagePolicy:
        """For one scan of the partition."""
        if not self._skips:
            return STOP
        policy = SkipDamage()
        self._partitions.append((partition, policy))
        return policy

    @property
    def skipped(self) -> list[tuple[ArchivedPartition, LostRange]]:
        """What was passed over so far, once where several scans came to it."""
        return list(
            dict.fromkeys((partition, each) for partition, policy in self._partitions for each in policy.skipped)
        )

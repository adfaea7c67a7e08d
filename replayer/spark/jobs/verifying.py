"""A deep check of an archive by many tasks: they check chunks, the driver puts the report together."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import SparkSession

from blockgz_runtime.spark.errors import spark_errors
from index_format.keys import PartitionKeys
from index_format.marker import ChunkEntry, Marker
from replayer.read.partition import ArchivedPartition
from replayer.read.prefetch import streamed
from replayer.spark.archive_place import ArchivePlace, opened
from replayer.spark.jobs.reading import named_topics, spread
from replayer.verify.above_marker import AboveMarker, list_above, look_above
from replayer.verify.chunk_checks import ChunkChoice, ChunkFindings, Depth, check_chunks
from replayer.verify.findings import ArchiveReport, PartitionReport
from replayer.verify.partition import ChunkChain, assembled, chosen_chunks, open_to_verify, read_chain
from replayer.verify.survey import Survey, survey


class ChunkSlice(NamedTuple):
    """Chunks of one partition that a task checks; `home` is the number of the partition's subject."""

    home: int
    number: int
    keys: PartitionKeys
    marker: Marker
    """Without its chain: tasks get their chunks."""
    entries: tuple[ChunkEntry, ...]


@dataclass(frozen=True)
class Subject:
    """A partition under verification: what the driver knows of it, or already the report where there is no more."""

    topic: str
    partition: ArchivedPartition
    chain: ChunkChain
    above: AboveMarker


@dataclass(frozen=True)
class VerificationPlan:
    """What is to be checked."""

    survey: Survey
    subjects: Sequence[Subject | PartitionReport]
    slices: Sequence[ChunkSlice]

    @property
    def chunks(self) -> int:
        """Chunks that tasks will check."""
        return sum(len(each.entries) for each in self.slices)

    @property
    def bytes(self) -> int:
        """Their stored bytes."""
        return sum(entry.bytes for each in self.slices for entry in each.entries)


async def planned(
    place: ArchivePlace, topics: Sequence[str], choice: ChunkChoice, task_bytes: int, *, digests: bool
) -> VerificationPlan:
    """Checks chains here, in the driver, of topics as `named_topics` takes them.

    With `digests`, a task takes all of a partition, as they are serial.
    """
    subjects: list[Subject | PartitionReport] = []
    slices: list[ChunkSlice] = []
    async with opened(place) as archive:
        named = await named_topics(archive, topics)
        found = await survey(archive, [(each.topic, each.partitions) for each in named])
        listing = await list_above(archive, found.places)
        for topic, number in found.places:
            partition = await open_to_verify(archive, topic, number)
            if isinstance(partition, PartitionReport):
                subjects.append(partition)
                continue
            chain = await read_chain(partition, choice)
            chosen = [entry async for entry in chosen_chunks(partition, chain)]
            bare = replace(partition.marker, tail=(), catalogs=())
            groups = [
                (keys, group)
                for keys, entries in _by_folder(partition, chosen)
                for group in ([tuple(entries)] if digests else _grouped(entries, task_bytes))
            ]
            slices += [ChunkSlice(len(subjects), n, keys, bare, group) for n, (keys, group) in enumerate(groups)]
            subjects.append(Subject(topic, partition, chain, await look_above(partition, listing)))
    return VerificationPlan(found, subjects, slices)


def verify(spark: SparkSession, plan: VerificationPlan, place: ArchivePlace, depth: Depth) -> ArchiveReport:
    """The report that a verification by one process makes; digests are in it where one task had a whole partition."""
    with spark_errors():
        rows = spread(spark, plan.slices, _Check(place, depth), "home INT, number INT, findings BINARY").collect()
    found = {
        (row["home"], row["number"]): msgspec.json.decode(bytes(row["findings"]), type=ChunkFindings) for row in rows
    }
    return reported(plan, found)


def reported(plan: VerificationPlan, found: Mapping[tuple[int, int], ChunkFindings]) -> ArchiveReport:
    """The report of findings by subject and number of the slice."""
    identity, _, report = plan.survey
    parts: dict[int, list[ChunkFindings]] = {}
    for each in plan.slices:
        parts.setdefault(each.home, []).append(found[each.home, each.number])
    for home, subject in enumerate(plan.subjects):
        if isinstance(subject, Subject):
            partition, chain, above = subject.partition, subject.chain, subject.above
            subject = assembled(partition, subject.topic, chain, parts[home], identity, above)  # noqa: PLW2901
        report.partitions.append(subject)
    return report


def _by_folder(
    partition: ArchivedPartition, entries: Sequence[ChunkEntry]
) -> list[tuple[PartitionKeys, list[ChunkEntry]]]:
    """Neighbours in one folder, as they stand there: a partition whose log was truncated lies in several."""
    runs = groupby(entries, partition.keys_of)
    return [(keys, [partition.as_stored(each) for each in run]) for keys, run in runs] or [(partition.keys, [])]


def _grouped(entries: Sequence[ChunkEntry], task_bytes: int) -> list[tuple[ChunkEntry, ...]]:
    """Neighbours of together at most `task_bytes`, or single chunks; one empty group of none."""
    groups: list[list[ChunkEntry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.bytes > task_bytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.bytes
    return [tuple(group) for group in groups]


@dataclass(frozen=True)
class _Check:
    """What a task does with its slice."""

    place: ArchivePlace
    depth: Depth

    def __call__(self, task: ChunkSlice) -> Iterator[pa.RecordBatch]:
        findings = msgspec.json.encode(asyncio.run(self._findings(task)))
        columns = [pa.array([task.home], pa.int32()), pa.array([task.number], pa.int32()), pa.array([findings])]
        yield pa.record_batch(columns, names=["home", "number", "findings"])

    async def _findings(self, task: ChunkSlice) -> ChunkFindings:
        async with opened(self.place) as archive:
            partition = ArchivedPartition(archive.reader, task.keys, task.marker, self.place.max_block_bytes)
            return await check_chunks(partition, streamed(task.entries), self.depth, lambda _: None)

"""A deep check of an archive by many tasks: they check chunks, the driver puts the report together."""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import SparkSession

from blockgz.archive.archive import ArchivePlace, opened
from blockgz.archive.partition import ArchivedPartition, streamed
from blockgz.spark.errors import TaskFailed, carry_errors, spark_errors
from index_format.keys import PartitionKeys
from index_format.marker import ChunkEntry, Marker
from replayer.spark.export import match_topics
from replayer.verify.above_marker import list_above, look_above
from replayer.verify.chunk_checks import ChunkChain, ChunkChoice, ChunkFindings, check_chunks, unwatched
from replayer.verify.earlier import compare_with
from replayer.verify.report import ArchiveReport, Depth, PartitionFindings, StoredReport
from replayer.verify.verifying import Identity, assembled, chosen_chunks, open_to_verify, read_chain, survey

# Chunks of a task at most, which are sent to it: about 2 MB.
TASK_CHUNKS = 5_000


class ChunkSlice(NamedTuple):
    """Chunks of one partition that a task checks; `home` is the number of the partition's subject."""

    home: int
    number: int
    keys: PartitionKeys
    marker: Marker
    """Without its chain, where tasks get their chunks."""
    entries: tuple[ChunkEntry, ...]
    chunks: int
    bytes: int
    choice: ChunkChoice | None = None
    """The choice of a task that takes all of a partition: it reads the chain and chooses its chunks itself."""


@dataclass(frozen=True)
class Subject:
    """A partition under verification, as the driver knows it."""

    topic: str
    partition: ArchivedPartition
    chain: ChunkChain
    above: ChunkFindings


@dataclass(frozen=True)
class VerificationPlan:
    identity: Identity
    report: ArchiveReport
    subjects: Sequence[Subject | PartitionFindings]
    slices: Sequence[ChunkSlice]

    @property
    def chunks(self) -> int:
        return sum(each.chunks for each in self.slices)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.slices)


async def planned(
    place: ArchivePlace,
    topics: Sequence[str],
    choice: ChunkChoice,
    task_bytes: int,
    *,
    digests: bool,
    expected: Sequence[str] = (),
    earlier: StoredReport | None = None,
) -> VerificationPlan:
    """Check chains of topics (see `match_topics`) and compare with an earlier report; return the remaining work.

    The `expected` topics must not be empty. With `digests`, a task takes all of a partition, as they are
    serial.
    """
    subjects: list[Subject | PartitionFindings] = []
    slices: list[ChunkSlice] = []
    async with opened(place) as archive:
        named = await match_topics(archive, topics)
        identity, places, report = await survey(archive, [(each.topic, each.partitions) for each in named], expected)
        if earlier is not None:
            witness = await match_topics(archive, topics, {each.folder.topic for each in earlier.partitions})
            report.since_report = await compare_with(archive, identity.archive_id, earlier, witness)
        listing = await list_above(archive, places, chunks=not choice.takes_all)
        for topic, number in places:
            partition = await open_to_verify(archive, topic, number)
            if isinstance(partition, PartitionFindings):
                subjects.append(partition)
                continue
            chain = await read_chain(partition, choice)
            if digests and choice.takes_all and len(partition.folders) == 1:
                slices.append(await _whole(len(subjects), partition, chain))
            else:
                chosen = [entry async for entry in chosen_chunks(partition, chain, listing=listing)]
                chosen = sorted([*chosen, *chain.unlisted], key=lambda entry: entry.start_offset)
                slices += _slices(len(subjects), partition, chosen, None if digests else task_bytes)
            subjects.append(Subject(topic, partition, chain, await look_above(partition, listing)))
    return VerificationPlan(identity, report, subjects, slices)


def verify(spark: SparkSession, plan: VerificationPlan, place: ArchivePlace, depth: Depth) -> ArchiveReport:
    """Return the report of one process's verification; it has a digest if one task had the whole partition."""
    found = {}
    with spark_errors():
        if plan.slices:  # each task is sent its own slice alone
            slices = spark.sparkContext.parallelize(plan.slices, len(plan.slices))
            for home, number, findings in slices.map(partial(check_slice, place, depth)).collect():
                found[home, number] = msgspec.json.decode(findings, type=ChunkFindings)
        return reported(plan, found)


def reported(plan: VerificationPlan, found: Mapping[tuple[int, int], ChunkFindings]) -> ArchiveReport:
    """Return the report of findings by subject and number of the slice."""
    parts: dict[int, list[ChunkFindings]] = {}
    for each in plan.slices:
        parts.setdefault(each.home, []).append(found[each.home, each.number])
    for home, subject in enumerate(plan.subjects):
        if isinstance(subject, Subject):
            partition, chain, above = subject.partition, subject.chain, subject.above
            subject = assembled(partition, subject.topic, chain, parts[home], plan.identity, above)  # noqa: PLW2901
        plan.report.partitions.append(subject)
    return plan.report


async def _whole(home: int, partition: ArchivedPartition, chain: ChunkChain) -> ChunkSlice:
    """Return all of a partition as one task, regardless of its number of chunks."""
    sizes = array("q", [entry.bytes async for entry in chosen_chunks(partition, chain)])
    return ChunkSlice(home, 0, partition.keys, partition.marker, (), len(sizes), sum(sizes), chain.choice)


def _slices(
    home: int, partition: ArchivedPartition, chosen: Sequence[ChunkEntry], task_bytes: int | None
) -> list[ChunkSlice]:
    bare = replace(partition.marker, tail=(), catalogs=())
    groups = [
        (keys, group)
        for keys, entries in _by_folder(partition, chosen)
        for group in ([tuple(entries)] if task_bytes is None else _grouped(entries, task_bytes))
    ]
    return [
        ChunkSlice(home, number, keys, bare, group, len(group), sum(entry.bytes for entry in group))
        for number, (keys, group) in enumerate(groups)
    ]


def _by_folder(
    partition: ArchivedPartition, entries: Sequence[ChunkEntry]
) -> list[tuple[PartitionKeys, list[ChunkEntry]]]:
    """Group neighbours by folder, as stored there: a partition whose log was truncated has several."""
    runs = groupby(entries, partition.keys_of)
    return [(keys, [partition.as_stored(each) for each in run]) for keys, run in runs] or [(partition.keys, [])]


def _grouped(entries: Sequence[ChunkEntry], task_bytes: int) -> list[tuple[ChunkEntry, ...]]:
    """Neighbours of at most `task_bytes` and `TASK_CHUNKS`, or single chunks; one empty group of none."""
    groups: list[list[ChunkEntry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and (size + entry.bytes > task_bytes or len(groups[-1]) == TASK_CHUNKS):
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.bytes
    return [tuple(group) for group in groups]


def check_slice(place: ArchivePlace, depth: Depth, task: ChunkSlice) -> tuple[int, int, bytes]:
    """Check a slice in its task; return the slice's numbers, and findings as JSON."""

    async def findings() -> ChunkFindings:
        async with opened(place) as archive:
            partition = ArchivedPartition(
                archive.reader, task.keys, task.marker, place.max_block_bytes, keyring=archive.keyring
            )
            entries = streamed(task.entries)
            if task.choice is not None:
                entries = chosen_chunks(partition, await read_chain(partition, task.choice))
            return await check_chunks(partition, entries, depth, unwatched)

    with carry_errors(TaskFailed):
        return task.home, task.number, msgspec.json.encode(asyncio.run(findings()))

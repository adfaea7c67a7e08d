"""Comparing what an archive holds of a topic with a topic of a cluster: the one that was archived, or a copy."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from blockgz.archive.archive import Archive
from blockgz.archive.blocks import readable_chunks
from blockgz.archive.damage import Verdict
from blockgz.archive.partition import Chunk
from blockgz.archive.selection import Positions, Selection, chosen_entries, erased_ranges, select
from blockgz.archive.topics import TopicPartitions
from blockgz.errors import NoSuchTopic, listed
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts, Watermarks
from replayer.verify.comparison import Progress, compare_copy, compare_source, relation_of
from replayer.verify.findings import ComparisonReport, Relation

EVERYTHING = Positions()


def _unwatched(_: Sequence[Selection], __: ComparisonReport) -> AbstractAsyncContextManager[Progress]:
    return nullcontext(lambda *_: None)


async def compare_with_topic(
    archive: Archive,
    topic: TopicPartitions,
    against: str,
    properties: Mapping[str, str],
    positions: Positions = EVERYTHING,
    watched: Callable[[Sequence[Selection], ComparisonReport], AbstractAsyncContextManager[Progress]] = _unwatched,
) -> ComparisonReport:
    """Compares record by record; what the archive cannot read is in the report.

    `properties` are librdkafka's. The work is done within `watched`, which is given what is compared and the report
    that grows. Raises NoSuchTopic, NotInArchive, or what archive and cluster raise.
    """
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    facts = await asyncio.to_thread(admin.topic, against)
    if facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {against!r}",
            why=f"it has {listed(admin.topics, 'no topics')}",
            remedy="check the name and -b",
        )
    selections = await select(archive, topic.topic, topic.partitions, positions)
    newest = selections[0].partition if selections else None
    relation = relation_of(newest.topic, newest.marker.topic_id, facts) if newest else Relation.COPY
    isolation = await _isolation_level(selections, relation)
    watermarks = await asyncio.to_thread(admin.watermarks, against, range(facts.num_partitions), isolation)
    report = ComparisonReport(relation)
    if topic.partitions is None:
        report.warnings += _unarchived(selections, facts, watermarks)
    async with watched(selections, report) as advance:
        reader = await asyncio.to_thread(KafkaReader, properties, isolation)
        try:
            for selection in selections:
                bounds = watermarks.get(selection.partition.partition, Watermarks(0, 0))
                if relation is Relation.SOURCE:
                    compared = await compare_source(selection, facts, bounds, reader, advance)
                else:
                    compared = await compare_copy(selection, facts.name, bounds, reader, advance)
                report.partitions.append(compared)
        finally:
            await asyncio.to_thread(reader.close)
    if relation is Relation.COPY:
        report.warnings += _deleted(report, facts, watermarks)
        report.warnings += await _rewritten(report, selections)
    return report


async def _isolation_level(selections: Sequence[Selection], relation: Relation) -> str:
    """What the source was read with; a copy holds no transactions of the source."""
    if relation is Relation.SOURCE:
        for partition, offsets, *_ in selections:
            async for chunk in readable_chunks(partition, chosen_entries(partition, *offsets)):
                if isinstance(chunk, Chunk):
                    return chunk.index.isolation_level
    return "read_committed"


def _unarchived(selections: Sequence[Selection], facts: TopicFacts, watermarks: dict[int, Watermarks]) -> list[str]:
    archived = {selection.partition.partition for selection in selections}
    return [
        f"{facts.name}:{partition} holds records but is not in the archive"
        for partition, bounds in watermarks.items()
        if partition not in archived and bounds.end > bounds.low
    ]


async def _rewritten(report: ComparisonReport, selections: Sequence[Selection]) -> list[str]:
    """Why a copy from before may differ: the archive has pruned or erased records."""
    warnings = []
    for compared, (partition, (start, end), *_) in zip(report.partitions, selections, strict=True):
        if compared.verdict is not Verdict.FAILURE:
            continue
        if partition.floor:
            warnings.append(f"{partition} was pruned below offset {partition.floor}: an earlier copy holds more")
        if erased := sum(high - low for low, high in await erased_ranges(partition, start, end)):
            warnings.append(f"up to {erased} records of {partition} were erased: an earlier copy holds them")
    return warnings


def _deleted(report: ComparisonReport, facts: TopicFacts, watermarks: Mapping[int, Watermarks]) -> list[str]:
    """Why a copy may differ: its first records are gone."""
    lows = {number: bounds.low for number, bounds in watermarks.items() if bounds.low}
    return [
        f"{facts.name}:{each.partition} begins at offset {lows[each.partition]}: everything before was deleted"
        for each in report.partitions
        if each.verdict is Verdict.FAILURE and each.partition in lows
    ]

"""`replayer verify --against-topic`."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from operator import attrgetter

import click
import msgspec

from blockgz_runtime.errors import PARTLY_FAILED, NoSuchTopic
from blockgz_runtime.program.progress import record_progress
from blockgz_runtime.program.tables import print_table
from index_format.record_formats.json_lines import json_object
from index_format.records import Record
from replayer.cli.options.archive_options import ArchiveOptions, open_archive
from replayer.cli.report import ReportOptions, naming_what_is_left
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts, Watermarks
from replayer.read.blocks import readable_chunks
from replayer.read.partition import Chunk
from replayer.read.request import SKIPS, DamagePolicies
from replayer.read.selection import Positions, Reading, Selection, chosen_entries, select
from replayer.read.topics import TopicPartitions
from replayer.replay.plan import describe_source
from replayer.verify.comparison import compare_copy, compare_source, relation_of
from replayer.verify.findings import ComparisonReport, Relation, Verdict
from replayer.verify.report import comparison_document

SHOWN_CHARACTERS = 200


def verify_against(
    topic: TopicPartitions,
    against: str,
    positions: Positions,
    kafka: dict[str, str],
    archive: ArchiveOptions,
    report_to: ReportOptions,
    *,
    as_json: bool,
) -> int:
    """Compares, prints the report, and gives the exit code."""
    gc.freeze()
    report = asyncio.run(_compare(topic, against, positions, kafka, archive, as_json))
    document = comparison_document(report, str(archive.address), topic.topic, against)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        _print(report, topic.topic, against)
    report_to.write(document)
    return PARTLY_FAILED if report.verdict is Verdict.FAILURE else 0


async def _compare(
    topic: TopicPartitions,
    against: str,
    positions: Positions,
    kafka: dict[str, str],
    options: ArchiveOptions,
    as_json: bool,
) -> ComparisonReport:
    admin = await asyncio.to_thread(KafkaAdmin, kafka)
    facts = await asyncio.to_thread(admin.topic, against)
    if facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {against!r}",
            why=f"it has {', '.join(admin.topics[:10]) or 'no topics'}",
            remedy="check the name and -b",
        )
    async with open_archive(options) as archive:
        selections = await select(archive, topic.topic, topic.partitions, positions)
        newest = selections[0].partition if selections else None
        relation = relation_of(newest.topic, newest.marker.topic_id, facts) if newest else Relation.COPY
        isolation = await _isolation_level(selections, relation)
        watermarks = await asyncio.to_thread(admin.watermarks, against, range(facts.num_partitions), isolation)
        report = ComparisonReport(relation)
        if topic.partitions is None:
            report.warnings += _unarchived(selections, facts, watermarks)
        # Damage is reported where the comparison comes to it.
        reading = Reading(on_damage=DamagePolicies(SKIPS).of)
        total = sum([(await describe_source(selection, reading)).records for selection in selections])
        reader = await asyncio.to_thread(KafkaReader, kafka, isolation)
        try:
            names = [f"{each.partition.topic}:{each.partition.partition}" for each in selections]
            with (
                naming_what_is_left(names, lambda: len(report.partitions)),
                record_progress("comparing", total, as_json=as_json) as advance,
            ):
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
    return report


async def _isolation_level(selections: Sequence[Selection], relation: Relation) -> str:
    """What the source was read with; a copy holds no transactions of the source."""
    if relation is Relation.SOURCE:
        for partition, offsets in selections:
            async for chunk in readable_chunks(partition, chosen_entries(partition, *offsets)):
                if isinstance(chunk, Chunk):
                    return chunk.index.isolation_level
    return "read_committed"


def _unarchived(selections: Sequence[Selection], facts: TopicFacts, watermarks: dict[int, Watermarks]) -> list[str]:
    archived = {selection.partition.partition for selection in selections}
    return [
        f"{facts.name}:{partition} holds records and is not in the archive"
        for partition, bounds in watermarks.items()
        if partition not in archived and bounds.end > bounds.low
    ]


def _deleted(report: ComparisonReport, facts: TopicFacts, watermarks: Mapping[int, Watermarks]) -> list[str]:
    """Why a copy may differ: its first records are gone."""
    lows = {number: bounds.low for number, bounds in watermarks.items() if bounds.low}
    return [
        f"{facts.name}:{each.partition} begins at offset {lows[each.partition]}: what stood before was deleted"
        for each in report.partitions
        if each.verdict is Verdict.FAILURE and each.partition in lows
    ]


def _print(report: ComparisonReport, topic: str, against: str) -> None:
    columns = ("PARTITION", "VERDICT", "EQUAL", "ARCHIVED", "FOUND", "DIFFERENT", "MISSING", "EXTRA")
    figures = attrgetter("partition", "verdict.value", "records", "archived", "found", "differing", "missing", "extra")
    rows = [figures(each) for each in report.partitions]
    what = "the topic that was archived" if report.relation is Relation.SOURCE else "a copy"
    print_table(columns, rows, title=f"archive of {topic} against topic {against}, {what}")
    for each in report.partitions:
        for excused in each.excused:
            click.echo(f"WARNING {topic}:{each.partition} [{excused.start}..{excused.end}): {excused.reason}")
        for start, end, reason in each.lost:
            click.echo(f"FAILURE {topic}:{each.partition} [{start}..{end}): the archive cannot read them: {reason}")
        for name, count, runs in (
            ("missing", each.missing, each.missing_offsets),
            ("extra", each.extra, each.extra_offsets),
        ):
            if count:
                where = ", ".join(f"[{start}..{end})" for start, end in runs)
                click.echo(f"FAILURE partition {each.partition}: {count} records {name} at offsets {where}")
        if each.not_archived_yet is not None:
            new = "[{}..{})".format(*each.not_archived_yet)
            click.echo(f"partition {each.partition}: offsets {new} were written since and are not archived yet")
        if each.zero_timestamps:
            click.echo(f"partition {each.partition}: {each.zero_timestamps} records with timestamp 0 came with 1")
        difference = each.first_difference
        if difference is not None:
            fields = f" in {', '.join(difference.fields)}" if difference.fields else ""
            click.echo(f"FAILURE partition {each.partition}: first difference{fields}")
            click.echo(f"  archive: {_shown(difference.archived)}")
            click.echo(f"  topic:   {_shown(difference.found)}")
    for warning in report.warnings:
        click.echo(f"WARNING {warning}")
    click.echo(report.verdict.value)


def _shown(record: Record | None) -> str:
    if record is None:
        return "no such record"
    text = msgspec.json.encode(json_object(record)).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"

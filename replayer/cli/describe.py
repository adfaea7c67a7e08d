"""`replayer describe`."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import msgspec

from blockgz_runtime.program.main import closing
from blockgz_runtime.program.tables import bytes_text, print_rows, print_table
from replayer.cli.ls import damaged_json, offsets_text, print_damaged, time_text
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, open_archive
from replayer.cli.options.options import format_option
from replayer.read.archive import DamagedPartition
from replayer.read.damage import Damaged
from replayer.read.partition import ArchivedPartition, summarize
from replayer.read.topics import TopicPartitions, parse_topic


@click.command(
    "describe",
    epilog=closing("replayer describe orders -a ./archive", "replayer describe orders:3 --json -a ./archive"),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@format_option()
@archive_options
def command(topic: str, form: str, archive: ArchiveOptions) -> int:
    """Show each partition of a topic: offsets, chunks, gaps, and who writes it.

    Partitions whose marker or catalogs are damaged or missing are named on stderr, and make the exit code 3.
    """
    wanted = parse_topic(topic)
    partitions, damaged = asyncio.run(_describe(archive, wanted))
    if partitions or not damaged:
        whole = {"archive": str(archive.address), "topic": wanted.topic, "partitions": partitions}
        print_rows(form, whole | {"damaged": damaged_json(damaged)}, partitions)
        if form == "table":
            _print_table(partitions)
    return print_damaged(damaged, others=bool(partitions))


def _print_table(partitions: Sequence[dict[str, Any]]) -> None:
    columns = ("PARTITION", "RECORDS", "CHUNKS", "SIZE", "OFFSETS", "FROM", "TO", "GAPS", "EPOCH", "GROUP", "WRITER")
    print_table(columns, [_row(partition) for partition in partitions])
    for partition in partitions:
        for gap in partition["gaps"]:
            click.echo(f"partition {partition['partition']}: gap {gap['from']}..{gap['to']} ({gap['reason']})")


async def _describe(
    options: ArchiveOptions, topic: TopicPartitions
) -> tuple[list[dict[str, Any]], list[DamagedPartition]]:
    descriptions: list[dict[str, Any]] = []
    async with open_archive(options) as archive:
        partitions, found = await archive.survey_topic(topic.topic, topic.partitions)
        damaged = list(found)
        for partition in partitions:
            try:
                descriptions.append(await _description(partition))
            except Damaged as error:
                damaged.append(DamagedPartition(partition.partition, error))
    return descriptions, damaged


async def _description(partition: ArchivedPartition) -> dict[str, Any]:
    marker = partition.marker
    return asdict(summarize(partition)) | {
        "gaps": msgspec.to_builtins(await partition.gaps()),
        "layout": partition.keys.layout,
        "folder": str(partition.keys.folder),
        "marker": partition.keys.marker,
        "last_chunk_index": marker.last_chunk_index,
        "catalogs": [len(level) for level in marker.catalogs],
        "archive_id": marker.archive_id,
        "topic_id": marker.topic_id,
        "group_id": marker.group_id,
        "epoch": marker.epoch,
        "writer": marker.writer,
        "leader_epoch": marker.leader_epoch,
        "successor": marker.successor,
    }


def _row(partition: dict[str, Any]) -> tuple[str | int, ...]:
    return (
        partition["partition"],
        partition["records"],
        partition["chunks"],
        bytes_text(partition["bytes"]),
        offsets_text(partition["start_offset"], partition["next_offset"]),
        time_text(partition["min_timestamp_ms"]),
        time_text(partition["max_timestamp_ms"]),
        len(partition["gaps"]),
        partition["epoch"],
        partition["group_id"],
        partition["writer"],
    )

"""What a listing says of topics and partitions, as plain JSON values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from blockgz.archive.archive import DamagedPartition, SurveyedTopic
from blockgz.archive.partition import ArchivedPartition, summarize


def topic_document(name: str, survey: SurveyedTopic) -> dict[str, Any]:
    """What there is of one topic, and the sums and bounds over its partitions; no request."""
    partitions = [summarize(each) for each in survey.partitions]
    return {
        "topic": name,
        "records": sum(each.records for each in partitions),
        "chunks": sum(each.chunks for each in partitions),
        "bytes": sum(each.bytes for each in partitions),
        "min_timestamp_ms": known(min, [each.min_timestamp_ms for each in partitions]),
        "max_timestamp_ms": known(max, [each.max_timestamp_ms for each in partitions]),
        "partitions": msgspec.to_builtins(partitions),
        "damaged": damaged_document(survey.damaged),
    }


def known(bound: Any, numbers: Sequence[int | None]) -> int | None:
    """The `min` or `max` of the numbers that are not None; None where there are none."""
    found: int | None = bound((each for each in numbers if each is not None), default=None)
    return found


def damaged_document(damaged: Sequence[DamagedPartition]) -> list[dict[str, Any]]:
    """Partitions that cannot be opened, and why."""
    return [{"partition": each.partition, "error": each.error.reason} for each in damaged]


async def partition_document(partition: ArchivedPartition) -> dict[str, Any]:
    """What there is of a partition; reads all catalogs, which hold its older gaps. Raises as `gaps` does."""
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
        "continues": msgspec.to_builtins(marker.continues) if marker.continues else None,
    }

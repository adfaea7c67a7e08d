"""What a verification found as plain JSON values: what `--json` prints and a report file holds."""

from collections.abc import Iterable
from typing import Any

import msgspec

from index_format.record_formats.json_lines import json_object
from index_format.records import Record
from replayer.verify.comparison import ComparisonReport, PartitionComparison
from replayer.verify.findings import ArchiveReport, Damage, Digests, OffsetRun, PartitionReport
from replayer.verify.partition import Depth

Document = dict[str, Any]


def verification_document(report: ArchiveReport, address: str, depth: Depth) -> Document:
    """An archive's own state."""
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "depth": depth.name.lower(),
        "partitions": [_partition(partition) for partition in report.partitions],
        "damage": [_damage(damage) for damage in report.damage],
        "absent": [absent._asdict() for absent in report.absent],
    }


def comparison_document(report: ComparisonReport, address: str, topic: str, against: str) -> Document:
    """An archived topic against one of a cluster."""
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "against_topic": against,
        "relation": report.relation.value,
        "records": sum(each.records for each in report.partitions),
        "partitions": [_compared(each, topic) for each in report.partitions],
        "warnings": report.warnings,
    }


def _partition(report: PartitionReport) -> Document:
    return {
        "topic": report.topic,
        "partition": report.partition,
        "verdict": report.verdict.value,
        "records": report.records,
        "chunks": report.chunks,
        "checked_chunks": report.checked_chunks,
        "first_offset": report.first_offset,
        "next_offset": report.next_offset,
        "gaps": msgspec.to_builtins(report.gaps),
        "lost": [{"from": lost.start, "to": lost.end, "reason": lost.reason} for lost in report.lost],
        "readable": _runs(report.readable),
        "damage": [_damage(damage) for damage in report.damage],
        "digests": _digests(report.digests),
    }


def _compared(each: PartitionComparison, topic: str) -> Document:
    difference = each.first_difference
    return {
        "topic": topic,
        "partition": each.partition,
        "verdict": each.verdict.value,
        "records": each.records,
        "archived": each.archived,
        "found": each.found,
        "differing": each.differing,
        "missing": each.missing,
        "missing_offsets": _runs(each.missing_offsets),
        "extra": each.extra,
        "extra_offsets": _runs(each.extra_offsets),
        "zero_timestamps": each.zero_timestamps,
        "lost": [{"from": lost.start, "to": lost.end, "reason": lost.reason} for lost in each.lost],
        "excused": [{"from": e.start, "to": e.end, "reason": e.reason} for e in each.excused],
        "not_archived_yet": None if each.not_archived_yet is None else _runs([each.not_archived_yet])[0],
        "first_difference": None
        if difference is None
        else {
            "fields": difference.fields,
            "archived": _record(difference.archived),
            "found": _record(difference.found),
        },
        "digests": {"archived": _digests(each.archived_digests), "found": _digests(each.found_digests)},
    }


def _record(record: Record | None) -> Document | None:
    return None if record is None else json_object(record)


def _runs(runs: Iterable[OffsetRun]) -> list[Document]:
    return [{"from": run.start, "to": run.end} for run in runs]


def _damage(damage: Damage) -> Document:
    return {"object": damage.key, "reason": damage.reason}


def _digests(digests: Digests | None) -> Document | None:
    return None if digests is None else {"content": digests.content, "positions": digests.positions}

"""What a verification found, as plain JSON values for `--json` and report files, and as a page for people."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from blockgz.archive.damage import Damage, Verdict
from blockgz.archive.positions import OffsetRange
from index_format.record_formats.json_lines import json_object
from index_format.records import Record
from replayer.verify.chunk_checks import Depth
from replayer.verify.findings import (
    ArchiveReport,
    ComparisonReport,
    Digests,
    EarlierFindings,
    PartitionComparison,
    PartitionReport,
)

Document = dict[str, Any]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { border-bottom: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: 90%; overflow-wrap: anywhere }
.OK { color: #186a2b } .WARNING, .UNPROVED, .SAMPLED { color: #8a5a00 } .FAILURE { color: #a8071a; font-weight: bold }
"""
COUNTS = ("records", "archived", "found", "differing", "missing", "extra", "chunks", "checked_chunks")
UNUSUAL_COUNTS = ("unopened_chunks",)
"""Those that are shown only where there are any."""
WITHOUT_CONTENT = ("offset", "timestamp", "timestamp_type")
FINDINGS = ("gaps", "erased", "lost", "readable", "damage", "orphans", "excused", "missing_offsets", "extra_offsets")


def verification_document(report: ArchiveReport, address: str, depth: Depth) -> Document:
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "depth": depth.name.lower(),
        "chunks": report.chunks,
        "checked_chunks": report.checked_chunks,
        "partitions": [_partition(partition) for partition in report.partitions],
        "damage": [_damage(damage) for damage in report.damage],
        "absent": [absent._asdict() for absent in report.absent],
        "missing": [missing._asdict() for missing in report.missing],
        "unmet": report.unmet,
        "warnings": report.warnings,
        "inventory_rebuilt_ms": report.rebuilt_at,
        "archive_id": report.archive_id,
        "since_report": None if report.since_report is None else _since_report(report.since_report),
    }


def comparison_document(
    report: ComparisonReport, address: str, topic: str, against: str, *, without_content: bool = False
) -> Document:
    """See the module; `without_content` leaves keys, values and headers out."""
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "against_topic": against,
        "relation": report.relation.value,
        "records": sum(each.records for each in report.partitions),
        "partitions": [_compared(each, topic, without_content) for each in report.partitions],
        "warnings": report.warnings,
    }


def _since_report(found: EarlierFindings) -> Document:
    differences = [
        {"topic": each.topic, "partition": each.partition, "from": each.start, "to": each.end, "reason": each.reason}
        for each in found.differences
    ]
    return {
        "verdict": found.verdict.value,
        "created": found.created,
        "earlier_verdict": found.earlier_verdict,
        "partitions": found.partitions,
        "differences": differences,
        "warnings": found.warnings,
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
        "pruned_before": report.pruned_before,
        "erased": _runs(report.erased),
        "lost": [{"from": lost.start, "to": lost.end, "reason": lost.reason} for lost in report.lost],
        "readable": _runs(report.readable),
        "damage": [_damage(damage) for damage in report.damage],
        "digests": _digests(report.digests),
        "orphans": [{"object": orphan.key, "from": orphan.start, "to": orphan.end} for orphan in report.orphans],
        "incarnation": report.incarnation,
        "chain": report.chain,
        "unopened_chunks": report.unopened,
        "checked": _runs(report.checked),
    }


def _compared(each: PartitionComparison, topic: str, without_content: bool) -> Document:
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
            "archived": record_document(difference.archived, without_content=without_content),
            "found": record_document(difference.found, without_content=without_content),
        },
        "digests": {"archived": _digests(each.archived_digests), "found": _digests(each.found_digests)},
    }


def record_document(record: Record | None, *, without_content: bool) -> Document | None:
    """A record as JSON, or what there is of it without key, value and headers."""
    if record is None:
        return None
    fields = json_object(record)
    return {name: fields[name] for name in WITHOUT_CONTENT} if without_content else fields


def _runs(runs: Iterable[OffsetRange]) -> list[Document]:
    return [{"from": run.start, "to": run.end} for run in runs]


def _damage(damage: Damage) -> Document:
    return {"object": damage.key, "reason": damage.reason, "from": damage.start, "to": damage.end}


def _digests(digests: Digests | None) -> Document | None:
    return None if digests is None else {"content": digests.content, "positions": digests.positions}


def page(document: Document) -> str:
    """The page of a document, one HTML file: no scripts, no styles and no images from elsewhere."""
    verdict = document["verdict"]
    title = f"{verdict}: {document['archive']}"
    facts = [(name, value) for name, value in document.items() if not isinstance(value, list | dict)]
    partitions = document["partitions"]
    return "".join(
        [
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{STYLE}</style></head><body>",
            f'<h1>blockgz: <span class="{verdict}">{verdict}</span></h1>',
            _table((), [(name.replace("_", " "), value) for name, value in facts]),
            "<h2>Partitions</h2>",
            _partitions(partitions),
            _findings("Damaged objects above the partitions", document.get("damage", [])),
            _findings("Partitions that were archived but are gone", document.get("missing", [])),
            _findings("Expected topics that are not in the archive", document.get("unmet", [])),
            _findings("Partitions that are not in the archive", document.get("absent", [])),
            _findings("Warnings", document.get("warnings", [])),
            _findings(
                "Differences from the earlier report", (document.get("since_report") or {}).get("differences", [])
            ),
            *(_details(partition) for partition in partitions),
            "</body></html>\n",
        ]
    )


def _partitions(partitions: Sequence[Document]) -> str:
    counts = [name for name in COUNTS if partitions and name in partitions[0]]
    counts += [name for name in UNUSUAL_COUNTS if any(each.get(name) for each in partitions)]
    columns = ["partition", "verdict", *counts]
    rows = [[_place(each), each["verdict"], *(each[name] for name in counts)] for each in partitions]
    return _table([name.replace("_", " ") for name in columns], rows)


def _details(partition: Document) -> str:
    parts = [_findings(name.replace("_", " "), partition.get(name, [])) for name in FINDINGS]
    difference = partition.get("first_difference")
    if difference is not None:
        parts.append(_table((), [("first difference: " + name, value) for name, value in difference.items()]))
    digests = partition.get("digests")
    if digests is not None:
        parts.append(_table((), list(_flat("digest", digests))))
    body = "".join(parts)
    return f"<h2>{escape(_place(partition))}</h2>{body}" if body else ""


def _findings(title: str, findings: Sequence[Any]) -> str:
    if not findings:
        return ""
    rows = [list(each.values()) if isinstance(each, dict) else [each] for each in findings]
    columns = list(findings[0]) if isinstance(findings[0], dict) else []
    return f"<h3>{escape(title)}</h3>{_table(columns, rows)}"


def _flat(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{name} {key}", below)
    else:
        yield name, value


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td>-</td>"
    if isinstance(value, int | float):
        return f'<td class="number">{value:,}</td>'
    text = escape(str(value))
    if text in Verdict.__members__:
        return f'<td class="{text}">{text}</td>'
    return f"<td><code>{text}</code></td>" if len(text) == 64 or text.startswith("{") else f"<td>{text}</td>"


def _place(partition: Document) -> str:
    return f"{partition['topic']}:{partition['partition']}"

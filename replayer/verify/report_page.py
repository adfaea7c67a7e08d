"""A report as a page for people: one HTML file without scripts, styles or images from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from replayer.verify.report import Document

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; width: 100% }
th, td { border-bottom: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: 90%; overflow-wrap: anywhere }
.OK { color: #186a2b } .WARNING { color: #8a5a00 } .FAILURE { color: #a8071a; font-weight: bold }
"""
COUNTS = ("records", "archived", "found", "differing", "missing", "extra", "chunks", "checked_chunks")
FINDINGS = ("gaps", "lost", "readable", "damage", "excused", "missing_offsets", "extra_offsets")


def page(document: Document) -> str:
    """The page of a document of a verification or a comparison, with what the report file adds to it."""
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
            _findings("Partitions that are not in the archive", document.get("absent", [])),
            _findings("Warnings", document.get("warnings", [])),
            *(_details(partition) for partition in partitions),
            "</body></html>\n",
        ]
    )


def _partitions(partitions: Sequence[Document]) -> str:
    counts = [name for name in COUNTS if partitions and name in partitions[0]]
    columns = ["partition", "verdict", *counts]
    rows = [[_place(each), each["verdict"], *(each[name] for name in counts)] for each in partitions]
    return _table([name.replace("_", " ") for name in columns], rows)


def _details(partition: Document) -> str:
    """What was found of one partition beyond its counts."""
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
    if text in ("OK", "WARNING", "FAILURE"):
        return f'<td class="{text}">{text}</td>'
    return f"<td><code>{text}</code></td>" if len(text) == 64 or text.startswith("{") else f"<td>{text}</td>"


def _place(partition: Document) -> str:
    return f"{partition['topic']}:{partition['partition']}"

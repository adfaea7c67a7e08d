"""Reports of verifications: as values, as JSON, as a page for people, and as files with signature files."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from blockgz.archive.inventory import MissingPartition
from blockgz.archive.partition import Damage, LostRange
from blockgz.archive.positions import OffsetRange
from blockgz.atomic_file import write_private
from blockgz.errors import BlockgzError, UsageError, Verdict, worst
from blockgz.signing import signature_of, signed
from index_format.keys import TopicFolder, TopicPartition, parse_topic_folder
from index_format.objects import Erased, Gap
from index_format.record_formats import json_object
from index_format.records import Record


class Depth(IntEnum):
    """The depth of a check: each level includes those before."""

    STRUCTURE = 0
    """Chain, catalogs, indexes, and the sizes of data objects."""
    BLOCKS = 1
    """All data: checksums of objects and blocks, counts of records."""
    RECORDS = 2
    """Every record is decoded."""


class Orphan(NamedTuple):
    """An object above the end of a chain that no marker leads to: left by a writer that is running, or that died."""

    key: str
    start: int
    end: int | None
    """End of the offsets [start, end) that it holds; None if only its name is known."""


@dataclass(frozen=True)
class Digests:
    """The digests of all records of a partition: see index_format.records."""

    content: str
    positions: str


@dataclass
class PartitionFindings:
    """The findings in one partition.

    `records` are those that can be read, as far as was checked; `checked_chunks` of the `chunks` were.
    """

    topic: str
    partition: int
    records: int = 0
    chunks: int = 0
    checked_chunks: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    gaps: Sequence[Gap] = ()
    """Without those of erased records, and mere holes."""
    pruned_before: int | None = None
    """The floor, below which nothing is kept; None if nothing was pruned."""
    erased: list[OffsetRange] = field(default_factory=list)
    """Offsets whose records were erased, as far as was checked: in order and apart."""
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    digests: Digests | None = None
    """None unless every record was decoded."""
    orphans: list[Orphan] = field(default_factory=list)
    """The objects above the marker, which are not a fault."""
    incarnation: int | None = None
    chain: str | None = None
    """The digest of the chain, see `replayer.verify.chunk_checks.ChainDigest`; None where not all of it can be read."""
    checked: list[OffsetRange] = field(default_factory=list)
    """The offsets of the chunks that were checked, in order and apart."""
    unopened_chunks: int = 0
    """Encrypted chunks whose contents should have been checked, and were not because their keys are missing."""
    unopened: list[LostRange] = field(default_factory=list)
    """Their offsets, with the ids of the keys."""

    @property
    def verdict(self) -> Verdict:
        if self.lost or self.damage:
            return Verdict.FAILURE
        if self.gaps or self.unopened_chunks:
            return Verdict.WARNING
        return Verdict.OK if self.checked_chunks == self.chunks else Verdict.SAMPLED

    @property
    def readable(self) -> list[OffsetRange]:
        """The offsets, holes among them, that are neither lost nor in a gap."""
        if self.first_offset is None or self.next_offset is None:
            return []
        taken = sorted([(lost.start, lost.end) for lost in self.lost] + [(gap.start, gap.end) for gap in self.gaps])
        runs, position = [], self.first_offset
        for start, end in [*taken, (self.next_offset, self.next_offset)]:
            if min(start, self.next_offset) > position:
                runs.append(OffsetRange(position, min(start, self.next_offset)))
            position = max(position, end)
        return runs


class EarlierDifference(NamedTuple):
    """A partition whose state in an earlier report, offsets [start, end), is not the beginning of what it is now."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


@dataclass
class EarlierFindings:
    """The findings of a comparison with an earlier report; `partitions` is the number of compared ones."""

    created: str
    earlier_verdict: Verdict
    """The report's own: of what it had not read, the comparison says that it is the same, not that it is right."""
    partitions: int = 0
    differences: list[EarlierDifference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        failures = [Verdict.FAILURE for _ in self.differences[:1]]
        return worst(failures + [Verdict.WARNING for _ in self.warnings[:1]])


@dataclass
class ArchiveReport:
    """The findings in an archive; `damage` is that of objects above the partitions."""

    partitions: list[PartitionFindings] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    absent: list[TopicPartition] = field(default_factory=list)
    missing: list[MissingPartition] = field(default_factory=list)
    """Partitions that the inventory has and the archive has not."""
    unmet: list[str] = field(default_factory=list)
    """Topics that were demanded and of which nothing is here."""
    warnings: list[str] = field(default_factory=list)
    inventory_rebuilt_ms: int | None = None
    """When the inventory was made from a listing, in ms: what was lost before is not missed."""
    archive_id: str | None = None
    since_report: EarlierFindings | None = None

    @property
    def chunks(self) -> int:
        return sum(each.chunks for each in self.partitions)

    @property
    def checked_chunks(self) -> int:
        return sum(each.checked_chunks for each in self.partitions)

    @property
    def verdict(self) -> Verdict:
        if self.damage or self.missing or self.unmet:
            return Verdict.FAILURE
        above = [Verdict.WARNING] if self.absent or self.warnings else []
        earlier = [] if self.since_report is None else [self.since_report.verdict]
        return worst([report.verdict for report in self.partitions] + above + earlier)


class StoredRange(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """The offsets [start, end) of a range in a stored report."""

    start: int
    end: int
    reason: str = ""


class StoredDamage(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """The damage of an object, at offsets [start, end), or both, in a stored report."""

    object: str
    reason: str
    start: int | None = None
    end: int | None = None

    @property
    def text(self) -> str:
        """The object, if it is named, and its damage."""
        return f"{self.object}: {self.reason}" if self.object else self.reason


class StoredPartition(msgspec.Struct, frozen=True):
    """A partition in a stored report, perhaps of an older release: defaults replace fields that it did not have."""

    topic: str
    partition: int
    verdict: Verdict
    records: int | None = None
    chunks: int = 0
    checked_chunks: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    gaps: tuple[Gap, ...] = ()
    pruned_before: int | None = None
    erased: tuple[Erased, ...] = ()
    lost: tuple[StoredRange, ...] = ()
    damage: tuple[StoredDamage, ...] = ()
    incarnation: int | None = None
    chain: str | None = None
    checked: tuple[StoredRange, ...] | None = None

    @property
    def folder(self) -> TopicFolder:
        """The topic's incarnation; a name without a number means the first one. Raises BadName."""
        folder = parse_topic_folder(self.topic)
        return folder if self.incarnation is None else folder._replace(incarnation=self.incarnation)

    @property
    def num_checked(self) -> int:
        """The number of checked chunks: all of them before there were samples."""
        return self.chunks if self.checked_chunks is None else self.checked_chunks

    @property
    def checked_offsets(self) -> tuple[StoredRange, ...]:
        """The offsets of the checked chunks; reports of earlier releases have them only if that was all."""
        everything = (StoredRange(0, 2**63),) if self.num_checked == self.chunks else ()
        return everything if self.checked is None else self.checked

    @property
    def found(self) -> list[StoredDamage]:
        """The damage, each once: an object is left out if its lost offsets are named."""
        lost = [StoredDamage("", each.reason, each.start, each.end) for each in self.lost]
        return lost + [
            each
            for each in self.damage
            if not any(
                each.reason == one.reason
                if each.start is None or each.end is None
                else one.start < each.end and each.start < one.end
                for one in self.lost
            )
        ]


class StoredReport(msgspec.Struct, frozen=True):
    """A report of a verification or a comparison, as it was written."""

    verdict: Verdict
    created: str
    archive: str
    format: str = ""
    version: int = 0
    depth: str = "comparison"
    partitions: tuple[StoredPartition, ...] = ()
    damage: tuple[StoredDamage, ...] = ()
    warnings: tuple[str, ...] = ()
    archive_id: str | None = None

    @property
    def own_verdict(self) -> Verdict:
        """The verdict; earlier releases called a sample OK."""
        is_sample = any(each.num_checked != each.chunks for each in self.partitions)
        return worst([self.verdict, Verdict.SAMPLED] if is_sample else [self.verdict])


class Relation(Enum):
    """The relation of a topic to the archive."""

    SOURCE = "source"
    """The topic that was archived: offsets and timestamp types are compared too."""
    COPY = "copy"
    """Another one: key, value, headers and timestamp are compared, record by record in order."""


class RecordDifference(NamedTuple):
    """The first difference of a partition: both sides, None for a side without that record."""

    archived: Record | None
    found: Record | None
    fields: tuple[str, ...]
    """The columns that differ, if both sides have the record."""


@dataclass
class PartitionComparison:
    """The findings of a comparison; the numbers but `zero_timestamps` count records.

    `records` are equal on both sides; `missing` only the archive has, `extra` only the topic. Of a copy these two are
    the difference of the counts, and after a lost record those behind it count as `differing`. `zero_timestamps` are
    equal records whose timestamp 0 came as 1, the nearest that a client can send.
    """

    partition: int
    records: int = 0
    archived: int = 0
    found: int = 0
    differing: int = 0
    missing: int = 0
    extra: int = 0
    zero_timestamps: int = 0
    lost: list[LostRange] = field(default_factory=list)
    """Offsets that the archive can no longer read: nothing is known of these records."""
    excused: list[Gap] = field(default_factory=list)
    """Offsets of a source whose records one side rightly lacks."""
    first_difference: RecordDifference | None = None
    missing_offsets: list[OffsetRange] = field(default_factory=list)
    """The first ranges of missing records in the archive."""
    extra_offsets: list[OffsetRange] = field(default_factory=list)
    """The first ranges of extra records in the topic."""
    not_archived_yet: OffsetRange | None = None
    """Offsets of the source after all that is archived."""
    archived_digests: Digests | None = None
    found_digests: Digests | None = None
    """The digests of the records that were read on each side."""

    @property
    def verdict(self) -> Verdict:
        """FAILURE where the two sides differ, WARNING where something was excused."""
        if self.differing or self.missing or self.extra or self.lost:
            return Verdict.FAILURE
        return Verdict.WARNING if self.excused else Verdict.OK


@dataclass
class ComparisonReport:
    """The findings in a whole topic."""

    relation: Relation
    partitions: list[PartitionComparison] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        return worst([each.verdict for each in self.partitions] + [Verdict.WARNING for _ in self.warnings[:1]])


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
# The counts that are shown only if they are not 0.
UNUSUAL_COUNTS = ("unopened_chunks",)
WITHOUT_CONTENT = ("offset", "timestamp", "timestamp_type")
FINDINGS = (
    *("gaps", "erased", "lost", "readable", "damage", "orphans", "unopened", "excused"),
    *("missing_offsets", "extra_offsets"),
)


RENAMED = {"start": "from", "end": "to", "key": "object"}
PARTITION = (
    *("topic", "partition", "verdict", "records", "chunks", "checked_chunks", "first_offset", "next_offset", "gaps"),
    *("pruned_before", "erased", "lost", "readable", "damage", "digests", "orphans", "incarnation", "chain"),
    *("unopened_chunks", "unopened", "checked"),
)
COMPARED = (
    *("partition", "verdict", "records", "archived", "found", "differing", "missing", "missing_offsets", "extra"),
    *("extra_offsets", "zero_timestamps", "lost", "excused", "not_archived_yet"),
)


def verification_document(report: ArchiveReport, address: str, depth: Depth) -> Document:
    """Return the findings as JSON values."""
    above = ("damage", "absent", "missing", "unmet", "warnings", "inventory_rebuilt_ms", "archive_id")
    since = ("verdict", "created", "earlier_verdict", "partitions", "differences", "warnings")
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "depth": depth.name.lower(),
        "chunks": report.chunks,
        "checked_chunks": report.checked_chunks,
        "partitions": [_facts(partition, PARTITION) for partition in report.partitions],
        **_facts(report, above),
        "since_report": None if report.since_report is None else _facts(report.since_report, since),
    }


def comparison_document(
    report: ComparisonReport, address: str, topic: str, against: str, *, without_content: bool = False
) -> Document:
    """Return the findings as JSON values; `without_content` leaves keys, values and headers out."""
    return {
        "verdict": report.verdict.value,
        "archive": address,
        "against_topic": against,
        "relation": report.relation.value,
        "records": sum(each.records for each in report.partitions),
        "partitions": [_compared(each, topic, without_content) for each in report.partitions],
        "warnings": report.warnings,
    }


def _compared(each: PartitionComparison, topic: str, without_content: bool) -> Document:
    shown = None
    if (first := each.first_difference) is not None:
        sides = {"archived": first.archived, "found": first.found}
        records = {name: record_document(side, without_content=without_content) for name, side in sides.items()}
        shown = {"fields": first.fields, **records}
    digests = {"archived": _plain(each.archived_digests), "found": _plain(each.found_digests)}
    return {"topic": topic, **_facts(each, COMPARED), "first_difference": shown, "digests": digests}


def _facts(found: Any, names: Iterable[str]) -> Document:
    return {RENAMED.get(name, name): _plain(getattr(found, name)) for name in names}


def _plain(found: Any) -> Any:
    """Return a finding as JSON values: its fields in order, under the names that reports have."""
    match found:
        case Enum():
            return found.value
        case msgspec.Struct():
            return msgspec.to_builtins(found)
        case list():
            return [_plain(each) for each in found]
    names = [each.name for each in fields(found)] if is_dataclass(found) else getattr(found, "_fields", None)
    return found if names is None else _facts(found, names)


def record_document(record: Record | None, *, without_content: bool) -> Document | None:
    """Return a record as JSON, by request without key, value and headers."""
    if record is None:
        return None
    fields = json_object(record)
    return {name: fields[name] for name in WITHOUT_CONTENT} if without_content else fields


def page(document: Document) -> str:
    """Return the page of a document, one HTML file: no scripts, no styles and no images from elsewhere."""
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


FORMAT = "blockgz-report"


def created_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report, the key that signs them, and whether they leave out what records hold."""

    paths: tuple[Path, ...]
    sign_key: Path | None
    without_content: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for what could not be written after hours of verifying."""
        for path in self.paths:
            if path.suffix not in (".json", ".html"):
                raise UsageError(
                    f"{path} is not a report",
                    why="its name determines the format",
                    remedy="use a name that ends in .json or .html",
                )
            if not path.absolute().parent.is_dir():
                raise UsageError(f"{path} cannot be written", why="the folder does not exist", remedy="create it first")
            if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
                why = "it is a folder" if path.is_dir() else "its mode forbids it"
                raise UsageError(f"{path} cannot be written", why=why, remedy="name another file")
        if self.sign_key is not None:
            if not self.paths:
                raise UsageError("--sign-key has nothing to sign", remedy="add --report FILE")
            signed(b"", self.sign_key)

    def write(self, document: Document) -> None:
        """Write each report and its signature file; raise BlockgzError."""
        whole = {
            "format": FORMAT,
            "version": 1,
            "created": created_now(),
            "program": f"blockgz {version('blockgz')}",
            **document,
        }
        for path in self.paths:
            as_json = msgspec.json.format(msgspec.json.encode(whole)) + b"\n"
            body = page(whole).encode() if path.suffix == ".html" else as_json
            try:
                write_private(path, body)
                if self.sign_key is not None:
                    write_private(signature_of(path), signed(body, self.sign_key))
            except OSError as error:
                raise BlockgzError(
                    f"the report {error.filename or path} could not be written",
                    why=error.strerror or str(error),
                    remedy="the findings are on stdout",
                ) from error

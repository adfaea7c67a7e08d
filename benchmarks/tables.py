"""Tables for people, as text and as markdown. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """Cells are ready to print; the first column is left-aligned, the others are right-aligned."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_text(table: Table) -> str:
    lines = [table.head, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
    return "\n".join([table.title, *(_aligned(line, widths) for line in lines)])


def as_markdown(table: Table) -> str:
    ruler = ["---", *["---:"] * (len(table.head) - 1)]
    lines = ["| " + " | ".join(line) + " |" for line in (table.head, ruler, *table.rows)]
    return "\n".join([f"{table.title}:", "", *lines])


def costs(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """What each row cost, and where it has one, which share of its limit that is."""
    head = ("", "seconds", "records/s", "MB/s", "CPU µs/record", "peak MB", "stored", "of its limit")
    return Table(title, head, [(name, *_cost_cells(row)) for name, row in rows.items()])


def percent(share: float | None) -> str:
    """A share in whole per cent; empty for none."""
    return "" if share is None else f"{share:.0%}"


def times(ratio: float | None) -> str:
    """A ratio; empty for none."""
    return "" if ratio is None else f"{ratio:.2f}x"


def _cost_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    seconds, records, raw, stored = row["seconds"], row["records"], row["raw_bytes"], row.get("stored_bytes")
    return (
        f"{seconds:.2f}",
        f"{records / seconds:,.0f}" if records else "",
        f"{raw / 1e6 / seconds:,.0f}" if raw else "",
        f"{row['cpu_seconds'] / records * 1e6:.2f}" if records else f"{row['cpu_seconds']:.2f} s",
        f"{row['peak_bytes'] / 1e6:,.0f}",
        percent(stored / raw) if stored and raw else "",
        percent(row.get("share")),
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()

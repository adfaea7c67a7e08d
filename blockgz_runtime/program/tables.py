"""Tables and numbers for people."""

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import click
import msgspec
from rich.filesize import decimal

PIPE_WIDTH = 100_000
"""In a pipe nothing is cut off: what reads it would take the rest of a name for the name."""


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | int | None]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
    width: int | None = None,
    separator: str = "",
) -> None:
    """A table on `file`, stdout if none is given; numbers to the right, plain in a pipe.

    It is as wide as the terminal if no `width` is given. `separator` stands between thousands, "-" for None.
    """
    # Here, because what prints records gets by without them.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    out = sys.stdout if file is None else file
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows if row[number] is not None]
        numeric = bool(cells) and all(isinstance(cell, int) for cell in cells)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*("-" if cell is None else format(cell, separator * isinstance(cell, int)) for cell in row))
    if not out.isatty():
        width = PIPE_WIDTH
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(table)


def print_rows(form: str, document: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints `document` as json, or `rows` as jsonl or csv, in which lists and objects are JSON; nothing as a table."""
    match form:
        case "json":
            click.echo(msgspec.json.encode(document))
        case "jsonl":
            for row in rows:
                click.echo(msgspec.json.encode(row))
        case "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerows([list(rows[0])] if rows else [])
            writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)


def _csv_cell(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, list | tuple | dict) else value


bytes_text = decimal
"""A number of bytes in units of 1000, as text."""


def timestamp_text(timestamp: int) -> str:
    """A timestamp (ms) as RFC 3339, or its number where the calendar has no such day."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return str(timestamp)

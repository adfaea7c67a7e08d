"""Tables and numbers for people."""

import csv
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Literal, TextIO

import click
import msgspec

from blockgz import units


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | int | None]],
    *,
    droppable: Sequence[str] = (),
    title: str | None = None,
    file: TextIO | None = None,
) -> None:
    """Print a table as wide as the terminal, or 80 characters in a pipe, on `file` (default: stdout).

    If it would be wider, the `droppable` columns are left out, the first named first, and stderr names them; then texts
    wrap. Numbers are on the right, "-" is None, and no line ends in blanks.
    """
    # Here, because what prints records gets by without them.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    room = shutil.get_terminal_size().columns
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    dropped = _dropped({name: [name, *cells] for name, *cells in zip(columns, *texts, strict=True)}, droppable, room)
    kept = [number for number, column in enumerate(columns) if column not in dropped]
    table = Table(box=None, pad_edge=False)
    for number in kept:
        cells = [row[number] for row in rows if row[number] is not None]
        numeric = bool(cells) and all(isinstance(cell, int) for cell in cells)
        side: Literal["right", "left"] = "right" if numeric else "left"
        table.add_column(columns[number].upper(), justify=side, no_wrap=numeric, overflow="fold")
    for text in texts:
        table.add_row(*(text[number] for number in kept))
    drawn = StringIO()
    Console(file=drawn, width=room, color_system=None, highlight=False, markup=False, emoji=False).print(table)
    lines = [] if title is None else [title]
    lines += [line.rstrip() for line in drawn.getvalue().splitlines()]
    click.echo("\n".join(lines), file=file)
    if dropped:
        click.echo(f"columns omitted at {room} characters a line (use --json): {', '.join(dropped)}", err=True)


def _dropped(columns: Mapping[str, Sequence[str]], droppable: Sequence[str], room: int) -> Sequence[str]:
    """Return the columns to leave out, so that the others fit with two blanks between them."""
    widths = {name: max(map(len, cells)) + 2 for name, cells in columns.items()}
    there = [name for name in droppable if name in widths]
    for count in range(len(there)):
        if sum(widths.values()) - sum(widths[name] for name in there[:count]) - 2 <= room:
            return there[:count]
    return there


def print_each(kind: str, texts: Iterable[object], *, err: bool = False) -> None:
    """Print each text on a line of its own after `kind`, such as `warning: `."""
    for text in texts:
        click.echo(f"{kind}{text}", err=err)


def print_rows(form: str, document: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print `document` as json, or `rows` as jsonl or csv, in which lists and objects are JSON; nothing as a table."""
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


bytes_text = units.bytes_text


def range_text(start: int | None, end: int | None) -> str:
    """Return offsets for a table: `[0..301)`, the end excluded, or "-" for None."""
    return "-" if start is None else f"[{start}..{end})"

"""Tables and numbers for people."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

PIPE_WIDTH = 240


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | int]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
) -> None:
    """A table on `file`, stdout if none is given; numbers to the right, plain in a pipe."""
    out = sys.stdout if file is None else file
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if out.isatty() else PIPE_WIDTH
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(table)


def bytes_text(count: int) -> str:
    """A number of bytes in units of 1000."""
    return decimal(count)

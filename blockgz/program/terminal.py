"""Printing for people: tables and numbers, and terminals that obey no byte of what is printed.

Record content, names and error texts may come from anyone: on a terminal, control characters and those that change the
direction of text are shown as `\\x1b` and `\\u202e`. A pipe or a file gets every byte as it is.
"""

import csv
import re
import shutil
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedIOBase, StringIO, TextIOWrapper
from typing import Any, Literal, TextIO

import click

# All control characters except tab and line feed; direction marks, and Unicode's line ends.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text without control characters, except tabs and line feeds."""
    return _OBEYED.sub(lambda found: _shown(ord(found[0])), text)


def _shown(code: int) -> str:
    # Above ASCII as JSON does, in whose strings these may stand.
    return f"\\x{code:02x}" if code < 0x7F else f"\\u{code:04x}"


class _Escaping(BufferedIOBase):
    """The bytes below a text stream on a terminal; those that are not UTF-8 are shown as `\\xff`."""

    def __init__(self, terminal: TextIO) -> None:
        self.name = terminal.name
        self.terminal = terminal
        self.passes_all = False
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.terminal.fileno()

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        if not self.passes_all:
            text = printable(self._decoder.decode(content))
            self.terminal.buffer.write(text.encode(self.terminal.encoding, "backslashreplace"))
        else:
            self.terminal.buffer.write(content)
        return len(content)

    def flush(self) -> None:
        self.terminal.flush()


@contextmanager
def escaped_terminals() -> Iterator[None]:
    """Escape what is printed on stdout and stderr inside the block, if they are terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _escaped(sys.stdout), _escaped(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _escaped(stream: TextIO) -> TextIO:
    if not isinstance(stream, TextIOWrapper) or not stream.isatty() or _layer(stream) is not None:
        return stream
    return TextIOWrapper(_Escaping(stream), encoding="utf-8", errors="surrogateescape", line_buffering=True)


def _layer(stream: TextIO) -> _Escaping | None:
    layer = getattr(stream, "buffer", None)
    return layer if isinstance(layer, _Escaping) else None


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below, for output that may control the terminal, such as a progress bar."""
    layer = _layer(stream)
    return stream if layer is None else layer.terminal


def pass_everything() -> None:
    """Write every byte to stdout unchanged from now on, also on a terminal."""
    layer = _layer(sys.stdout)
    if layer is not None:
        layer.passes_all = True


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
    # Here, because help pages get by without it.
    from msgspec.json import encode  # noqa: PLC0415

    match form:
        case "json":
            click.echo(encode(document))
        case "jsonl":
            for row in rows:
                click.echo(encode(row))
        case "csv":
            cells = (
                [encode(x).decode() if isinstance(x, list | tuple | dict) else x for x in row.values()] for row in rows
            )
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerows([list(rows[0])] if rows else [])
            writer.writerows(cells)


def range_text(start: int | None, end: int | None) -> str:
    """Return offsets for a table: `[0..301)`, the end excluded, or "-" for None."""
    return "-" if start is None else f"[{start}..{end})"

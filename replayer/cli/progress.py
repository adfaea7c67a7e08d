"""Progress of work on records: a bar on a terminal, status lines in JSON beside `--json`, silence elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from .tables import bytes_text

STATUS_SECONDS = 2.0

Advance = Callable[[int, int], None]
"""Told how many records and bytes were done."""


class _Rates(ProgressColumn):
    """Records and bytes a second since the beginning."""

    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0.0
        if not seconds:
            return Text("")
        records, done = task.completed / seconds, task.fields["bytes"] / seconds
        return Text(f"{records:,.0f} records/s {bytes_text(int(done))}/s", style="progress.data.speed")


@contextmanager
def record_progress(what: str, total: int, *, as_json: bool) -> Iterator[Advance]:
    """Shows the progress of `what` over about `total` records, on stderr."""
    if as_json:
        yield _StatusLines(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rates(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total, bytes=0)
        num_bytes = 0

        def advance(records: int, count: int) -> None:
            nonlocal num_bytes
            num_bytes += count
            bar.update(task, advance=records, bytes=num_bytes)

        yield advance


class _StatusLines:
    """One JSON object a line, every few seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._records = self._bytes = 0
        self._began = self._told = time.monotonic()

    def __call__(self, records: int, count: int) -> None:
        self._records += records
        self._bytes += count
        now = time.monotonic()
        if now - self._told >= STATUS_SECONDS:
            self._told = now
            line = {
                "status": self._what,
                "records": self._records,
                "total_records": self._total,
                "bytes": self._bytes,
                "seconds": round(now - self._began, 3),
            }
            click.echo(msgspec.json.encode(line), err=True)

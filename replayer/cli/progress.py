"""Progress of work on records: a bar on a terminal, status lines in JSON beside `--json`, silence elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from blockgz_runtime.program.tables import bytes_text

STATUS_SECONDS = 2.0


class RecordProgress(Protocol):
    """Takes reports of long work."""

    def __call__(self, records: int, num_bytes: int) -> None:
        """So many records and bytes more were done; less, where they have to be done again."""

    def state(self, text: str) -> None:
        """What is being done now, in a word or two."""


class _Rates(ProgressColumn):
    """Records and bytes a second since the beginning."""

    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0.0
        if not seconds:
            return Text("")
        records, done = task.completed / seconds, task.fields["bytes"] / seconds
        return Text(f"{records:,.0f} records/s {bytes_text(int(done))}/s", style="progress.data.speed")


@contextmanager
def record_progress(what: str, total: int, *, as_json: bool) -> Iterator[RecordProgress]:
    """Shows the progress of `what` over about `total` records, on stderr."""
    if as_json:
        yield _StatusLines(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rates(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        yield _Bar(bar, bar.add_task(what, total=total, bytes=0))


class _Bar:
    """A bar on a terminal."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._bytes = 0

    def __call__(self, records: int, num_bytes: int) -> None:
        self._bytes += num_bytes
        self._bar.update(self._task, advance=records, bytes=self._bytes)

    def state(self, text: str) -> None:
        self._bar.update(self._task, description=text)


class _StatusLines:
    """One JSON object a line, every few seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._records = self._bytes = 0
        self._began = self._printed = time.monotonic()

    def __call__(self, records: int, num_bytes: int) -> None:
        self._records += records
        self._bytes += num_bytes
        if time.monotonic() - self._printed >= STATUS_SECONDS:
            self._print()

    def state(self, text: str) -> None:
        self._what = text
        self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        seconds = self._printed - self._began
        left = max(self._total - self._records, 0)
        line = {
            "status": self._what,
            "records": self._records,
            "total_records": self._total,
            "bytes": self._bytes,
            "seconds": round(seconds, 3),
            "eta_seconds": round(left / self._records * seconds, 3) if self._records > 0 else None,
        }
        click.echo(msgspec.json.encode(line), err=True)

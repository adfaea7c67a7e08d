"""Progress of work on records: a bar on a terminal, lines elsewhere, and JSON with `--json`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich import progress as bars
from rich.console import Console
from rich.text import Text

from blockgz.process import every
from blockgz.program.terminal import unescaped
from blockgz.units import bytes_text

STATUS_SECONDS = 2.0
# Seconds between two lines without a terminal, even if nothing changes.
PLAIN_SECONDS = 10.0


class _Rates(bars.ProgressColumn):
    """A column with records and bytes a second since the beginning."""

    def render(self, task: bars.Task) -> Text:
        seconds = task.elapsed or 0.0
        if not seconds:
            return Text("")
        records = (task.completed - task.fields["before"]) / seconds
        done = task.fields["bytes"] / seconds
        return Text(f"{records:,.0f} records/s {bytes_text(int(done))}/s", style="progress.data.speed")


class _Bar:
    """A bar on a terminal.

    Call it with the records and bytes that were done; they are negative if some have to be repeated. `state` names the
    current work in a word or two.
    """

    def __init__(self, bar: bars.Progress, task: bars.TaskID) -> None:
        self._bar, self._task = bar, task
        self._bytes = 0

    def __call__(self, records: int, num_bytes: int) -> None:
        self._bytes += num_bytes
        self._bar.update(self._task, advance=records, bytes=self._bytes)

    def expect(self, total: int | None) -> None:
        """Set the number of records to be done in all."""
        if total is not None:
            self._bar.update(self._task, total=total)

    def state(self, text: str) -> None:
        self._bar.update(self._task, description=text)


class _Counts:
    """Records and bytes so far; called as the bar."""

    def __init__(self, what: str, total: int | None, before: int) -> None:
        self.what, self._total, self._before = what, total, before
        self._records = self._bytes = 0
        self._began = time.monotonic()

    def __call__(self, records: int, num_bytes: int) -> None:
        self._records += records
        self._bytes += num_bytes

    def expect(self, total: int | None) -> None:
        self._total = total

    def state(self, text: str) -> None:
        self.what = text


class _RecordLines(_Counts):
    """Status lines as JSON."""

    def __init__(self, what: str, total: int | None, before: int) -> None:
        super().__init__(what, total, before)
        self._lines = StatusLines(what)

    def __call__(self, records: int, num_bytes: int) -> None:
        super().__call__(records, num_bytes)
        self._lines.report(self._facts)

    def state(self, text: str) -> None:
        self._lines.what = text
        self._lines.report(self._facts, at_once=True)

    def _facts(self, seconds: float) -> dict[str, Any]:
        left = None if self._total is None else max(self._total - self._records, 0)
        return {
            "records": self._before + self._records,
            "total_records": None if self._total is None else self._before + self._total,
            "bytes": self._bytes,
            "seconds": round(seconds, 3),
            "eta_seconds": round(left / self._records * seconds, 3) if left is not None and self._records > 0 else None,
        }


class _PlainLines(_Counts):
    """Lines for people."""

    def print(self) -> None:
        """Print the progress."""
        seconds = time.monotonic() - self._began
        rate = self._records / seconds
        total = "" if self._total is None else f" of about {self._before + self._total:,}"
        left = max((self._total or 0) - self._records, 0)
        ahead = f", about {left / rate:,.0f} s left" if rate > 0 and left else ""
        click.echo(
            f"{self.what}: {self._before + self._records:,}{total} records, {bytes_text(self._bytes)} in "
            f"{seconds:,.0f} s, {rate:,.0f} records/s{ahead}",
            err=True,
        )


RecordProgress = _Bar | _RecordLines | _PlainLines


@contextmanager
def record_progress(what: str, total: int | None, *, as_json: bool, before: int = 0) -> Iterator[RecordProgress]:
    """Show the progress of `what` over about `total` records, if that is known, on stderr.

    Records done `before`, by earlier runs of a job, are counted, but not in rates.
    """
    if as_json:
        yield _RecordLines(what, total, before)
        return
    if not sys.stderr.isatty():
        lines = _PlainLines(what, total, before)
        with every(PLAIN_SECONDS, lines.print):
            yield lines
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        _Rates(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True) as bar:
        whole = None if total is None else before + total
        yield _Bar(bar, bar.add_task(what, total=whole, completed=before, bytes=0, before=before))


class StatusLines:
    """Lines of JSON on stderr with what is done and its progress, every few seconds."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._began = self._printed = time.monotonic()

    def report(self, facts: Callable[[float], dict[str, Any]], *, at_once: bool = False) -> None:
        """Print the facts for the seconds since the beginning, if a line is due."""
        now = time.monotonic()
        if at_once or now - self._printed >= STATUS_SECONDS:
            self._printed = now
            click.echo(msgspec.json.encode({"status": self.what, **facts(now - self._began)}), err=True)

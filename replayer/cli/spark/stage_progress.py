"""How far Spark is, on stderr: a bar on a terminal, status lines in JSON beside `--json`, silence elsewhere."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blockgz.program.main import noting_what_is_left
from blockgz.program.progress import StatusLines
from blockgz.program.terminal import unescaped

POLL_SECONDS = 0.5


class Tasks(NamedTuple):
    """Tasks of the stages that run now."""

    done: int
    running: int
    failed: int
    total: int


@contextmanager
def stage_progress(what: str, tracker: Any, *, as_json: bool) -> Iterator[None]:
    """Shows the tasks of the stages that pyspark's StatusTracker knows while the block runs.

    Says so where a signal ends the block.
    """
    with noting_what_is_left(lambda: f"{what} ended early: run it again"):
        if not as_json and not sys.stderr.isatty():
            yield
            return
        with _tasks_shown(what, tracker, as_json=as_json):
            yield


@contextmanager
def _tasks_shown(what: str, tracker: Any, *, as_json: bool) -> Iterator[None]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True, disable=as_json) as bar:
        shown = bar.add_task(what, total=None)
        lines = StatusLines(what)

        def report(tasks: Tasks) -> None:
            bar.update(shown, completed=tasks.done, total=tasks.total or None)
            if as_json:
                lines.report(lambda seconds: {"tasks": tasks._asdict(), "seconds": round(seconds, 3)})

        ended = threading.Event()
        poll = threading.Thread(target=_poll, args=(tracker, report, ended), name="spark-progress", daemon=True)
        poll.start()
        try:
            yield
        finally:
            ended.set()
            poll.join()


def tasks_now(tracker: Any) -> Tasks:
    """The tasks of all stages that run."""
    stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
    return Tasks(
        sum(stage.numCompletedTasks for stage in stages),
        sum(stage.numActiveTasks for stage in stages),
        sum(stage.numFailedTasks for stage in stages),
        sum(stage.numTasks for stage in stages),
    )


def _poll(tracker: Any, report: Callable[[Tasks], None], ended: threading.Event) -> None:
    while not ended.wait(POLL_SECONDS):
        try:
            report(tasks_now(tracker))
        except Exception:  # the session ends, or its JVM died: the job itself will say so
            return

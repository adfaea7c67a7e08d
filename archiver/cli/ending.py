"""The bound on an end in order: a thread that waits for a store which does not answer must not keep the process."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from archiver.logs import LogEvent, log


@contextmanager
def ended_in_time(
    ending: threading.Event,
    seconds: float,
    report: Callable[[], int],
    leave: Callable[[int], object] = os._exit,
) -> Iterator[None]:
    """Once `ending` is set the block has so many seconds; then `report` gives the code that the process ends with.

    A request on the wire can be neither taken back nor waited for: with its repetitions it may take minutes. What it
    was to commit is committed or not, as after a SIGKILL, and the next owner finds out.
    """
    ended = threading.Event()

    def watch() -> None:
        ending.wait()
        if not ended.wait(seconds):
            log.warning(LogEvent.UNANSWERED, seconds=seconds)
            code = report()
            sys.stdout.flush()
            leave(code)

    threading.Thread(target=watch, name="ending", daemon=True).start()
    try:
        yield
    finally:
        ended.set()

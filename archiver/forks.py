"""Work shared out among forks of this process: they have loaded everything already, and share that memory."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How one fork ended."""

    number: int
    told: T | None
    """What it told last; None where it died before it could."""
    exit_code: int
    """Negative: the signal that killed it."""


class Forks(Generic[T]):
    """`count` forks that call `work(number, tell)`; to be made before this process has threads that hold locks.

    What signals this thread blocks they block too, until `work` can be ended in order and lets them come. Safe to be
    told to `end` from a signal handler.
    """

    def __init__(self, count: int, work: Callable[[int, Callable[[T], None]], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._forks = []
        for number in range(count):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(work, number, sending))
            process.start()
            sending.close()
            self._forks.append((process, receiving))

    def end(self) -> None:
        """Tell every fork to end in order."""
        for process, _ in self._forks:
            process.terminate()

    def ended(self) -> Iterator[Ended[T]]:
        """Waits for each in turn."""
        for number, (process, receiving) in enumerate(self._forks):
            told = None
            with suppress(EOFError):
                told = receiving.recv()
            process.join()
            yield Ended(number, told, process.exitcode or 0)


def _work(work: Callable[[int, Callable[[T], None]], None], number: int, sending: Connection) -> None:
    with sending:
        work(number, sending.send)

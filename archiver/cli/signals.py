"""SIGINT and SIGTERM: they end a run in order, and wait until it can be."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals(stop: Callable[[], None]) -> set[int]:
    """Call `stop` on either; gives the set of the signals that came. Those that were held back come now."""
    received: set[int] = set()

    def on_signal(number: int, _: FrameType | None) -> None:
        received.add(number)
        stop()

    for number in ENDING:
        signal.signal(number, on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return received


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Those that come meanwhile come afterwards; to a process that is forked meanwhile, once it stops on them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""What an operator may tell a running replay: pause, go on, end soon."""

import asyncio
import time
from typing import Protocol


class Control(Protocol):
    """Asked between portions."""

    @property
    def paused(self) -> bool:
        """Nothing may be sent for now."""

    @property
    def ending(self) -> bool:
        """Commit what was sent, and end."""

    def elapsed(self) -> float:
        """Seconds since the start, pauses left out."""

    async def wait(self, seconds: float | None) -> None:
        """Waits so long, or less if something is told meanwhile; None waits for that alone."""


class Commands:
    """The real one; `pause`, `resume` and `end` are called in the thread of the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._began = time.monotonic()
        self._paused_at: float | None = None
        self.ending = False

    @property
    def paused(self) -> bool:
        """Between `pause` and `resume`."""
        return self._paused_at is not None

    def pause(self) -> None:
        """Nothing more is sent until `resume`."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._changed.set()

    def resume(self) -> None:
        """Goes on."""
        if self._paused_at is not None:
            self._began += time.monotonic() - self._paused_at
            self._paused_at = None
            self._changed.set()

    def end(self) -> None:
        """Ends at the next boundary of a transaction."""
        self.ending = True
        self._changed.set()

    def elapsed(self) -> float:
        """Seconds since the start, pauses left out."""
        return (self._paused_at or time.monotonic()) - self._began

    async def wait(self, seconds: float | None) -> None:
        """See Control."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

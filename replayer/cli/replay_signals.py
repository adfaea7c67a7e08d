"""Signals to a running replay: SIGUSR1 pauses, SIGUSR2 goes on, SIGTERM and SIGINT end it at a commit."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import click

from replayer.cli.progress import RecordProgress
from replayer.replay.pace import Commands


class Steering:
    """What signals have told; `interrupted` is whether SIGINT came."""

    def __init__(self, commands: Commands, progress: RecordProgress) -> None:
        self._commands, self._progress = commands, progress
        self._work = asyncio.current_task()
        self.interrupted = False

    def pause(self) -> None:
        """SIGUSR1."""
        self._commands.pause()
        self._progress.state("paused")

    def resume(self) -> None:
        """SIGUSR2."""
        self._commands.resume()
        self._progress.state("replaying")

    def terminate(self) -> None:
        """SIGTERM; a second one does not wait for the commit."""
        if self._commands.ending and self._work is not None:
            self._work.cancel()
        self._commands.end()
        self._progress.state("ending")

    def interrupt(self) -> None:
        """SIGINT, as SIGTERM."""
        if not self._commands.ending:
            click.echo("ending after the next commit; interrupt again to end at once", err=True)
        self.interrupted = True
        self.terminate()


@contextmanager
def steered(commands: Commands, progress: RecordProgress) -> Iterator[Steering]:
    """While this lasts, signals to the process steer the replay of the current task."""
    steering = Steering(commands, progress)
    loop = asyncio.get_running_loop()
    handlers = {
        signal.SIGUSR1: steering.pause,
        signal.SIGUSR2: steering.resume,
        signal.SIGTERM: steering.terminate,
        signal.SIGINT: steering.interrupt,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield steering
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)

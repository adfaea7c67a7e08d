"""Where the logs of this process's partitions begin and end, asked now and then in a thread of its own."""

import threading
from collections.abc import Callable, Collection, Mapping

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_source import Partition
from archiver.logs import LogEvent, log
from index_format.errors import BlockgzError

INTERVAL_SECONDS = 30.0
FIRST_LOOK_SECONDS = 1.0
"""Until a partition is assigned it costs nothing to look for one."""

AskBounds = Callable[[Collection[Partition]], Mapping[Partition, LogBounds]]


class Watermarks:
    """The newest answers; scrapes read them and never ask."""

    def __init__(
        self, partitions: Callable[[], Collection[Partition]], ask: AskBounds, clock: Callable[[], float]
    ) -> None:
        """`partitions` gives those to ask about; `ask` answers, or leaves out what nobody answers for."""
        self._partitions = partitions
        self._ask = ask
        self._clock = clock
        self._bounds: Mapping[Partition, LogBounds] = {}
        self._asked_at: float | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watermarks", daemon=True)

    @property
    def bounds(self) -> Mapping[Partition, LogBounds]:
        """The bounds as of the last answer."""
        return self._bounds

    @property
    def age_seconds(self) -> float | None:
        """Time since the last answer; None before the first."""
        return None if self._asked_at is None else self._clock() - self._asked_at

    def start(self) -> None:
        """Ask every INTERVAL_SECONDS until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more. A question under way is not waited for: nobody reads its answer."""
        self._ending.set()

    def refresh(self) -> None:
        """Ask once. Without an answer the last ones stay, and age."""
        partitions = self._partitions()
        if not partitions:
            return
        try:
            self._bounds = self._ask(partitions)
        except BlockgzError as error:
            log.warning(LogEvent.WATERMARKS_UNKNOWN, cause=error.what, why=error.why)
            return
        if self._bounds:
            self._asked_at = self._clock()

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_SECONDS if self._bounds else FIRST_LOOK_SECONDS):
            self.refresh()

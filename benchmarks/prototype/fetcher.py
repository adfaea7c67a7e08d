"""Fetching a topic ahead: a thread for each broker that leads partitions of it, and one bounded queue for all."""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.prototype.cutting import Answer, Cut
from benchmarks.prototype.native import Native
from benchmarks.prototype.wire import FETCH, Connection, bounds, fetch_request, fetched, leaders

MOST_BYTES = 4 * 1024**2
PARTITION_BYTES = 1024**2
"""Of one answer, compressed as it is in the log."""
QUEUED = 8
"""Arrow batches that wait; each is an answer for a partition."""
Address = tuple[str, int]


class Ended(NamedTuple):
    """There is no committed record at or above `position` for now."""

    position: int


class Event(NamedTuple):
    """Something of a partition."""

    partition: int
    what: Cut | Ended


Events = queue.Queue[Event | Exception]


class TopicFetcher:
    """Partitions of one topic. All methods belong to one thread."""

    def __init__(self, native: Native, bootstrap: str, topic: str) -> None:
        """Raises OSError or ProtocolFailed where the leaders cannot be found."""
        self._native = native
        self._topic = topic
        self._leaders = leaders(bootstrap, topic)
        self._events: Events = queue.Queue(QUEUED)
        self._brokers: dict[Address, _Broker] = {}

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Of every partition: its first offset, and the one behind its last committed record."""
        found = {}
        for partition, address in self._leaders.items():
            connection = Connection(*address)
            found[partition] = bounds(connection, self._topic, partition)
            connection.close()
        return found

    def follow(self, positions: Mapping[int, int]) -> None:
        """Fetch these too, each from its position."""
        for partition, position in positions.items():
            address = self._leaders[partition]
            if address not in self._brokers:
                self._brokers[address] = _Broker(self._native, self._topic, Connection(*address), self._events)
            self._brokers[address].follow(partition, position)

    def forget(self, partition: int) -> None:
        """Fetch it no longer; what waits of it is still given."""
        if (broker := self._brokers.get(self._leaders[partition])) is not None:
            broker.forget(partition)

    def next(self, seconds: float) -> Event | None:
        """What came; None after that time. Raises what ended a broker's thread."""
        try:
            found = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End; what waits is lost."""
        for broker in self._brokers.values():
            broker.close()
        while any(broker.is_alive for broker in self._brokers.values()):
            self.next(0.01)


class _Broker:
    """One broker's thread."""

    def __init__(self, native: Native, topic: str, connection: Connection, events: Events) -> None:
        self._native = native
        self._topic = topic
        self._connection = connection
        self._events = events
        self._guard = threading.Condition()
        self._positions: dict[int, int] = {}
        self._told: dict[int, int] = {}
        """Where partitions were said to end."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def follow(self, partition: int, position: int) -> None:
        with self._guard:
            self._positions[partition] = position
            self._guard.notify()

    def forget(self, partition: int) -> None:
        with self._guard:
            self._positions.pop(partition, None)
            self._told.pop(partition, None)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._guard.notify()

    def _run(self) -> None:
        try:
            self._fetch_until_closed()
        except Exception as error:  # told to whoever waits for records
            self._events.put(error)
        finally:
            self._connection.close()

    def _fetch_until_closed(self) -> None:
        """The next request is under way while the answer before it is cut."""
        ready: list[tuple[int, Answer, int]] = []
        while (asked := self._ask()) is not None:
            self._hand_over(ready)
            answers = fetched(self._connection.answer())
            ready = [
                (partition, Answer(self._native, content, asked[partition]), end) for partition, end, content in answers
            ]
            with self._guard:
                for partition, answer, _ in ready:
                    if self._positions.get(partition) == asked[partition] < answer.next_position:
                        # Behind the others next time: the first ones fill an answer.
                        del self._positions[partition]
                        self._positions[partition] = answer.next_position

    def _ask(self) -> Mapping[int, int] | None:
        with self._guard:
            self._guard.wait_for(lambda: self._closed or self._positions)
            positions = dict(self._positions)
            if self._closed:
                return None
        self._connection.send(FETCH, fetch_request(self._topic, positions, MOST_BYTES, PARTITION_BYTES))
        return positions

    def _hand_over(self, ready: list[tuple[int, Answer, int]]) -> None:
        for partition, answer, end in ready:
            for cut in answer.cut():
                self._events.put(Event(partition, cut))
            position = answer.next_position
            if position >= end and self._told.get(partition) != position:
                self._told[partition] = position
                self._events.put(Event(partition, Ended(position)))


def drained(native: Native, bootstrap: str, topic: str) -> Iterator[tuple[int, Cut]]:
    """All records of a topic, from where each partition starts to where it ends."""
    fetcher = TopicFetcher(native, bootstrap, topic)
    ends = fetcher.bounds()
    fetcher.follow({partition: start for partition, (start, _) in ends.items()})
    while ends:
        event = fetcher.next(1)
        if event is None:
            continue
        if isinstance(event.what, Cut):
            yield event.partition, event.what
        else:
            ends.pop(event.partition, None)
    fetcher.close()

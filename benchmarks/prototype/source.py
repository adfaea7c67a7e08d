"""The archiver's consumer made of the prototype, so that the whole program can be measured with either."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from archiver.ingest.kafka_source import BATCH_FOOTPRINT, EndReached, Event, Fetched, GroupListener, Partition
from benchmarks.prototype.cutting import Cut
from benchmarks.prototype.fetcher import Ended, TopicFetcher
from benchmarks.prototype.native import Native

ROWS = 2000
"""Batches are handed on in slices of so many records, which stay in the processor's caches while they are encoded."""
POLL_SECONDS = 0.1
MOST_EVENTS = 8


class PrototypeSource:
    """`KafkaSource` of the archiver for `--once` and one topic: no group. All methods belong to one thread."""

    def __init__(self, native: Native, bootstrap: str) -> None:
        self._native = native
        self._bootstrap = bootstrap
        self._topic = ""
        self._fetcher: TopicFetcher | None = None
        self._consuming: set[Partition] = set()
        self._released: set[Partition] = set()
        self._paused: set[Partition] = set()

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        """There is no group; raises NotImplementedError."""
        raise NotImplementedError("the prototype joins no group: use --once")

    def consume(self, positions: Mapping[Partition, int]) -> None:
        """See KafkaSource."""
        for (topic, number), position in positions.items():
            if self._fetcher is None:
                self._fetcher, self._topic = TopicFetcher(self._native, self._bootstrap, topic), topic
            if topic != self._topic or (topic, number) in self._released:
                raise NotImplementedError("the prototype fetches one topic, and each partition once")
            self._fetcher.follow({number: position})
        self._consuming.update(positions)

    def release(self, partitions: Sequence[Partition]) -> None:
        """See KafkaSource."""
        for partition in self._consuming.intersection(partitions):
            self._consuming.remove(partition)
            self._paused.discard(partition)
            self._released.add(partition)
            if self._fetcher is not None:
                self._fetcher.forget(partition[1])

    def pause(self, partitions: Collection[Partition]) -> None:
        """See KafkaSource; while one partition is paused, all are: the queue is full soon, and nothing is fetched."""
        self._paused |= self._consuming.intersection(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        """See KafkaSource."""
        self._paused -= set(partitions)

    def batched(self, _: Iterable[Partition]) -> list[Event]:
        """See KafkaSource; nothing waits here."""
        return []

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Nobody is told: there is no group."""

    def poll(self) -> list[Event]:
        """See KafkaSource."""
        if self._fetcher is None or self._paused:
            time.sleep(POLL_SECONDS)
            return []
        events: list[Event] = []
        seconds = POLL_SECONDS
        while len(events) < MOST_EVENTS and (found := self._fetcher.next(seconds)) is not None:
            seconds = 0.0
            partition = (self._topic, found.partition)
            if partition in self._consuming:
                events += _events(partition, found.what)
        return events

    def close(self) -> None:
        """See KafkaSource."""
        if self._fetcher is not None:
            self._fetcher.close()


def _events(partition: Partition, what: Cut | Ended) -> Iterator[Event]:
    if isinstance(what, Ended):
        yield EndReached(partition, what.position)
        return
    for start in range(0, what.batch.num_rows, ROWS):
        part = what.batch.slice(start, ROWS)
        yield Fetched(partition, part, what.leader_epoch, part.nbytes + BATCH_FOOTPRINT)


def in_place_of_ours(native: Native) -> Callable[..., PrototypeSource]:
    """What makes a consumer when it is called as KafkaSource is."""

    def make(settings: Mapping[str, Any], *_: object) -> PrototypeSource:
        return PrototypeSource(native, settings["bootstrap.servers"])

    return make

"""Which folder of the archive a topic lives in: one incarnation for each topic id."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from archiver.commit.archive import find_incarnation
from archiver.ingest.kafka_cluster import KafkaCluster
from blockgz_runtime.errors import BrokerUnreachable
from blockgz_runtime.store.writer import Store
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder

A = TypeVar("A")


class SharedQuestions(Generic[A]):
    """One question about a thing at a time; who asks while it is on its way waits for the next one, with all others."""

    def __init__(self, ask: Callable[[str], A]) -> None:
        self._ask = ask
        self._guard = threading.Lock()
        self._next: dict[str, Future[A]] = {}
        self._on_its_way: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def answer(self, about: str) -> A:
        """What `ask` answers to a question that begins after this call; raises what it raises."""
        with self._guard:
            shared = self._next.get(about)
            if shared is None:
                mine = self._next[about] = Future()
                on_its_way = self._on_its_way[about]
        if shared is not None:
            return shared.result()
        with on_its_way:
            with self._guard:
                del self._next[about]
            try:
                mine.set_result(self._ask(about))
            except BaseException as error:
                mine.set_exception(error)
        return mine.result()


FRESH_SECONDS = 5.0
"""Many partitions of a topic are assigned at once; they share one question to the cluster."""


class TopicDirectory:
    """Answers from cluster and archive, each kept for a few seconds; safe for use by many threads."""

    def __init__(
        self, store: Store, cluster: KafkaCluster, archive: ArchiveInfo, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._archive = archive
        self._clock = clock
        self._guard = threading.Lock()
        self._known: dict[str, tuple[float, str | None, TopicFolder]] = {}
        # The answer describes all partitions of the topic; asked for each of them alone, it would cost their square.
        self._ids = SharedQuestions(lambda topic: cluster.topic_ids([topic])[topic])

    def locate(self, topic: str) -> tuple[str | None, TopicFolder]:
        """The topic's id, None where the broker does not tell it, and its folder.

        A topic that was deleted and created again gets a folder of its own. Raises the errors of store and cluster.
        """
        with self._guard:
            known = self._known.get(topic)
            if known is None or self._clock() - known[0] > FRESH_SECONDS:
                topic_id = self.current_id(topic)
                folder = find_incarnation(self._store, layout=self._archive.layout, topic=topic, topic_id=topic_id)
                known = self._known[topic] = (self._clock(), topic_id, folder)
            return known[1:]

    def is_same(self, topic: str, topic_id: str | None) -> bool:
        """Whether the topic is still the one with that id, None standing for brokers that tell none.

        Raises BrokerUnreachable where a cluster that told the id does not answer now: that is no other topic.
        """
        if topic_id is None:
            return True
        now = self.current_id(topic)
        if now is None:
            raise BrokerUnreachable(
                f"the id of topic {topic!r} cannot be read", why="the broker that told it does not answer"
            )
        return now == topic_id

    def current_id(self, topic: str) -> str | None:
        """The topic's id now, asked of the cluster."""
        return self._ids.answer(topic)

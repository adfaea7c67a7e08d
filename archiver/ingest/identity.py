"""Whether a topic is still the one that a partition was claimed of.

A topic that is deleted and created again has another id. Ids are asked for all topics at once, every few seconds and
before a commit that the last answers do not cover.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Protocol

from archiver.ingest.kafka_source import Partition
from archiver.ingest.partition_state import ArchivingState
from blockgz.kafka.admin import NOTHING_TOLD, TopicIdAnswers

ASK_SECONDS = 3.0
SILENT_SECONDS = 5.0
"""A cluster that answered nothing is not asked again for so long: commits do not wait for it one by one."""


HEARD_SECONDS = 10.0
"""A cluster that answers others and tells no ids is asked for them no more often before its silence is over."""


class Verdict(Enum):
    """What is known of a topic, compared with the one that a partition was claimed of."""

    SAME = "same"
    UNKNOWN = "unknown"
    """The cluster does not answer, tells no ids, or has no such topic now."""
    DIFFERENT = "different"


def verdict(claimed: str | None, told: str | None) -> Verdict:
    """Compares ids; where the claim knew none, there is nothing to compare and records are taken as they come."""
    if claimed is None or claimed == told:
        return Verdict.SAME
    return Verdict.UNKNOWN if told is None else Verdict.DIFFERENT


class TopicIds:
    """The ids of topics as the cluster tells them; many threads may ask, and share each question."""

    def __init__(
        self,
        ask: Callable[[Collection[str]], TopicIdAnswers],
        topics: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topics` gives those to ask about, beside the one somebody wants to know of. `ask` raises nothing."""
        self._ask = ask
        self._topics = topics
        self._clock = clock
        self._guard = threading.Lock()
        self._on_its_way = threading.Lock()
        self._next: Future[TopicIdAnswers] | None = None
        self._wanted: set[str] = set()
        self._silent_until: float | None = None
        self._heard_at = -math.inf
        self._told: dict[str, tuple[float, str]] = {}
        """Topic -> when a question began that was answered with its id, and the newest such id."""

    def told_since(self, topic: str, since: float) -> str | None:
        """The id that the newest answer named which was asked for at that time or later; asks nobody."""
        asked_at, topic_id = self._told.get(topic, (-math.inf, None))
        return topic_id if asked_at >= since else None

    def heard(self) -> None:
        """The cluster answered another question, and may answer this one: it is asked again, though not each time.

        Safe to call from any thread.
        """
        now = self._clock()
        if self._silent_until is not None and now - self._heard_at >= HEARD_SECONDS:
            self._heard_at, self._silent_until = now, None

    def now(self, topic: str) -> TopicIdAnswers:
        """The answers to a question about all topics, this one among them, that begins after the call.

        Where the cluster was silent a moment ago it is not asked, and nothing is told.
        """
        silent_until = self._silent_until
        if silent_until is not None and self._clock() < silent_until:
            return NOTHING_TOLD
        return self.asked({topic})

    def asked(self, topics: Collection[str] = ()) -> TopicIdAnswers:
        """As `now`, whether or not the cluster was silent. Callers that wait share the next question."""
        with self._guard:
            self._wanted.update(topics)
            shared, mine = self._next, None
            if shared is None:
                shared = mine = self._next = Future()
        if mine is not None:
            with self._on_its_way:
                with self._guard:
                    self._next, wanted = None, self._wanted | set(self._topics())
                    self._wanted = set()
                try:
                    mine.set_result(self._answers(wanted))
                except BaseException as error:
                    mine.set_exception(error)
        return shared.result()

    def _answers(self, topics: Collection[str]) -> TopicIdAnswers:
        if not topics:
            return NOTHING_TOLD
        asked_at = self._clock()
        answers = self._ask(topics)
        self._told |= {topic: (asked_at, topic_id) for topic, topic_id in answers.ids.items()}
        is_silent = not (answers.ids or answers.missing or answers.denied)
        self._silent_until = self._clock() + SILENT_SECONDS if is_silent else None
        return answers


class Identified(Protocol):
    """A partition that is told the id of its topic (see PartitionArchiver)."""

    @property
    def state(self) -> ArchivingState: ...
    def told(self, topic_id: str | None, fetched: int) -> None: ...


class IdWatch:
    """Tells partitions the ids of their topics every few seconds, from a thread."""

    def __init__(self, ids: TopicIds, partitions: Callable[[], Mapping[Partition, Identified]]) -> None:
        self._ids = ids
        self._partitions = partitions
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-ids", daemon=True)

    def start(self) -> None:
        """Ask every ASK_SECONDS until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more. A question under way is not waited for: nobody reads its answer."""
        self._ending.set()

    def look(self) -> None:
        """Ask once. What was fetched before the question began is of the topic that the answer names."""
        fetched = [(topic, each, each.state.fetched) for (topic, _), each in self._partitions().items()]
        if not fetched:
            return
        ids = self._ids.asked().ids
        for topic, partition, position in fetched:
            partition.told(ids.get(topic), position)

    def _run(self) -> None:
        while not self._ending.wait(ASK_SECONDS):
            self.look()

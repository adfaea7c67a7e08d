"""Ids of topics: asked for all of them at once, shared by those who wait, and told to partitions."""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.ingest.ownership import confirm_ids
from archiver.ingest.topics import SILENT_SECONDS, TopicIds, is_same_topic
from blockgz.kafka.admin import TopicIdAnswers

DEADLINE_SECONDS = 30


class Cluster:
    """Answers with the number of the question, each once it is let; says nothing where it is silent."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.asked: list[set[str]] = []
        self.is_silent = False

    def ask(self, topics: Collection[str]) -> TopicIdAnswers:
        self.asked.append(set(topics))
        number = len(self.asked)
        self.begun.release()
        assert self.let.acquire(timeout=DEADLINE_SECONDS)
        return TopicIdAnswers({} if self.is_silent else dict.fromkeys(topics, str(number)), frozenset())


def ids_of(cluster: Cluster, clock: Callable[[], float] = lambda: 0.0) -> TopicIds:
    return TopicIds(cluster.ask, lambda: {"payments"}, clock)


@pytest.mark.parametrize(
    ("claimed", "told", "expected"),
    [
        ("one", "one", True),
        ("one", "two", False),
        ("one", None, None),
        (None, None, True),
        (None, "one", True),
    ],
)
def test_topics_are_compared_by_id(claimed: str | None, told: str | None, expected: bool | None) -> None:
    assert is_same_topic(claimed, told) is expected


def test_who_asks_while_a_question_is_on_its_way_shares_the_next_one() -> None:
    cluster = Cluster()
    ids = ids_of(cluster)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ids.now, "orders")
        assert cluster.begun.acquire(timeout=DEADLINE_SECONDS)
        joined = threading.Barrier(9)

        def late() -> str:
            joined.wait(DEADLINE_SECONDS)
            return ids.now("orders").ids["orders"]

        others = [pool.submit(late) for _ in range(8)]
        joined.wait(DEADLINE_SECONDS)
        # Each of them may still be on its way into the call; a question of another round is then its own.
        cluster.let.release()
        assert first.result(DEADLINE_SECONDS).ids["orders"] == "1"
        for _ in range(8):
            cluster.let.release()
        answers = {other.result(DEADLINE_SECONDS) for other in others}
    assert "1" not in answers, "an answer older than the question"
    assert len(cluster.asked) == 1 + len(answers)
    assert cluster.asked[0] == {"orders", "payments"}, "all topics in one request"


def test_a_cluster_that_said_nothing_is_left_alone_for_a_moment() -> None:
    cluster, now = Cluster(), [0.0]
    ids = ids_of(cluster, lambda: now[0])
    cluster.is_silent = True
    cluster.let.release(10)
    assert ids.now("orders").ids == {}
    assert ids.now("orders").ids == {} and len(cluster.asked) == 1, "ten thousand commits would wait one by one"
    cluster.is_silent = False
    now[0] += SILENT_SECONDS
    assert ids.now("orders").ids["orders"] == "2"
    assert ids.now("orders").ids["orders"] == "3"


def test_a_cluster_that_spoke_meanwhile_is_asked_again() -> None:
    cluster = Cluster()
    ids = ids_of(cluster)
    cluster.is_silent = True
    cluster.let.release(10)
    assert ids.now("orders").ids == {}
    cluster.is_silent = False
    ids.heard()
    assert ids.now("orders").ids["orders"] == "2"
    cluster.is_silent = True
    assert ids.now("orders").ids == {}
    ids.heard()
    assert ids.now("orders").ids == {} and len(cluster.asked) == 3, "commits would wait each time for ids"


def test_a_look_at_nothing_does_not_make_the_cluster_answer() -> None:
    """All partitions left: their last commits would each wait for a cluster that is known to be silent."""
    asked: list[Collection[str]] = []

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        asked.append(topics)
        return TopicIdAnswers({}, frozenset())

    ids = TopicIds(ask, set, lambda: 0.0)
    ids.now("orders")
    ids.asked()
    assert ids.now("orders").ids == {} and len(asked) == 1


def test_a_failure_is_raised_and_forgotten() -> None:
    failures = iter([ConnectionError("no")])

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        for failure in failures:
            raise failure
        return TopicIdAnswers(dict.fromkeys(topics, "1"), frozenset())

    ids = TopicIds(ask, set)
    with pytest.raises(ConnectionError):
        ids.now("orders")
    assert ids.now("orders").ids == {"orders": "1"}


def test_what_is_fetched_while_the_question_is_on_its_way_is_not_confirmed() -> None:
    told: list[tuple[str | None, int]] = []
    partition: Any = SimpleNamespace(
        state=SimpleNamespace(fetched=7), told=lambda topic_id, fetched: told.append((topic_id, fetched))
    )

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        partition.state.fetched = 9
        return TopicIdAnswers({"orders": "one"}, frozenset())

    confirm_ids(TopicIds(ask, lambda: {"orders"}), {("orders", 0): partition})
    assert told == [("one", 7)]

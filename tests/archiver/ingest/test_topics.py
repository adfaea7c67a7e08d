"""Whether a topic is still the one that was claimed, as a commit is due."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from archiver.commit.commit import check_assignment
from archiver.commit.driver import Driver
from archiver.errors import AssignmentLost
from archiver.ingest.topics import TopicDirectory
from index_format.identity import ArchiveInfo
from index_format.keys import LAYOUTS, TopicFolder
from tests.support.memory_store import MemoryLog, MemoryStore

ARCHIVE = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")
KEYS = LAYOUTS["topic"](TopicFolder("orders"), 0)


class Cluster:
    """Tells the ids that it is given, one a question; None where it does not answer."""

    def __init__(self, ids: Iterator[str | None]) -> None:
        self._ids = ids

    def topic_id(self, _: str) -> str | None:
        return next(self._ids)


def check(claimed: str | None, *told: str | None) -> int:
    """How often the check that precedes a swap waited."""
    cluster: Any = Cluster(iter(told))
    topics = TopicDirectory(MemoryStore(), cluster, ARCHIVE)
    waits: list[int] = []
    wait: Callable[[int, str], None] = lambda attempt, _: waits.append(attempt)  # noqa: E731
    Driver(MemoryStore(), MemoryLog([]), wait, lambda: topics.is_same("orders", claimed)).run(check_assignment(KEYS))
    return len(waits)


def test_a_broker_that_does_not_answer_takes_no_partition_away() -> None:
    assert check("one", None, None, "one") == 2


def test_brokers_that_tell_no_ids_are_not_asked() -> None:
    assert check(None) == 0


def test_a_topic_created_anew_is_another_one() -> None:
    with pytest.raises(AssignmentLost):
        check("one", None, "two")

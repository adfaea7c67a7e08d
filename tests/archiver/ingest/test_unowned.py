"""Partitions that no member of the group has for longer than a rebalance takes."""

from collections.abc import Sequence

import pytest

from archiver.ingest.assignment import LOOKS, UnownedWatch
from archiver.ingest.kafka_cluster import assigned_partitions
from archiver.ingest.kafka_settings import rebalance_seconds
from archiver.ingest.kafka_source import Partition
from blockgz.config.model import RunConfig
from blockgz.errors import BrokerUnreachable
from tests.support.executors import Later

FIRST, SECOND = ("orders", 0), ("orders", 1)
PATIENCE = 12.0
EVERY = PATIENCE / LOOKS


class Group:
    """What a group says when it is asked: partitions that nobody has, or nothing."""

    def __init__(self) -> None:
        self.unowned: set[Partition] | None = set()
        self.asked: list[Sequence[str]] = []
        self.later = Later()
        self.watch = UnownedWatch(self._ask, self.later, PATIENCE)

    def _ask(self, topics: Sequence[str]) -> set[Partition]:
        self.asked.append(topics)
        if self.unowned is None:
            raise BrokerUnreachable("no answer")
        return self.unowned

    def look(self, now: float) -> set[Partition]:
        """Ask, and take the answer."""
        assert self.watch.look(["orders"], now) == set()
        self.later.carry_out()
        return self.watch.look(["orders"], now)


def test_a_partition_counts_as_forgotten_once_a_rebalance_would_be_over() -> None:
    group = Group()
    group.unowned = {FIRST, SECOND}
    assert group.look(1000) == set()
    group.unowned = {FIRST}  # the other was given out
    assert group.look(1000 + EVERY) == set()
    group.unowned = {FIRST, SECOND}
    assert group.look(1000 + PATIENCE - 0.1) == set()
    assert group.look(1000 + PATIENCE - 0.1 + EVERY) == {FIRST}
    assert group.look(1000 + PATIENCE - 0.1 + 2 * EVERY) == set(), "a rebalance is to give it out first"
    assert group.look(1000 + 2 * PATIENCE) == {SECOND}
    assert group.look(1000 + 3 * PATIENCE) == {FIRST, SECOND}, "and if it does not, there is another"


def test_it_is_asked_now_and_then_and_nobody_waits() -> None:
    group = Group()
    assert group.watch.look(["orders"], 1000) == set()
    assert group.watch.look(["orders"], 1000 + EVERY) == set() and len(group.later.submitted) == 1
    group.later.carry_out()
    assert group.watch.look(["orders"], 1000 + EVERY) == set() and not group.later.submitted
    assert group.watch.look(["payments"], 1000 + 2 * EVERY) == set()
    group.later.carry_out()
    assert group.asked == [["orders"], ["payments"]]


def test_no_answer_says_nothing() -> None:
    group = Group()
    group.unowned = {FIRST}
    assert group.look(1000) == set()
    group.unowned = None
    assert group.look(1000 + PATIENCE) == set()
    group.unowned = {FIRST}
    assert group.look(1000 + PATIENCE + EVERY) == {FIRST}
    group.unowned = set()
    assert group.look(1000 + 3 * PATIENCE) == set()


@pytest.mark.parametrize(("session_ms", "seconds"), [(None, 90), ("6000", 12), ("${env:SESSION}", 90)])
def test_a_rebalance_takes_sessions(session_ms: str | None, seconds: float) -> None:
    kafka = {"session.timeout.ms": session_ms} if session_ms else {}
    config = RunConfig.model_validate(
        {"archive": "./unused", "bootstrap_servers": "b:9092", "topics": ("orders",), "kafka": kafka}
    )
    assert rebalance_seconds(config) == seconds


def test_what_a_member_was_assigned() -> None:
    orders = b"\0\6orders" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\7"
    empty = "\0\3\u00fc-".encode() + b"\0\0\0\0"
    assert list(assigned_partitions(b"\0\1" + b"\0\0\0\2" + orders + empty + b"user")) == [("orders", 0), ("orders", 7)]
    assert list(assigned_partitions(b"")) == list(assigned_partitions(None)) == []

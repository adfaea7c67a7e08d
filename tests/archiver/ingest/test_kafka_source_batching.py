"""When messages are worth a batch."""

import pytest

from archiver.ingest.kafka_source import MESSAGES_WORTH_A_BATCH, SECONDS_A_PARTITION, Batching

A, B = ("orders", 0), ("orders", 1)
MANY = 1000
"""Partitions that are consumed."""


class Clock:
    """Seconds as the test sets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def batching(clock: Clock, most_bytes: int = 1_000_000) -> Batching:
    return Batching(most_bytes, clock)


def add(held: Batching, partition: tuple[str, int], count: int, size: int = 10) -> None:
    held.add(partition, range(count))
    held.count(count, count * size)


def test_a_record_of_one_of_many_partitions_waits_for_others(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 1)
    assert not held.is_due(MANY)
    clock.now += MANY * SECONDS_A_PARTITION
    assert held.is_due(MANY)
    assert held.take_all() == {A: ([0], None)}
    add(held, A, 1)
    assert not held.is_due(MANY), "the wait begins anew"


def test_with_few_partitions_nothing_waits_longer_than_a_poll(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 1)
    clock.now += 0.1
    assert held.is_due(40)


def test_batches_that_are_worth_it_wait_for_nothing(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, MESSAGES_WORTH_A_BATCH)
    assert held.is_due(MANY)
    add(held, B, 1)
    assert not held.is_due(MANY), "on the average they are not"
    add(held, B, MESSAGES_WORTH_A_BATCH)
    assert held.is_due(MANY)


def test_what_is_held_is_bounded(clock: Clock) -> None:
    held = batching(clock, most_bytes=1000)
    for number in range(9):
        add(held, ("orders", number), 1, size=100)
        assert not held.is_due(MANY)
    add(held, A, 1, size=100)
    assert held.is_due(MANY)
    assert len(held.take_all()) == 9
    add(held, A, 1, size=100)
    assert not held.is_due(MANY), "nothing of it is held any more"


def test_an_end_follows_the_messages_before_it(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 2)
    held.end(A, 2)
    held.end(B, 7)
    assert held.partitions == {A, B}
    assert held.take_all() == {A: ([0, 1], 2), B: ((), 7)}
    assert held.partitions == set()


def test_the_last_end_counts(clock: Clock) -> None:
    held = batching(clock)
    held.end(A, 5)
    add(held, A, 1)
    held.end(A, 6)
    assert held.take(A) == ([0], 6)


def test_what_left_is_forgotten(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 3)
    held.end(A, 3)
    add(held, B, 1)
    held.forget([A])
    assert held.take(A) == ((), None)
    assert held.take_all() == {B: ([0], None)}

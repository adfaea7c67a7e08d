"""The simulator of the service finds bugs that are planted, and its own parts are what they stand for."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service_simulation import virtual_time as virtual
from tests.support.service_simulation.logs import Log
from tests.support.service_simulation.planted import PLANTED, Bug, planted
from tests.support.service_simulation.schedules import Schedule, Shape
from tests.support.service_simulation.virtual_time import NOW, Host, Hub
from tests.support.service_simulation.world import simulated

MOST_SCHEDULES = 250
FOUND_AS = {
    "a loss drops what is in hand": "dropped",
    "a claim is used after another process took the partition": "strays",
    "what a client gave up on is dropped": "dropped",
    "an unreachable cluster holds commits back": "dropped",
    "the budget of what waits is not kept": "memory",
    "what was polled is forgotten as a partition leaves": "dropped",
    "a topic is left that one answer lacks": "error",
    "partitions are given up before a commit is answered": "error",
}
FIRST_SEED = {
    "a claim is used after another process took the partition": 160,
    "the budget of what waits is not kept": 20,
    "what was polled is forgotten as a partition leaves": 12,
    "a topic is left that one answer lacks": 8,
    "partitions are given up before a commit is answered": 175,
}
"""What shows rarely is looked for near a seed at which it did when it was planted; the others from 0."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    NOW.hub = Hub(random.Random(1))
    yield NOW.hub


def test_every_planted_bug_has_a_test() -> None:
    assert FOUND_AS.keys() == PLANTED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    """In a process of its own: the order in which sets are walked is part of a schedule."""
    schedules = ("--schedules", str(MOST_SCHEDULES), "--seed", str(FIRST_SEED.get(name, 0)))
    command = [sys.executable, "-m", "tests.support.campaign", "service", *schedules, "--planted", name]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"not found in {MOST_SCHEDULES} schedules: {done.stdout}{done.stderr}"
    assert re.search(rf"noticed at seed \d+: {FOUND_AS[name]}: ", done.stdout), done.stdout


def test_a_bug_whose_place_is_gone_is_reported() -> None:
    moved = Bug("archiver.ingest.topics", "is_same_topic", "no such line", "")
    with pytest.raises(ValueError, match="not the source"), planted(moved):
        pass


@pytest.mark.slow
def test_a_seed_gives_the_same_schedule() -> None:
    traces = []
    for _ in range(2):
        with simulated():
            traces.append(list(Schedule(11, Shape(3, seconds=10.0)).run().trace))
    assert traces[0] == traces[1] and len(traces[0]) > 10


class TestTime:
    def test_it_passes_in_the_order_of_waits(self, hub: Hub) -> None:
        done: list[tuple[float, str]] = []

        def work(name: str, seconds: float) -> None:
            virtual.sleep(seconds)
            done.append((round(hub.now), name))

        host = Host("a")
        for name, seconds in (("late", 50.0), ("soon", 2.0)):
            hub.spawn(host, work, name, seconds)
        hub.run(100)
        assert done == [(2, "soon"), (50, "late")] and hub.now == 100

    def test_a_lock_is_waited_for_and_told_where_it_is_held_over_a_request(self, hub: Hub) -> None:
        lock, held = virtual.Lock(), []

        def work(name: str) -> None:
            with lock:
                hub.note_request("store get")
                virtual.sleep(5)
                held.append((name, hub.now))

        for name in ("x", "y"):
            hub.spawn(Host("a"), work, name)
        hub.run(20)
        assert [round(at) for _, at in held] == [5, 10] and not hub.failures
        assert sum(hub.locks_held.values()) == 2

    def test_a_killed_host_does_nothing_more(self, hub: Hub) -> None:
        done: list[str] = []

        def work() -> None:
            try:
                virtual.sleep(10)
                done.append("woke")
            finally:
                done.append("unwound")

        host = Host("a")
        hub.spawn(host, work)
        hub.call_at(5, lambda: hub.kill(host))
        hub.run(20)
        assert done == ["unwound"] and not hub.failures

    def test_a_frozen_host_wakes_up_later(self, hub: Hub) -> None:
        woke: list[float] = []
        host = Host("a")
        hub.spawn(host, lambda: (virtual.sleep(1), woke.append(hub.now)))
        hub.call_at(0.5, lambda: hub.freeze(host, 30))
        hub.run(60)
        assert [round(at, 1) for at in woke] == [30.5]

    def test_a_pool_carries_out_so_many_at_once(self, hub: Hub) -> None:
        ended: list[Any] = []

        def work() -> None:
            pool = virtual.Pool(2)
            futures = [pool.submit(virtual.sleep, 10) for _ in range(4)]
            assert not futures[0].done()
            futures[3].result()
            ended.append(round(hub.now))
            pool.shutdown()

        hub.spawn(Host("a"), work)
        hub.run(100)
        assert ended == [20] and not hub.failures


def test_a_truncated_log_says_what_it_lost() -> None:
    log = Log("id", 0, epoch=3)
    for _ in range(5):
        log.append(0.0, 20)
    log.truncate(3)
    log.append(0.0, 20)
    assert [(entry.offset, entry.version, entry.epoch) for entry in log.entries][2:] == [(2, 0, 3), (3, 1, 4)]
    assert log.truncations == [3] and [entry.offset for entry in log.truncated] == [3, 4]

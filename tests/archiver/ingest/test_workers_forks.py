import os
import signal
import sys
from collections.abc import Callable

from archiver.ingest.workers import Ended, Forks
from blockgz.errors import AccessDenied
from blockgz.process import signals_held_back, stop_on_signals


def test_each_fork_tells_what_it_did() -> None:
    def work(number: int, tell: Callable[[tuple[int, int]], None]) -> None:
        tell((number, os.getpid()))

    first, second = Forks(2, work).ended()
    assert first.told is not None
    assert second.told is not None
    assert [first.told[0], second.told[0]] == [0, 1]
    assert len({first.told[1], second.told[1], os.getpid()}) == 3
    assert (first.exit_code, second.exit_code) == (0, 0)


def test_errors_come_over_as_they_are_and_large_reports_whole() -> None:
    def work(number: int, tell: Callable[[object], None]) -> None:
        tell(AccessDenied("no", why="because") if number else b"x" * 5_000_000)

    first, second = Forks(2, work).ended()
    assert first.told == b"x" * 5_000_000
    assert isinstance(second.told, AccessDenied)
    assert (second.told.reason, second.told.exit_code) == ("no: because", 12)


def test_those_that_died_told_nothing() -> None:
    def work(number: int, tell: Callable[[str], None]) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 1:
            sys.exit(7)
        tell("well")

    assert list(Forks(3, work).ended()) == [Ended(0, None, -9), Ended(1, None, 7), Ended(2, "well", 0)]


def test_a_signal_before_a_fork_can_hear_of_it_comes_once_it_can() -> None:
    def work(_: int, tell: Callable[[set[int]], None]) -> None:
        while signal.SIGTERM not in signal.sigpending():
            os.sched_yield()
        tell(stop_on_signals(lambda: None))

    with signals_held_back():
        forks = Forks(2, work)
        forks.end()
    assert list(forks.ended()) == [Ended(number, {signal.SIGTERM}, 0) for number in range(2)]


def test_news_on_the_way_are_heard_and_not_kept() -> None:
    def work(number: int, tell: Callable[[object], None]) -> None:
        tell(10 + number)
        if number == 0:
            tell("done")

    heard: set[tuple[int, object]] = set()

    def hear(number: int, told: object) -> bool:
        heard.add((number, told))
        return isinstance(told, int)

    assert [each.told for each in Forks[object](2, work).ended(hear)] == ["done", None]
    assert heard == {(0, 10), (0, "done"), (1, 11)}

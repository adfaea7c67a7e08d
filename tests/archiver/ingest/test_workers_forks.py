import os
import signal
import sys
from collections.abc import Callable

from archiver.ingest.workers import Forks
from blockgz.errors import AccessDenied
from blockgz.process import signals_held_back, stop_on_signals


def test_each_fork_tells_what_it_did() -> None:
    def work(number: int, tell: Callable[[tuple[int, int]], None]) -> None:
        tell((number, os.getpid()))

    (_, first, first_code), (_, second, second_code) = Forks(2, work).ended()
    assert first is not None
    assert second is not None
    assert [first[0], second[0]] == [0, 1]
    assert len({first[1], second[1], os.getpid()}) == 3
    assert (first_code, second_code) == (0, 0)


def test_errors_come_over_as_they_are_and_large_reports_whole() -> None:
    def work(number: int, tell: Callable[[object], None]) -> None:
        tell(AccessDenied("no", why="because") if number else b"x" * 5_000_000)

    (_, first, _), (_, second, _) = Forks(2, work).ended()
    assert first == b"x" * 5_000_000
    assert isinstance(second, AccessDenied)
    assert (second.reason, second.exit_code) == ("no: because", 12)


def test_those_that_died_told_nothing() -> None:
    def work(number: int, tell: Callable[[str], None]) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 1:
            sys.exit(7)
        tell("well")

    assert list(Forks(3, work).ended()) == [(0, None, -9), (1, None, 7), (2, "well", 0)]


def test_a_signal_before_a_fork_can_hear_of_it_comes_once_it_can() -> None:
    def work(_: int, tell: Callable[[set[int]], None]) -> None:
        while signal.SIGTERM not in signal.sigpending():
            os.sched_yield()
        tell(stop_on_signals(lambda: None))

    with signals_held_back():
        forks = Forks(2, work)
        forks.end()
    assert list(forks.ended()) == [(number, {signal.SIGTERM}, 0) for number in range(2)]


def test_news_on_the_way_are_heard_and_not_kept() -> None:
    def work(number: int, tell: Callable[[object], None]) -> None:
        tell(10 + number)
        if number == 0:
            tell("done")

    heard: set[tuple[int, object]] = set()

    def hear(number: int, told: object) -> bool:
        heard.add((number, told))
        return isinstance(told, int)

    assert [told for _, told, _ in Forks[object](2, work).ended(hear)] == ["done", None]
    assert heard == {(0, 10), (0, "done"), (1, 11)}

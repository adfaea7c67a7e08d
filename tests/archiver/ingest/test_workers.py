import io
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from archiver.errors import WorkerLost
from archiver.ingest.workers import WORKER_VARIABLE, Forks, Workers
from archiver.logs import log_to
from blockgz.errors import AccessDenied
from blockgz.process import signals_held_back, stop_on_signals


def worker(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


WAITING = worker("import time; time.sleep(60)")


@pytest.mark.parametrize("reason", [2, 11])
def test_what_another_start_would_only_repeat_ends_all_workers(reason: int) -> None:
    assert Workers([worker(f"raise SystemExit({reason})"), WAITING]).run() == reason


def test_workers_that_end_before_they_can_hear_of_it_have_done_nothing_wrong() -> None:
    assert Workers([worker("raise SystemExit(0)"), WAITING]).run() == 0


def test_a_hangup_is_passed_on_to_the_workers(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os, signal; signal.signal(signal.SIGHUP, lambda *_: os._exit(12)); print('ready', flush=True); "
    code += "signal.pause()"
    workers = Workers([worker(code)])
    ended = ThreadPoolExecutor(1).submit(workers.run)
    deadline = time.monotonic() + 30
    while "ready" not in capfd.readouterr().out:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers.hang_up()
    assert ended.result(30) == 12


def test_workers_know_that_they_share_a_terminal() -> None:
    code = f"import os; raise SystemExit(12 if os.environ.get({WORKER_VARIABLE!r}) == '0' else 1)"
    assert Workers([worker(code)]).run() == 12


CRASHING = "import os, sys; print('the last', 'words', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)"


def test_a_death_by_a_signal_is_reported_with_its_name_and_the_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    written = io.StringIO()
    log_to(written, level=logging.WARNING, log_format="json")
    workers = Workers([worker(CRASHING)])
    running = threading.Thread(target=workers.run)
    running.start()
    deadline = time.monotonic() + 30
    while not written.getvalue().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.01)
    workers.end()
    running.join(30)
    line = json.loads(written.getvalue().splitlines()[0])
    assert (line["event"], line["worker"], line["exit_code"]) == ("worker_died", 0, -11)
    assert (line["cause"], line["tail"]) == ("was killed by SIGSEGV", "the last words")
    assert "core dump" in line["do"]
    assert capsys.readouterr().err.startswith("the last words\n")


def test_a_lost_fork_is_reported_with_its_signal() -> None:
    lost = WorkerLost(3, -11)
    assert lost.what.startswith("worker 3 was killed by SIGSEGV") and "core dump" in lost.remedy
    assert WorkerLost(3, -64).what.startswith("worker 3 was killed by ")
    assert "out of memory" in WorkerLost(3, -9).why and "core dump" not in WorkerLost(3, 7).remedy


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

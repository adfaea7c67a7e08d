"""Whether a job runs, as its lock says it, and that asking never keeps a run from starting."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from replayer.errors import JobTakenOver
from replayer.replay.jobs.state import held, is_running, shared

LOCKS = pytest.mark.parametrize("lock", [held, shared])
Lock = Callable[[Path, str], AbstractContextManager[None]]


@LOCKS
def test_a_job_runs_as_long_as_its_lock_is_held(tmp_path: Path, lock: Lock) -> None:
    folder = tmp_path / "jobs"
    assert not is_running(folder, "a")
    assert not folder.exists()
    with lock(folder, "a"):
        assert is_running(folder, "a")
        assert is_running(folder, "a"), "asking changes nothing"
        assert not is_running(folder, "b")
    assert not is_running(folder, "a")


def test_a_lock_that_a_killed_run_left_behind_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").touch()
    assert not is_running(tmp_path, "a")
    with held(tmp_path, "a"):
        assert is_running(tmp_path, "a")


@contextmanager
def asking(folder: Path, answers: list[bool]) -> Iterator[None]:
    """Threads that ask without a pause."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(is_running(folder, "a"))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@LOCKS
def test_asking_never_keeps_a_run_from_starting(tmp_path: Path, lock: Lock) -> None:
    (tmp_path / ".a.lock").touch()
    answers: list[bool] = []
    with asking(tmp_path, answers):
        for _ in range(200):
            with lock(tmp_path, "a"):
                pass
    assert answers


def test_who_asks_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / ".a.lock").touch()
    answers: list[bool] = []
    with asking(tmp_path, answers):
        assert not any(is_running(tmp_path, "a") for _ in range(500))
    assert not any(answers)


def test_a_second_run_is_refused_still(tmp_path: Path) -> None:
    with held(tmp_path, "a"), pytest.raises(JobTakenOver, match="already running"), held(tmp_path, "a"):
        raise AssertionError("two runs")

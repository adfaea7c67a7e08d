import sys

import pytest

from archiver.ingest.workers import WORKER_VARIABLE, Workers


def worker(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


WAITING = worker("import time; time.sleep(60)")


@pytest.mark.parametrize("reason", [2, 11])
def test_what_another_start_would_only_repeat_ends_all_workers(reason: int) -> None:
    assert Workers([worker(f"raise SystemExit({reason})"), WAITING]).run() == reason


def test_workers_that_end_before_they_can_hear_of_it_have_done_nothing_wrong() -> None:
    assert Workers([worker("raise SystemExit(0)"), WAITING]).run() == 0


def test_workers_know_that_they_share_a_terminal() -> None:
    code = f"import os; raise SystemExit(12 if os.environ.get({WORKER_VARIABLE!r}) == '0' else 1)"
    assert Workers([worker(code)]).run() == 12

import sys

import pytest

from archiver.ingest.workers import Workers


def worker(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


WAITING = worker("import time; time.sleep(60)")


@pytest.mark.parametrize("reason", [2, 11])
def test_what_another_start_would_only_repeat_ends_all_workers(reason: int) -> None:
    assert Workers([worker(f"raise SystemExit({reason})"), WAITING]).run() == reason


def test_workers_that_end_before_they_can_hear_of_it_have_done_nothing_wrong() -> None:
    assert Workers([worker("raise SystemExit(0)"), WAITING]).run() == 0

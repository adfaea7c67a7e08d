import io
import json
import logging
import sys
import threading
import time

import pytest

from archiver.errors import WorkerLost
from archiver.ingest.workers import WORKER_VARIABLE, Workers
from archiver.logs import log_to


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

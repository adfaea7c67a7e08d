"""How far a run is: added up from looks at the service, and told in lines."""

import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from archiver.cli.run import LINE_SECONDS, CurrentStderr, Lines, ProgressTally, RunProgress, shown_progress, summed
from archiver.ingest.ownership import PartitionState
from archiver.logs import NAME
from archiver.monitor.snapshot import PartitionSnapshot

CLAIMING, ARCHIVING, DONE, STOPPED = (
    PartitionState.CLAIMING,
    PartitionState.ARCHIVING,
    PartitionState.DONE,
    PartitionState.STOPPED,
)
ENDS = {("orders", 0): 1000, ("orders", 1): 500}


def seen(number: int, state: PartitionState, durable: int | None = None, at: int | None = None) -> PartitionSnapshot:
    return PartitionSnapshot(
        topic="orders", partition=number, state=state, durable_offset=durable, position=at, stored_bytes=10
    )


def test_percent_is_reported_once_every_end_is_known() -> None:
    tally = ProgressTally()
    assert tally.look([], {}) == RunProgress(0, None, 0)
    assert tally.look([seen(0, CLAIMING), seen(1, CLAIMING)], ENDS).total is None
    assert tally.look([seen(0, ARCHIVING, 200, 300), seen(1, CLAIMING)], ENDS) == RunProgress(100, None, 20)
    assert tally.look([seen(0, ARCHIVING, 200, 400), seen(1, ARCHIVING, None, 0)], ENDS) == RunProgress(200, 1300, 20)
    assert tally.look([seen(0, DONE, 1000), seen(1, ARCHIVING, 100, 400)], ENDS) == RunProgress(1200, 1300, 20)
    assert tally.look([seen(0, DONE, 1000), seen(1, STOPPED, 100)], ENDS) == RunProgress(1200, 1200, 20)


def test_who_follows_has_no_end() -> None:
    assert ProgressTally().look([seen(0, ARCHIVING, 200, 300)], {}) == RunProgress(100, None, 10)


def test_percent_and_time_left() -> None:
    assert (RunProgress(250, 1000).percent, RunProgress(250, 1000).eta_seconds(10.0)) == (25.0, 30.0)
    assert (RunProgress(0, 0).percent, RunProgress(0, 1000).eta_seconds(10.0)) == (100.0, None)
    assert (RunProgress(5).percent, RunProgress(5).eta_seconds(10.0)) == (None, None)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    logger = logging.getLogger(f"{NAME}.progress")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield caplog.messages
    logger.setLevel(before)


def test_a_line_every_ten_seconds(told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    lines = Lines(lambda: now)
    expected = [(LINE_SECONDS - 1, 5, 0), (1, 6, 1), (1, 7, 1), (LINE_SECONDS - 1, 7, 2), (LINE_SECONDS, 7, 2)]
    for seconds, offsets, count in expected:
        now += seconds
        lines(RunProgress(offsets))
        assert len(caplog.messages) == count
    now += LINE_SECONDS
    lines(RunProgress(7, 9))
    assert "percent" in caplog.messages[-1], "a run that comes to an end is told of even where it hangs"


def test_the_block_is_looked_at_until_its_end() -> None:
    looked = threading.Event()

    def look() -> RunProgress:
        looked.set()
        return RunProgress()

    with shown_progress(look, lambda _: None):
        assert looked.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_workers_together() -> None:
    assert summed([RunProgress(100, 200, 5), RunProgress(50, 300, 6)]) == RunProgress(150, 500, 11)
    assert summed([RunProgress(100, 200, 5), RunProgress(50, None, 6)]) == RunProgress(150, None, 11)
    assert summed([RunProgress(100, 200, 5), RunProgress(50, None, 6).ended]) == RunProgress(150, 250, 11)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_lines_beside_a_bar_are_escaped(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    CurrentStderr().write("a\x9b31m\n")
    assert screen.getvalue() == ("a\\u009b31m\n" if is_terminal else "a\x9b31m\n")

"""Progress where there is no terminal."""

import json
import threading

import pytest

from blockgz.program import progress


def test_without_a_terminal_a_line_comes_every_few_seconds_even_while_nothing_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    printed, plain = threading.Semaphore(0), progress._PlainLines.print

    def counted(lines: progress._PlainLines) -> None:
        plain(lines)
        printed.release()

    monkeypatch.setattr(progress._PlainLines, "print", counted)
    with progress.record_progress("replaying", 100, as_json=False) as advance:
        advance(25, 2_500)
        advance.state("paused")
        assert printed.acquire(timeout=30)
        assert printed.acquire(timeout=30)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("paused: 25 of about 100 records, ")
    assert last.endswith(" s left")


def test_no_line_comes_once_the_work_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.record_progress("replaying", 100, as_json=False) as advance:
        advance(100, 1)
    assert capsys.readouterr().err == ""


def test_what_earlier_runs_did_is_counted_and_makes_no_rate_faster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STATUS_SECONDS", 0.0)
    with progress.record_progress("replaying", 15_220, as_json=True, before=4_668) as advance:
        advance(7_610, 1)
        advance(7_610, 1)
    half, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (half["records"], half["total_records"]) == (12_278, 19_888)
    assert half["eta_seconds"] == pytest.approx(half["seconds"], abs=0.002), "half of what was left is done"
    assert (last["records"], last["total_records"], last["eta_seconds"]) == (19_888, 19_888, 0)

"""Progress where there is no terminal."""

import threading

import pytest

from blockgz_runtime.program import progress


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

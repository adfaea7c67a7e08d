"""What the system tests start and wait for ends, and says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from system_test.support.environment import filled_once
from system_test.support.programs import ProgramFailedError, run, start
from system_test.support.spark_environments import DELTA, ICEBERG, ROOT
from system_test.support.waiting import DeadlineExceededError, wait_until


def test_programs_report_command_and_output() -> None:
    done = run("python", "-c", "import os; print(os.environ['WORD'])", env={"WORD": "hello"})
    assert (done.exit_code, done.stdout) == (0, "hello\n")
    with pytest.raises(ProgramFailedError, match=r"(?s)expected exit code 0, got 3.*\$ .*python.*said why"):
        run("python", "-c", "import sys; sys.exit(print('said why', file=sys.stderr) or 3)")
    assert run("python", "-c", "raise SystemExit(3)", check=None).exit_code == 3


def test_running_programs_are_awaited_and_ended() -> None:
    with start("python", "-u", "-c", "print('ready'); input_ = __import__('signal').pause()") as running:
        assert running.wait_for(lambda: "ready" in running.stdout, 30, "its word")
        assert running.terminate().exit_code == -15
    with (
        start("python", "-c", "print('gone')") as ended,
        pytest.raises(ProgramFailedError, match=r"(?s)ended with 0 before the impossible.*gone"),
    ):
        ended.wait_for(lambda: False, 30, "the impossible")


def test_an_interrupted_fill_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled_once(tmp_path / "jars", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == [".jars.lock"]
    assert (filled_once(tmp_path / "jars", lambda folder: (folder / "whole").touch()) / "whole").exists()


def test_waiting_has_an_end() -> None:
    with pytest.raises(DeadlineExceededError, match="in vain for a miracle"):
        wait_until(lambda: False, 0.02, "a miracle")


def test_recipes_name_the_versions_that_they_are_tried_with() -> None:
    page = (ROOT / "docs" / "spark-lakehouse.md").read_text()
    for name, artifact in (("delta_from_archive", DELTA), ("changes_merged", DELTA), ("iceberg_from_archive", ICEBERG)):
        command = f"spark-submit --packages {artifact[0]} {name}.py"
        assert command in page
        assert command in (ROOT / "docs" / "examples" / f"{name}.py").read_text()

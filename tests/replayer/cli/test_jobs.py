"""`replayer jobs` and `replayer jobs rm`."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from blockgz_runtime.store.local import LocalStore
from replayer.cli import main
from replayer.replay.jobs.folder import JobFolder, LaneBegin, Segment
from replayer.replay.jobs.lock import held, shared
from tests.replayer.replay.jobs.test_log import request


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "blockgz" / "jobs"


def make(place: Path, name: str) -> JobFolder:
    folder = JobFolder(LocalStore(place), name)
    folder.create(request(job=name))
    return folder


def jobs(*args: str) -> Result:
    return CliRunner().invoke(main, ["jobs", *args], prog_name="replayer")


def test_they_are_listed_with_what_counts_and_foreign_things_are_not(place: Path) -> None:
    folder = make(place, "a")
    folder.add_segment(1, 0, Segment(attempt="x", lanes={0: LaneBegin(0, 7)}))
    folder.add_segment(1, 1, Segment(attempt="x", runs=((0, 0, 10, 0, 7, 10),)))
    folder.add_segment(1, 2, Segment(attempt="x", lanes={0: LaneBegin(4, 20)}))
    folder.add_segment(1, 3, Segment(attempt="x", runs=((0, 4, 5, 0, 20, 1),)))
    make(place, "b")
    (place / ".a.lock").touch()
    (place / "not a job").mkdir()
    (place / "empty").mkdir()
    (place / "notes.txt").write_text("x")
    told = json.loads(jobs("--json").stdout)["jobs"]
    assert [(each["job"], each["records"], each["complete"]) for each in told] == [("a", 5, None), ("b", 0, None)]
    assert told[0]["source"] == "orders~1"
    assert "copy" in jobs().stdout


def test_one_that_cannot_be_read_is_named_beside_the_others(place: Path) -> None:
    make(place, "a")
    make(place, "b")
    (place / "a" / "request.json").write_text("{}")
    result = jobs("--json")
    assert result.exit_code == 3
    assert "job a cannot be read" in result.stderr
    assert [each["job"] for each in json.loads(result.stdout)["jobs"]] == ["b"]


def test_without_any_there_is_nothing_to_list_and_a_wrong_place_is_named(place: Path, tmp_path: Path) -> None:
    assert json.loads(jobs("--json").stdout) == {"jobs": []}
    assert not place.exists()
    assert "check --jobs" in jobs("--jobs", str(tmp_path / "nowhere")).stderr


def test_one_is_removed_when_that_is_agreed(place: Path) -> None:
    make(place, "a")
    make(place, "ab")
    assert jobs("rm", "a").exit_code == 2
    assert (place / "a" / "request.json").exists()
    assert jobs("rm", "a", "--yes").exit_code == 0
    assert not (place / "a" / "request.json").exists()
    assert (place / "ab" / "request.json").exists()


@pytest.mark.parametrize("lock", [held, shared])
def test_one_that_runs_is_not_removed(place: Path, lock: Callable[[Path, str], AbstractContextManager[None]]) -> None:
    make(place, "a")
    with lock(place, "a"):
        result = jobs("rm", "a", "--yes")
    assert result.exit_code == 11
    assert (place / "a" / "request.json").exists()
    assert list(place.glob(".a.lock")) == []


@pytest.mark.parametrize("name", ["..", ".", "b/../a", "nothing"])
def test_what_is_not_a_job_is_not_removed(place: Path, name: str) -> None:
    make(place, "a")
    assert jobs("rm", name, "--yes").exit_code == 2
    assert (place / "a" / "request.json").exists()


def test_two_runs_of_a_job_with_transactions_may_meet(place: Path) -> None:
    with shared(place, "a"):
        with shared(place, "a"):
            pass
        assert (place / ".a.lock").exists()
    assert not (place / ".a.lock").exists()

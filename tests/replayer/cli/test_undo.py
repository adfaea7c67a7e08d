"""`replayer undo` as a user runs it, where it refuses before it asks the cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blockgz.store.local import LocalStore
from replayer.cli import main
from replayer.replay.jobs.folder import JobFolder, JobUndone
from replayer.replay.jobs.state import held
from tests.replayer.replay.jobs.test_log import request
from tests.replayer.replay.jobs.test_undo import UNDONE
from tests.support.mock_cluster import MockCluster

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "blockgz" / "jobs"


def make(place: Path, **changes: Any) -> JobFolder:
    folder = JobFolder(LocalStore(place), "j")
    folder.create(request(**{"created": True, "target_topic_id": "id", **changes}))
    return folder


def undo(*args: str, bootstrap: str = NOWHERE) -> Result:
    return CliRunner().invoke(main, ["undo", *args, "-b", bootstrap], prog_name="replayer")


def test_what_is_no_job_is_named(place: Path) -> None:
    assert undo("--job", "j").exit_code == 2
    make(place)
    for name in ("other", "..", "x/../j"):
        result = undo("--job", name, "--yes")
        assert (result.exit_code, "there is no job" in result.stderr) == (2, True)


def test_a_topic_that_was_there_before_stays(place: Path) -> None:
    make(place, created=False)
    result = undo("--job", "j", "--yes")
    assert result.exit_code == 2
    assert "topic copy existed before the job" in result.stderr


def test_a_job_that_runs_stays(place: Path) -> None:
    make(place)
    with held(place, "j"):
        result = undo("--job", "j", "--yes")
    assert result.exit_code == 11
    assert "replayer jobs cancel j" in result.stderr


def test_a_job_is_undone_once_and_listed_as_such(place: Path) -> None:
    make(place).put(UNDONE)
    result = undo("--job", "j", "--yes")
    assert result.exit_code == 2
    assert "job j was undone" in result.stderr
    assert "replayer jobs rm j" in result.stderr
    listed = CliRunner().invoke(main, ["jobs", "--json"], prog_name="replayer")
    assert [each["state"] for each in json.loads(listed.stdout)["jobs"]] == ["undone"]


def test_a_topic_that_is_gone_is_not_looked_for_under_another_name(place: Path) -> None:
    make(place)
    cluster = MockCluster()
    result = undo("--job", "j", "--yes", bootstrap=cluster.bootstrap_servers)
    assert result.exit_code == 1
    assert "the topic no longer exists" in result.stderr
    cluster.create_topic("copy")
    result = undo("--job", "j", "--yes", bootstrap=cluster.bootstrap_servers)
    assert result.exit_code == 1
    assert "the cluster does not tell its id" in result.stderr
    assert JobFolder(LocalStore(place), "j").get(JobUndone) is None

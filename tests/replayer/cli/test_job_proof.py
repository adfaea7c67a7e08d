"""`replayer verify --job` as a user runs it, on a cluster in memory."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replayer.cli import main
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(40)))
    cluster = MockCluster()
    cluster.create_topic("copy")
    yield "-a", str(tmp_path / "archive"), "-b", cluster.bootstrap_servers


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="replayer")


def test_the_command_that_a_replay_prints_proves_it(archive: tuple[str, ...]) -> None:
    done = run("replay", "orders", "--to-topic", "copy", "--yes", "--json", "--to", "30", *archive)
    assert done.exit_code == 0, done.stderr
    proved = run(*shlex.split(json.loads(done.stdout)["verify"])[1:], "--json")
    told = json.loads(proved.stdout)
    assert (proved.exit_code, told["verdict"], told["records"]) == (0, "OK", 60)


@pytest.mark.parametrize(
    ("more", "why"),
    [((), "there is no job nothing"), (("orders",), "--job says all"), (("--deep",), "--job says all")],
)
def test_what_cannot_be_asked_for(archive: tuple[str, ...], more: tuple[str, ...], why: str) -> None:
    result = run("verify", *more, "--job", "nothing", *archive)
    assert result.exit_code == 2
    assert why in result.stderr

"""Completion in shells: commands, options, and topics of archive and brokers, silent where nothing answers."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from archiver.cli import main as archiver
from archiver.demo import mock_cluster
from blockgz.program import command as completion
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.terminal import printed


@pytest.fixture
def archive(tmp_path: Path) -> str:
    writer = ArchiveWriter(tmp_path / "archive")
    for topic in ("orders", "orders-eu", "payments"):
        writer.partition(topic, 0).commit(records(range(1)))
    return str(tmp_path / "archive")


def completed(program: click.Group, *words: str) -> list[str]:
    *before, last = words
    found = ShellComplete(program, {}, str(program.name), "_X").get_completions(list(before), last)
    return [item.value for item in found]


@pytest.mark.parametrize("command", ["cat", "describe", "verify", "replay"])
def test_topics_of_the_archive(command: str, archive: str) -> None:
    assert completed(replayer, command, "-a", archive, "") == ["orders", "orders-eu", "payments"]
    assert completed(replayer, command, "-a", archive, "orders-") == ["orders-eu"]


def test_tools_of_the_archiver_complete_them_too(archive: str) -> None:
    assert completed(archiver, "status", "-a", archive, "p") == ["payments"]
    assert completed(archiver, "repair", "marker", "-a", archive, "p") == ["payments"]


def test_the_archive_may_stand_in_environment_or_file(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"archive: {archive}\n")
    assert completed(replayer, "cat", "-C", str(file), "p") == ["payments"]
    monkeypatch.setenv("BLOCKGZ_ARCHIVE", archive)
    assert completed(replayer, "cat", "p") == ["payments"]


def test_the_archiver_asks_the_brokers(archive: str, tmp_path: Path) -> None:
    with mock_cluster() as cluster:
        brokers = cluster.properties["bootstrap.servers"]
        new = str(tmp_path / "new")
        found = completed(archiver, "run", "-b", brokers, "-a", new, "orders")
        assert found == ["orders", "orders-again", "orders-restored"]
        assert completed(archiver, "run", "-b", brokers, "-a", archive, "pay") == ["payments"]


@pytest.mark.parametrize(
    "where",
    [
        [],
        ["-a", "/no/such/archive"],
        ["-a", "ftp://x"],
        ["-C", "/no/such/file.yaml"],
        ["-b", "127.0.0.1:1", "-X", "x"],
    ],
)
def test_failures_are_silent(
    where: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", 0.2)
    assert completed(archiver, "run", *where, "o") == []
    assert printed(capfd) == []


def test_a_store_that_hangs_is_not_waited_for(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(completion, "_archived", lambda *_: released.wait() and [])
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", 0.1)
    began = time.monotonic()
    assert completed(replayer, "cat", "-a", archive, "o") == []
    assert time.monotonic() - began < 30
    released.set()


def test_commands_and_options() -> None:
    assert completed(replayer, "repl") == ["replay"]
    assert "--archive" in completed(replayer, "cat", "--arch")


@pytest.mark.slow
def test_a_shell_is_answered(archive: str) -> None:
    words = {"_REPLAYER_COMPLETE": "bash_complete", "COMP_WORDS": f"replayer cat -a {archive} pay", "COMP_CWORD": "4"}
    program = "import sys; from replayer.cli import main; main(prog_name='replayer')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | words, check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("plain,payments\n", "", 0)

"""Passwords in URLs are shown nowhere: not by errors, logs, reports, nor in the files that the programs write."""

import io
import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from archiver.logs import LogEvent, log, log_to
from blockgz.program.main import Program
from index_format.errors import MASK
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster

SECRET = "hunter2"
URL = f"http://user:{SECRET}@127.0.0.1:1"
TOKENS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "a",
    "sasl.oauthbearer.client.secret": "b",
    "sasl.oauthbearer.token.endpoint.url": f"{URL}/token",
}
SETTINGS = [part for name, value in TOKENS.items() for part in ("-X", f"{name}={value}")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    return tmp_path


def assert_hidden(home: Path, output: str) -> None:
    assert SECRET not in output
    for file in filter(Path.is_file, home.rglob("*")):
        assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("more", [[], ["--json"], ["--debug"]])
@pytest.mark.parametrize(
    ("program", "command"),
    [
        (replayer, ["ls", "-a", URL]),
        (replayer, ["ls", "-a", f"s3://user:{SECRET}@bucket/x"]),
        (archiver, ["config", "show", "orders", "-a", "./a", "-b", "h:1", "--endpoint-url", URL, *SETTINGS]),
        (archiver, ["config", "show", "orders", "-a", "./a", "-b", "h:1", "--proxy-url", URL]),
        (archiver, ["run", "orders", "-a", "./a", "-b", "h:1", "--proxy-url", f"{URL}/path"]),
        (archiver, ["status", "--http", URL]),
        (archiver, ["doctor", "orders", "-a", f"s3://user:{SECRET}@bucket/x", "-b", "127.0.0.1:1"]),
    ],
)
def test_no_command_shows_one(home: Path, program: Program, command: list[str], more: list[str]) -> None:
    result = CliRunner().invoke(program, [*command, *more], prog_name=program.name)
    assert_hidden(home, result.output)
    assert MASK in result.output


def test_a_replay_neither_shows_nor_keeps_one(home: Path) -> None:
    cluster = MockCluster()
    cluster.create_topic("copy")
    ArchiveWriter(home / "a").partition("orders", 0).commit(records(range(40)))
    command = ["replay", "orders", "--to-topic", "copy", "--yes", "-a", "./a", "-b", cluster.bootstrap_servers]
    for name in ("--proxy-url", "--endpoint-url"):
        command += [name, URL]
    result = CliRunner().invoke(replayer, [*command, "--job", "j"], prog_name="replayer")
    assert result.exit_code == 0, result.output
    assert next(home.rglob("request.json")).stat().st_mode & 0o777 == 0o600
    assert_hidden(home, result.output)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_show_none(log_format: str) -> None:
    stream = io.StringIO()
    log_to(stream, level=logging.INFO, log_format=log_format)
    log.info(LogEvent.RETRY, cause=f'no "{URL}"', why=[URL])
    assert SECRET not in stream.getvalue() and MASK in stream.getvalue()
    assert log_format == "text" or json.loads(stream.getvalue())["cause"] == f'no "http://{MASK}@127.0.0.1:1"'

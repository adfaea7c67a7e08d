"""Clients of a cluster ask for tokens as soon as they are made: none is made for what the archive alone can answer."""

import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from blockgz.kafka import connection
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records

DEADLINE_SECONDS = 20.0
ANSWER_SECONDS = 0.3


class TokenEndpoint:
    """Listens, and answers nobody."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._path = f"/{uuid.uuid4()}"
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "a",
            "sasl.oauthbearer.client.secret": "b",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{listener.getsockname()[1]}{self._path}",
        }
        self.options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]

    def was_asked(self, within: float) -> bool:
        """Whether a request for a token came; clients of other tests may still look for whoever had the port."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                connection = self._listener.accept()[0]
                with connection:
                    connection.settimeout(left)
                    if self._path.encode() in connection.recv(1024):
                        return True
            except OSError:
                continue
        return False


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield TokenEndpoint(listener)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit(records(range(40)))
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("program", "arguments", "told"),
    [
        (replayer, ["replay", "orders", "--to-topic", "orders", "--dry-run"], "is the topic that was archived"),
        (replayer, ["replay", "payments", "--to-topic", "copy", "--dry-run"], "is not in the archive"),
        (replayer, ["replay", "orders", "--to-topic", "ü", "--create-topic", "--dry-run"], "is not a topic name"),
        (archiver, ["repair", "diverged", "payments", "--dry-run"], "payments"),
    ],
)
def test_a_plan_that_the_archive_refuses_asks_for_no_token(
    endpoint: TokenEndpoint, root: Path, program: click.Command, arguments: list[str], told: str
) -> None:
    result = CliRunner().invoke(program, [*arguments, "-a", str(root), "-b", "127.0.0.1:1", *endpoint.options])
    assert result.exit_code, result.stdout
    assert told in result.stderr
    assert not endpoint.was_asked(ANSWER_SECONDS)


def test_a_plan_that_needs_the_cluster_does(
    endpoint: TokenEndpoint, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BROKER_DEADLINE_SECONDS", ANSWER_SECONDS)
    arguments = ["replay", "orders", "--to-topic", "copy", "--dry-run", "-a", str(root), "-b", "127.0.0.1:1"]
    result = CliRunner().invoke(replayer, [*arguments, *endpoint.options])
    assert result.exit_code, result.stdout
    assert endpoint.was_asked(DEADLINE_SECONDS)

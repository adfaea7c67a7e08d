"""Who connects to another host without TLS is told so, once."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from blockgz.hosts import is_loopback, unencrypted_brokers, unencrypted_endpoint
from replayer.cli import main as replayer


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("", "kafka", "localhost.example", "10.0.0.1", "0.0.0.0", "::2")))


@pytest.mark.parametrize(
    ("servers", "protocol", "broker"),
    [
        ("kafka:9092", None, "kafka:9092"),
        ("localhost:9092, 10.0.0.1:9092", "PLAINTEXT", "10.0.0.1:9092"),
        ("kafka:9092", "sasl_plaintext", "kafka:9092"),
        ("SASL_PLAINTEXT://kafka", "SASL_PLAINTEXT", "SASL_PLAINTEXT://kafka"),
        ("[::1]:9092,127.0.0.1:9092,PLAINTEXT://localhost:1", "PLAINTEXT", None),
        ("[::2]:9092", "plaintext", "[::2]:9092"),
        ("kafka:9092", "SSL", None),
        ("kafka:9092", "SASL_SSL", None),
        ("kafka:9092", "${env:PROTOCOL}", None),
        ("", None, None),
    ],
)
def test_brokers(servers: str, protocol: str | None, broker: str | None) -> None:
    given = {} if protocol is None else {"security.protocol": protocol}
    assert unencrypted_brokers({"bootstrap.servers": servers, **given}) == broker


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (None, None),
        ("https://minio:9000", None),
        ("http://minio:9000", "minio"),
        ("http://user:secret@minio:9000", "minio"),
        ("http://localhost:9000", None),
        ("http://[::1]:9000", None),
        ("http://[", None),
    ],
)
def test_endpoints(url: str | None, host: str | None) -> None:
    assert unencrypted_endpoint(url) == host


REMOTE = ["-b", "kafka.invalid:9092", "--endpoint-url", "http://minio.invalid:9000"]
LOCAL = ["-b", "127.0.0.1:1", "--endpoint-url", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (replayer, ["replay", "orders", "--to-topic", "x", "-a", "./none"]),
        (archiver, ["status", "-a", "./none"]),
        (archiver, ["repair", "diverged", "orders", "-a", "./none"]),
    ],
)
def test_commands_warn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: click.Command, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(program, [*command, *REMOTE]).stderr
    assert told.count("warning: the connection to Kafka at kafka.invalid:9092 is not encrypted") == 1
    assert told.count("warning: the connection to S3 at minio.invalid is not encrypted") == 1
    assert "not encrypted" not in CliRunner().invoke(program, [*command, *LOCAL]).stderr


def test_a_run_logs_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The check of settings ends this run before it asks for a broker.
    command = ["run", "orders", "-a", "./a", "--once", "--log-format", "json", "-X", "queued.min.messages=none"]
    told = CliRunner().invoke(archiver, [*command, *REMOTE]).stderr
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    found = [(each["service"], each["host"]) for each in lines if each["event"] == "unencrypted"]
    assert found == [("Kafka", "kafka.invalid:9092"), ("S3", "minio.invalid")]
    assert "unencrypted" not in CliRunner().invoke(archiver, [*command, *LOCAL]).stderr

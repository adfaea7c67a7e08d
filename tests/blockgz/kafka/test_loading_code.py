"""What loads code or runs commands comes from a command line alone."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer

from archiver.cli import main as archiver
from blockgz.errors import UsageError
from blockgz.kafka.secrets import IN_A_COMMAND, LOADS_CODE, refuse_code, without_code
from blockgz.program.kafka_options import property_table
from replayer.cli import main as replayer

NO_LIBRARY = "plugin.library.paths=/no/such/library"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(folder: Path, kafka: str) -> Result:
    text = f"bootstrap_servers: 127.0.0.1:1\narchive: ./a\ntopics: [orders]\nkafka: {{{kafka}}}\n"
    (folder / "f.yaml").write_text(text)
    return CliRunner().invoke(archiver, ["config", "check", "f.yaml"])


def test_every_name_is_one_of_librdkafkas() -> None:
    known = {line.split("|")[0].strip() for line in property_table().splitlines()}
    assert {*LOADS_CODE, *IN_A_COMMAND} <= known


@pytest.mark.parametrize("name", LOADS_CODE)
def test_a_file_may_not_name_it(folder: Path, name: str) -> None:
    result = check(folder, f"{name}: /tmp/x")
    assert result.exit_code == 2
    assert f"f.yaml:4: kafka.{name} may not be set there" in result.stderr
    assert f"use -X {name}=... on the command line" in result.stderr


@pytest.mark.parametrize(
    ("value", "is_fine"), [("/etc/a-b.keytab", True), ("svc/host@REALM.COM", True), ("a; b", False)]
)
def test_what_stands_in_a_command_is_plain(value: str, is_fine: bool) -> None:
    for name in IN_A_COMMAND:
        if is_fine:
            refuse_code(name, value, name)
        else:
            with pytest.raises(UsageError, match="may not be set there"):
                refuse_code(name, value, name)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (archiver, ["run", "orders", "-a", "./a", "--once"]),
        (replayer, ["replay", "orders", "--to-topic", "x", "--undo-retention", "-a", "./a"]),
    ],
)
def test_the_environment_may_not_and_the_command_line_may(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: object, arguments: list[str]
) -> None:
    run = lambda *more: CliRunner().invoke(program, [*arguments, "-b", "127.0.0.1:1", *more])  # type: ignore[arg-type]  # noqa: E731
    loaded = run("-X", NO_LIBRARY)
    assert "/no/such/library" in loaded.stderr and "may not be set there" not in loaded.stderr
    monkeypatch.setenv("BLOCKGZ_KAFKA_PROPERTIES", NO_LIBRARY)
    refused = run()
    assert refused.exit_code == 2
    assert "BLOCKGZ_KAFKA_PROPERTIES: " in refused.stderr and "may not be set there" in refused.stderr


def test_a_check_loads_nothing_even_from_the_command_line() -> None:
    settings = without_code({"plugin.library.paths": "/no/such/library", "group.id": "g"})
    assert settings == {"group.id": "g"}


@pytest.mark.slow
def test_a_check_asks_no_endpoint_for_a_token(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(0.3)
        oidc = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "a",
            "sasl.oauthbearer.client.secret": "b",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{endpoint.getsockname()[1]}/token",
        }
        result = check(folder, ", ".join(f"{name}: {value}" for name, value in oidc.items()))
        assert result.exit_code == 0, result.stderr
        with pytest.raises(TimeoutError):
            endpoint.accept()
        Consumer({**without_code(oidc), "group.id": "g"}).close()
        with pytest.raises(TimeoutError):
            endpoint.accept()

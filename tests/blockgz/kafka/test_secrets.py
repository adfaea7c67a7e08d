"""Secrets and code in settings of Kafka: where they may come from, and that nothing shows them."""

import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer
from pydantic import SecretStr

from archiver.cli import main as archiver
from blockgz.errors import UnresolvedReference, UsageError
from blockgz.kafka.connection import client_settings, make_client
from blockgz.kafka.secrets import IN_A_COMMAND, LOADS_CODE, look_up_secrets, refuse_code, without_code
from blockgz.program.options import property_table
from blockgz.store.local import LocalStore
from index_format.errors import MASK
from replayer.cli import main as replayer
from replayer.replay.jobs.folder import JobFolder
from replayer.restore.document import RestoreFolder, RestorePlan, RestoreRecord
from tests.replayer.replay.jobs.test_log import request
from tests.support.archives import ArchiveWriter, put_topic_config, records
from tests.support.commands import commands
from tests.support.sampling import mostly_long
from tests.support.sasl_broker import SaslBroker

SECRET = "hunter2-that-nobody-sees"
PROTOCOL = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=archivist")


@dataclass(frozen=True)
class Call:
    """What is given to a command beside the cluster, and what comes of a broker that takes no password."""

    arguments: tuple[str, ...]
    exit_code: int = 12
    asks_broker: bool = True
    exit_code_when_lost: int = 2


ARCHIVE = ("-a", "./archive")
JOB = ("--job", "j", "--jobs", "./jobs", *ARCHIVE)
POSITIONS = ("--positions", "positions.csv")
CALLS = {
    "archiver config show": Call(("orders", *ARCHIVE), 0, asks_broker=False, exit_code_when_lost=0),
    "archiver demo": Call(()),
    "archiver doctor": Call(("orders", *ARCHIVE), exit_code_when_lost=1),
    "archiver drop": Call(("orders", *ARCHIVE, "--dry-run", "--json")),
    "archiver repair accept-loss": Call(("orders:0", *ARCHIVE, "--dry-run", "--json")),
    "archiver repair diverged": Call(("orders:0", *ARCHIVE)),
    "archiver repair refetch": Call(("orders:0", *ARCHIVE, "--dry-run", "--json")),
    "archiver run": Call(("orders", *ARCHIVE, "--once", "--json")),
    # Needs Spark: its client is Java's, and its settings are looked at in tests/archiver/spark/test_job.py.
    "archiver spark": Call(("orders", *ARCHIVE, "--checkpoint", "checkpoint"), -1, asks_broker=False),
    "archiver status": Call((*ARCHIVE, "--json")),
    "replayer drill": Call((*ARCHIVE, "--yes", "--json")),
    "replayer groups apply": Call((*JOB, *POSITIONS, "--dry-run", "--json")),
    "replayer groups plan": Call((*JOB, *POSITIONS, "--json")),
    "replayer groups rollback": Call((*JOB, "--dry-run")),
    "replayer replay": Call(("orders", *ARCHIVE, "--to-topic", "copy", "--dry-run", "--json")),
    "replayer restore": Call((*ARCHIVE, "--at", "2026-01-01", "--dry-run", "--json")),
    "replayer restore undo": Call(("night", "--jobs", "./jobs", "--dry-run", "--json")),
    # It serves until it is ended, and makes its clients when they are needed.
    "replayer serve": Call((*ARCHIVE, "--http", "127.0.0.1:0"), -1, asks_broker=False),
    "replayer topics apply": Call(("orders", *ARCHIVE, "--dry-run", "--json")),
    "replayer topics diff": Call(("orders", *ARCHIVE, "--json")),
    "replayer undo": Call(("--job", "j", "--jobs", "./jobs", "--dry-run", "--json")),
    "replayer verify": Call(("orders", *ARCHIVE, "--against-topic", "copy", "--json")),
}


COMMANDS = sorted(
    " ".join((name, *path))
    for name, program in (("archiver", archiver), ("replayer", replayer))
    for path, command in commands(program)
    if any("-X" in param.opts for param in command.params)
)


def test_every_command_that_takes_settings_of_kafka_is_tried() -> None:
    assert sorted(CALLS) == COMMANDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets")
    archive = ArchiveWriter(path / "archive")
    archive.partition("orders", 0).commit(records(range(10)))
    put_topic_config(archive, "orders", 1, {})
    JobFolder(LocalStore(path / "jobs"), "j").create(request(created=True, target_topic_id="id"))
    night = RestoreRecord(name="night", cluster_id=None, host="h", begun_at=1, plan=RestorePlan(archive_id="", at=1))
    RestoreFolder(LocalStore(path / "jobs"), "night").begin(night)
    (path / "password").write_text(SECRET + "\n")
    (path / "positions.csv").write_text("group,orders,0,3\n")
    return path


@pytest.fixture(autouse=True)
def _surroundings(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KAFKA_SECRET", SECRET)


@pytest.fixture
def broker() -> Iterator[SaslBroker]:
    started = SaslBroker()
    yield started
    started.close()


def run(path: str, bootstrap: str, password: str, *more: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    program, *inner = path.split()
    settings = [f"-X{each}" for each in (*PROTOCOL, f"sasl.password={password}")]
    arguments = [*inner, *CALLS[path].arguments, "-b", bootstrap, *settings, *more]
    done = CliRunner().invoke({"archiver": archiver, "replayer": replayer}[program], arguments)
    return done.exit_code, done.output


@pytest.mark.parametrize("path", [path for path in COMMANDS if CALLS[path].exit_code >= 0])
def test_every_command_looks_it_up_and_shows_it_nowhere(
    path: str, broker: SaslBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does the client's library, which writes to the process's stderr."""
    call = CALLS[path]
    code, shown = run(path, broker.bootstrap_servers, "${env:KAFKA_SECRET}", "--debug")
    output = shown + "".join(capfd.readouterr())
    assert SECRET not in output
    assert code == call.exit_code, output
    assert set(broker.passwords) == ({SECRET} if call.asks_broker else set())
    assert (f"the password {MASK} is wrong" in " ".join(output.split())) == call.asks_broker, "the broker repeats it"
    assert not [each for each in threading.enumerate() if each.name == "records"], "a consumer that goes on"


def test_it_may_stand_in_a_file(folder: Path, broker: SaslBroker) -> None:
    code, output = run("replayer replay", broker.bootstrap_servers, f"${{file:{folder / 'password'}}}")
    assert (code, set(broker.passwords)) == (12, {SECRET})
    assert SECRET not in output


@pytest.mark.parametrize("path", COMMANDS)
@pytest.mark.parametrize("reference", mostly_long(["${env:NO_SUCH_SECRET}", "${file:/no/such/secret}"]))
def test_a_reference_that_leads_nowhere_is_named(path: str, reference: str, broker: SaslBroker) -> None:
    code, output = run(path, broker.bootstrap_servers, reference, "--debug")
    call = CALLS[path]
    assert code == call.exit_code_when_lost, output
    if call.exit_code_when_lost:
        assert "-X sasl.password: " in output
        assert re.search("NO_SUCH_SECRET|/no/such/secret", output)
    assert not broker.passwords


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != "archiver doctor"])
def test_a_malformed_reference_is_the_users_mistake(path: str, broker: SaslBroker) -> None:
    code, output = run(path, broker.bootstrap_servers, "${vault:kafka}")
    assert (code, "-X sasl.password cannot be read" in output) == (2, True), output


@pytest.mark.parametrize("name", ["security.protocol", "linger.ms", "broker.address.family"])
def test_what_the_client_refuses_is_not_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECRET", SECRET)
    settings = client_settings({"bootstrap.servers": "h:1", name: "${env:KAFKA_SECRET}"}, "test")
    with pytest.raises(UsageError) as caught:
        make_client(Consumer, {"group.id": "g", **settings})
    assert SECRET not in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_parts_of_a_setting_are_secret_too() -> None:
    jaas = 'Login required username="u" password="${env:A}" $${env:B};'
    secrets = look_up_secrets({"sasl.jaas.config": jaas, "client.rack": SecretStr("r1"), "acks": "all"}, {"A": SECRET})
    resolved = f'Login required username="u" password="{SECRET}" ${{env:B}};'
    assert secrets.values == {"sasl.jaas.config": resolved, "client.rack": "r1"}
    assert secrets.mask(f"{SECRET}, and {resolved}") == f"{MASK}, and {MASK}"


def test_a_lost_reference_names_its_setting() -> None:
    with pytest.raises(UnresolvedReference, match=r"-X ssl.key.pem: the environment variable LOST is not set"):
        look_up_secrets({"ssl.key.pem": "${env:LOST}"}, {})


def test_the_clients_lines_are_logged_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECRET", SECRET)
    settings = client_settings({"bootstrap.servers": "h:1", "sasl.password": "${env:KAFKA_SECRET}"}, "test")
    made: list[dict[str, Any]] = []
    make_client(made.append, settings)
    lines: list[tuple[object, ...]] = []
    monkeypatch.setattr(settings["logger"], "log", lambda *parts: lines.append(parts))
    made[0]["logger"].log(logging.ERROR, "%s [%s] %s", "FAIL", "client-1", f"{SECRET} is wrong")
    assert lines == [(logging.ERROR, "%s [%s] %s", "FAIL", "client-1", f"{MASK} is wrong")]


NO_LIBRARY = "plugin.library.paths=/no/such/library"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(tree: Path, kafka: str) -> Result:
    text = f"bootstrap_servers: 127.0.0.1:1\narchive: ./a\ntopics: [orders]\nkafka: {{{kafka}}}\n"
    (tree / "f.yaml").write_text(text)
    return CliRunner().invoke(archiver, ["config", "check", "f.yaml"])


def test_every_name_is_one_of_librdkafkas() -> None:
    known = {line.split("|")[0].strip() for line in property_table().splitlines()}
    assert {*LOADS_CODE, *IN_A_COMMAND} <= known


@pytest.mark.parametrize("name", LOADS_CODE)
def test_a_file_may_not_name_it(tree: Path, name: str) -> None:
    result = check(tree, f"{name}: /tmp/x")
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
    tree: Path, monkeypatch: pytest.MonkeyPatch, program: object, arguments: list[str]
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
def test_a_check_asks_no_endpoint_for_a_token(tree: Path) -> None:
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
        result = check(tree, ", ".join(f"{name}: {value}" for name, value in oidc.items()))
        assert result.exit_code == 0, result.stderr
        with pytest.raises(TimeoutError):
            endpoint.accept()
        Consumer({**without_code(oidc), "group.id": "g"}).close()
        with pytest.raises(TimeoutError):
            endpoint.accept()

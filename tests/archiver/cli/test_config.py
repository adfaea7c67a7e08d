"""`archiver config`, the options of the configuration, and how commands end."""

import json
import re
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from archiver.cli import main
from blockgz.config.kinds import FIELDS, yaml_template
from blockgz.config.model import RunConfig
from blockgz.kafka.connection import client_settings, make_client
from blockgz.program.main import NEVER_FROM_ENVIRONMENT
from index_format.errors import MASK
from tests.support.commands import commands, succeeded

BASE = ("-a", "./archive", "-b", "localhost:9092")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def archiver(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="archiver", env=dict(env))


def shown(*args: str, **env: str) -> dict[str, dict[str, object]]:
    result = succeeded(archiver("config", "show", *args, "--json", **env))
    found: dict[str, dict[str, object]] = json.loads(result.stdout)
    return found


class TestShow:
    def test_origins(self) -> None:
        Path("f.yaml").write_text("topics: [a]\nchunk_bytes: 1MiB\nmemory: 64MiB\nregion: eu\nkafka:\n  debug: all\n")
        rows = shown(
            "-C", "f.yaml", *BASE, "--memory", "65MiB", "--takeover", BLOCKGZ_REGION="us", BLOCKGZ_MEMORY="1GB"
        )
        assert rows["chunk_bytes"] == {"value": 1024**2, "origin": "file", "place": "f.yaml:2"}
        assert rows["memory"] == {"value": 65 * 1024**2, "origin": "flag", "place": "--memory"}
        assert rows["region"] == {"value": "us", "origin": "env", "place": "BLOCKGZ_REGION"}
        assert rows["takeover"] == {"value": True, "origin": "flag", "place": "--takeover"}
        assert rows["chunk_interval"] == {"value": 300.0, "origin": "default", "place": None}
        assert rows["kafka.debug"] == {"value": "all", "origin": "file", "place": "f.yaml:6"}
        assert rows.keys() == FIELDS.keys() - {"kafka"} | {"kafka.debug"}

    def test_each_field_has_a_line(self) -> None:
        lines = archiver("config", "show", "orders", *BASE).stdout.splitlines()
        assert len(lines) == len(FIELDS) - 1
        assert "chunk_interval: 5m  # default" in lines

    def test_a_switch_can_be_switched_off_again(self) -> None:
        Path("f.yaml").write_text("takeover: true\nonce: true\n")
        rows = shown("o", "-C", "f.yaml", *BASE, "--no-takeover", BLOCKGZ_ONCE="false")
        assert (rows["takeover"]["value"], rows["once"]["value"]) == (False, False)

    def test_every_way_to_give_settings_of_librdkafka(self) -> None:
        Path("f.yaml").write_text("kafka: {client.rack: file, client.id: file, debug: file}\n")
        pairs = "client.id=env debug=env sasl.oauthbearer.config='a=b c=d'"
        rows = shown("o", "-C", "f.yaml", *BASE, "-X", "debug=flag", BLOCKGZ_KAFKA_PROPERTIES=pairs)
        assert [rows[f"kafka.{name}"]["value"] for name in ("client.rack", "client.id", "debug")] == [
            "file",
            "env",
            "flag",
        ]
        assert rows["kafka.sasl.oauthbearer.config"]["value"] == MASK

    def test_secrets_are_masked(self) -> None:
        args = ("config", "show", "o", *BASE, "-X", "sasl.password=hunter2", "--region", "${env:HIDDEN}")
        for more in ((), ("--json",)):
            result = succeeded(archiver(*args, *more, HIDDEN="hunter3"))
            assert "hunter" not in result.output
            assert MASK in result.stdout

    def test_topics_and_file_from_the_environment(self) -> None:
        Path("f.properties").write_text("archive=./a\nbootstrap_servers=h:1\n")
        rows = shown(BLOCKGZ_CONFIG="f.properties", BLOCKGZ_TOPICS="a b", BLOCKGZ_EXCLUDE="c d")
        assert (rows["topics"]["value"], rows["exclude"]["value"]) == (["a", "b"], ["c", "d"])

    def test_notes_go_to_stderr(self) -> None:
        Path("c.json").write_text('{"name": "sink", "config": {"topics": "a", "tasks.max": "3"}}')
        result = archiver("config", "show", "-C", "c.json", *BASE, "--json")
        assert result.stderr == "warning: c.json:1: name is not used: group_id names the consumer group\n"
        assert json.loads(result.stdout)["workers"]["value"] == 3


class TestInit:
    def test_checks_as_it_is(self) -> None:
        Path("f.yaml").write_text(archiver("config", "init").stdout)
        result = archiver("config", "check", "f.yaml")
        assert (result.stdout, result.stderr, result.exit_code) == ("ok: f.yaml\n", "", 0)

    def test_has_every_field_and_shows_its_default(self) -> None:
        text = yaml_template()
        assert set(re.findall(r"^#?([a-z_]+): ", text, re.MULTILINE)) == FIELDS.keys()
        examples = re.sub(r"# Not set by default.*\n#.*\n", "", text)
        Path("f.yaml").write_text(re.sub(r"^#([a-z_]+: )", r"\1", examples, flags=re.MULTILINE))
        for name, row in shown("-C", "f.yaml").items():
            default = FIELDS[name].get_default(call_default_factory=True)
            if not FIELDS[name].is_required() and not isinstance(default, tuple):
                assert row["value"] == default

    @pytest.mark.parametrize(
        "other", ["(customer_key|profile)", "(sse|kms_key_id|access_key_id|secret_access_key|session_token)"]
    )
    def test_its_examples_are_valid_too(self, other: str) -> None:
        """All but one of two ways of encryption, and one of two kinds of credentials: they exclude each other."""
        examples = re.sub(r"^#([a-z_]+: )", r"\1", yaml_template(), flags=re.MULTILINE)
        Path("f.yaml").write_text(re.sub(rf"^({other}: )", r"#\1", examples, flags=re.MULTILINE))
        secrets = ("KAFKA_PASSWORD", "CUSTOMER_KEY", "S3_KEY_ID", "S3_KEY_SECRET", "S3_SESSION_TOKEN")
        result = archiver("config", "check", "f.yaml", **dict.fromkeys(secrets, "x"))
        assert (result.stderr, result.exit_code) == ("", 0)


class TestCheck:
    def test_what_a_file_leaves_open_is_reported(self) -> None:
        Path("f.yaml").write_text(
            "chunk_bytes: 1MB\nregion: ${env:NO_SUCH}\nkafka: {sasl.password: '${env:NO_SUCH}'}\n"
        )
        result = succeeded(archiver("config", "check", "f.yaml", "--json"))
        answer = json.loads(result.stdout)
        assert answer["ok"] is True
        assert [note for note in answer["warnings"] if "NO_SUCH" in note] == [
            "f.yaml:2: region: the environment variable NO_SUCH is not set",
            "f.yaml:3: kafka.sasl.password: the environment variable NO_SUCH is not set",
        ]
        assert sum("leaves" in note for note in answer["warnings"]) == 3

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("memory: 3", "f.yaml:1: memory cannot be '3'"),
            ("no_such: 3", "f.yaml:1: no_such is not a setting"),
            ("\nkafka: {no.such: 3}", "f.yaml:2: kafka.no.such: librdkafka refuses it, or a related setting"),
            ("kafka: {enable.auto.commit: true}", "f.yaml:1: kafka.enable.auto.commit may not be set"),
        ],
    )
    def test_what_is_wrong(self, text: str, what: str) -> None:
        Path("f.yaml").write_text(text)
        result = archiver("config", "check", "f.yaml")
        assert result.exit_code == 2
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert lines[0] == f"error: {what}"
        assert [line[:7] for line in lines] == ["error: ", "why:   ", "do:    "]

    @pytest.mark.parametrize("more", [", sasl.mechanism: GSSAPI", ""])
    def test_kerberos_is_not_in_the_wheel(self, more: str) -> None:
        Path("f.yaml").write_text("kafka: {security.protocol: SASL_SSL" + more + "}")
        result = archiver("config", "check", "f.yaml")
        assert result.exit_code == 2
        what, why, remedy = result.stderr.splitlines()
        assert what == "error: this build of librdkafka lacks Kerberos (SASL mechanism GSSAPI)"
        assert "wheel of confluent-kafka" in why
        assert "--no-binary confluent-kafka" in remedy

    def test_without_a_file(self) -> None:
        assert archiver("config", "check").exit_code == 2


def test_the_schema_takes_what_we_take() -> None:
    schema = json.loads(archiver("config", "schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(yaml.safe_load(yaml_template()))
    validator.validate({"chunk_bytes": "1MiB", "chunk_idle": None, "workers": 2, "kafka": {"debug": "all"}})
    for wrong in ({"chunk_byte": 1}, {"layout": "x"}, {"workers": 0}, {"chunk_bytes": []}):
        assert list(validator.iter_errors(wrong))


def test_a_secret_is_looked_up_when_a_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    kafka = {"sasl.password": "${env:LATE}"}
    config = RunConfig(archive="./a", bootstrap_servers="h:1", topics=("o",), kafka=kafka)
    settings = client_settings({"bootstrap.servers": "h:1", **config.kafka}, "test")
    assert "late-secret" not in repr(settings)
    for secret in ("late-secret", "rotated"):
        monkeypatch.setenv("LATE", secret)
        make_client(made.append, settings)
        assert made[-1]["sasl.password"] == secret


class TestEveryCommand:
    @pytest.mark.parametrize(("path", "command"), list(commands(main)), ids=lambda value: str(value)[:40])
    def test_help_shows_examples_and_exit_codes(self, path: tuple[str, ...], command: click.Command) -> None:
        result = succeeded(archiver(*path, "--help"))
        assert f"  archiver {' '.join(path)}" in result.stdout.split("Examples:")[1]
        assert "Exit codes:" in result.stdout

    @pytest.mark.parametrize(("path", "command"), list(commands(main)), ids=lambda value: str(value)[:40])
    def test_one_environment_variable_an_option(self, path: tuple[str, ...], command: click.Command) -> None:
        options = [option for option in command.params if isinstance(option, click.Option)]
        of_environment = [
            each for each in options if each.allow_from_autoenv and each.name not in NEVER_FROM_ENVIRONMENT
        ]
        variables = [option.envvar for option in of_environment]
        if not isinstance(command, click.Group):
            assert "BLOCKGZ_DEBUG" in variables
            assert len(set(variables)) == len(variables)
            assert all(isinstance(name, str) and name.startswith("BLOCKGZ_") for name in variables)

    def test_debug_shows_the_traceback(self) -> None:
        args = ("run", "o", *BASE, "--workers", "0")
        assert "Traceback" not in archiver(*args).stderr
        assert "Traceback" in archiver(*args, "--debug").stderr
        assert "Traceback" in archiver(*args, BLOCKGZ_DEBUG="1").stderr

    def test_run_has_an_option_for_every_field(self) -> None:
        run = main.get_command(click.Context(main), "run")
        assert run is not None
        assert FIELDS.keys() <= {param.name for param in run.params}


@pytest.mark.parametrize("command", ["run", "status", "doctor", "demo"])
def test_librdkafkas_settings_are_listed(command: str) -> None:
    result = succeeded(archiver(command, "-X", "list", BLOCKGZ_CHUNK_BYTES="nonsense"))
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("queued.max.messages.kbytes ")]
    name, _, bounds, default, _, description = (cell.strip() for cell in line.split("|"))
    assert (name, bounds, default) == ("queued.max.messages.kbytes", "1 .. 2097151", "65536") and description

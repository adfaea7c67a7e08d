"""One configuration file for both programs: where it is, what commands take from it, what beats it."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from archiver.cli import main as archiver
from blockgz.program.archive_options import archive_option, s3_options
from blockgz.program.command import completed
from blockgz.program.config_file import config_path
from blockgz.program.kafka_options import kafka_options
from blockgz.store.s3_settings import S3Settings
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records


@click.command("probe")
@archive_option()
@s3_options
@kafka_options(required=True)
def _probe(archive: str, s3: S3Settings, kafka: dict[str, str]) -> None:
    click.echo(f"{archive} {s3.region} {sorted(kafka.items())}")


PROBE = completed(_probe)
FILE = """\
archive: ./from-file
region: eu
bootstrap_servers: file:1
topics: [orders]
memory: 64MiB
kafka: {client.id: file, sasl.password: '${env:NO_SUCH}'}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def probe(*args: str, **env: str) -> str:
    result = CliRunner().invoke(PROBE, args, env=dict(env), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def ran(program: click.Group, *args: str, **env: str) -> Result:
    return CliRunner().invoke(program, args, prog_name=program.name, env=dict(env))


class TestPlace:
    def test_the_order(self, tmp_path: Path) -> None:
        home = {"XDG_CONFIG_HOME": str(tmp_path)}
        assert config_path(None, home) is None
        (tmp_path / "blockgz").mkdir()
        file = tmp_path / "blockgz" / "config.yaml"
        file.touch()
        assert config_path(None, home) == file
        assert config_path("given.yaml", home) == Path("given.yaml")

    def test_the_environment_comes_before_the_home_and_after_the_option(self, tmp_path: Path) -> None:
        (tmp_path / "blockgz").mkdir()
        for name in ("blockgz/config", "env", "flag"):
            Path(f"{name}.yaml").write_text(FILE.replace("./from-file", name))
        home = {"XDG_CONFIG_HOME": str(tmp_path)}
        assert probe(**home).startswith("blockgz/config ")
        assert probe(**home, BLOCKGZ_CONFIG="env.yaml").startswith("env ")
        assert probe("-C", "flag.yaml", **home, BLOCKGZ_CONFIG="env.yaml").startswith("flag ")

    def test_without_xdg_it_is_below_the_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".config" / "blockgz").mkdir(parents=True)
        (tmp_path / ".config" / "blockgz" / "config.yaml").touch()
        monkeypatch.setenv("HOME", str(tmp_path))
        assert config_path(None, {}) == tmp_path / ".config" / "blockgz" / "config.yaml"


class TestValues:
    def test_options_take_them_as_defaults(self) -> None:
        Path("f.yaml").write_text(FILE)
        kafka = [("bootstrap.servers", "file:1"), ("client.id", "file"), ("sasl.password", "${env:NO_SUCH}")]
        assert probe("-C", "f.yaml") == f"./from-file eu {kafka}"

    def test_flags_beat_the_environment_and_this_the_file(self) -> None:
        Path("f.yaml").write_text(FILE)
        env = {"BLOCKGZ_REGION": "us", "BLOCKGZ_ARCHIVE": "./env"}
        found = probe("-C", "f.yaml", "-a", "./flag", "-X", "client.id=flag", "-b", "flag:1", **env)
        assert found.startswith("./flag us [('bootstrap.servers', 'flag:1'), ('client.id', 'flag')")

    def test_brokers_of_a_setting_beat_those_of_the_file(self) -> None:
        Path("f.yaml").write_text(FILE)
        assert "('bootstrap.servers', 'x:1')" in probe("-C", "f.yaml", "-X", "bootstrap.servers=x:1")

    def test_a_reference_is_looked_up_only_where_it_counts(self) -> None:
        Path("f.yaml").write_text("archive: ${env:PLACE}\nbootstrap_servers: h:1\n")
        assert probe("-C", "f.yaml", PLACE="./found").startswith("./found ")
        assert probe("-C", "f.yaml", "-a", "./flag").startswith("./flag ")
        result = ran(replayer, "ls", "-C", "f.yaml")
        assert (result.exit_code, "PLACE is not set" in result.stderr) == (2, True)

    def test_a_customer_key_stays_a_reference(self) -> None:
        Path("f.yaml").write_text(FILE + "customer_key: ${env:NO_SUCH_KEY}\n")
        assert probe("-C", "f.yaml").startswith("./from-file ")


class TestErrors:
    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("memry: 64MiB", "did you mean memory?"),
            ("kafka: {plugin.library.paths: /x.so}", "kafka.plugin.library.paths may not be set there"),
            ("kafka: {group.id: x}", "kafka.group.id may not be set"),
            ("archive: [a, b]", "f.yaml:1: archive is a list"),
        ],
    )
    def test_a_file_that_is_wrong_is_refused(self, line: str, says: str) -> None:
        Path("f.yaml").write_text(line)
        result = ran(replayer, "ls", "-C", "f.yaml")
        assert (result.exit_code, says in result.stderr) == (2, True), result.stderr

    def test_all_that_is_missing_is_named_at_once(self) -> None:
        result = ran(replayer, "replay")
        assert result.stderr.startswith("error: TOPIC[:P[,P-P]], -b/--bootstrap-server and -a/--archive are missing")
        assert "add TOPIC[:P[,P-P]], -b HOST:PORT and -a ADDRESS, set BLOCKGZ_BOOTSTRAP_SERVER" in result.stderr
        assert "put bootstrap_servers and archive in a configuration file" in result.stderr

    def test_what_the_file_gives_is_not_missing(self) -> None:
        Path("f.yaml").write_text(FILE)
        assert ran(replayer, "replay", "-C", "f.yaml").stderr.startswith("error: TOPIC[:P[,P-P]] is missing")


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_the_replayer_reads_the_archivers_file(command: str, tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "from-file").partition("orders", 0).commit(records(range(3)))
    template = ran(archiver, "config", "init").stdout
    Path("f.yaml").write_text(template.replace("archive: s3://backup/kafka", "archive: ./from-file"))
    result = ran(replayer, command, "-C", "f.yaml", "-v")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("configuration: f.yaml\n")
    assert "orders" in result.stdout


def test_tools_of_the_archiver_use_it_too(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "from-file").partition("orders", 0).commit(records(range(3)))
    Path("f.yaml").write_text("archive: ./from-file\nworkers: 2\n")
    assert ran(archiver, "status", "-C", "f.yaml").exit_code == 0


@pytest.mark.slow
def test_a_run_logs_the_file_that_it_uses() -> None:
    Path("f.yaml").write_text("archive: ./a\nbootstrap_servers: 127.0.0.1:1\ntopics: [orders]\nonce: true\n")
    result = ran(archiver, "run", "-C", "f.yaml", "-v")
    assert "configuration" in result.stderr.splitlines()[0]
    assert "f.yaml" in result.stderr.splitlines()[0]


def test_the_demo_uses_no_file() -> None:
    demo = archiver.get_command(click.Context(archiver), "demo")
    assert demo is not None
    assert "config" not in {param.name for param in demo.params}

"""Options, help pages, completion in shells, and one configuration file for both programs."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from archiver.cli import main as archiver
from archiver.demo import mock_cluster
from blockgz.program import main as completion
from blockgz.program.archive_options import archive_option, s3_options
from blockgz.program.main import GROUPS, OWN, completed
from blockgz.program.options import Argument, Option, OptionSet, config_path, kafka_options
from blockgz.store.address import S3Settings
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import commands, succeeded
from tests.support.terminal import printed


class Window(NamedTuple):
    first: int
    last: int | None


class Wanted(NamedTuple):
    name: str
    window: Window
    tags: tuple[str, ...]


window_options = OptionSet(
    "window",
    Window,
    Option("--from", "first", type=int, default=1, help="First."),
    Option("--to", "last", parse=int, help="Last."),
)

wanted_options = OptionSet(
    "wanted",
    Wanted,
    Argument("name", parse=str.upper),
    window_options,
    Option("--tag", "tags", multiple=True, parse=lambda tags: tuple(reversed(tags)), help="Tag."),
)


@click.command()
@wanted_options
@Option("--number", parse=lambda text: int(text) + 1)
def nested(wanted: Wanted, number: int | None) -> None:
    click.echo(f"{wanted.name} {tuple(wanted.window)} {wanted.tags} {number}")


def test_values_are_made_of_what_was_given() -> None:
    result = CliRunner().invoke(nested, ["x", "--to", "7", "--tag", "a", "--tag", "b", "--number", "3"])
    assert result.output == "X (1, 7) ('b', 'a') 4\n"


def test_what_was_not_given_is_not_parsed() -> None:
    assert CliRunner().invoke(nested, ["x"]).output == "X (1, None) () None\n"


def test_help_lists_the_options_in_order() -> None:
    page = CliRunner().invoke(nested, ["--help"]).output
    places = [page.index(name) for name in ("--from", "--to", "--tag", "--number")]
    assert places == sorted(places)


def test_a_set_can_be_used_twice() -> None:
    @click.command()
    @window_options
    def plain(window: Window) -> None:
        click.echo(window.first)

    assert CliRunner().invoke(plain, ["--from", "4"]).output == "4\n"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    writer = ArchiveWriter(tmp_path / "archive")
    for topic in ("orders", "orders-eu", "payments"):
        writer.partition(topic, 0).commit(records(range(1)))
    return str(tmp_path / "archive")


def completed_completion(program: click.Group, *words: str) -> list[str]:
    *before, last = words
    found = ShellComplete(program, {}, str(program.name), "_X").get_completions(list(before), last)
    return [item.value for item in found]


@pytest.mark.parametrize("command", ["cat", "describe", "verify", "replay"])
def test_topics_of_the_archive(command: str, archive: str) -> None:
    assert completed_completion(replayer, command, "-a", archive, "") == ["orders", "orders-eu", "payments"]
    assert completed_completion(replayer, command, "-a", archive, "orders-") == ["orders-eu"]


def test_tools_of_the_archiver_complete_them_too(archive: str) -> None:
    assert completed_completion(archiver, "status", "-a", archive, "p") == ["payments"]
    assert completed_completion(archiver, "repair", "marker", "-a", archive, "p") == ["payments"]


def test_the_archive_may_stand_in_environment_or_file(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"archive: {archive}\n")
    assert completed_completion(replayer, "cat", "-C", str(file), "p") == ["payments"]
    monkeypatch.setenv("BLOCKGZ_ARCHIVE", archive)
    assert completed_completion(replayer, "cat", "p") == ["payments"]


def test_the_archiver_asks_the_brokers(archive: str, tmp_path: Path) -> None:
    with mock_cluster() as cluster:
        brokers = cluster.properties["bootstrap.servers"]
        new = str(tmp_path / "new")
        found = completed_completion(archiver, "run", "-b", brokers, "-a", new, "orders")
        assert found == ["orders", "orders-again", "orders-restored"]
        assert completed_completion(archiver, "run", "-b", brokers, "-a", archive, "pay") == ["payments"]


@pytest.mark.parametrize(
    "where",
    [[], ["-a", "/no/such/archive"], ["-a", "ftp://x"], ["-C", "/no/such/file.yaml"], ["-b", "127.0.0.1:1", "-X", "x"]],
)
def test_failures_are_silent(
    where: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", 0.2)
    assert completed_completion(archiver, "run", *where, "o") == []
    assert printed(capfd) == []


def test_a_store_that_hangs_is_not_waited_for(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(completion, "_archived", lambda *_: released.wait() and [])
    monkeypatch.setattr(completion, "DEADLINE_SECONDS", 0.1)
    began = time.monotonic()
    assert completed_completion(replayer, "cat", "-a", archive, "o") == []
    assert time.monotonic() - began < 30
    released.set()


def test_commands_and_options() -> None:
    assert completed_completion(replayer, "repl") == ["replay"]
    assert "--archive" in completed_completion(replayer, "cat", "--arch")


@pytest.mark.slow
def test_a_shell_is_answered(archive: str) -> None:
    words = {"_REPLAYER_COMPLETE": "bash_complete", "COMP_WORDS": f"replayer cat -a {archive} pay", "COMP_CWORD": "4"}
    program = "import sys; from replayer.cli import main; main(prog_name='replayer')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | words, check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("plain,payments\n", "", 0)


MOST_OWN_OPTIONS = 12
"""A command with more of its own needs another group."""


ALL = [(program, path, command) for program in (archiver, replayer) for path, command in commands(program)]
EACH = pytest.mark.parametrize(
    ("program", "path", "command"), ALL, ids=[f"{program.name} {' '.join(path)}" for program, path, _ in ALL]
)


def page(program: click.Group, *path: str) -> str:
    return CliRunner().invoke(program, [*path, "--help"], prog_name=program.name, terminal_width=110).stdout


@EACH
def test_examples_come_before_options_and_exit_codes_last(
    program: click.Group, path: tuple[str, ...], command: click.Command
) -> None:
    text = page(program, *path)
    headings = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    groups = [heading for heading in headings if heading in GROUPS]
    assert headings[0] == "Examples"
    assert headings[-1] == "Exit codes"
    assert groups == sorted(groups, key=list(GROUPS).index)
    assert groups[-1] == "Program"


@EACH
def test_every_option_is_shown_once(program: click.Group, path: tuple[str, ...], command: click.Command) -> None:
    text = page(program, *path)
    lines = [line.strip().split("  ")[0] for line in text.split("Exit codes:")[0].splitlines()]
    for param in command.params:
        if isinstance(param, click.Option):
            shown = [line for line in lines if param.opts[-1] in line.replace(",", " ").split()]
            assert shown, param.opts
    grouped = {name for names in GROUPS.values() for name in names}
    own = [param for param in command.params if isinstance(param, click.Option) and param.name not in grouped]
    assert len(own) <= MOST_OWN_OPTIONS


def test_an_option_is_in_one_group() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert GROUPS[OWN] == ()


@EACH
def test_no_summary_is_cut(program: click.Group, path: tuple[str, ...], command: click.Command) -> None:
    if isinstance(command, click.Group):
        text = " ".join(page(program, *path).split("Commands:")[1].split("Options:")[0].split())
        assert "..." not in text
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            assert inner.get_short_help_str(1000) in text


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("100", 100), ("200", 110)])
def test_the_page_is_as_wide_as_the_terminal_up_to_110(columns: str, widest: int) -> None:
    program = [sys.executable, "-m", "replayer", "verify", "--help"]
    done = subprocess.run(program, env=os.environ | {"COLUMNS": columns}, check=True, capture_output=True, text=True)
    described = done.stdout.split("Archive and cluster:")[1].splitlines()
    assert widest - 12 < max(map(len, described)) <= widest


def test_the_most_used_commands_come_first() -> None:
    assert list(archiver.list_commands(click.Context(archiver)))[:2] == ["run", "status"]


@pytest.mark.parametrize(
    ("program", "words", "suggested"),
    [
        (archiver, ["run", "--memry", "1"], "--memory"),
        (archiver, ["repair", "indx"], "index"),
        (replayer, ["replay", "--to-topc", "x"], "--to-topic"),
        (replayer, ["cat", "--archiv", "x"], "--archive"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_looks_alike(
    program: click.Group, words: list[str], suggested: str
) -> None:
    result = CliRunner().invoke(program, words, prog_name=program.name)
    assert result.exit_code == 2
    assert f"'{suggested}'" in result.stderr.splitlines()[0]


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
    result = succeeded(CliRunner().invoke(PROBE, args, env=dict(env), catch_exceptions=False))
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
    result = succeeded(ran(replayer, command, "-C", "f.yaml", "-v"))
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

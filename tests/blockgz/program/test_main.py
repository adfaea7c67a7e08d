"""How commands of both programs begin and end: the question before a change, passwords, signals, `--version`."""

import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from archiver.cli import main as archiver
from archiver.logs import LogEvent, log, log_to
from blockgz.errors import UsageError
from blockgz.program.main import Program, confirm, kernel_words
from index_format.errors import MASK
from index_format.kernel_choice import KERNEL, Kernel
from replayer.cli import main as replayer
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
from tests.support.sampling import LONG


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(monkeypatch: pytest.MonkeyPatch, answer: str, typed: str | None = None) -> bool:
    """Whether that is taken for a yes."""
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    try:
        confirm("Delete it?", undone="nothing was deleted", is_agreed=False, typed=typed)
    except click.exceptions.Exit as ended:
        assert ended.exit_code == 130
        return False
    return True


def test_a_word_that_is_to_be_typed_is_the_only_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(monkeypatch, "y")
    assert not answered(monkeypatch, "n")
    assert answered(monkeypatch, "orders", "orders")
    assert not answered(monkeypatch, "y", "orders")
    assert capsys.readouterr().err.count("nothing was deleted\n") == 2


@pytest.mark.parametrize("typed", [None, "orders"])
def test_without_a_terminal_only_consent_beforehand_counts(monkeypatch: pytest.MonkeyPatch, typed: str | None) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("orders\n"))
    with pytest.raises(UsageError, match="nothing was deleted"):
        confirm("Delete it?", undone="nothing was deleted", is_agreed=False, typed=typed)
    confirm("Delete it?", undone="nothing was deleted", is_agreed=True, typed=typed)


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


SCRIPT = """
import asyncio, signal, sys, time
import click
from blockgz.process import run_async
from blockgz.program.main import Program
if sys.argv[2] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)

@click.command("plain")
def plain():
    print("ready", flush=True)
    while True:  # A signal that comes right before a sleep does not end it.
        time.sleep(0.1)

async def wait():
    try:
        print("ready", flush=True)
        await asyncio.sleep(60)
    finally:
        print("closed", flush=True)

@click.command("asynchronous")
def asynchronous():
    run_async(wait())

places = {each: (f"__main__:{each}", "") for each in ("plain", "asynchronous")}
Program("program", places=places).main([sys.argv[1]])
"""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A background job of a shell is born with SIGINT ignored, and so are its children; a person's program is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", ["plain", "asynchronous"])
@pytest.mark.parametrize(
    ("number", "sigint", "exit_code"),
    [(signal.SIGINT, "heeded", 130), (signal.SIGTERM, "heeded", 143), (signal.SIGTERM, "ignored", 143)],
)
def test_a_command_that_a_signal_ends(command: str, number: signal.Signals, sigint: str, exit_code: int) -> None:
    arguments = [sys.executable, "-c", SCRIPT, command, sigint]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        out, err = program.communicate(timeout=30)
    assert (program.returncode, err.strip()) == (exit_code, "interrupted")
    assert out == ("closed\n" if command == "asynchronous" else "")


BROKEN_IMPORT = """
import signal, sys
from pathlib import Path
signal.raise_signal(getattr(signal, sys.argv[2]))
Path(sys.argv[3]).touch()  # an exception would come before
"""

IMPORTING = """
import asyncio, sys, time
from pathlib import Path
import click
sys.path.insert(0, str(Path(sys.argv[3]).parent))
from blockgz.process import run_async
from blockgz.program.main import Program

@click.command("plain")
def plain():
    import signalled
    time.sleep(60)

async def wait():
    import signalled
    await asyncio.sleep(60)

@click.command("asynchronous")
def asynchronous():
    run_async(wait())

places = {each: (f"__main__:{each}", "") for each in ("plain", "asynchronous")}
Program("program", places=places).main([sys.argv[1]])
"""


@pytest.mark.parametrize("command", ["plain", "asynchronous"])
@pytest.mark.parametrize(("number", "exit_code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_an_import_ends_the_command_behind_it(
    command: str, number: str, exit_code: int, tmp_path: Path
) -> None:
    (tmp_path / "signalled.py").write_text(BROKEN_IMPORT)
    arguments = [sys.executable, "-c", IMPORTING, command, number, str(tmp_path / "imported")]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (exit_code, "interrupted")
    assert (tmp_path / "imported").exists()


PROGRAMS = (
    ("archiver", "run", "orders", "-b", "127.0.0.1:1", "-a"),
    ("archiver", "run", "orders", "-b", "127.0.0.1:1", "--once", "--workers", "2", "-a"),
    ("archiver", "status", "-a"),
    ("replayer", "ls", "-a"),
    ("replayer", "get", "orders:0:1", "-a"),
    ("replayer", "serve", "--http", "127.0.0.1:0", "-a"),
)
QUIET = ("Traceback", "this is a bug", "Fatal Python error", "C extension", "Exception ignored")
SHOTS = 4000 if LONG else 24
DEADLINE_SECONDS = 50.0


def _shot(arguments: list[str], number: signal.Signals, delay: float) -> tuple[int, str]:
    """Start a program, send it a signal after so many seconds, and return its exit code and what it said."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        deadline = time.monotonic() + DEADLINE_SECONDS
        # Before the first line of ours runs, SIGINT is Python's own matter, and is reported by a traceback.
        while number == signal.SIGINT and time.monotonic() < deadline and program.poll() is None:
            if "_ctypes" in Path(f"/proc/{program.pid}/maps").read_text():
                break
        time.sleep(delay)
        program.send_signal(number)
        try:
            _, said = program.communicate(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGABRT)  # prints the stacks
            _, said = program.communicate()
    return program.returncode, said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads which libraries a process has loaded")
@pytest.mark.timeout(7200 if LONG else 300)
def test_a_signal_in_the_first_second_just_ends_the_program(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (tmp_path / "archive").mkdir()
    began = time.monotonic()
    _shot([*PROGRAMS[2], str(tmp_path / "archive")], signal.SIGCONT, 0)
    window = 2 * (time.monotonic() - began)

    def fire(shot: tuple[tuple[str, ...], signal.Signals, float]) -> str | None:
        program, number, delay = shot
        code, said = _shot([*program, str(tmp_path / "archive")], number, delay)
        documented = {-number, 143 if number == signal.SIGTERM else 130}
        # A program that ended before the signal came fails by its own error: there is no archive, nor a broker.
        is_own = 0 <= code < 130 and (code == 0 or "error: " in said or "interrupted" in said)
        is_quiet = not any(word in said for word in QUIET)
        return None if (code in documented or is_own) and is_quiet else f"{shot} ended with {code}: {said}"

    shots = [
        (
            chance.choice(PROGRAMS),
            chance.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGINT)),
            chance.uniform(0, window),
        )
        for _ in range(SHOTS)
    ]
    with ThreadPoolExecutor(2) as threads:
        assert [wrong for wrong in threads.map(fire, shots) if wrong] == []


def test_each_extension_is_named_with_why_it_is_not_in_use() -> None:
    found = {"records": Kernel(object(), ""), "Kafka": Kernel(None, "not built")}
    assert kernel_words(found) == "records in use, Kafka not in use (not built)"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["archiver", "replayer"])
def test_both_programs_say_whether_the_extensions_are_in_use(program: str) -> None:
    def printed(**environment: str) -> list[str]:
        command = [sys.executable, "-m", program, "--version"]
        there = {**os.environ, **environment}
        return subprocess.run(
            command, env=there, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()

    version, extensions = printed(BLOCKGZ_NO_KERNEL="1")
    assert version.startswith(f"{program}, version ")
    assert extensions == "C extensions: " + ", ".join(
        f"{name} not in use ({'BLOCKGZ_NO_KERNEL is set' if KERNEL else KERNEL.why_not})"
        for name in ("records", "Kafka")
    )
    if KERNEL:
        assert "records in use" in printed(BLOCKGZ_NO_KERNEL="")[1]

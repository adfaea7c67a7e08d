"""What is printed: tables fit their line, progress has lines of its own, and a terminal obeys no record."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import TextIO

import pytest

from blockgz.program import progress
from blockgz.program.terminal import escaped_terminals, print_table, printable, range_text, unescaped
from blockgz.store.local import LocalStore
from blockgz.units import time_text, timestamp_text
from index_format.records import Record
from replayer.replay.jobs.folder import JobFolder
from tests.replayer.replay.jobs.test_log import request
from tests.support.ancestor_archives import OldChunk, OldWriter, rows_of
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
from tests.support.terminal import shown_on_terminal

TOPIC = "production.eu-west-1.payments.transactions.v1"
JOB = f"{TOPIC}-restored-once-more"
REPLAYER, ARCHIVER = "replayer", "archiver"
TABLES = [
    (REPLAYER, "ls"),
    (REPLAYER, "describe", TOPIC),
    (REPLAYER, "coverage", TOPIC),
    (REPLAYER, "find", TOPIC, "--time", "2020-01-01"),
    (REPLAYER, "verify"),
    (ARCHIVER, "status"),
]


@pytest.fixture
def line_of_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_numbers_stand_to_the_right_and_lines_end_in_no_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "count", "note"), [("a", 5, "long note"), ("b", 1234, "-"), ("c", None, "")])
    assert capsys.readouterr().out == "TOPIC  COUNT  NOTE\na          5  long note\nb       1234  -\nc          -\n"


@pytest.mark.usefixtures("line_of_80")
def test_what_does_not_fit_is_dropped_in_order_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "few", "many"), [("n" * 60, "f" * 10, "m" * 16)], droppable=("few", "many"))
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{'NAME':<62}MANY", f"{'n' * 60}  {'m' * 16}"]
    assert err == "columns omitted at 80 characters a line (use --json): few\n"


@pytest.mark.usefixtures("line_of_80")
def test_a_name_wraps_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "".join(chr(97 + number % 26) for number in range(200))
    print_table(("name", "count"), [(name, 123456)])
    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line.split()[0] for line in lines) == name and "123456" in lines[0]


def test_times_and_ranges() -> None:
    assert (time_text(1_760_000_000_089), time_text(None)) == ("2025-10-09T08:53:20Z", "-")
    assert time_text(10**18) == str(10**18), "no day of the calendar"
    assert (time_text(-1), time_text(0), time_text(-2)) == ("-", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z")


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "-62135596800001"),
        (1_760_000_000_000_000, "1760000000000000"),
        (1_760_000_000_000_000_000, "1760000000000000000"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_outside_of_the_years_1_to_9999_is_its_number(timestamp: int, text: str) -> None:
    assert timestamp_text(timestamp) == text
    assert (range_text(0, 301), range_text(None, None)) == ("[0..301)", "-")


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("arguments", TABLES, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_table_fits_80_columns(arguments: tuple[str, ...], terminal: bool, tmp_path: Path) -> None:
    archived(tmp_path)
    assert_fits([*arguments, "-a", str(tmp_path / "a")], tmp_path, is_terminal=terminal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (ARCHIVER, "run", TOPIC, "--once"),
        (REPLAYER, "replay", TOPIC, "--to-topic", f"{TOPIC}-copy", "--yes"),
        (REPLAYER, "verify", TOPIC, "--against-topic", TOPIC),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_table_about_a_cluster_fits_80_columns(arguments: tuple[str, ...], tmp_path: Path) -> None:
    cluster = MockCluster()
    cluster.produce(TOPIC, 0, records(range(1000)))
    if arguments[0] == REPLAYER:
        archived(tmp_path)
        cluster.create_topic(f"{TOPIC}-copy")
    place = ["-b", cluster.bootstrap_servers, "-a", str(tmp_path / "a")]
    assert_fits([*arguments, *place], tmp_path, is_terminal=True)


@pytest.mark.slow
def test_the_plan_of_an_import_fits_80_columns(tmp_path: Path) -> None:
    OldWriter(tmp_path / "old", topic=TOPIC).write(OldChunk(0, [rows_of(0, 40), rows_of(40, 60)]))
    source = str(tmp_path / "old")
    assert_fits([ARCHIVER, "import", source, "-a", str(tmp_path / "a"), "--dry-run"], tmp_path, is_terminal=True)


@pytest.mark.slow
def test_the_list_of_jobs_fits_80_columns(tmp_path: Path) -> None:
    folder = JobFolder(LocalStore(tmp_path / "jobs"), JOB)
    folder.create(request(job=JOB))
    assert_fits([REPLAYER, "jobs", "--jobs", str(tmp_path / "jobs")], tmp_path, is_terminal=True)


def archived(folder: Path) -> None:
    """An archive of one partition of a topic with a long name, in `a`."""
    ArchiveWriter(folder / "a").partition(TOPIC, 0).commit(records(range(1000)))


def assert_fits(arguments: list[str], home: Path, *, is_terminal: bool) -> str:
    """Every line on stdout has 80 characters at most, but a sentence about a path or the topic."""
    shown = printed(arguments, home, is_terminal=is_terminal)
    lines = [line for line in shown.splitlines() if not re.search(rf"{home}|\w {TOPIC}", line)]
    assert lines and all(len(line) <= 80 and line == line.rstrip() for line in lines), shown
    assert "…" not in shown
    return shown


def printed(arguments: list[str], home: Path, *, is_terminal: bool) -> str:
    """What the program prints on stdout: to a terminal of 80 columns, or into a pipe."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"TERM": "xterm", "HOME": str(home)}
    if is_terminal:
        termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs if is_terminal else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(theirs)
    with done, os.fdopen(ours, "rb", buffering=0) as screen:
        if not is_terminal:
            return done.communicate()[0].decode()
        shown = b""
        while True:
            try:
                shown += screen.read(65536)
            except OSError:  # the terminal is gone with its last user
                return shown.decode().replace("\r\n", "\n")


def test_without_a_terminal_a_line_comes_every_few_seconds_even_while_nothing_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    printed, plain = threading.Semaphore(0), progress._PlainLines.print

    def counted(lines: progress._PlainLines) -> None:
        plain(lines)
        printed.release()

    monkeypatch.setattr(progress._PlainLines, "print", counted)
    with progress.record_progress("replaying", 100, as_json=False) as advance:
        advance(25, 2_500)
        advance.state("paused")
        assert printed.acquire(timeout=30)
        assert printed.acquire(timeout=30)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("paused: 25 of about 100 records, ")
    assert last.endswith(" s left")


def test_no_line_comes_once_the_work_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.record_progress("replaying", 100, as_json=False) as advance:
        advance(100, 1)
    assert capsys.readouterr().err == ""


def test_what_earlier_runs_did_is_counted_and_makes_no_rate_faster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STATUS_SECONDS", 0.0)
    with progress.record_progress("replaying", 15_220, as_json=True, before=4_668) as advance:
        advance(7_610, 1)
        advance(7_610, 1)
    half, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (half["records"], half["total_records"]) == (12_278, 19_888)
    assert half["eta_seconds"] == pytest.approx(half["seconds"], abs=0.002), "half of what was left is done"
    assert (last["records"], last["total_records"], last["eta_seconds"]) == (19_888, 19_888, 0)


EVIL = "\x1b]0;owned\x07 \u202eabc\x9b31m\r\x08\x00"
SHOWN = "\\x1b]0;owned\\x07 \\u202eabc\\u009b31m\\x0d\\x08\\x00"
OBEYED = {*range(0x20), 0x7F} - {0x09, 0x0A}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    value = EVIL.encode() + b"\xff\xc3\xa9"
    record = Record(0, 1_760_000_000_000, 0, EVIL.encode(), value, ((EVIL, EVIL.encode()),))
    ArchiveWriter(tmp_path / "a").partition("orders", 0).commit([record])
    return tmp_path


def assert_obeys_nothing(shown: bytes) -> None:
    found = {code for code in map(ord, shown.decode()) if code in OBEYED or 0x80 <= code < 0xA0 or code == 0x202E}
    assert not found, shown


def test_printable() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("é\t日本\n👩‍👩‍👧") == "é\t日本\n👩‍👩‍👧"
    assert printable("\u2066\u2069\u200f\u061c\x7f\u2028") == "\\u2066\\u2069\\u200f\\u061c\\u007f\\u2028"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["get", "orders:0:0"],
        ["cat", "orders", "-f", "%k %h %s\\n"],
        ["cat", "orders", "-J"],
        ["cat", "orders", "--json"],
        ["tail", "orders"],
        ["grep", "owned", "orders"],
        ["ls"],
    ],
)
def test_records_are_escaped_on_a_terminal(root: Path, command: list[str]) -> None:
    shown = shown_on_terminal(["replayer", *command, "-a", str(root / "a")], root)
    assert_obeys_nothing(shown)
    if command[0] in ("get", "tail", "grep") or "-f" in command:
        assert (SHOWN + "\\xffé\n").encode() in shown


@pytest.mark.slow
def test_errors_are_escaped_on_a_terminal(root: Path) -> None:
    (root / "a" / "topics" / "evil\x1b[2J").mkdir(parents=True)
    shown = shown_on_terminal(["replayer", "get", "evil\x1b[2J:0:1", "-a", str(root / "a")], root)
    assert b"\\x1b[2J" in shown
    assert_obeys_nothing(shown)


@pytest.mark.slow
def test_raw_is_raw_on_a_terminal(root: Path) -> None:
    shown = shown_on_terminal(["replayer", "cat", "orders", "--raw", "-a", str(root / "a")], root)
    assert EVIL.encode() + b"\xff\xc3\xa9\n" in shown


@pytest.mark.slow
def test_a_pipe_gets_every_byte(root: Path) -> None:
    command = [sys.executable, "-m", "replayer", "cat", "orders", "-a", str(root / "a")]
    piped = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    assert piped == EVIL.encode() + b"\xff\xc3\xa9\n"


class _Terminal(io.TextIOWrapper):
    name = "<terminal>"

    def isatty(self) -> bool:
        return True


def terminal_as_stdout(monkeypatch: pytest.MonkeyPatch) -> TextIO:
    stream = _Terminal(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def written(terminal: TextIO) -> bytes:
    content: bytes = terminal.buffer.getvalue()  # type: ignore[attr-defined]
    return content


def test_a_character_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stdout(monkeypatch)
    with escaped_terminals():
        for piece in (b"a\xc3", b"\xa9", "\u202e".encode()[:2], "\u202e".encode()[2:], b"\xff", "日".encode()):
            sys.stdout.buffer.write(piece)
    assert written(terminal) == "aé\\u202e\\xff\\u65e5".encode("latin-1")


def test_what_the_program_makes_the_terminal_do_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stdout(monkeypatch)
    with escaped_terminals():
        assert sys.stdout is not terminal
        print("\x1b[2J", end="", file=unescaped(sys.stdout), flush=True)
        print("\x1b[2J")
    assert sys.stdout is terminal
    assert written(terminal) == b"\x1b[2J\\x1b[2J\n"

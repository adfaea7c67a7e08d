"""Tables fit their line: columns go by importance, then texts wrap, and no line ends in blanks."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from blockgz.program.tables import print_table, range_text
from blockgz.store.local import LocalStore
from blockgz.units import time_text, timestamp_text
from replayer.replay.jobs.folder import JobFolder
from tests.replayer.replay.jobs.test_log import request
from tests.support.ancestor_archives import OldChunk, OldWriter, rows_of
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster

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

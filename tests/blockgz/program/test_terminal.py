"""Whatever a record, a name or an error holds, a terminal does not obey it."""

import io
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from blockgz.program.terminal import escaped_terminals, printable, unescaped
from index_format.records import Record
from tests.support.archives import ArchiveWriter
from tests.support.terminal import shown_on_terminal

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

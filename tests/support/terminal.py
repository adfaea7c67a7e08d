"""A program on a terminal of its own."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def printed(captured: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that a test wrote, without those of Kafka clients that earlier tests left to their threads."""
    return [line for text in captured.readouterr() for line in text.splitlines() if "rdkafka#" not in line]


def shown_on_terminal(arguments: Sequence[str], home: Path, environment: Mapping[str, str] = {}) -> bytes:
    """What `python -m` with these arguments writes on stdout and stderr, which are a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "HOME": str(home), **environment},
    )
    os.close(theirs)
    shown = b""
    with done, os.fdopen(ours, "rb", buffering=0) as screen:
        while True:
            try:
                shown += screen.read(65536)
            except OSError:  # the terminal is gone with its last user
                return shown.replace(b"\r\n", b"\n")

"""How commands that follow an archive end."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.archives import ArchiveWriter, records

START = "import os, signal, sys; signal.signal(signal.SIGINT, signal.{}); os.execv(sys.argv[1], sys.argv[1:])"
HOLDING = """
import os, signal, threading
from blockgz.process import ended_soon_after_signals
signal.signal(signal.SIGTERM, lambda *_: None)
with ended_soon_after_signals({signal.SIGTERM: 143}, 0.01), threading._active_limbo_lock:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""
FULL_PIPE_BYTES = 60_000
"""Of 64 KiB."""


def following(root: Path, *command: str, interrupts: str, stdin: bytes = b"") -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "replayer", *command, "-a", str(root)]
    started = [sys.executable, "-c", START.format(interrupts), *program]
    (root / "stdin").write_bytes(stdin)
    with (root / "stdin").open("rb") as given:
        return subprocess.Popen(started, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number", "interrupts", "exit_code"),
    [
        ("tail big -n 3000 -F", signal.SIGTERM, "SIG_IGN", 143),
        ("tail big -n 3000 -F", signal.SIGINT, "SIG_DFL", 130),
        ("cat big", signal.SIGTERM, "SIG_DFL", 143),
        ("get - --follow", signal.SIGTERM, "SIG_DFL", 143),
        ("get - --follow", signal.SIGINT, "SIG_DFL", 130),
    ],
)
def test_a_signal_ends_what_nobody_reads(
    tmp_path: Path, number: signal.Signals, interrupts: str, exit_code: int, command: str
) -> None:
    ArchiveWriter(tmp_path).partition("big", 0).commit(records(range(3000), value_bytes=200), block_bytes=50_000)
    places = "".join(f"big:0:{offset}\n" for offset in range(3000)).encode()
    with following(tmp_path, *command.split(), interrupts=interrupts, stdin=places) as program:
        assert program.stdout is not None
        deadline = time.monotonic() + 60
        while waiting_bytes(program.stdout.fileno()) < FULL_PIPE_BYTES:
            assert time.monotonic() < deadline
            os.sched_yield()
        program.send_signal(number)
        assert program.wait(timeout=30) == exit_code


def test_a_signal_ends_what_holds_a_lock_of_threading() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDING], timeout=60, check=False)
    assert done.returncode == 143


@pytest.mark.slow
def test_a_signal_ends_waiting_for_a_record(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("big", 0).commit(records(range(3)))
    with following(tmp_path, "get", "big:0:9", "-F", "--interval", "100ms", interrupts="SIG_IGN") as program:
        deadline = time.monotonic() + 60
        while not catches_sigterm(program):
            assert time.monotonic() < deadline
            os.sched_yield()
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=30) == 143


def waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def catches_sigterm(program: "subprocess.Popen[bytes]") -> bool:
    status = Path(f"/proc/{program.pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)

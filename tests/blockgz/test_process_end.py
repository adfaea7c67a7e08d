"""Asked of processes of their own."""

import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

PROGRAM = """
import atexit, os, sys, threading
from blockgz.process import run_to_exit
atexit.register(print, "handlers run")
threading.Thread(target=threading.Event().wait).start()
def main():
    sys.stdout.write("x" * 1_000_000)
    print("said", file=sys.stderr)
    sys.exit({code})
run_to_exit(main, os._exit)
"""


def ran(program: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30, check=False)


@pytest.mark.parametrize(("code", "exit_code"), [("", 0), (0, 0), (3, 3)])
def test_all_is_written_handlers_run_and_a_thread_that_waits_keeps_nobody(code: object, exit_code: int) -> None:
    done = ran(PROGRAM.format(code=code))
    assert (done.returncode, done.stderr) == (exit_code, "said\n")
    assert done.stdout == "x" * 1_000_000 + "handlers run\n"


def test_output_that_cannot_be_written_is_not_a_success() -> None:
    program = "\n".join(line for line in PROGRAM.format(code=0).splitlines() if "Thread(" not in line)
    with Path("/dev/full").open("w") as full:
        done = ran(program, stdout=full)
    assert done.returncode not in (0, None)
    assert "No space left" in done.stderr


@pytest.mark.parametrize(("end", "said"), [("1 / 0", "ZeroDivisionError"), ("sys.exit('why')", "why")])
def test_other_ends_are_the_interpreters(end: str, said: str) -> None:
    program = PROGRAM.format(code="0").replace("sys.exit(0)", end)
    program = "\n".join(line for line in program.splitlines() if "Thread(" not in line)
    done = ran(program)
    assert (done.returncode, said in done.stderr) == (1, True)

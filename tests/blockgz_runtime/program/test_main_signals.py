"""How commands of both programs end by a signal."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

SCRIPT = """
import asyncio, signal, sys, time
import click
from blockgz_runtime.program.main import Place, Program
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
    asyncio.run(wait())

places = {each: Place(f"__main__:{each}", "") for each in ("plain", "asynchronous")}
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

"""What this machine has: the cache folder, free ports, tools, and the error for what is missing."""

import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

QUICK_JAVA = ("-XX:TieredStopAtLevel=1",) if "PYTEST_VERSION" in os.environ else ()
"""For Java that lives for the seconds of a test: the thorough compiler would take more than it gives."""

# Below the range that systems hand out for outgoing connections: a stopped server finds its port free again.
_PORTS = range(15_000, 30_000)


class PartMissingError(RuntimeError):
    """A part that the system tests need cannot be had here; the message says which, and why."""


class ToolFailedError(RuntimeError):
    """A tool ended with an error or hung; the message holds the tail of its output."""


def cache_folder() -> Path:
    """`$BLOCKGZ_CACHE`, or `~/.cache/blockgz`: what is fetched or built once lies here, outside the tree."""
    named = os.environ.get("BLOCKGZ_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "blockgz"


def free_port(*taken: int) -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment, other than those in `taken`."""
    for port in random.SystemRandom().sample(_PORTS, 200):  # not the same as another process with the same seed
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if port not in taken:
                    return port
    raise PartMissingError("no free port on 127.0.0.1 among 200 tried")


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tool(name: str) -> str:
    """The path of a program found on PATH; PartMissingError where there is none."""
    found = shutil.which(name)
    if found is None:
        raise PartMissingError(f"no `{name}` on PATH")
    return found


def run_tool(command: Sequence[str], *, seconds: float, env: Mapping[str, str] | None = None) -> str:
    """Run a tool quietly and return its output; ToolFailedError when it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else {**os.environ, **env},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailedError(f"{command[0]} took longer than {seconds:g} s") from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise ToolFailedError(f"{command[0]} ended with {done.returncode}:\n{output[-2000:]}")
    return output


def filled_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """The folder `target`, filled by `fill` when it does not exist yet.

    `fill` works in a temporary folder beside it, which is renamed when it is whole: a folder under the final name
    is complete, whatever was interrupted. Of two that want it at the same time one waits for the other.
    PartMissingError when a tool that `fill` runs fails.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fill(target, fill)
    return target


def _fill(target: Path, fill: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        content = Path(scratch) / "content"
        content.mkdir()
        try:
            fill(content)
        except ToolFailedError as error:
            raise PartMissingError(f"cannot fill {target}: {error}") from error
        content.rename(target)


def tail(log: Path, length: int = 3000) -> str:
    """The last characters of a log file, for error messages."""
    return log.read_text(errors="replace")[-length:] if log.exists() else ""

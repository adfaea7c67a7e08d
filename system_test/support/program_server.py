"""Programs that start at once: forks of a process that has imported what both programs import.

Starting Python and importing the libraries takes most of the processor time of a short command, and the system tests
run thousands. A fork is a process of its own, with its own output, signals and exit code, and executes the console
script from its first line. Start-up itself is tested elsewhere, by tests/test_start_up.py, the README's and the demo's.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from blockgz.process import pandas_refused, without_math_threads

_FRESH = ("PYTHON", "LD_", "ARROW_", "MALLOC_", "BLOCKGZ_NO_KERNEL", "OPENBLAS_", "OMP_", "GLIBC_")
"""Variables with these names have their effect while Python starts or modules are imported."""


class ServedProcess:
    """A program that the server has forked: what tests use of subprocess.Popen."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        """Readable once the process has ended: its exit code, or minus the signal that killed it."""
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        with self._lock:
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                self._take_code()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended; raise subprocess.TimeoutExpired if it runs on."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
                self._take_code()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _take_code(self) -> None:
        self.returncode = int(os.read(self._ended, 16) or b"-9")
        os.close(self._ended)


class ProgramServer:
    """The process that forks programs for this one, started when the first is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._owner = 0

    def start(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None, out: IO[bytes], err: IO[bytes]
    ) -> ServedProcess:
        """Start a console script, or a module after `-m`, with these arguments, variables, folder and outputs."""
        request = {"command": list(command), "env": dict(env), "cwd": str(cwd or Path.cwd())}
        body = json.dumps(request).encode()
        ended, answer = os.pipe()
        with self._lock:
            if self._socket is None or self._owner != os.getpid():
                self._socket, self._owner = _server(), os.getpid()
            sent = socket.send_fds(self._socket, [len(body).to_bytes(4, "big")], [out.fileno(), err.fileno(), answer])
            assert sent == 4
            self._socket.sendall(body)
            os.close(answer)
            pid = int.from_bytes(_exactly(self._socket, 4), "big")
        return ServedProcess(pid, ended)


def can_serve(program: str, env: Mapping[str, str]) -> bool:
    """Return whether a program is one of ours and, with these variables, behaves as one that starts by itself."""
    is_ours = Path(program).parent == Path(sys.executable).parent and Path(program).name in ("archiver", "replayer")
    is_usual = not any(name.startswith(_FRESH) and env[name] != os.environ.get(name) for name in env)
    return is_ours and is_usual and sys.platform == "linux"


def _server() -> socket.socket:
    ours, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(its.fileno())],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    its.close()
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    process.wait()


def _exactly(source: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        more = source.recv(size - len(body))
        if not more:
            raise EOFError("the server of programs has ended")
        body += more
    return body


def _import_all() -> None:
    """Import what the programs import, as they do it: without pandas, and with no thread of a library for numbers."""
    without_math_threads()
    with pandas_refused():
        for package in map(importlib.import_module, ("index_format", "blockgz", "archiver", "replayer")):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not {"spark", "__main__", "demo", "_kernel"} & set(module.name.split(".")):
                    importlib.import_module(module.name)
    # Arrow brings jemalloc along, which repairs itself in a fork; no other library may have started a thread.
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    assert threads - {"jemalloc_bg_thd"} == {Path("/proc/self/comm").read_text().strip()}


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork programs until the client is gone; in the program itself, return what it is to execute."""
    answers: dict[int, int] = {}
    wake, ended = os.pipe()
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(ended)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([requests, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 100)
            _reap(answers)
        if requests not in ready:
            continue
        head, fds, _, _ = socket.recv_fds(requests, 4, 3)
        if not head:
            return None
        asked: dict[str, Any] = json.loads(_exactly(requests, int.from_bytes(head, "big")))
        out, err, answer = fds
        pid = os.fork()
        if not pid:
            os.dup2(out, 1)
            os.dup2(err, 2)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.detach()
            os.closerange(3, max(*fds, *answers.values()) + 1)
            return asked
        os.close(out)
        os.close(err)
        answers[pid] = answer
        requests.sendall(pid.to_bytes(4, "big"))


def _reap(answers: dict[int, int]) -> None:
    for pid in list(answers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            answer = answers.pop(pid)
            with suppress(BrokenPipeError):
                os.write(answer, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(answer)


def main() -> None:
    """Serve on the socket that the argument numbers; a forked program then takes this process over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.freeze()
    asked = _serve(requests)
    if asked is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    os.chdir(asked["cwd"])
    sys.argv = asked["command"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""Tasks that take their whole executor with them, once, and the executors that there are."""

import os
import signal
from pathlib import Path


def executor_dies() -> None:
    """The JVM that the worker's daemon is a child of, with all that it runs."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    os._exit(3)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def executors() -> list[int]:
    """The executors of a local cluster that this process drives."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            process = int(folder.name)
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and _is_below(process, os.getpid()):
                found.append(process)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        process = parent_of(process)
    return False

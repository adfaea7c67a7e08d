"""Disks in trouble: a file system that is full, and system calls that answer EIO."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from system_test.support.environment import PartMissingError, ToolFailedError, run_tool, tool

_TOOL_SECONDS = 60
_SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int seen;

static int fails(const char *call, int fd) {
    const char *wanted = getenv("TROUBLE_CALL"), *pattern = getenv("TROUBLE_PATH"), *log = getenv("TROUBLE_LOG");
    char link[64], path[PATH_MAX];
    if (!wanted || strcmp(call, wanted) || access(log, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (fnmatch(pattern, path, 0) || atomic_fetch_add(&seen, 1) < atoi(getenv("TROUBLE_AFTER"))) return 0;
    int out = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    dprintf(out, "%s\n", path);
    close(out);
    errno = EIO;
    return 1;
}

int fsync(int fd) { return fails("fsync", fd) ? -1 : syscall(SYS_fsync, fd); }
ssize_t write(int fd, const void *content, size_t size) {
    return fails("write", fd) ? -1 : syscall(SYS_write, fd, content, size);
}
"""


class FullDisk:
    """A tmpfs on `folder` of `size` bytes, of which `room` are free until `make_room`.

    As a context manager it is mounted inside the block. PartMissingError where this process may not mount.
    """

    def __init__(self, folder: Path, *, size: int, room: int) -> None:
        self.folder = folder
        self._size = size
        self._room = room
        self._ballast = folder / "ballast"

    def make_room(self) -> None:
        self._ballast.unlink()

    def __enter__(self) -> Self:
        self.folder.mkdir()
        try:
            mount = [tool("mount"), "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder)]
            run_tool(mount, seconds=_TOOL_SECONDS)
        except ToolFailedError as error:
            raise PartMissingError(f"a file system of its own cannot be mounted: {error}") from error
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._size - self._room)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@dataclass(frozen=True)
class BrokenDisk:
    """Calls that fail with EIO in every program that runs with `env`, until `mend`."""

    env: Mapping[str, str]
    _log: Path

    @property
    def failed(self) -> list[str]:
        """The path of every call that failed so far."""
        return self._log.read_text().splitlines()

    def mend(self) -> None:
        self._log.rename(self._log.with_suffix(".mended"))


def broken_disk(scratch: Path, call: str, pattern: str, *, after: int = 0) -> BrokenDisk:
    """`call`, fsync or write, fails on open files whose path matches `pattern`, but for the first `after` of a process.

    A library of C that comes before the system's; PartMissingError without gcc.
    """
    source, library, log = (scratch / f"trouble.{suffix}" for suffix in ("c", "so", "log"))
    source.write_text(_SHIM)
    run_tool([tool("gcc"), "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], seconds=_TOOL_SECONDS)
    log.touch()
    names = {"CALL": call, "PATH": pattern, "AFTER": str(after), "LOG": str(log)}
    return BrokenDisk({"LD_PRELOAD": str(library), **{f"TROUBLE_{name}": value for name, value in names.items()}}, log)

"""Files that appear whole or not at all, and only their owner may read."""

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Names of scratch files, around that of the file to be: a crash may leave them behind.
SCRATCH_NAME = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")


# Modes of what the programs make: record content is nobody else's business unless somebody says so.
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Yield an unused name next to `path`, to be filled and renamed to it; a file that remains there is removed."""
    scratch = path.with_name(f".{path.name[:200]}.{uuid.uuid4().hex}.tmp")
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until the file, or the entries of the folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file


def write_private(path: Path, body: bytes) -> None:
    """Write a file; a new one is its owner's alone, regardless of the umask. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE), "wb") as file:
        file.write(body)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; raises OSError for a FIFO or a device, which would hold its reader up."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a file, but a pipe or a device", str(path))


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone. Raises OSError."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def replace_file(path: Path, body: bytes) -> None:
    """Replace the file's content; readers see the old one or the new. On the disk on return. Raises OSError."""
    with scratch_file(path) as scratch:
        write_private(scratch, body)
        sync_file(scratch)
        scratch.replace(path)
    sync_folder(path.parent)

"""Files that appear whole or not at all."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRATCH_NAME = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")
"""Names of scratch files, around that of the file to be: a crash may leave them behind."""


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Gives an unused name beside `path`, to be filled and renamed to it; what is left there is removed."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Waits until the file, or the entries of the folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file


def replace_file(path: Path, body: bytes) -> None:
    """Gives the file this content; readers see the old one or this. On the disk on return. Raises OSError."""
    with scratch_file(path) as scratch:
        scratch.write_bytes(body)
        sync_file(scratch)
        scratch.replace(path)
    sync_folder(path.parent)

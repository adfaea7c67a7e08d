"""Small files that must outlive a crash: whole and on the disk, or as they were before."""

import os
from pathlib import Path


def replace_file(path: Path, body: bytes) -> None:
    """Gives the file this content; readers see the old one or this. On the disk when the call returns.

    One writer at a time: what it writes first lies beside the file under a name of its own. Raises OSError.
    """
    scratch = path.with_name(f".{path.name}.new")
    with scratch.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Real text that every Debian machine has: the stanzas of its package index."""

import functools
import shutil
import subprocess
from pathlib import Path

from system_test.support.environment import PartMissingError

_INSTALLED = Path("/var/lib/dpkg/status")


@functools.cache
def package_stanzas() -> tuple[bytes, ...]:
    """One stanza a record, in the index's order, without the empty line after it.

    From `apt-cache dumpavail` when it prints any, otherwise from the list of installed packages; PartMissingError
    where there is neither.
    """
    for text in (_available(), _installed()):
        stanzas = tuple(stanza.strip(b"\n") for stanza in text.split(b"\n\n") if stanza.strip())
        if stanzas:
            return stanzas
    raise PartMissingError("no package index here: neither apt-cache nor dpkg has one")


def corpus(count: int) -> list[bytes]:
    """Exactly `count` real stanzas; the index starts again from its first where it is too short."""
    stanzas = package_stanzas()
    repeats = -(-count // len(stanzas))
    return list((stanzas * repeats)[:count])


def _available() -> bytes:
    program = shutil.which("apt-cache")
    if program is None:
        return b""
    return subprocess.run([program, "dumpavail"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout


def _installed() -> bytes:
    return _INSTALLED.read_bytes() if _INSTALLED.exists() else b""

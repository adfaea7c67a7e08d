"""What producers and consumers note, in files of one JSON object a line. Of the standard library alone."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Stamped(NamedTuple):
    """A record as it is compared: a fingerprint of key, value and headers, and the timestamp in ms."""

    mark: str
    timestamp: int


class Written(NamedTuple):
    """A record as its producer knows it: noted before it is sent, of unknown fate and without an offset, and again
    with the answer."""

    topic: str
    partition: int
    offset: int | None
    timestamp: int
    mark: str
    fate: str
    """`committed`, `aborted` or `unknown`."""


class Moved(NamedTuple):
    """A group's commit, noted when it was asked for at `began`, in ms, and again with `done`, when it was answered.

    Without an offset the group was deleted.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    began: int
    done: int | None


class Asked(NamedTuple):
    """When the archiver asked last where a group stood on a topic, in ms, as the archive's table of the time says."""

    group: str
    topic: str
    at: int


class Kept(NamedTuple):
    """A partition that is to be restored, and how far it was archived when its cluster was lost."""

    topic: str
    partition: int
    end: int


class Found(NamedTuple):
    """What a consumer of a group, or of none from the start, read from a partition of the new cluster, in order."""

    group: str | None
    topic: str
    partition: int
    records: tuple[Stamped, ...]


Note = Written | Moved | Asked | Kept | Found
_KINDS = {kind.__name__: kind for kind in (Written, Moved, Asked, Kept, Found)}


@dataclass(frozen=True)
class NoteBook:
    """One file of notes, which one process adds to."""

    file: Path

    def add(self, *notes: Note) -> None:
        """Writes them down at once, also where several threads do."""
        lines = "".join(f"{json.dumps([type(note).__name__, *note])}\n" for note in notes)
        with self.file.open("ab", buffering=0) as file:
            file.write(lines.encode())


def noted(files: Iterable[Path]) -> Iterator[Note]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # its writer was killed at this line
            kind, *fields = json.loads(line)
            if kind == Found.__name__:
                fields[-1] = tuple(Stamped(*each) for each in fields[-1])
            yield _KINDS[kind](*fields)

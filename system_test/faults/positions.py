"""What archivers reported to hold, and which of them had to bring it into the archive.

`traced.py` writes a file of JSON arrays for each process: `["claim", number, topic id, folder, partition, epoch,
position]`, `["fetched", number, offset]` (all below it was handed over) and `["end", number, time, failure, is idle,
confirmed]`. A claim without an end was held by a process that was killed, or that ended while the store did not answer.
"""

import json
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

Where = tuple[str, int]
"""Topic id and partition."""
SUFFIX = ".positions"
GRACE_SECONDS = 30.0
"""A flush that did not end within `--grace` began at most so long before."""
STALL_SECONDS = 65.0
"""So long a stalled request gets no answer, at most."""


class Fate(Enum):
    """What became of a claim."""

    ORDERLY = "orderly"
    """It ended with all in the archive, or so it believed; what it had fetched must be there."""
    KILLED = "killed"
    FENCED = "fenced"
    CHANGED = "changed"
    """The topic's id is another one now; what was confirmed before must be there."""
    STORE_FAILED = "store-failed"
    """The grace time ended while the store refused requests."""


@dataclass(frozen=True)
class Holding:
    """Offsets [start, fetched) that a process had of a partition; of them [start, owed) must be archived."""

    process: str
    epoch: int
    start: int
    fetched: int
    owed: int
    fate: Fate
    failure: str | None

    def __str__(self) -> str:
        how = f"{self.fate.value} {self.failure or ''}".strip()
        return f"{self.process} [{self.start}, {self.fetched}) epoch {self.epoch} {how}"


class Refused(NamedTuple):
    """A request that met a fault of the store."""

    at: float
    fault: str
    path: str


@dataclass(frozen=True)
class Outages:
    """When the store failed requests, and from when to when it was down."""

    refused: Collection[Refused]
    down: Collection[tuple[float, float]]

    @classmethod
    def load(cls, journal: Path, down: Collection[tuple[float, float]]) -> Self:
        """From the proxy's journal."""
        entries = [json.loads(line) for line in journal.read_text().splitlines()]
        return cls([Refused(entry["at"], entry["fault"], unquote(entry["path"])) for entry in entries], down)

    def met(self, folder: str, partition: int, until: float) -> bool:
        """Whether a partition's requests met a failure within the grace time before."""
        since, home = until - GRACE_SECONDS, f"topic={folder}/partition={partition:05d}/"
        return any(
            since <= at + STALL_SECONDS * (fault == "stall") and at <= until and home in path
            for at, fault, path in self.refused
        ) or any(begun <= until and ended >= since for begun, ended in self.down)


class Process(NamedTuple):
    """How a process ended, and when."""

    exit_code: int
    ended_at: float


def holdings(
    logs: Path, processes: Mapping[str, Process], outages: Outages, epochs: Mapping[Where, int]
) -> dict[Where, list[Holding]]:
    """By topic id and partition; `processes` by name, `epochs` are those of the markers in the end."""
    found: dict[Where, list[Holding]] = {}
    for path in sorted(logs.glob(f"*{SUFFIX}")):
        for where, holding in _of_process(path, processes[path.stem], outages, epochs):
            found.setdefault(where, []).append(holding)
    return found


def _of_process(
    path: Path, process: Process, outages: Outages, epochs: Mapping[Where, int]
) -> Iterator[tuple[Where, Holding]]:
    claims: dict[int, list[Any]] = {}
    fetched: dict[int, int] = {}
    ends: dict[int, list[Any]] = {}
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # it was killed as it wrote
        kind, number, *facts = json.loads(line)
        if kind == "claim":
            claims[number] = facts
        elif kind == "fetched":
            fetched[number] = facts[0]
        else:
            ends[number] = facts
    for number, (topic_id, folder, partition, epoch, start) in claims.items():
        where, high = (topic_id, partition), fetched.get(number, start)
        at, failure, is_idle, confirmed = ends.get(number, (process.ended_at, None, False, start))
        fate, owed = Fate.ORDERLY, high
        if number not in ends and process.exit_code == -signal.SIGKILL:
            fate, owed = Fate.KILLED, start
        elif failure == "Fenced" and epochs.get(where, 0) > epoch:
            fate, owed = Fate.FENCED, start
        elif failure == "TopicChanged":
            fate, owed = Fate.CHANGED, min(confirmed, high)
        elif failure is None and not is_idle and outages.met(folder, partition, at):
            fate, owed = Fate.STORE_FAILED, start
        yield where, Holding(path.stem, epoch, start, high, owed, fate, failure)

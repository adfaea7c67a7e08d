"""Watches an archive from behind while it is written: what may only grow, and what may never change."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

MARKER = "last_chunk_index.json"
_PAUSE_SECONDS = 0.25
_GROUP_EVERY = 6


@dataclass
class Watched:
    """What was seen so far."""

    markers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and next_offset (-1 before the first progress) of each marker, by its key."""
    topic_ids: dict[str, str | None] = field(default_factory=dict)
    """The topic's id that each marker names, by its key."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each committed object when it was first seen, by key."""
    violations: list[str] = field(default_factory=list)
    marker_samples: int = 0
    marker_changes: int = 0
    group_samples: int = 0


GroupPositions = Callable[[], dict[tuple[str, int], int]]
"""What the consumer group committed; raises KafkaError or OSError where the broker does not answer."""
HomeOf = Callable[[str], tuple[str, str] | None]
"""A topic's current id and the folder of that incarnation; None where it has none yet."""


class Watcher:
    """A thread that looks at every marker again and again."""

    def __init__(self, root: Path, group_positions: GroupPositions) -> None:
        self._root = root
        self._group_positions = group_positions
        self._bodies: dict[str, bytes] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.seen = Watched()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> Watched:
        """End, after a last look."""
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._look()
        return self.seen

    def next_offsets(self, topic_ids: Mapping[str, str]) -> dict[tuple[str, int], int]:
        """How far each partition is archived, by topic and partition; of a topic with such an id, where a marker names
        another one, it is not.
        """
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        for key, (_, next_offset) in list(self.seen.markers.items()):
            topic, incarnation, partition = parse_home(key)
            if self.seen.topic_ids[key] not in (None, topic_ids.get(topic, self.seen.topic_ids[key])):
                continue
            if incarnation >= newest.get((topic, partition), (0, 0))[0]:
                newest[topic, partition] = (incarnation, next_offset)
        return {where: next_offset for where, (_, next_offset) in newest.items()}

    def _run(self) -> None:
        rounds = 0
        try:
            while not self._stop.wait(_PAUSE_SECONDS):
                rounds += 1
                if rounds % _GROUP_EVERY == 0:
                    self._compare_group()
                else:
                    self._look()
        except BaseException as error:
            self.failure = error

    def _look(self) -> None:
        for path in sorted(self._root.glob(f"topic=*/partition=*/{MARKER}")):
            key = path.relative_to(self._root).as_posix()
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                self.seen.violations.append(f"{key} vanished")
                continue
            self.seen.marker_samples += 1
            if body and body != self._bodies.get(key):
                self._bodies[key] = body
                self._see(key, json.loads(body))

    def _see(self, key: str, marker: dict[str, Any]) -> None:
        now = (marker["epoch"], -1 if marker["next_offset"] is None else marker["next_offset"])
        before = self.seen.markers.get(key, (0, -1))
        if now[0] < before[0] or now[1] < before[1]:
            self.seen.violations.append(f"{key} went from epoch and next_offset {before} back to {now}")
        self.seen.topic_ids[key] = marker["topic_id"]
        self.seen.markers[key] = now
        self.seen.marker_changes += 1
        home = key.removesuffix(MARKER)
        for references in marker["catalogs"]:
            for reference in references:
                self._hash(home + reference["name"])
        for entry in marker["tail"]:
            index_key = home + entry["name"]
            if index_key not in self.seen.hashes:
                index = json.loads((self._root / index_key).read_bytes())
                self._hash(home + index["data"]["name"])
                self._hash(index_key)

    def _hash(self, key: str) -> None:
        if key not in self.seen.hashes:
            self.seen.hashes[key] = hashlib.sha256((self._root / key).read_bytes()).hexdigest()

    def _highest(self) -> dict[tuple[str, int], int]:
        """The highest position of any incarnation: the group's offsets know topics by name only."""
        highest: dict[tuple[str, int], int] = {}
        for key, (_, next_offset) in self.seen.markers.items():
            topic, _, partition = parse_home(key)
            highest[topic, partition] = max(next_offset, highest.get((topic, partition), -1))
        return highest

    def _compare_group(self) -> None:
        """The group is asked before the markers, which may only have moved on meanwhile."""
        try:
            positions = self._group_positions()
        except (KafkaError, OSError):
            self._look()
            return
        self._look()
        archived = self._highest()
        self.seen.group_samples += 1
        for where, position in positions.items():
            if position > archived.get(where, -1):
                self.seen.violations.append(
                    f"the group's offset of {where[0]}:{where[1]} is {position}, the marker's {archived.get(where)}"
                )


def parse_home(key: str) -> tuple[str, int, int]:
    """Topic, incarnation and partition of a key below the archive's root."""
    folder, partition = key.split("/")[:2]
    topic, _, incarnation = folder.removeprefix("topic=").partition("~")
    return topic, int(incarnation or 1), int(partition.removeprefix("partition="))

"""Watches an archive from behind while it is written: what may only grow, and what may never change."""

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from system_test.checker import CheckFailedError, records_of_chunk

MARKER = "last_chunk_index.json"
_PAUSE_SECONDS = 0.25
_GROUP_EVERY = 6
_CLOCK_SECONDS = 1.5
"""The store's time, which a grace counts by, is in whole seconds."""


@dataclass
class Watched:
    """What was seen so far."""

    markers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and next_offset (-1 before the first progress) of each marker, by its key."""
    topic_ids: dict[str, str | None] = field(default_factory=dict)
    """The topic's id that each marker names, by its key."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each committed object when it was first seen, by key; in the end of those that markers lead to."""
    offsets: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets of records in committed chunks, by the partition's folder with a slash at its end."""
    gaps: dict[str, set[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(set))
    """From, to and reason of each gap that a marker listed, by the same."""
    violations: list[str] = field(default_factory=list)
    marker_samples: int = 0
    marker_changes: int = 0
    group_samples: int = 0
    deletions: int = 0
    """Committed objects that are gone in the end."""


GroupPositions = Callable[[], dict[tuple[str, int], int]]
"""What the consumer group committed; raises KafkaError or OSError where the broker does not answer."""
HomeOf = Callable[[str], tuple[str, str] | None]
"""A topic's current id and the folder of that incarnation; None where it has none yet."""


class Watcher:
    """A thread that looks at every marker again and again.

    What a marker leads to must be there for `grace` seconds after the marker was read, whatever becomes of it.
    """

    def __init__(self, root: Path, group_positions: GroupPositions, grace: float) -> None:
        self.root = root
        self._promised = grace - _CLOCK_SECONDS
        self._group_positions = group_positions
        self._bodies: dict[str, bytes] = {}
        self._read_at: dict[str, float] = {}
        """When each marker was last read."""
        self._below: dict[str, frozenset[str]] = {}
        """What a catalog or an index leads to, itself included, by its key."""
        self._reached: dict[str, frozenset[str]] = {}
        """What each marker leads to."""
        self._left: dict[str, float] = {}
        """When a marker was last read that led to an object to which none leads now, by its key."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.lost = set[str]()
        """Keys of objects that the campaign itself damaged or deleted."""
        self.seen = Watched()
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Watched:
        """End, after a last look."""
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._look()
        self.seen.deletions = sum(not (self.root / key).exists() for key in self.seen.hashes)
        reached = frozenset[str]().union(*self._reached.values())
        self.seen.hashes = {key: sha256 for key, sha256 in self.seen.hashes.items() if key in reached}
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

    def chunks(self) -> list[tuple[str, str]]:
        """The folder and the index's key of each chunk that a marker led to lately, in order."""
        reached = [(key.removesuffix(MARKER), keys) for key, keys in sorted(self._reached.items())]
        return [(home, key) for home, keys in reached for key in sorted(keys) if key.endswith(".index.json")]

    def leads_to(self, key: str) -> bool:
        """Whether a marker led to that object when it was last read."""
        return any(key in keys for keys in list(self._reached.values()))

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
        for path in sorted(self.root.glob(f"topic=*/partition=*/{MARKER}")):
            key = path.relative_to(self.root).as_posix()
            now = time.time()
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                self.seen.violations.append(f"{key} vanished")
                continue
            self.seen.marker_samples += 1
            if not body:
                continue
            if body != self._bodies.get(key):
                self._bodies[key] = body
                self._see(key, json.loads(body), now)
            self._read_at[key] = now
        self._check_left()

    def _check_left(self) -> None:
        for key, since in list(self._left.items()):
            is_there, late = (self.root / key).exists(), time.time() - since
            if not is_there and late < self._promised and key not in self.lost:
                self.seen.violations.append(f"{key} was deleted within {late:.1f} s after a marker led to it")
            if not is_there or late > self._promised:
                del self._left[key]

    def _see(self, key: str, marker: dict[str, Any], now: float) -> None:
        progress = (marker["epoch"], -1 if marker["next_offset"] is None else marker["next_offset"])
        before = self.seen.markers.get(key, (0, -1))
        if progress[0] < before[0] or progress[1] < before[1]:
            self.seen.violations.append(f"{key} went from epoch and next_offset {before} back to {progress}")
        self.seen.topic_ids[key] = marker["topic_id"]
        self.seen.markers[key] = progress
        self.seen.marker_changes += 1
        home = key.removesuffix(MARKER)
        self.seen.gaps[home] |= {(gap["from"], gap["to"], gap["reason"]) for gap in marker["gaps"]}
        names = [each["name"] for spans in (*marker["catalogs"], marker["tail"]) for each in spans]
        try:
            reached = frozenset[str]().union(*(self._objects(home, name) for name in names))
        except FileNotFoundError as error:
            if time.time() - now < self._promised:
                self.seen.violations.append(f"{error.filename} is missing, and a marker led to it a moment ago")
            return  # this marker is no longer the newest
        self._left |= dict.fromkeys(self._reached.get(key, frozenset()) - reached, self._read_at.get(key, now))
        self._reached[key] = reached

    def _objects(self, home: str, name: str) -> frozenset[str]:
        """The keys of all that a catalog or an index leads to, itself included; what is new is hashed and read."""
        key = home + name
        if key not in self._below:
            found = json.loads(self._hashed(key))
            below = found.get("entries", ())
            keys = {key}.union(*(self._objects(home, each["name"]) for each in below))
            if "data" in found:
                data = home + found["data"]["name"]
                self._see_chunk(home, found, self._hashed(data), data)
                keys.add(data)
            self._below[key] = frozenset(keys)
        return self._below[key]

    def _see_chunk(self, home: str, index: dict[str, Any], data: bytes, name: str) -> None:
        try:
            self.seen.offsets[home] |= {record.offset for record in records_of_chunk(data, index, name)}
        except CheckFailedError as error:
            self.seen.violations.append(str(error))

    def _hashed(self, key: str) -> bytes:
        body = (self.root / key).read_bytes()
        self.seen.hashes[key] = hashlib.sha256(body).hexdigest()
        return body

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


def read_markers(root: Path) -> dict[str, dict[str, Any]]:
    """Every marker as it is now, by the partition's folder with a slash at its end."""
    bodies = {path.parent: path.read_bytes() for path in sorted(root.glob(f"topic=*/partition=*/{MARKER}"))}
    return {f"{home.relative_to(root).as_posix()}/": json.loads(body) for home, body in bodies.items() if body}

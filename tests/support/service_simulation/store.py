"""A store whose requests take time, fail in every way, and hang; and a buffer folder in memory."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from blockgz import errors
from blockgz.store.writer import Body, FileBody, ListedObject, ObjectHead, StoredObject
from tests.support.chain import MARKER
from tests.support.memory_store import MemoryBody, MemoryStore
from tests.support.service_simulation.virtual_time import NOW, Task

R = TypeVar("R")
CLIENT_SECONDS = 60.0
"""After so long the client of a store gives up on a request."""


class Trouble(Enum):
    """What requests meet for a while."""

    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    DENIED = "denied"
    FULL = "full"
    UNSYNCED = "unsynced"
    SLOW = "slow"
    HANGING = "hanging"
    FOR_EVER = "for ever"


FAILURES: dict[Trouble, type[errors.BlockgzError]] = {
    Trouble.UNAVAILABLE: errors.StoreUnavailable,
    Trouble.BUSY: errors.StoreBusy,
    Trouble.DENIED: errors.AccessDenied,
    Trouble.FULL: errors.StoreFull,
    Trouble.UNSYNCED: errors.SyncFailed,
}


@dataclass(frozen=True)
class Spell:
    """Trouble from `start` to `end` for the requests of one host, or under one prefix, or for all."""

    trouble: Trouble
    start: float
    end: float
    host: str | None = None
    prefix: str | None = None
    rate: float = 1.0

    def meets(self, host: str, key: str, now: float) -> bool:
        return (
            self.start <= now < self.end
            and self.host in (None, host)
            and (self.prefix is None or key.startswith(self.prefix))
        )


@dataclass
class Noise:
    """Shares of requests that fail by themselves."""

    before: float = 0.0
    after: float = 0.0
    late: float = 0.0
    double: float = 0.0


class Swap(NamedTuple):
    """A marker that was replaced."""

    at: float
    host: str
    key: str
    writer: str
    epoch: int
    next_offset: int | None
    gaps: tuple[tuple[int, int], ...]


@dataclass
class Bucket:
    """What all hosts share."""

    content: MemoryStore = field(default_factory=MemoryStore)
    latency: float = 0.02
    spells: list[Spell] = field(default_factory=list)
    past_spells: list[Spell] = field(default_factory=list)
    """All that there ever were."""
    noise: Noise = field(default_factory=Noise)
    swaps: list[Swap] = field(default_factory=list)
    next_offsets: dict[str, int] = field(default_factory=dict)
    """By the marker's key."""
    met: dict[str, int] = field(default_factory=dict)
    """Faults by kind."""
    hanging: list[Task] = field(default_factory=list)
    troubled_at: dict[str, list[float]] = field(default_factory=dict)
    """Folder of a partition or a topic -> when a request under it met a fault, or began to hang."""

    def suffer(self, spell: Spell) -> None:
        self.spells.append(spell)
        self.past_spells.append(spell)

    def heal(self) -> None:
        now = NOW.hub.now
        self.past_spells = [replace(spell, end=min(spell.end, now)) for spell in self.past_spells]
        self.spells.clear()
        self.noise = Noise()
        hanging, self.hanging = self.hanging, []
        for task in hanging:
            if not task.host.is_dead:
                NOW.hub.wake(task)

    def next_offset_of(self, topic: str, number: int, topic_id: str) -> int | None:
        """What the marker says in the folder that is for this id; None where there is none."""
        for key, offset in self.next_offsets.items():
            folder, _, rest = key.partition("/")
            if folder.partition("~")[0] == f"topic={topic}" and rest == f"partition={number:05d}/{MARKER}":
                info = self.content.objects.get(f"{folder}/_topic.json")
                if info is not None and json.loads(info.body).get("topic_id") == topic_id:
                    return offset
        return None

    def note(self, kind: str, key: str) -> None:
        self.met[kind] = self.met.get(kind, 0) + 1
        self.troubled_at.setdefault(key.rpartition("/")[0], []).append(NOW.hub.now)


class SimulatedStore:
    """One host's way to the bucket."""

    url = "simulated:"
    prefix = ""

    def __init__(self, bucket: Bucket, host: str) -> None:
        self._bucket = bucket
        self._host = host
        self._is_abandoned = False
        self._uploads: list[Task] = []

    def get(self, key: str) -> StoredObject | None:
        return self._request("get", key, lambda: self._bucket.content.get(key))

    def head(self, key: str) -> ObjectHead | None:
        return self._request("head", key, lambda: self._bucket.content.head(key))

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        return self._request("put", key, lambda: self._bucket.content.put_if_absent(key, body, attempt), is_write=True)

    def compare_and_swap(self, key: str, body: bytes, expected: Any) -> Any:
        return self._request("swap", key, lambda: self._swap(key, body, expected), is_write=True)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        yield from self._request("list", prefix, lambda: list(self._bucket.content.list(prefix)))

    def folders(self, prefix: str) -> Iterator[str]:
        yield from self._request("list", prefix, lambda: list(self._bucket.content.folders(prefix)))

    def delete(self, key: str) -> None:
        self._request("delete", key, lambda: self._bucket.content.delete(key))

    def abandon_uploads(self) -> None:
        self._is_abandoned = True
        for task in self._uploads:
            NOW.hub.wake(task)

    def _swap(self, key: str, body: bytes, expected: Any) -> Any:
        tag = self._bucket.content.compare_and_swap(key, body, expected)
        if tag is not None and key.endswith(MARKER):
            marker = json.loads(body)
            gaps = tuple((gap["from"], gap["to"]) for gap in marker["gaps"])
            self._bucket.swaps.append(
                Swap(NOW.hub.now, self._host, key, marker["writer"], marker["epoch"], marker["next_offset"], gaps)
            )
            if marker["next_offset"] is not None:
                self._bucket.next_offsets[key] = marker["next_offset"]
        return tag

    def _request(self, kind: str, key: str, action: Callable[[], R], *, is_write: bool = False) -> R:
        hub, bucket = NOW.hub, self._bucket
        hub.note_request(f"store {kind}")
        if self._is_abandoned and is_write:
            raise errors.ShuttingDown("the program is ending")
        hub.sleep(bucket.latency * (0.2 + 0.4 * hub.rng.random()))
        self._meet_spells(key, is_upload=kind == "put")
        fate, noise = hub.rng.random(), bucket.noise
        for kind_of_noise in ("before", "after", "late", "double"):
            rate = getattr(noise, kind_of_noise)
            if fate < rate and (is_write or kind_of_noise == "before"):
                return self._fail(kind_of_noise, key, action)
            fate -= rate
        result = action()
        hub.sleep(bucket.latency * (0.2 + 0.4 * hub.rng.random()))
        return result

    def _fail(self, kind: str, key: str, action: Callable[[], R]) -> R:
        hub = NOW.hub
        self._bucket.note(kind, key)
        if kind == "after":
            action()
        elif kind == "late":
            hub.call_at(hub.now + 10 * hub.rng.random(), action)
        elif kind == "double":
            hub.call_at(hub.now + 10 * hub.rng.random(), action)
            return action()
        raise errors.StoreUnavailable(f"the store did not answer for {key}")

    def _meet_spells(self, key: str, *, is_upload: bool) -> None:
        hub, bucket = NOW.hub, self._bucket
        for spell in bucket.spells:
            if spell.meets(self._host, key, hub.now) and hub.rng.random() < spell.rate:
                bucket.note(spell.trouble.value, key)
                if spell.trouble in FAILURES:
                    hub.sleep(bucket.latency)
                    raise FAILURES[spell.trouble](f"{spell.trouble.value}: {key}")
                if spell.trouble is Trouble.SLOW:
                    self._delay(hub.rng.choice((1.0, 5.0, 20.0)))
                else:
                    self._hang(key, None if spell.trouble is Trouble.FOR_EVER else CLIENT_SECONDS, is_upload=is_upload)

    def _delay(self, seconds: float) -> None:
        hub, task = NOW.hub, NOW.hub.current
        assert task is not None
        self._bucket.hanging.append(task)
        hub.park(seconds)
        if task in self._bucket.hanging:
            self._bucket.hanging.remove(task)

    def _hang(self, key: str, seconds: float | None, *, is_upload: bool) -> None:
        hub, task = NOW.hub, NOW.hub.current
        assert task is not None
        self._bucket.hanging.append(task)
        if is_upload:
            self._uploads.append(task)
        hub.park(seconds)
        if is_upload:
            self._uploads.remove(task)
        if task in self._bucket.hanging:
            self._bucket.hanging.remove(task)
        self._bucket.note("hung", key)
        if self._is_abandoned and is_upload:
            raise errors.ShuttingDown("the program is ending")
        raise errors.StoreUnavailable(f"no answer for {key}")


class OpenedFromMemory:
    """As the path of a file of the buffer."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, mode: str) -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self._content)


class SimulatedFile:
    """As BufferFile, in memory."""

    def __init__(self, folder: "SimulatedFolder") -> None:
        self._folder = folder
        self._content = bytearray()
        self.size = 0

    def append(self, block: bytes) -> None:
        if NOW.hub.now < self._folder.fails_until:
            raise self._folder.failure("the buffer cannot be written", why="simulated")
        self._content += block
        self.size += len(block)
        self._folder.account(len(block))

    def finish(self) -> FileBody:
        content = bytes(self._content)
        body = MemoryBody.of(content)
        readable = MemoryBody(cast(Path, OpenedFromMemory(content)), body.size, body.sha256)
        readable.content = content
        return readable

    def discard(self) -> None:
        self._folder.account(-self.size)
        self.size = 0


class SimulatedFolder:
    """As BufferFolder."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self.fails_until = 0.0
        self.failure: type[errors.BufferFailed] = errors.BufferFull

    def new_file(self) -> Any:
        return SimulatedFile(self)

    def account(self, num_bytes: int) -> None:
        self.used_bytes += num_bytes

    def mark_alive(self) -> None:
        """Nobody looks for it."""

    def close(self) -> None:
        """Nothing is left."""

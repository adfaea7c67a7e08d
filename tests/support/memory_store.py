"""A store and a log in memory, with the semantics that blockgz.store.writer.Store and LogReader promise."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from blockgz.errors import StoreError
from blockgz.kafka import LogBounds
from blockgz.store.writer import Body, FileBody, Leftover, ListedObject, ObjectHead, StoredObject
from index_format.errors import BlockgzError
from index_format.records import Record


class MemoryBody(FileBody):
    """What looks like a buffer file and lies in memory."""

    content: bytes

    @classmethod
    def of(cls, content: bytes) -> "MemoryBody":
        body = cls(Path("nowhere"), len(content), hashlib.sha256(content).hexdigest())
        body.content = content
        return body


def content_of(body: Body) -> bytes:
    """The bytes of a body, wherever they lie."""
    if isinstance(body, MemoryBody):
        return body.content
    if isinstance(body, bytes):
        return body
    body.check_size()
    return body.path.read_bytes()


@lru_cache(maxsize=1000)
def etag_of(body: bytes) -> str:
    """Equal bodies have equal etags, as in S3."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


class Kept(NamedTuple):
    """One stored object."""

    body: bytes
    attempt: str | None
    modified: float = 0.0


class MemoryStore:
    """Every method is atomic; `objects` and `versions` are the back door."""

    url = "memory:"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.objects: dict[str, Kept] = {}
        self.versions: dict[str, list[bytes]] = {}
        """What ever stood under a key, oldest first."""
        self.now = 0.0
        """The store's own clock, in seconds."""
        self._guard = threading.Lock()

    def copy(self) -> "MemoryStore":
        twin = MemoryStore(self.prefix)
        twin.objects = dict(self.objects)
        twin.versions = {key: [kept.body] for key, kept in self.objects.items()}
        return twin

    def bodies(self) -> dict[str, bytes]:
        return {key: kept.body for key, kept in self.objects.items()}

    def get(self, key: str) -> StoredObject | None:
        with self._guard:
            kept = self.objects.get(key)
        return StoredObject(kept.body, etag_of(kept.body)) if kept else None

    def head(self, key: str) -> ObjectHead | None:
        with self._guard:
            kept = self.objects.get(key)
        return ObjectHead(len(kept.body), kept.attempt) if kept else None

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        content = content_of(body)
        with self._guard:
            if key in self.objects:
                return False
            self._keep(key, Kept(content, attempt, self.now))
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        with self._guard:
            kept = self.objects.get(key)
            if (etag_of(kept.body) if kept else None) != expected:
                return None
            self._keep(key, Kept(body, None, self.now))
        return etag_of(body)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See Store; as one moment saw it."""
        with self._guard:
            found = [
                ListedObject(key, len(kept.body), kept.modified)
                for key, kept in sorted(self.objects.items())
                if key.startswith(prefix)
            ]
        yield from found

    def delete(self, key: str) -> None:
        with self._guard:
            self.objects.pop(key, None)

    def abandon_uploads(self) -> None:
        """See Store."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._guard:
            kept = self.objects.get(key)
        if kept is None:
            raise StoreError(f"{key} is missing")
        return kept.body[start:end]

    def folders(self, prefix: str) -> Iterator[str]:
        below = [key.removeprefix(prefix) for key in self.objects if key.startswith(prefix)]
        yield from sorted({name.partition("/")[0] for name in below if "/" in name})

    def clock(self) -> float:
        return self.now

    def leftovers(self) -> Iterator[Leftover]:
        """See ToolStore: there never are any."""
        yield from ()

    def discard(self, leftover: Leftover) -> None:
        raise AssertionError(leftover)

    def restoring(self, key: str, sha256: str) -> str | None:
        """See ToolStore: it keeps no older versions."""
        return None

    def expires_uploads(self) -> bool:
        return True

    def _keep(self, key: str, kept: Kept) -> None:
        self.objects[key] = kept
        self.versions.setdefault(key, []).append(kept.body)


class MemoryLog:
    """A partition's log: records at rising offsets, with holes where offsets are left out."""

    def __init__(self, records: Sequence[Record], *, low: int = 0, high: int | None = None) -> None:
        self.records = list(records)
        self.low = low
        self.high = high if high is not None else (records[-1].offset + 1 if records else low)
        self.confirmed: list[str] = []
        """Ids that somebody wanted to be confirmed."""
        self.unconfirmed: BlockgzError | None = None
        """What the cluster answers instead of confirming."""

    def bounds(self, at_least: int = 0) -> LogBounds:
        return LogBounds(self.low, self.high)

    def record_at(self, offset: int) -> Record | None:
        return next((record for record in self.records if record.offset == offset), None)

    def first_record(self, offset: int) -> int | None:
        return next((record.offset for record in self.records if record.offset >= max(offset, self.low)), None)

    def confirm(self, topic_id: str) -> None:
        self.confirmed.append(topic_id)
        if self.unconfirmed is not None:
            raise self.unconfirmed

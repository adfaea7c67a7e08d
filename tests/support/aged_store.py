"""A store in memory, whose clock and whose objects' ages a test sets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from archiver.stores import Body, Leftover, ListedObject, ObjectHead, StoredObject


class Kept(NamedTuple):
    """One stored object; a file's body is kept as what it was given as."""

    body: Body
    etag: str
    attempt: str | None
    modified: float


@dataclass
class AgedStore:
    """See archiver.stores.ToolStore; `after_each` is called after every operation of a reader or tool."""

    url: str = "memory:"
    prefix: str = ""
    now: float = 1_800_000_000.0
    kept: dict[str, Kept] = field(default_factory=dict)
    after_each: Callable[[], None] = lambda: None
    _versions: int = 0

    def get(self, key: str) -> StoredObject | None:
        found = self.kept.get(key)
        self.after_each()
        return StoredObject(_content(found.body), found.etag) if found else None

    def head(self, key: str) -> ObjectHead | None:
        found = self.kept.get(key)
        self.after_each()
        return ObjectHead(_size(found.body), found.attempt) if found else None

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if key in self.kept:
            return False
        self._keep(key, body, attempt)
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        found = self.kept.get(key)
        if (found.etag if found else None) != expected:
            return None
        return self._keep(key, body, None)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        found = [
            ListedObject(key, _size(each.body), each.modified)
            for key, each in sorted(self.kept.items())
            if key.startswith(prefix)
        ]
        self.after_each()
        yield from found

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)
        self.after_each()

    def close(self) -> None:
        pass

    def folders(self, prefix: str) -> Iterator[str]:
        names = {key[len(prefix) :].split("/")[0] for key in self.kept if key.startswith(prefix) and "/" in key}
        yield from sorted(names)

    def clock(self) -> float:
        return self.now

    def leftovers(self) -> Iterator[Leftover]:
        yield from ()

    def discard(self, leftover: Leftover) -> None:
        raise AssertionError(leftover)

    def expires_uploads(self) -> bool:
        return True

    def _keep(self, key: str, body: Body, attempt: str | None) -> str:
        self._versions += 1
        etag = f'"{self._versions}"'
        self.kept[key] = Kept(body, etag, attempt, self.now)
        return etag


def _content(body: Body) -> bytes:
    return body if isinstance(body, bytes) else b"\0" * body.size


def _size(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else body.size

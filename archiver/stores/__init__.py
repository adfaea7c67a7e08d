"""The store seam of the archiver: what commits need from an object store, in the words of the commit protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol


class StoredObject(NamedTuple):
    """An object and the version that a compare-and-swap names."""

    body: bytes
    etag: str


class ObjectHead(NamedTuple):
    """What is known of an object without reading it; `attempt` is None where the store keeps no metadata."""

    size: int
    attempt: str | None


class FileBody(NamedTuple):
    """A body that lies in a local file; the store may move or link it, the caller deletes what is left."""

    path: Path
    size: int
    sha256: str


Body = bytes | FileBody


class Store(Protocol):
    """An archive's root. Keys are relative to it.

    Every method may raise StoreUnavailable (try again; a write may have been carried out), NotPermitted or StoreError.
    """

    @property
    def url(self) -> str:
        """The address of the root."""

    @property
    def prefix(self) -> str:
        """What stands before a key in the store's own namespace; empty or ending in a slash."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def head(self, key: str) -> ObjectHead | None:
        """What is known of the object, or None where there is none."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        """Create the object, visible only when whole; False where the key is taken."""

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        """Replace version `expected` (None: no object yet) and give the new etag; None where it is another by now."""

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that start with `prefix`; for tools, never for commits."""

    def delete(self, key: str) -> None:
        """Remove an object of a probe or of garbage collection; a missing one is no error."""

"""The store seam of the archiver: what commits need from an object store, in the words of the commit protocol."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, NewType, Protocol, TypeGuard

from blockgz.errors import BufferFailed

# The folder of a probe's scratch objects, in the archive's root.
PROBE_FOLDER = re.compile(r"\.probe-[0-9a-f]{32}/")


# Names an object's content, for a compare-and-swap: S3's ETag, or the SHA-256 of a local file.
ContentTag = NewType("ContentTag", str)


class StoredObject(NamedTuple):
    """An object and the tag that a compare-and-swap names."""

    body: bytes
    etag: ContentTag


class ObjectHead(NamedTuple):
    """The facts about an object without reading it; `attempt` is None if the store keeps no metadata."""

    size: int
    attempt: str | None


class ListedObject(NamedTuple):
    """One object of a listing: bytes, and seconds since 1970 by the store's own clock."""

    key: str
    size: int
    modified: float


class Leftover(NamedTuple):
    """A leftover of a writer that died, other than objects: never part of an archive."""

    kind: Literal["temporary file", "probe object", "unfinished upload"]
    key: str
    """The key that was to be written."""
    size: int | None
    """Bytes; None if the store does not report them."""
    modified: float
    """When it was begun, or last written to, by the store's own clock."""
    token: str
    """The id among leftovers of one key: the file's name or the upload's id; empty for an object."""


class FileBody(NamedTuple):
    """A body in a local file; the store may move or link it, the caller deletes the rest."""

    path: Path
    size: int
    sha256: str

    def check_size(self) -> None:
        """Raise BufferFailed if the file is gone or has another size."""
        with self.reading():
            found = self.path.stat().st_size
        if found != self.size:
            raise self._changed(f"it has {found} bytes; {self.size} were written")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Yield a file system's errors as BufferFailed."""
        try:
            yield
        except OSError as error:
            raise self._changed(error.strerror or str(error)) from error

    def check_content(self, sha256: str) -> None:
        """Raise BufferFailed if `sha256`, of what was read back, is not that of what was written."""
        if sha256 != self.sha256:
            raise self._changed("its SHA-256 is not that of the bytes that were written")

    def _changed(self, why: str) -> BufferFailed:
        return BufferFailed(
            f"the buffer file {self.path} changed after it was written",
            why=why,
            remedy="check the disk of --buffer-dir; the chunk is read from Kafka again",
        )


Body = bytes | FileBody
PART_BYTES = 16 * 1024 * 1024


def in_parts(body: Body) -> TypeGuard[FileBody]:
    """Return whether an object store takes the body in several requests; the object appears with the last one."""
    return isinstance(body, FileBody) and body.size > PART_BYTES


class Store(Protocol):
    """An archive's root. Keys are relative to it.

    Every method may raise StoreUnavailable (try again; a write may have been carried out), AccessDenied or StoreError.
    """

    @property
    def url(self) -> str:
        """The address of the root."""

    @property
    def prefix(self) -> str:
        """The prefix of keys in the store's own namespace; empty or ending in a slash."""

    def get(self, key: str) -> StoredObject | None:
        """Return the object, or None if there is none."""

    def head(self, key: str) -> ObjectHead | None:
        """Return the facts about the object, or None if there is none."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        """Create the object, visible only when whole; False if the key is taken."""

    def compare_and_swap(self, key: str, body: bytes, expected: ContentTag | None) -> ContentTag | None:
        """Replace version `expected` (None: no object yet) and return the new tag; None if the version is another."""

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose keys start with `prefix`; for tools, never for commits."""

    def delete(self, key: str) -> None:
        """Remove an object of a probe or of garbage collection; a missing one is not an error."""

    def abandon_uploads(self) -> None:
        """End running uploads with ShuttingDown, so that they leave nothing behind, and begin no more."""


class ToolStore(Store, Protocol):
    """The further methods that tools need."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of an object, end > start; fewer if it ends before; StoreError without one."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix` (empty, or ending in a slash) that have objects below them; no dot names."""

    def clock(self) -> float:
        """Return the store's own time, in seconds since 1970."""

    def leftovers(self) -> Iterator[Leftover]:
        """Return leftovers of writers, dead or alive: only the age shows which."""

    def discard(self, leftover: Leftover) -> None:
        """Remove a leftover; a missing one is not an error."""

    def restoring(self, key: str, sha256: str) -> str | None:
        """Return the command that brings back an older version of an object with this hash; None if there is none."""

    def expires_uploads(self) -> bool:
        """Return whether the store itself removes uploads that nobody completes."""

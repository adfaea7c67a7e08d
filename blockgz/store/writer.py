"""The store seam of the archiver: what commits need from an object store, in the words of the commit protocol."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, NewType, Protocol, TypeGuard

from blockgz.errors import BufferFailed

PROBE_FOLDER = re.compile(r"\.probe-[0-9a-f]{32}/")
"""Where a probe keeps its scratch objects, in the archive's root."""


ContentTag = NewType("ContentTag", str)
"""Names an object's content, for a compare-and-swap: S3's ETag, or the SHA-256 of a local file."""


class StoredObject(NamedTuple):
    """An object and the tag that a compare-and-swap names."""

    body: bytes
    etag: ContentTag


class ObjectHead(NamedTuple):
    """What is known of an object without reading it; `attempt` is None where the store keeps no metadata."""

    size: int
    attempt: str | None


class ListedObject(NamedTuple):
    """One object of a listing: bytes, and seconds since 1970 by the store's own clock."""

    key: str
    size: int
    modified: float


class Leftover(NamedTuple):
    """What a writer that died left behind, other than objects: never part of an archive."""

    kind: Literal["temporary file", "probe object", "unfinished upload"]
    key: str
    """The key that was to be written."""
    size: int | None
    """Bytes; None where the store does not tell."""
    modified: float
    """When it was begun, or last written to, by the store's own clock."""
    token: str
    """What tells it from others of the same key: the file's name, the upload's id; empty for an object."""


class FileBody(NamedTuple):
    """A body that lies in a local file; the store may move or link it, the caller deletes what is left."""

    path: Path
    size: int
    sha256: str

    def check_size(self) -> None:
        """Raises BufferFailed where the file is gone or has another size."""
        with self.reading():
            found = self.path.stat().st_size
        if found != self.size:
            raise self._changed(f"it has {found} bytes; {self.size} were written")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A file system's errors as BufferFailed."""
        try:
            yield
        except OSError as error:
            raise self._changed(error.strerror or str(error)) from error

    def check_content(self, sha256: str) -> None:
        """Raises BufferFailed where `sha256`, of what was read back, is not that of what was written."""
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
    """Whether an object store takes the body in several requests, which show only when the last one is done."""
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
        """What stands before a key in the store's own namespace; empty or ending in a slash."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def head(self, key: str) -> ObjectHead | None:
        """What is known of the object, or None where there is none."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        """Create the object, visible only when whole; False where the key is taken."""

    def compare_and_swap(self, key: str, body: bytes, expected: ContentTag | None) -> ContentTag | None:
        """Replace version `expected` (None: no object yet) and give the new tag; None where it is another by now."""

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Objects whose keys start with `prefix`; for tools, never for commits."""

    def delete(self, key: str) -> None:
        """Remove an object of a probe or of garbage collection; a missing one is no error."""

    def abandon_uploads(self) -> None:
        """The program ends: uploads under way end with ShuttingDown and leave nothing behind, and none is begun."""


class ToolStore(Store, Protocol):
    """What the tools ask beyond that."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object, end > start; fewer where it ends before. A missing one is StoreError."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix` (empty, or ending in a slash) that have objects below them; no dot names."""

    def clock(self) -> float:
        """The store's own time, in seconds since 1970."""

    def leftovers(self) -> Iterator[Leftover]:
        """What writers left behind, dead or alive: only its age tells."""

    def discard(self, leftover: Leftover) -> None:
        """Remove a leftover; a missing one is no error."""

    def expires_uploads(self) -> bool:
        """Whether the store itself removes uploads that nobody completes."""

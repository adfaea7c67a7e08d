"""The store seam: what the replayer needs of the place where an archive's objects are.

Keys are relative to the archive's root. Every implementation passes tests/contract/test_reader_store.py.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol


class StoredObject(NamedTuple):
    """A whole object and the ETag that this version of it has."""

    body: bytes
    etag: str


class ObjectReader(Protocol):
    """Reads objects; safe for many concurrent calls.

    Every method raises AccessDenied or StoreUnavailable where the store does.
    """

    @property
    def address(self) -> str:
        """Where the root is, for people: `s3://bucket/prefix` or `file:///dir`."""

    async def get(self, key: str, max_bytes: int) -> StoredObject:
        """The whole object.

        Raises ObjectMissing; TooLarge, before reading it, where it has more than `max_bytes`. Where the credentials
        may not list the bucket, S3 answers for a missing object as for a forbidden one: that is AccessDenied.
        """

    async def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:
        """Exactly the bytes [start, end), end > start.

        Raises ObjectMissing, ObjectTruncated where the object ends before `end`, and ObjectChanged where `etag` is
        given and is no longer the object's.
        """

    async def size(self, key: str) -> int:
        """The object's length in bytes; raises ObjectMissing."""

    def list(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix`, in lexical order."""

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """What follows `prefix` up to the next slash in the keys that begin with it, each once, in lexical order.

        `prefix` is empty or ends with a slash; `folders("topic=a/")` is `("partition=00000", ...)`.
        """

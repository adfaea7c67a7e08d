"""Operations that a protocol may yield; the driver answers with the result or throws the store's error in."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from archiver.errors import passing
from blockgz.errors import BlockgzError
from blockgz.store.writer import Body, ContentTag
from index_format.keys import PartitionKeys

R = TypeVar("R")
# A running protocol: yields operations, is sent their answers, returns R.
Protocol = Generator["Operation", Any, R]


@dataclass(frozen=True)
class Get:
    """Answer: StoredObject or None."""

    key: str


@dataclass(frozen=True)
class GetAll:
    """Answer: StoredObject or None for each key, in order."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Compute:
    """Do what takes long, and may read and write files and read the store; answer: what it gives."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Head:
    """Answer: ObjectHead or None."""

    key: str


@dataclass(frozen=True)
class PutIfAbsent:
    """Answer: True when stored, False when the key is taken."""

    key: str
    body: Body
    attempt: str


@dataclass(frozen=True)
class CompareAndSwap:
    """Answer: the new etag, or None when the object is another version."""

    key: str
    body: bytes
    expected: ContentTag | None


@dataclass(frozen=True)
class Wait:
    """Back off before another try; answer: None. `attempt` counts from 1. The driver may throw ShuttingDown in.

    `error` is what failed, if anything did; the driver throws it in if nobody should retry it now.
    """

    attempt: int
    cause: str
    error: BlockgzError | None = field(default=None, compare=False)


class NewToken:
    """Answer: a fresh random UUID as text."""


class Now:
    """Answer: the time, in ms since 1970."""


class StillAssigned:
    """Answer: whether the partition may be claimed, being still this process's."""


@dataclass(frozen=True)
class CourtesyFailed:
    """Report that something outside the archive was not done; answer: None."""

    key: str
    cause: str


# Above the end of any log: see ReadLogBounds.
NOW = 2**63 - 1


@dataclass(frozen=True)
class ReadLogBounds:
    """Answer: LogBounds of the partition; reread if the known ones end below `at_least`.

    With NOW they are always read.
    """

    at_least: int = 0


@dataclass(frozen=True)
class ConfirmTopic:
    """Answer: None, once the cluster names this id for the topic. BrokerUnreachable if it names none now."""

    topic_id: str


@dataclass(frozen=True)
class ReadLogRecord:
    """Answer: the Record at that offset, or None if the log no longer has one there."""

    offset: int


@dataclass(frozen=True)
class FindLogRecord:
    """Answer: the offset of the first record at or above that one, or None if the log ends before there is one."""

    offset: int


@dataclass(frozen=True)
class CheckUnclaimed:
    """Answer: None. MalformedObject where the partition was archived, and only its marker is missing."""

    keys: PartitionKeys


class ListClaimed:
    """Answer: an Inventory made from a listing of the archive."""


Operation = (
    Get
    | GetAll
    | Compute
    | Head
    | PutIfAbsent
    | CompareAndSwap
    | Wait
    | NewToken
    | Now
    | StillAssigned
    | CheckUnclaimed
    | CourtesyFailed
    | ReadLogBounds
    | ConfirmTopic
    | ReadLogRecord
    | ListClaimed
    | FindLogRecord
)


def retrying(operation: Operation) -> Protocol[Any]:
    """Retry what may pass (see archiver.errors) until the store or broker answers; only for operations that read."""
    attempt = 0
    while True:
        try:
            return (yield operation)
        except BlockgzError as failure:
            error = passing(failure)
        attempt += 1
        yield Wait(attempt, error.what, error)

"""Errors of both programs, with the exit code of each.

None is an OSError: what handles those of the operating system must not catch ours.
Errors of the format itself, which know of no program, get their exit codes from `exit_code`.

What asks a store may raise StoreError or AccessDenied, and what asks a cluster BrokerUnreachable or AccessDenied:
docstrings name other errors.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from enum import StrEnum

from index_format.errors import (  # noqa: F401 - both programs import all errors from here
    MASK,
    BadName,
    BlockgzError,
    CorruptBlock,
    FormatError,
    KeyMissing,
    MalformedObject,
    TooLarge,
    UnsupportedVersion,
    masked_urls,
)

# How many names an error lists.
SHOWN_NAMES = 10
FAILED = 1
USAGE = 2
PARTLY_FAILED = 3


class Verdict(StrEnum):
    """The result of a verification, a proof, a restore or a drill, worst first; docs/verify.md defines each."""

    FAILURE = "FAILURE"
    WARNING = "WARNING"
    UNPROVED = "UNPROVED"
    SAMPLED = "SAMPLED"
    OK = "OK"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts; OK if there are none."""
    return min(verdicts, key=list(Verdict).index, default=Verdict.OK)


class UsageError(BlockgzError, ValueError):
    """An argument, option or setting that cannot be used as given."""

    exit_code = USAGE


class UnresolvedReference(UsageError):
    """A `${env:…}` or `${file:…}` in a setting that leads nowhere on this machine."""


class CutUndecided(UsageError):
    """Clocks do not show which records are from before a time, and nobody chose a rule; nothing was written."""


class NotInArchive(BlockgzError, LookupError):
    """The archive does not hold the topic, partition or record; `why` gives the reason."""

    exit_code = 4


class NoArchiveThere(BlockgzError, LookupError):
    """Nothing at the address is an archive."""

    exit_code = 10


class AccessDenied(BlockgzError):
    """The store or the cluster refuses: no credentials, wrong ones, or too few permissions."""

    exit_code = 12
    # Whether the answer said why: HEAD gets 403 without a word for expired credentials and for missing permissions.
    has_cause = True


class NoSuchTopic(BlockgzError, LookupError):
    """A named topic that does not exist."""

    exit_code = USAGE


class BrokerUnreachable(BlockgzError):
    """No broker answered within the deadline; worth a retry later."""


class PartitionUnavailable(BlockgzError):
    """A partition that cannot be read right now, or not as far as requested: deleted, truncated, without a leader."""


class StoreError(BlockgzError):
    """The store refuses or fails for good."""


class StoreUnavailable(StoreError):
    """The store may answer later; whether the request was carried out is unknown."""


class StoreBusy(StoreUnavailable):
    """The store answered with an error that passes."""


class StoreFull(StoreError):
    """The store's disk is full, or a quota is used up: nothing was written."""


class SyncFailed(StoreError):
    """An fsync failed: the write may not outlast a power failure, and a second fsync would not show it."""


class StoreUnfit(StoreError):
    """The store breaks a promise that commits rest on."""


class BufferFailed(StoreError):
    """A file of the local buffer cannot be read back."""


class BufferFull(BufferFailed):
    """The local buffer could not be written; its earlier content is whole."""


class ObjectMissing(BlockgzError, LookupError):
    """An object that does not exist."""

    exit_code = 3

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the object {key} is missing",
            why="the archive names it, or every archive has it",
            remedy="run `replayer verify` to see what is lost",
        )
        self.key = key


class MarkerMissing(ObjectMissing):
    """A marker that does not exist, of a partition that was archived."""

    def __init__(self, key: str, partition: object) -> None:
        super().__init__(key)
        self.why, self.remedy = "no marker leads to its chunks", marker_remedy(partition)


def marker_remedy(partition: object) -> str:
    """Return what brings back the marker of a partition."""
    return f"archiver repair marker {partition} rebuilds it"


def catalog_remedy(partition: object) -> str:
    """Return what brings back a catalog of a partition that is missing or damaged."""
    return f"rebuild it: archiver repair catalog {partition}"


class ObjectTruncated(FormatError):
    """An object ends before the bytes that its index promises."""

    def __init__(self, key: str, start: int, end: int) -> None:
        super().__init__(
            f"the object {key} is truncated",
            why=f"it ends before bytes {start} to {end}, which were requested",
            remedy="run `replayer verify` to see what is lost",
        )
        self.key = key


class ObjectChanged(FormatError):
    """An object was replaced while it was being read; objects of an archive never change."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the object {key} was replaced while it was being read",
            why="its ETag has changed, and objects of an archive never change",
            remedy="run `replayer verify --deep`, and find out what changed it",
        )
        self.key = key


class ShuttingDown(BlockgzError):
    """Raised inside work that a shutdown abandons."""


_CODES_OF_THE_FORMAT = (
    (UnsupportedVersion, FAILED),
    (FormatError, PARTLY_FAILED),
    (KeyMissing, AccessDenied.exit_code),
    (BadName, USAGE),
)


def exit_code(error: BlockgzError) -> int:
    """Return the exit code of a program that ends with this error."""
    own: int | None = getattr(error, "exit_code", None)
    if own is not None:
        return own
    return next((code for kind, code in _CODES_OF_THE_FORMAT if isinstance(error, kind)), FAILED)


def listed(names: Iterable[object], none: str = "nothing", most: int = SHOWN_NAMES) -> str:
    """Return `a, b and 3 more`: the first `most` of them, or `none` if there are none."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return (", ".join(texts[:most]) or none) + more


def unfit_store(url: object, what: str) -> StoreUnfit:
    """Return the error of a store that does not keep two writers apart; `what` is what it does instead."""
    return StoreUnfit(
        f"{url} cannot hold an archive safely: it {what}",
        why="without working conditional writes, two writers (or one that comes back) can overwrite each other",
        remedy="use a store with conditional writes, or --single-writer if only one process ever writes to it",
    )


CORE_DUMP = "see 'How a process died' in docs/troubleshooting.md for a core dump"


def end_text(code: int) -> str:
    """Return how a process with this exit code ended, negative codes being signals: `was killed by SIGSEGV`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def joined(words: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def camel_case(name: str) -> str:
    """Return `group_id` or `group-id` as Spark's options are spelled: `groupId`."""
    first, *rest = re.split("[_-]", name)
    return first + "".join(word.capitalize() for word in rest)

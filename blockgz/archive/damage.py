"""Damage while reading: the offsets that it costs, whether a reader stops or skips them, and how it is confirmed.

An object that is missing or unexpected need not be damaged: it may have been rewritten and deleted since the marker was
read. So the marker is reread, and only if it leads to the same object, that is damaged.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, Self, TypeVar

from blockgz.errors import ObjectMissing
from index_format.errors import BlockgzError, FormatError

Damaged = (FormatError, ObjectMissing)
"""Errors that mean damage; all others (denied, unavailable) end the work."""

MOST_REWRITES = 5
"""Rereads of a marker, each leading to another unreadable object, before that counts as damage."""


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


class Rereadable(Protocol):
    """A partition as one version of its marker describes it."""

    async def newer(self, offset: int | None = None) -> Self | None:
        """See ArchivedPartition."""


P = TypeVar("P", bound=Rereadable)
R = TypeVar("R")


async def across_rewrites(partition: P, work: Callable[[P], Awaitable[R]]) -> R:
    """Return the result of `work` on a partition; after damage, repeat it if the marker now leads elsewhere.

    For work that can start over; see `blockgz.archive.selection.scan` for records.
    """
    for _ in range(MOST_REWRITES):
        try:
            return await work(partition)
        except Damaged:
            newer = await partition.newer()
            if newer is None:
                raise
            partition = newer
    return await work(partition)


class Unreadable(NamedTuple):
    """A damaged block, chunk or catalog in its place among those that can be read."""

    start: int
    end: int
    """Offsets [start, end): its first record's and the one after its last's."""
    num_records: int
    """How many records it had."""
    key: str
    """The damaged object."""
    error: BlockgzError

    @property
    def reason(self) -> str:
        return self.error.reason


@dataclass(frozen=True)
class Damage:
    """An object that is not what it must be, whether or not records are lost by it.

    The chunks at offsets [start, end) have to be read to find it again; None if every verification finds it.
    """

    key: str
    reason: str
    start: int | None = field(default=None, compare=False)
    end: int | None = field(default=None, compare=False)


class LostRange(NamedTuple):
    """Offsets [start, end) whose records cannot be read."""

    start: int
    end: int
    reason: str


class DamagePolicy:
    """A scan's behaviour when it comes to something that it cannot read: it ends with the error that says what."""

    def meet(self, unreadable: Unreadable) -> None:
        """Raise to end the scan there; called in offset order, between the records before and behind it."""
        raise unreadable.error


class SkipDamage(DamagePolicy):
    """Skips what is damaged, and remembers it: one object for each scan."""

    def __init__(self) -> None:
        self.skipped: list[LostRange] = []
        """In offset order and apart; damage of one object for one reason is one range."""

    def meet(self, unreadable: Unreadable) -> None:
        before = self.skipped[-1] if self.skipped else None
        found = LostRange(unreadable.start, unreadable.end, unreadable.reason)
        if before is not None and before.end == found.start and before.reason == found.reason:
            self.skipped[-1] = before._replace(end=found.end)
        else:
            self.skipped.append(found)


STOP = DamagePolicy()

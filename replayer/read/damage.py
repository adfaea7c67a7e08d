"""Damage while reading: which offsets it costs, and whether a reader stops there or skips them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blockgz_runtime.errors import ObjectMissing
from index_format.errors import BlockgzError, FormatError

Damaged = (FormatError, ObjectMissing)
"""The errors that mean damage; all others (denied, unavailable) end whatever is under way."""


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
    """An object that is not what it must be, whether or not records are lost by it."""

    key: str
    reason: str


class LostRange(NamedTuple):
    """Offsets [start, end) whose records cannot be read."""

    start: int
    end: int
    reason: str


class DamagePolicy(Protocol):
    """What a scan does when it comes to something that it cannot read."""

    def meet(self, unreadable: Unreadable) -> None:
        """Called in offset order, between the records before and behind it; raises to end the scan there."""


class StopAtDamage:
    """Ends the scan with the error that says what is damaged."""

    def meet(self, unreadable: Unreadable) -> None:
        raise unreadable.error


class SkipDamage:
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


STOP = StopAtDamage()

"""What maintainers were asked for, as the campaign knows it: which records may be missing by that, and which must."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Erase:
    """One `archiver erase`: records of a key, by the hash that ledgers have of it; times in seconds."""

    topic: str
    key: str
    since: Mapping[str, int]
    """How far partitions were archived before it began, by the folder with a slash at its end: it erases below."""
    until: dict[str, int] = field(default_factory=dict)
    """The same after it had ended: it erases nothing above."""
    ended: float | None = None
    is_done: bool = False
    """Whether it said so."""
    is_complete: bool = False
    """Whether `--status` said later that nothing holds the records any more."""


@dataclass
class Asked:
    """All of it."""

    erases: list[Erase] = field(default_factory=list)
    kept_since: dict[str, int] = field(default_factory=dict)
    """By topic the latest time, in ms, that `archiver prune` was told to keep records from."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        return cls([Erase(**each) for each in facts["erases"]], facts["kept_since"])

    def may_be_erased(self, topic: str, home: str, key: str | None, offset: int) -> bool:
        """Whether some erase, done or not, was about the record."""
        return any((each.topic, each.key) == (topic, key) and offset < each.until.get(home, 0) for each in self.erases)

    def must_be_erased(self, topic: str, home: str, key: str | None, offset: int, at: float) -> bool:
        """Whether an erase of it had said before that time that it is done."""
        return any(
            (each.topic, each.key) == (topic, key) and offset < each.since.get(home, 0) and each.ended < at
            for each in self.erases
            if each.is_done and each.ended is not None
        )

    def is_gone_for_good(self, topic: str, home: str, key: str | None, offset: int) -> bool:
        """Whether no object of the archive may hold it any more."""
        return any(
            (each.topic, each.key) == (topic, key) and offset < each.since.get(home, 0)
            for each in self.erases
            if each.is_complete
        )

    def may_be_pruned(self, topic: str, timestamp: int) -> bool:
        """Whether a prune of the topic did not have to keep a record with that timestamp, in ms."""
        return timestamp < self.kept_since.get(topic, 0)

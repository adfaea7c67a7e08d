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
class Loss:
    """A chunk of which objects were damaged or deleted in the store; times in seconds."""

    home: str
    kind: str
    keys: list[str]
    chunk: tuple[int, int]
    """The chunk's offsets."""
    blocks: list[tuple[int, int]]
    """Of each block that cannot be read, the offsets of its records; without an index, of the whole chunk."""
    comes_back: bool
    """Whether a block must come back if Kafka has all of it."""
    at: float
    closed: float | None = None
    """When no marker led to it any longer."""
    how: str = ""
    """The command that repaired it."""


@dataclass
class Asked:
    """All of it."""

    erases: list[Erase] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    kept_since: dict[str, int] = field(default_factory=dict)
    """By topic the latest time, in ms, that `archiver prune` was told to keep records from."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        losses = [Loss(**each) for each in facts["losses"]]
        return cls([Erase(**each) for each in facts["erases"]], losses, facts["kept_since"])

    def is_excused_damage(self, home: str, words: str, opened: float) -> bool:
        """Whether damage that a reader met is of a lost object that was not repaired when it read the marker."""
        return any(
            each.home == home
            and (each.closed is None or opened <= each.closed)
            and any(key.rpartition("/")[2] in words for key in each.keys)
            for each in self.losses
        )

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

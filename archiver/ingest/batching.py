"""Gathering what arrives for many partitions: a batch of one record costs as much as one of a hundred."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

SECONDS_A_PARTITION = 0.002
"""A batch takes about a tenth of that to be handed over and encoded, its records apart: a tenth of a core at most."""
MESSAGES_WORTH_A_BATCH = 250
MESSAGE_FOOTPRINT = 512
"""Bytes that a message takes beside its value, at the least."""

Partition = tuple[str, int]


class Gathered(NamedTuple):
    """What came for one partition."""

    messages: Sequence[Any]
    end: int | None
    """Where its log ended, if the broker told since the last time; messages may have come behind it."""


class Gathering:
    """Messages by partition, held until they are worth a batch. All methods belong to the consumer thread."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        """`most_bytes`: no more than about so much is held; `clock` in monotonic seconds."""
        self._most_bytes = most_bytes
        self._clock = clock
        self._messages: defaultdict[Partition, list[Any]] = defaultdict(list)
        self._ends: dict[Partition, int] = {}
        self._num_messages = self._num_bytes = 0
        self._taken_at = clock()

    def add(self, partition: Partition, messages: Iterable[Any]) -> None:
        """Hold messages, which follow those held."""
        self._messages[partition].extend(messages)

    def count(self, messages: int, num_bytes: int) -> None:
        """Note how much was added."""
        self._num_messages += messages
        self._num_bytes += num_bytes

    def end(self, partition: Partition, position: int) -> None:
        """Hold that the log ends at `position` for now."""
        self._ends[partition] = position

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Drop what is held of these."""
        for partition in partitions:
            self._messages.pop(partition, None)
            self._ends.pop(partition, None)

    @property
    def partitions(self) -> set[Partition]:
        """Those of which something is held."""
        return {*self._messages, *self._ends}

    def take(self, partition: Partition) -> Gathered:
        """What is held of one partition, which is held no longer."""
        return Gathered(self._messages.pop(partition, ()), self._ends.pop(partition, None))

    def is_due(self, partitions: int) -> bool:
        """Whether all is to be taken, where so many partitions are consumed: with a few of them, nearly always."""
        if self._num_messages >= MESSAGES_WORTH_A_BATCH * len(self._messages) or self._num_bytes >= self._most_bytes:
            return True
        return self._clock() - self._taken_at >= partitions * SECONDS_A_PARTITION

    def take_all(self) -> dict[Partition, Gathered]:
        """All that is held; nothing is held afterwards."""
        self._num_messages = self._num_bytes = 0
        self._taken_at = self._clock()
        return {partition: self.take(partition) for partition in self.partitions}

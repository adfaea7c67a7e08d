"""Partitions that the consumer group gave to nobody, and no rebalance comes that would give them out.

In the cooperative protocol a member gives partitions up, and joins again for them to be given out. A member that dies
in between, and whose place another process takes under its static id at once, never joins again; nobody else knows.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from archiver.ingest.kafka_source import Partition
from blockgz.regular_question import RegularQuestion
from index_format.errors import BlockgzError

LOOKS = 4
"""So often the group is looked at before a partition counts as one that is forgotten."""

AskUnowned = Callable[[Sequence[str]], set[Partition]]
"""The partitions of these topics that no member of the group has now, while it does not rebalance."""


class UnownedWatch:
    """Looks for them now and then, in a thread."""

    def __init__(self, ask: AskUnowned, executor: Executor, patience_seconds: float) -> None:
        """`patience_seconds`: so long a rebalance may take. `ask` raises a BlockgzError where nobody answers."""
        self._ask = ask
        self._question = RegularQuestion[set[Partition]](executor, patience_seconds / LOOKS)
        self._patience_seconds = patience_seconds
        self._since: dict[Partition, float] = {}

    def look(self, topics: Sequence[str], now: float) -> set[Partition]:
        """Those that nobody has had for longer than a rebalance takes; each is returned once in that time."""
        answer = self._question.answer(now, lambda: self._ask(topics))
        if answer is None:
            return set()
        try:
            unowned = answer.result()
        except BlockgzError:  # the watch on topics logs that the cluster does not answer
            return set()
        self._since = {partition: self._since.get(partition, now) for partition in unowned}
        forgotten = {partition for partition, since in self._since.items() if now - since >= self._patience_seconds}
        self._since |= dict.fromkeys(forgotten, now)
        return forgotten

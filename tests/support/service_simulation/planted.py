"""Bugs that are planted to see them found: a line of the real code is replaced, and schedules run until one fails."""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Bug(NamedTuple):
    """A piece of one function's source, and what stands there instead."""

    module: str
    name: str
    """The function's, with its class's before a dot."""
    right: str
    wrong: str


PLANTED = {
    "a loss drops what is in hand": Bug(
        "archiver.ingest.ownership", "Ownership.lose", "0.0 if config.single_writer else config.grace", "0.0"
    ),
    "a claim is used after another process took the partition": Bug(
        "archiver.ingest.ownership",
        "Ownership.begin",
        "if partition not in self._assigned or partition in self._retry_at:\n            continue",
        "pass",
    ),
    "what a client gave up on is dropped": Bug(
        "archiver.ingest.partition_archiver",
        "PartitionArchiver._stop_at",
        "self._commit_later(flushed(self._state))",
        "pass",
    ),
    "an unreachable cluster holds commits back": Bug(
        "archiver.ingest.partition_archiver",
        "PartitionArchiver._commit",
        "case None:",
        "case None:\n                raise self._changed('unknown')",
    ),
    "the budget of what waits is not kept": Bug(
        "archiver.ingest.backpressure", "Budgets.have_capacity", "return not waits and", "return"
    ),
    "what was polled is forgotten as a partition leaves": Bug(
        "archiver.ingest.assignment", "GroupMember._hand_over", "self._ownership.offer(event)", "pass"
    ),
    "a topic is left that one answer lacks": Bug(
        "archiver.ingest.topics", "TopicWatch.topics", "*(missing - self._missing)", "*()"
    ),
    "partitions are given up before a commit is answered": Bug(
        "archiver.ingest.kafka_source", "KafkaSource._await_commit", "if self._unanswered:", "if False:"
    ),
}


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """With the bug in place; ValueError where the source is not what it was."""
    module = importlib.import_module(bug.module)
    owner: Any = module
    *outer, name = bug.name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    right = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(right))
    if source.count(bug.right) != 1:
        raise ValueError(f"{bug.name} has not the source that the bug is for: {bug.right!r}")
    made: dict[str, Any] = {}
    exec(compile(source.replace(bug.right, bug.wrong), f"planted in {bug.name}", "exec"), vars(module), made)
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, right)

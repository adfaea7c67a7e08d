"""A topic on the command line, and its partitions."""

import re
from dataclasses import dataclass

from blockgz_runtime.errors import UsageError
from index_format.keys import parse_topic_folder

MAX_PARTITIONS = 100_000


@dataclass(frozen=True)
class TopicArgument:
    """`orders`, `orders:3` or `orders:0,2-4`; partitions is None for all."""

    topic: str
    partitions: tuple[int, ...] | None


def parse_topic(text: str) -> TopicArgument:
    """The topic and partitions that `text` names; raises UsageError or BadName."""
    topic, separator, partitions = text.partition(":")
    parse_topic_folder(topic)
    return TopicArgument(topic, parse_partitions(partitions) if separator else None)


def parse_partitions(text: str) -> tuple[int, ...]:
    """The numbers that `0,2-4` means, rising; raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if first > last or last > MAX_PARTITIONS:
            raise UsageError(
                f"{text[:80]!r} names no partitions",
                why=f"{part[:40]!r} is no number or range",
                remedy="write 3 or 0,2-4",
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def with_partitions(topic: TopicArgument, partitions: str | None) -> TopicArgument:
    """The topic with what `--partitions` says; raises UsageError where the topic says it too."""
    if partitions is None:
        return topic
    if topic.partitions is not None:
        raise UsageError(
            "the partitions are given twice", why="in the topic and by --partitions", remedy="give them once"
        )
    return TopicArgument(topic.topic, parse_partitions(partitions))

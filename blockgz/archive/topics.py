"""A topic and partitions of it, as they are written: `orders:0,2-4`."""

import re
from dataclasses import dataclass

from blockgz.errors import UsageError
from index_format.keys import parse_topic_folder

MAX_PARTITIONS = 100_000


@dataclass(frozen=True)
class TopicPartitions:
    """`orders`, `orders:3` or `orders:0,2-4`; partitions is None for all."""

    topic: str
    partitions: tuple[int, ...] | None

    def narrowed(self, partitions: str | None) -> "TopicPartitions":
        """The same topic with what `--partitions` says; raises UsageError where the topic says it too."""
        if partitions is None:
            return self
        if self.partitions is not None:
            raise UsageError(
                "the partitions are given twice", why="in the topic and with --partitions", remedy="give them once"
            )
        return TopicPartitions(self.topic, parse_partitions(partitions))


def parse_topic(text: str) -> TopicPartitions:
    """The topic and partitions that `text` names; raises UsageError or BadName."""
    topic, separator, partitions = text.partition(":")
    parse_topic_folder(topic)
    return TopicPartitions(topic, parse_partitions(partitions) if separator else None)


def parse_partitions(text: str) -> tuple[int, ...]:
    """The numbers that `0,2-4` means, rising; raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if first > last or last > MAX_PARTITIONS:
            raise UsageError(
                f"{text[:80]!r} names no partitions",
                why=f"{part[:40]!r} is not a number or a range",
                remedy="write 3 or 0,2-4",
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))

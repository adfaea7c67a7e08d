"""Patterns over topic names: names, globs and `~regex`. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from blockgz.errors import NotInArchive, UsageError, joined, listed
from index_format.keys import check_topic

GLOB_CHARACTERS = "*?["
# The beginning of the names of a drill's topics, unless the drill has another prefix.
DRILLS = "drill."
T = TypeVar("T")


class TopicSelection:
    """Patterns over topic names. Only a full name matches Kafka's own topics (`__…`), or with `of_source` a drill's."""

    def __init__(self, patterns: Collection[str], excluded: Collection[str] = (), *, of_source: bool = False) -> None:
        """Raise UsageError for a regular expression that does not compile, BadName for an impossible name."""
        # The topics that are named in full.
        self.names = frozenset(check_topic(pattern) for pattern in patterns if not is_pattern(pattern))
        self.patterns = tuple(pattern for pattern in patterns if is_pattern(pattern))
        self._matchers = [matcher(pattern) for pattern in self.patterns]
        # True if only named topics can match.
        self.is_of_names = not self._matchers
        self._excluded = [matcher(pattern) for pattern in excluded]
        self._never = ("__", DRILLS) if of_source else ("__",)

    def __call__(self, topics: Iterable[str]) -> list[str]:
        """Return the selected ones of the cluster's topics, in order of their names."""
        return sorted(topic for topic in topics if self._selects(topic, self._never))

    def drills(self, topics: Collection[str]) -> list[str]:
        """Return the topics that would be selected if they were not those of drills."""
        return sorted({topic for topic in topics if self._selects(topic, ("__",))}.difference(self(topics)))

    def _selects(self, topic: str, never: tuple[str, ...]) -> bool:
        if any(matches(topic) for matches in self._excluded):
            return False
        return topic in self.names or (
            not topic.startswith(never) and any(matches(topic) for matches in self._matchers)
        )


class TopicRules(Generic[T]):
    """A value for each topic: that of the first rule that matches."""

    def __init__(self, rules: Iterable[str], parse: Callable[[str], T]) -> None:
        """A rule is `VALUE`, for every topic, or `PATTERN=VALUE`, where the pattern is one of `TopicSelection`."""
        self._rules: list[tuple[TopicSelection | None, T]] = []
        for rule in rules:
            pattern, equals, value = rule.rpartition("=")
            self._rules.append((TopicSelection([pattern]) if equals else None, parse(value)))

    def __call__(self, topic: str) -> T | None:
        """Return the topic's value; None if no rule matches."""
        return next((value for selects, value in self._rules if selects is None or selects([topic])), None)


def is_pattern(text: str) -> bool:
    """Return whether it is a glob or `~regex`, which may match several topics, rather than one topic's full name."""
    return text.startswith("~") or any(character in text for character in GLOB_CHARACTERS)


def matching(pattern: str, topics: Sequence[str]) -> list[str]:
    """Return the archived topics that a glob or `~regex` matches; raises UsageError or NotInArchive."""
    matches = matcher(pattern)
    found = [topic for topic in topics if not topic.startswith("__") and matches(topic)]
    if not found:
        raise nothing_matches([pattern], topics)
    return found


def nothing_matches(patterns: Sequence[str], topics: Iterable[str]) -> NotInArchive:
    """Return the error about patterns that mean none of the archive's topics."""
    return NotInArchive(
        f"no archived topic matches {joined([repr(pattern) for pattern in patterns], 'or')}",
        why=f"there is {listed(topics)}",
        remedy="a pattern must match the whole name; quote it to protect it from the shell",
    )


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a test of whole names against a name, a glob or `~regex`; raises UsageError if it does not compile."""
    if not pattern.startswith("~"):
        return lambda topic: fnmatchcase(topic, pattern)
    try:
        return re.compile(pattern[1:]).fullmatch
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression", why=str(error), remedy="write ~ and a Python regex"
        ) from error

"""Which topics a run archives: names, globs and `~regex`, less what is excluded. Pure."""

import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase

from index_format.keys import check_topic

from .errors import UsageError

GLOB_CHARACTERS = "*?["


class TopicSelection:
    """Patterns over topic names. Kafka's own topics (`__…`) are meant only where they are named in full."""

    def __init__(self, patterns: Collection[str], excluded: Collection[str] = ()) -> None:
        """Raises UsageError for a regular expression that does not compile, BadName for an impossible name."""
        self.names = frozenset(check_topic(pattern) for pattern in patterns if is_name(pattern))
        """The topics that are named in full."""
        self._matchers = [_matcher(pattern) for pattern in patterns if not is_name(pattern)]
        self.is_of_names = not self._matchers
        """Whether nothing but named topics can be meant."""
        self._excluded = [_matcher(pattern) for pattern in excluded]

    def __call__(self, topics: Iterable[str]) -> list[str]:
        """The selected ones of the cluster's topics, in order of their names."""
        return sorted(topic for topic in topics if self._selects(topic))

    def _selects(self, topic: str) -> bool:
        if any(matches(topic) for matches in self._excluded):
            return False
        return topic in self.names or (not topic.startswith("__") and any(matches(topic) for matches in self._matchers))


def is_name(pattern: str) -> bool:
    """Whether a pattern names one topic in full."""
    return not pattern.startswith("~") and not any(character in pattern for character in GLOB_CHARACTERS)


def _matcher(pattern: str) -> Callable[[str], object]:
    if pattern.startswith("~"):
        try:
            return re.compile(pattern[1:]).fullmatch
        except re.error as error:
            raise UsageError(
                f"{pattern!r} is not a regular expression", why=str(error), remedy="write ~ and a Python regex"
            ) from error
    return lambda topic: fnmatchcase(topic, pattern)

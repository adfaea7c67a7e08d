"""Which archived topics arguments mean: names, globs and `~regex`, names and globs with partitions behind a colon."""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from .errors import NotInArchive, UsageError

GLOB_CHARACTERS = "*?["


def is_pattern(text: str) -> bool:
    """Whether it may mean several topics."""
    return text.startswith("~") or any(character in text for character in GLOB_CHARACTERS)


def fitting(pattern: str, topics: Sequence[str]) -> list[str]:
    """The topics that a glob or `~regex` fits; raises UsageError for no expression, NotInArchive where none does."""
    fits = _matcher(pattern)
    found = [topic for topic in topics if not topic.startswith("__") and fits(topic)]
    if not found:
        raise NotInArchive(
            f"no archived topic fits {pattern!r}",
            why=f"there is {_listed(topics)}",
            remedy="a pattern must fit a whole name; quote it, so that the shell leaves it alone",
        )
    return found


def _matcher(pattern: str) -> Callable[[str], object]:
    if not pattern.startswith("~"):
        return lambda topic: fnmatchcase(topic, pattern)
    try:
        return re.compile(pattern[1:]).fullmatch
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression", why=str(error), remedy="write ~ and a Python regex"
        ) from error


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(list(topics)[:20]) or "nothing"

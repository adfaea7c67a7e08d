"""Consumer groups of an archived topic in a copy of it; here their new names, by regular expressions."""

import re
from collections.abc import Callable, Iterable

# A function from a name to the new one.
GroupMap = Callable[[str], str]


def map_of(rules: Iterable[tuple[str, str]]) -> GroupMap:
    """Return a map by regular expressions and names: the first that matches a whole name replaces it, as `re.sub` does.

    Raise ValueError if an expression or a new name is not valid.
    """
    compiled = [(_compiled(pattern, name), name) for pattern, name in rules]

    def rename(group: str) -> str:
        found = ((pattern, name) for pattern, name in compiled if pattern.fullmatch(group))
        return next((pattern.sub(name, group, count=1) for pattern, name in found), group)

    return rename


def _compiled(pattern: str, name: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
        # The empty match alone shows whether the new name refers to groups that the expression has.
        re.compile(pattern + "|").sub(name, "")
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return compiled


def twins(renamed: Iterable[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Return the first two sources that get one name, and that name; each source comes with its new name."""
    sources: dict[str, str] = {}
    for source, name in renamed:
        other = sources.setdefault(name, source)
        if other != source:
            return other, source, name
    return None

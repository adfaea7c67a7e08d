"""Consumer groups of an archived topic in a copy of it; here their new names, by regular expressions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupMap:
    """New names of groups: the first pattern that matches a whole name replaces it, as `re.sub` does."""

    rules: tuple[tuple[re.Pattern[str], str], ...] = ()

    def __call__(self, group: str) -> str:
        for pattern, name in self.rules:
            if pattern.fullmatch(group):
                return pattern.sub(name, group, count=1)
        return group


def compiled_rule(pattern: str, name: str) -> tuple[re.Pattern[str], str]:
    """Return a rule of a GroupMap. Raises ValueError if the expression or the new name is not valid."""
    try:
        compiled = re.compile(pattern)
        compiled.sub(name, "")
        re.compile(pattern + "|").sub(name, "")
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return compiled, name


def map_of(rules: Iterable[tuple[str, str]]) -> GroupMap:
    """Return the map of regular expressions and names; raise ValueError as `compiled_rule` does."""
    return GroupMap(tuple(compiled_rule(*rule) for rule in rules))


def twins(renamed: Iterable[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Return the first two sources that get one name, and that name; each source comes with its new name."""
    sources: dict[str, str] = {}
    for source, name in renamed:
        other = sources.setdefault(name, source)
        if other != source:
            return other, source, name
    return None

"""New names, by regular expressions."""

import re
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
    """A rule of a GroupMap; raises ValueError where the expression or the new name is not valid."""
    try:
        compiled = re.compile(pattern)
        compiled.sub(name, "")
        re.compile(pattern + "|").sub(name, "")
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return compiled, name

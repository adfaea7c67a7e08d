"""Paths to fields inside of fields: Connect's `field.syntax.version=V2` (KIP-821)."""

from collections.abc import Mapping, Sequence
from typing import Any

from replayer.transforms.record import fields_of


def parse_path(text: str) -> tuple[str, ...]:
    """The names along a path: split at dots, those within backticks apart (`` `a.b`.c ``); raises ValueError.

    A backtick that ends a name must be followed by a dot or the end; one that does not, or has a backslash before it,
    belongs to the name.
    """
    names: list[str] = []
    rest = text
    while True:
        name, rest, more = _quoted(text, rest) if rest.startswith("`") else _plain(rest)
        names.append(name)
        if not more:
            return tuple(names)


def value_at(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path, None where it ends on the way; raises CannotTransform for what is no object."""
    for name in path[:-1]:
        inner = data.get(name)
        if inner is None:
            return None
        data = fields_of(inner)
    return data.get(path[-1])


def _plain(rest: str) -> tuple[str, str, bool]:
    name, dot, rest = rest.partition(".")
    return name, rest, bool(dot)


def _quoted(text: str, rest: str) -> tuple[str, str, bool]:
    name, at = "", 1
    while True:
        tick = rest.find("`", at)
        ends = tick == len(rest) - 1
        if tick < 0 or (ends and rest[tick - 1] == "\\"):
            raise ValueError(f"a backtick in {text!r} is not closed")
        closes = ends or rest[tick + 1] == "."
        if closes and rest[tick - 1] != "\\":
            return name + rest[at:tick], rest[tick + 2 :], not ends
        name += rest[at : tick - 1] + "`" if closes else rest[at : tick + 1]
        at = tick + 1

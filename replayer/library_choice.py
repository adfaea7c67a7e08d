"""Selections of records as keyword arguments."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypedDict

from blockgz.archive.archive import TopicPartitions
from blockgz.archive.positions import BeforeTime, Position, Rule, position_of, position_text, time_of
from blockgz.archive.selection import Positions, SelectionRequest, positions_before
from blockgz.errors import UsageError
from blockgz.record_filter import Condition, HeaderIs, KeyIn, Pattern, RecordFilter, ValueMatches
from blockgz.units import wall_clock
from index_format.keys import parse_topic_folder

# An offset, a time, or what `--from` takes: "earliest", "latest", "+N", "-N", "-1h", "2026-11-20T12:00:00Z".
Place = int | str | datetime
# A datetime, or what `--at` takes: "2026-11-20", "-1h", "@1760000000"; UTC if it has no offset.
Time = str | datetime


class Choice(TypedDict, total=False):
    """A selection of a topic's records: those that match all arguments. None means no condition."""

    partitions: Iterable[int] | None
    """Partitions to read."""
    start: Place | None
    """The first place to read in each partition."""
    end: Place | None
    """Up to here; the place itself is excluded."""
    at: Time | None
    """Up to the first record with this or a later timestamp; in place of `end`."""
    at_rule: Rule | None
    """How `at` is understood where clocks disagree: "majority" or "first", as `--at-rule`."""
    since: Time | None
    """With this or a later timestamp."""
    until: Time | None
    """With a timestamp before this."""
    key: bytes | str | Iterable[bytes | str | None] | None
    """With this key, or one of these; in a list, None is the null key."""
    headers: Mapping[str, bytes | str | None] | None
    """All of these headers must be there; None allows any value."""
    grep: str | None
    """With a value in which this regular expression (RE2's) is found."""


def chosen(topic: str, choice: Choice) -> tuple[TopicPartitions, SelectionRequest]:
    """Return the topic and request that a choice means; raises UsageError or BadName."""
    unknown = choice.keys() - Choice.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
    parse_topic_folder(topic)
    now = wall_clock()
    partitions = choice.get("partitions")
    numbers = None if partitions is None else tuple(sorted(set(partitions)))
    record_filter = RecordFilter(
        _timestamp(choice.get("since"), now), _timestamp(choice.get("until"), now), tuple(_conditions(choice))
    )
    return TopicPartitions(topic, numbers), SelectionRequest(_positions(choice, now), filter=record_filter, now=now)


def _positions(choice: Choice, now: int) -> Positions:
    start, end, at = choice.get("start"), choice.get("end"), choice.get("at")
    if end is not None and at is not None:
        raise UsageError("end and at both set the end", why="only one can apply", remedy="give one of them")
    first: Position | None = None if start is None else position_of(start, now)
    last: Position | None = None if end is None else position_of(end, now)
    rule: Rule | None = choice.get("at_rule")
    if rule is not None:
        one_of("at_rule", rule, ("majority", "first"))
    moment = None if at is None else time_of(at, now)
    asked = (_text(start, first, "earliest"), _text(end if at is None else at, moment or last, "latest"))
    if moment is not None:
        return positions_before(first, BeforeTime(moment.timestamp, rule), asked)
    return Positions(first, last, asked=asked)


def _text(place: Place | None, position: Position | None, otherwise: str) -> str:
    if place is None or position is None:
        return otherwise
    return place.isoformat() if isinstance(place, datetime) else position_text(str(place), position, None)


def _timestamp(moment: Time | None, now: int) -> int | None:
    return None if moment is None else time_of(moment, now).timestamp


def _conditions(choice: Choice) -> Iterable[Condition]:
    key, headers, grep = choice.get("key"), choice.get("headers"), choice.get("grep")
    for name, value in (headers or {}).items():
        yield HeaderIs(name, None if value is None else as_bytes(value))
    if key is not None:
        keys = [key] if isinstance(key, bytes | str) else key
        yield KeyIn(tuple(None if each is None else as_bytes(each) for each in keys))
    if grep is not None:
        yield ValueMatches(Pattern(grep))


def as_bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return the value of an argument that takes only some; raises UsageError."""
    choices = tuple(known)
    if value not in choices:
        raise UsageError(f"{name} is {value!r}", why="it has no such value", remedy=f"use {', '.join(choices)}")
    return value

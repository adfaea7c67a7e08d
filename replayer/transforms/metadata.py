"""Transforms of a record's topic and headers, the predicates on records, and Filter, which drops them."""

from collections.abc import Callable
from dataclasses import dataclass

from replayer.transforms.record import (
    CannotTransform,
    ConnectRecord,
    Side,
    Transform,
    fields_of,
    java_pattern,
    java_replacement,
    text_of,
)
from replayer.transforms.settings import Settings
from replayer.transforms.times import DateFormat


@dataclass(frozen=True)
class Predicate:
    """A condition on records."""

    matches: Callable[[ConnectRecord], bool]
    matches_topic: Callable[[str], bool] | None = None
    """The condition, if it is one on the topic's name alone."""


def topic_name_matches(settings: Settings) -> Predicate:
    """Match the whole name of the record's topic."""
    if not settings.text("pattern"):
        raise settings.wrong("pattern", "it is empty")
    pattern = settings.made("pattern", java_pattern)
    return Predicate(
        lambda record: pattern.fullmatch(record.topic) is not None, lambda topic: pattern.fullmatch(topic) is not None
    )


def has_header_key(settings: Settings) -> Predicate:
    """Match records with a header of that name."""
    wanted = settings.text("name")
    if not wanted:
        raise settings.wrong("name", "it is empty")
    return Predicate(lambda record: any(name == wanted for name, _ in record.headers))


def drop_headers(settings: Settings) -> Transform:
    names = frozenset(settings.names("headers"))
    return Transform(
        lambda record: record._replace(headers=tuple(header for header in record.headers if header[0] not in names)),
        paths=tuple((name,) for name in sorted(names)),
    )


def insert_header(settings: Settings) -> Transform:
    """Add a header with a fixed text."""
    header = (settings.text("header"), settings.text("value.literal").encode())
    return Transform(lambda record: record._replace(headers=(*record.headers, header)))


def copy_to_headers(settings: Settings, side: Side) -> Transform:
    """Copy fields to headers, or move them; a missing field makes a null header."""
    fields, headers = settings.names("fields"), settings.names("headers")
    if len(fields) != len(headers):
        raise settings.wrong("headers", f"{len(headers)} headers are named for {len(fields)} fields")
    is_copy = settings.choice("operation", ("move", "copy")) == "copy"
    settings.without_effect("replace.null.with.default")

    def apply(record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.part(side).data)
        values = [data.get(field) for field in fields]
        made = [None if value is None else text_of(value).encode() for value in values]
        record = record._replace(headers=(*record.headers, *zip(headers, made, strict=True)))
        if is_copy:
            return record
        return record.with_data(side, {name: value for name, value in data.items() if name not in fields})

    return Transform(apply, side, tuple((name,) for name in fields), needs_all=False)


def route_by_regex(settings: Settings) -> Transform:
    """Replace the first match in the topic's name if the pattern matches all of it."""
    regex = settings.made("regex", java_pattern)
    replacement = settings.made("replacement", lambda text: java_replacement(regex, text))

    def rename(topic: str) -> str:
        return regex.sub(replacement, topic, count=1) if regex.fullmatch(topic) else topic

    return Transform(lambda record: record._replace(topic=rename(record.topic)), route=rename)


def route_by_timestamp(settings: Settings) -> Transform:
    """Make the topic's name of the topic and the record's time, in UTC."""
    timestamp_format = settings.made("timestamp.format", DateFormat, "yyyyMMdd")
    topic_format = settings.text("topic.format", "${topic}-${timestamp}")

    def apply(record: ConnectRecord) -> ConnectRecord:
        if record.timestamp is None:
            raise CannotTransform("it has no timestamp")
        named = topic_format.replace("${topic}", record.topic)
        return record._replace(topic=named.replace("${timestamp}", timestamp_format.format(record.timestamp)))

    return Transform(apply, route=lambda _: None)

"""Transforms of a record's topic and headers, the predicates on records, and Filter, which drops them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from replayer.transforms.record import (
    CannotTransform,
    ConnectRecord,
    Side,
    fields_of,
    java_pattern,
    java_replacement,
    text_of,
)
from replayer.transforms.settings import Settings
from replayer.transforms.times import DateFormat

Predicate = Callable[[ConnectRecord], bool]


@dataclass(frozen=True)
class TopicNameMatches:
    """A predicate that matches the whole name of the record's topic."""

    pattern: re.Pattern[str]

    @classmethod
    def of(cls, settings: Settings) -> "TopicNameMatches":
        if not settings.text("pattern"):
            raise settings.wrong("pattern", "it is empty")
        return cls(settings.made("pattern", java_pattern))

    def __call__(self, record: ConnectRecord) -> bool:
        return self.matches(record.topic)

    def matches(self, topic: str) -> bool:
        return self.pattern.fullmatch(topic) is not None


@dataclass(frozen=True)
class HasHeaderKey:
    """A predicate for records with a header of that name."""

    name: str

    @classmethod
    def of(cls, settings: Settings) -> "HasHeaderKey":
        name = settings.text("name")
        if not name:
            raise settings.wrong("name", "it is empty")
        return cls(name)

    def __call__(self, record: ConnectRecord) -> bool:
        return any(name == self.name for name, _ in record.headers)


@dataclass(frozen=True)
class RecordIsTombstone:
    """A predicate for records whose value is null."""

    def __call__(self, record: ConnectRecord) -> bool:
        return record.value.is_null


@dataclass(frozen=True)
class Filter:
    """A transform that drops every record."""

    def __call__(self, _record: ConnectRecord) -> None:
        """Nothing is left."""


@dataclass(frozen=True)
class DropHeaders:
    """A transform that removes headers by name."""

    names: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> "DropHeaders":
        return cls(frozenset(settings.names("headers")))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=tuple(header for header in record.headers if header[0] not in self.names))


@dataclass(frozen=True)
class InsertHeader:
    """A transform that adds a header with a fixed text."""

    name: str
    value: bytes

    @classmethod
    def of(cls, settings: Settings) -> "InsertHeader":
        return cls(settings.text("header"), settings.text("value.literal").encode())

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(headers=(*record.headers, (self.name, self.value)))


@dataclass(frozen=True)
class HeaderFrom:
    """Copies fields to headers, or moves them; a field that is not there makes a null header."""

    side: Side
    pairs: tuple[tuple[str, str], ...]
    operation: str

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "HeaderFrom":
        fields, headers = settings.names("fields"), settings.names("headers")
        if len(fields) != len(headers):
            raise settings.wrong("headers", f"{len(headers)} headers are named for {len(fields)} fields")
        operation = settings.choice("operation", ("move", "copy"))
        settings.without_effect("replace.null.with.default")
        return cls(side, tuple(zip(fields, headers, strict=True)), operation)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.part(self.side).data)
        found = tuple((header, data.get(field)) for field, header in self.pairs)
        made = tuple((header, None if value is None else text_of(value).encode()) for header, value in found)
        record = record._replace(headers=(*record.headers, *made))
        if self.operation == "copy":
            return record
        moved = {field for field, _ in self.pairs}
        return record.with_data(self.side, {name: value for name, value in data.items() if name not in moved})


@dataclass(frozen=True)
class RegexRouter:
    """A router that replaces the first match if the whole name matches."""

    regex: re.Pattern[str]
    replacement: Callable[[re.Match[str]], str]

    @classmethod
    def of(cls, settings: Settings) -> "RegexRouter":
        regex = settings.made("regex", java_pattern)
        return cls(regex, settings.made("replacement", lambda text: java_replacement(regex, text)))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(topic=self.renamed(record.topic))

    def renamed(self, topic: str) -> str:
        return self.regex.sub(self.replacement, topic, count=1) if self.regex.fullmatch(topic) else topic


@dataclass(frozen=True)
class TimestampRouter:
    """A name made of the topic and the record's time, in UTC."""

    topic_format: str
    timestamp_format: DateFormat

    @classmethod
    def of(cls, settings: Settings) -> "TimestampRouter":
        timestamp_format = settings.made("timestamp.format", DateFormat, "yyyyMMdd")
        return cls(settings.text("topic.format", "${topic}-${timestamp}"), timestamp_format)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        if record.timestamp is None:
            raise CannotTransform("it has no timestamp")
        named = self.topic_format.replace("${topic}", record.topic)
        return record._replace(topic=named.replace("${timestamp}", self.timestamp_format.format(record.timestamp)))

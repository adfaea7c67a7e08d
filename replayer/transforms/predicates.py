"""Which records a transform is for: TopicNameMatches, HasHeaderKey, RecordIsTombstone; and Filter, which drops them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from replayer.transforms.record import ConnectRecord
from replayer.transforms.settings import Settings

Predicate = Callable[[ConnectRecord], bool]


@dataclass(frozen=True)
class TopicNameMatches:
    """Whether the whole name of the record's topic matches."""

    pattern: re.Pattern[str]

    @classmethod
    def of(cls, settings: Settings) -> "TopicNameMatches":
        if not settings.text("pattern"):
            raise settings.wrong("pattern", "it is empty")
        return cls(settings.pattern("pattern"))

    def __call__(self, record: ConnectRecord) -> bool:
        """The answer."""
        return self.matches(record.topic)

    def matches(self, topic: str) -> bool:
        """The answer for all records of a topic."""
        return self.pattern.fullmatch(topic) is not None


@dataclass(frozen=True)
class HasHeaderKey:
    """Whether the record has a header of that name."""

    name: str

    @classmethod
    def of(cls, settings: Settings) -> "HasHeaderKey":
        name = settings.text("name")
        if not name:
            raise settings.wrong("name", "it is empty")
        return cls(name)

    def __call__(self, record: ConnectRecord) -> bool:
        """The answer."""
        return any(name == self.name for name, _ in record.headers)


@dataclass(frozen=True)
class RecordIsTombstone:
    """Whether the value is null."""

    @classmethod
    def of(cls, _settings: Settings) -> "RecordIsTombstone":
        return cls()

    def __call__(self, record: ConnectRecord) -> bool:
        """The answer."""
        return record.value.is_null


@dataclass(frozen=True)
class Filter:
    """Drops every record that gets here."""

    @classmethod
    def of(cls, _settings: Settings) -> "Filter":
        return cls()

    def __call__(self, _record: ConnectRecord) -> None:
        """Nothing is left."""

"""RegexRouter and TimestampRouter: another topic for a record."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from replayer.transforms.date_formats import DateFormat
from replayer.transforms.java import java_replacement
from replayer.transforms.record import CannotTransform, ConnectRecord
from replayer.transforms.settings import Settings


@dataclass(frozen=True)
class RegexRouter:
    """Where the whole name matches, its first match is replaced."""

    regex: re.Pattern[str]
    replacement: Callable[[re.Match[str]], str]

    @classmethod
    def of(cls, settings: Settings) -> "RegexRouter":
        regex = settings.pattern("regex")
        return cls(regex, settings.made("replacement", lambda text: java_replacement(regex, text)))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record._replace(topic=self.renamed(record.topic))

    def renamed(self, topic: str) -> str:
        """The name for records of `topic`."""
        return self.regex.sub(self.replacement, topic, count=1) if self.regex.fullmatch(topic) else topic


@dataclass(frozen=True)
class TimestampRouter:
    """A name made of the topic and the record's time, in UTC."""

    topic_format: str
    timestamp_format: DateFormat

    @classmethod
    def of(cls, settings: Settings) -> "TimestampRouter":
        if settings.optional("timestamp.format") is None:
            timestamp_format = DateFormat("yyyyMMdd")
        else:
            timestamp_format = settings.made("timestamp.format", DateFormat)
        return cls(settings.text("topic.format", "${topic}-${timestamp}"), timestamp_format)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        if record.timestamp is None:
            raise CannotTransform("it has no timestamp")
        named = self.topic_format.replace("${topic}", record.topic)
        return record._replace(topic=named.replace("${timestamp}", self.timestamp_format.format(record.timestamp)))

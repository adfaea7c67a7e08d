"""A record as transforms see it: key and value decoded when they are first asked for, and encoded only if replaced."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from index_format.records import Headers
from replayer.transforms.java import java_text

Side = Literal["key", "value"]
"""Which part of a record a transform works on: what `$Key` and `$Value` say in Connect's names."""


class CannotTransform(ValueError):
    """A record that a transform cannot handle; says why, without naming the record."""


class Converter(Protocol):
    """How bytes in Kafka become data and the other way round; null never gets here."""

    def decode(self, content: bytes) -> Any:
        """None, bool, int, float, str, list or dict; raises CannotTransform."""

    def encode(self, data: Any) -> bytes:
        """The same data as bytes."""


class Moment:
    """A point in time that TimestampConverter made as Date, Time or Timestamp; `number` is how JSON shows it.

    `ms` is the time since the epoch. Connect has java.util.Date here, and shows days, ms of the day, or ms in JSON.
    No dataclass: msgspec would write that as an object.
    """

    __slots__ = ("ms", "number")

    def __init__(self, ms: int, number: int) -> None:
        self.ms = ms
        self.number = number


class JsonConverter:
    """JSON without a schema. Integers stay exact, whatever their size."""

    def decode(self, content: bytes) -> Any:
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CannotTransform(f"it is not JSON ({error})") from error

    def encode(self, data: Any) -> bytes:
        return msgspec.json.encode(data, enc_hook=_moment)


class StringConverter:
    """Text in UTF-8; what is no text is written as text."""

    def decode(self, content: bytes) -> Any:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise CannotTransform(f"it is not UTF-8 ({error})") from error

    def encode(self, data: Any) -> bytes:
        return text_of(data).encode()


def text_of(data: Any) -> str:
    """Data as Connect writes it into a header: text as it is, anything else as in JSON, floats as Java shows them."""
    match data:
        case str():
            return data
        case float():
            return java_text(data)
        case _:
            return msgspec.json.encode(data, enc_hook=_moment).decode()


class RecordPart:
    """A key or a value: bytes as archived until someone looks, data from then on if it was replaced."""

    __slots__ = ("_converter", "_data", "_decoded", "_raw")

    def __init__(self, raw: bytes | None, converter: Converter) -> None:
        self._raw = raw
        self._converter = converter
        self._data: Any = None
        self._decoded = raw is None

    @property
    def data(self) -> Any:
        """None for null; raises CannotTransform for bytes that cannot be decoded."""
        if not self._decoded:
            assert self._raw is not None
            self._data = self._converter.decode(self._raw)
            self._decoded = True
        return self._data

    @property
    def is_null(self) -> bool:
        return self._raw is None and self._data is None

    def replaced(self, data: Any) -> "RecordPart":
        part = RecordPart(None, self._converter)
        part._data = data
        return part

    def encoded(self) -> bytes | None:
        return self._raw if self._raw is not None or self._data is None else self._converter.encode(self._data)


class ConnectRecord(NamedTuple):
    """A record on its way: where it came from, which topic it goes to by now, and what is in it.

    `timestamp` is ms since the epoch, None for none.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: RecordPart
    value: RecordPart
    headers: Headers

    def part(self, side: Side) -> RecordPart:
        return self.key if side == "key" else self.value

    def with_data(self, side: Side, data: Any) -> "ConnectRecord":
        part = self.part(side).replaced(data)
        return self._replace(key=part) if side == "key" else self._replace(value=part)


@dataclass(frozen=True)
class DataTransform(ABC):
    """A transform of the data of one part; null stays null."""

    side: Side

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = record.part(self.side).data
        return record if data is None else record.with_data(self.side, self.changed(data))

    @abstractmethod
    def changed(self, data: Any) -> Any:
        """The data that takes its place; raises CannotTransform."""


def fields_of(data: Any) -> dict[str, Any]:
    """Data that must be a JSON object; raises CannotTransform."""
    if not isinstance(data, dict):
        raise CannotTransform(f"it needs an object with fields and found {kind_of(data)}")
    return data


def kind_of(data: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    return names.get(type(data), "an array" if isinstance(data, list) else "an object")


def _moment(value: Any) -> Any:
    assert isinstance(value, Moment)
    return value.number

"""A record as transforms see it: key and value decoded when they are first asked for, and encoded only if replaced."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from index_format.records import Headers

# The part of a record that a transform changes: `$Key` and `$Value` in Connect's names.
Side = Literal["key", "value"]


class CannotTransform(ValueError):
    """A record that a transform cannot handle; says why, without naming the record."""


class Converter(Protocol):
    """How bytes in Kafka become data and the other way round; null never gets here."""

    def decode(self, content: bytes) -> Any:
        """None, bool, int, float, str, list or dict; raises CannotTransform."""

    def encode(self, data: Any) -> bytes:
        """Return the data as bytes."""


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
    """JSON without a schema. Integers of any size stay exact."""

    def decode(self, content: bytes) -> Any:
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CannotTransform(f"it is not JSON ({error})") from error

    def encode(self, data: Any) -> bytes:
        return msgspec.json.encode(data, enc_hook=_moment)


class StringConverter:
    """A converter of text in UTF-8; other data is written as its text."""

    def decode(self, content: bytes) -> Any:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise CannotTransform(f"it is not UTF-8 ({error})") from error

    def encode(self, data: Any) -> bytes:
        return text_of(data).encode()


def text_of(data: Any) -> str:
    """Return data as Connect writes it into a header: text as it is, anything else as in JSON, floats as Java shows
    them.
    """
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
        """Return the decoded data, None for null; raises CannotTransform for bytes that cannot be decoded."""
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
    """A record between transforms: its origin, its topic so far, and its content.

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
class Transform:
    """A transform of records, and the fields or headers that it names."""

    apply: Callable[[ConnectRecord], ConnectRecord | None]
    """Returns the changed record, None to drop it; raises CannotTransform."""
    side: Side | None = None
    """The part whose fields it names; None: headers."""
    paths: tuple[tuple[str, ...], ...] = ()
    """The fields or headers that it names."""
    needs_all: bool = True
    """False if it has an effect on records that lack some of them."""
    route: Callable[[str], str | None] | None = None
    """Returns the topic of all records of a topic, None if records decide; None if the transform keeps the topic."""


def transform_data(
    side: Side, change: Callable[[Any], Any], names: Iterable[str] = (), *, needs_all: bool = True
) -> Transform:
    """Return a transform of the data of one part, whose fields `names` it needs; null stays null."""

    def apply(record: ConnectRecord) -> ConnectRecord:
        data = record.part(side).data
        return record if data is None else record.with_data(side, change(data))

    return Transform(apply, side, tuple((name,) for name in names), needs_all)


def fields_of(data: Any) -> dict[str, Any]:
    """Return the data if it is a JSON object; raises CannotTransform otherwise."""
    if not isinstance(data, dict):
        raise CannotTransform(f"it needs an object with fields and found {kind_of(data)}")
    return data


def kind_of(data: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    return names.get(type(data), "an array" if isinstance(data, list) else "an object")


def _moment(value: Any) -> Any:
    assert isinstance(value, Moment)
    return value.number


_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_SUBSTITUTE = re.compile(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|([\\$])", re.DOTALL)


def java_text(number: float) -> str:
    """Return a float as Double.toString does: plain from 0.001 to 10,000,000, otherwise like 1.0E10."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="0")
    digits, _, exponent = np.format_float_scientific(number, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"


def narrowed(number: int | float, bits: int) -> int:
    """Return a number as Java narrows it to an integer of `bits` bits: cut off, floats clamped first."""
    if isinstance(number, float):
        if math.isnan(number):
            return 0
        # Java converts a float to an int, or to a long for 64 bits, before it cuts bits off.
        reach = 1 << max(bits, 32) - 1
        number = int(max(-reach, min(reach - 1, number)))
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def float32(number: float) -> float:
    """Return the nearest single-precision float, by its shortest text."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(number)))


def toward_zero(number: int, divisor: int) -> int:
    return abs(number) // divisor * (1 if number >= 0 else -1)


def java_pattern(text: str) -> re.Pattern[str]:
    """Compile a java.util.regex pattern; raises re.error also for syntax that Python lacks."""
    quoted = _QUOTED.sub(lambda match: re.escape(match[1]), text)
    return re.compile(_NAMED_GROUP.sub("(?P<", quoted), re.ASCII)


def java_replacement(pattern: re.Pattern[str], text: str) -> Callable[[re.Match[str]], str]:
    """Return what `Matcher.replaceFirst` inserts: `$1`, `${name}` and backslashes; raises ValueError if malformed."""
    parts: list[str | int] = []
    at = 0
    for match in _SUBSTITUTE.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        escaped, name, number, stray = match.groups()
        if stray is not None:
            raise ValueError(f"{stray} stands for itself only after a backslash")
        if escaped is not None:
            parts.append(escaped)
        elif name is not None:
            if name not in pattern.groupindex:
                raise ValueError(f"the pattern has no group {name}")
            parts.append(pattern.groupindex[name])
        else:
            group, rest = _longest_group(number, pattern.groups)
            parts += [group, rest]
    parts.append(text[at:])
    return lambda match: "".join(part if isinstance(part, str) else match[part] or "" for part in parts)


def _longest_group(digits: str, groups: int) -> tuple[int, str]:
    """Return the longest group number that the pattern has, and the digits after it."""
    for length in range(len(digits), 0, -1):
        if int(digits[:length]) <= groups:
            return int(digits[:length]), digits[length:]
    raise ValueError(f"the pattern has no group {digits[0]}")

"""Transforms of fields: InsertField, ReplaceField, MaskField, ValueToKey and so on, and of the schema around them.

Each is a function from record to record, made of its settings. `side` is the part of the record it works on.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from replayer.transforms.record import (
    CannotTransform,
    ConnectRecord,
    DataTransform,
    Moment,
    Side,
    fields_of,
    float32,
    java_text,
    kind_of,
    narrowed,
)
from replayer.transforms.settings import Settings

LARGEST_EXPONENT = 307
"""Exponent of ten, for a float."""


@dataclass(frozen=True)
class InsertField:
    """Adds fields from where the record stands, or one with a fixed text; null stays null."""

    side: Side
    names: tuple[str | None, ...]
    """Names of the fields for topic, partition, offset, timestamp and the fixed text; None for none."""
    text: str | None

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "InsertField":
        names = [settings.optional(f"{name}.field") for name in ("topic", "partition", "offset", "timestamp", "static")]
        # `!` and `?` say whether the field is required in the schema, and there is none.
        names = [name[:-1] if name and name[-1] in "!?" else name for name in names]
        text = settings.optional("static.value")
        settings.without_effect("replace.null.with.default")
        if all(name is None for name in names):
            raise settings.wrong("static.field", "no field to insert is named")
        if names[-1] is not None and text is None:
            raise settings.wrong("static.value", "the static field has no value")
        return cls(side, tuple(names), text)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = record.part(self.side).data
        if data is None:
            return record
        values = (record.topic, record.partition, record.offset, record.timestamp, self.text)
        pairs = zip(self.names, values, strict=True)
        added = {name: value for name, value in pairs if name is not None and value is not None}
        return record.with_data(self.side, fields_of(data) | added)


@dataclass(frozen=True)
class ReplaceField(DataTransform):
    """A transform that drops and renames fields; null stays null."""

    exclude: frozenset[str]
    include: frozenset[str]
    renames: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "ReplaceField":
        renames = {}
        for item in settings.items("renames"):
            before, _, after = item.partition(":")
            if not before or not after or ":" in after:
                raise settings.wrong("renames", f"{item!r} is not OLD:NEW")
            renames[before] = after
        settings.without_effect("replace.null.with.default")
        return cls(side, frozenset(settings.items("exclude")), frozenset(settings.items("include")), renames)

    def changed(self, data: Any) -> Any:
        return {
            self.renames.get(name, name): value
            for name, value in fields_of(data).items()
            if name not in self.exclude and (not self.include or name in self.include)
        }


@dataclass(frozen=True)
class MaskField:
    """Puts the empty value of its kind in a field's place, or a replacement; null stays null, a null record is none."""

    side: Side
    fields: tuple[str, ...]
    replacement: str | None

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "MaskField":
        replacement = settings.optional("replacement")
        if replacement == "":
            raise settings.wrong("replacement", "it is empty; without it a text becomes empty anyway")
        settings.without_effect("replace.null.with.default")
        return cls(side, settings.names("fields"), replacement)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.part(self.side).data)
        return record.with_data(self.side, data | {name: self._masked(data.get(name)) for name in self.fields})

    def _masked(self, value: Any) -> Any:
        if value is None:
            return None
        if self.replacement is None:
            return Moment(0, 0) if isinstance(value, Moment) else type(value)()
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise CannotTransform(f"it cannot put a replacement in the place of {kind_of(value)}")
        if isinstance(value, str):
            return self.replacement
        try:
            number = Decimal(self.replacement)
        except InvalidOperation as error:
            raise CannotTransform(f"the replacement {self.replacement!r} is not a number") from error
        if not number.is_finite() or number.adjusted() > LARGEST_EXPONENT:
            raise CannotTransform(f"JSON has no number for the replacement {self.replacement!r}")
        return float(number) if isinstance(value, float) else narrowed(int(number), 64)


@dataclass(frozen=True)
class ValueToKey:
    """Makes a new key of fields of the value; a field that is not there is null in it."""

    fields: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings) -> "ValueToKey":
        settings.without_effect("replace.null.with.default")
        return cls(settings.names("fields"))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.value.data)
        return record.with_data("key", {name: data.get(name) for name in self.fields})


@dataclass(frozen=True)
class HoistField:
    """Wraps all of it, null too, in an object with one field."""

    side: Side
    field: str

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "HoistField":
        return cls(side, settings.text("field"))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        return record.with_data(self.side, {self.field: record.part(self.side).data})


@dataclass(frozen=True)
class ExtractField(DataTransform):
    """Puts one field, or null if it is not there, in the place of the object; null stays null."""

    path: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "ExtractField":
        version = settings.text("field.syntax.version", "V1").upper()
        if version not in ("V1", "V2"):
            raise settings.wrong("field.syntax.version", "it is V1 or V2")
        settings.without_effect("replace.null.with.default")
        return cls(side, settings.made("field", parse_path) if version == "V2" else (settings.text("field"),))

    def changed(self, data: Any) -> Any:
        return value_at(fields_of(data), self.path)


@dataclass(frozen=True)
class Flatten(DataTransform):
    """Makes objects in objects into fields whose names are joined; arrays stay as they are, null stays null."""

    delimiter: str

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "Flatten":
        return cls(side, settings.text("delimiter", "."))

    def changed(self, data: Any) -> Any:
        flat: dict[str, Any] = {}
        self._flatten(fields_of(data), "", flat)
        return flat

    def _flatten(self, data: dict[str, Any], prefix: str, flat: dict[str, Any]) -> None:
        for name, value in data.items():
            joined = f"{prefix}{self.delimiter}{name}" if prefix else name
            if isinstance(value, dict):
                self._flatten(value, joined, flat)
            else:
                flat[joined] = value


@dataclass(frozen=True)
class SetSchemaMetadata(DataTransform):
    """Changes the schema of JSON of the form `{"schema": {…}, "payload": …}`; null stays null.

    Anything else has no schema to name, and that is an error, as in Connect.
    """

    changes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "SetSchemaMetadata":
        changes: list[tuple[str, Any]] = []
        name = settings.optional("schema.name")
        if name is not None:
            changes.append(("name", name))
        if settings.optional("schema.version") is not None:
            changes.append(("version", settings.made("schema.version", int)))
        settings.without_effect("replace.null.with.default")
        if not changes:
            raise settings.wrong("schema.name", "neither a name nor a version is set")
        return cls(side, tuple(changes))

    def changed(self, data: Any) -> Any:
        if not isinstance(data, dict) or data.keys() != {"schema", "payload"} or not isinstance(data["schema"], dict):
            raise CannotTransform('it has no schema: it is not {"schema": {…}, "payload": …}')
        return data | {"schema": data["schema"] | dict(self.changes)}


def parse_path(text: str) -> tuple[str, ...]:
    """Split a path into its names: split at dots, those within backticks apart (`` `a.b`.c ``); raises ValueError.

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
    """Return the value at a path, None if the path ends early; raises CannotTransform for data without fields."""
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


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\s*", re.ASCII)


def _integer(bits: int) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        if isinstance(value, str):
            number = int(value) if _INTEGER.fullmatch(value) else None
            if number is None or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
                raise CannotTransform(f"{value[:80]!r} is out of range for int{bits}")
            return number
        return narrowed(value, bits)

    return cast


def _float64(value: Any) -> float:
    if isinstance(value, str):
        if not _FLOAT.fullmatch(value):
            raise CannotTransform(f"{value[:80]!r} is not a number")
        value = value.strip().rstrip("fFdD") if value.strip()[-1] in "fFdD" else value
    number = float(value)
    if not math.isfinite(number):
        raise CannotTransform(f"JSON has no number for {str(value)[:80]}")
    return number


def _float32(value: Any) -> float:
    number = float32(_float64(value))
    if not math.isfinite(number):
        raise CannotTransform(f"{str(value)[:80]} is out of range for float32")
    return number


def _boolean(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else narrowed(value, 64) != 0


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return java_text(value) if isinstance(value, float) else str(value)


CASTS: Mapping[str, Callable[[Any], Any]] = {
    "int8": _integer(8),
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "float32": _float32,
    "float64": _float64,
    "boolean": _boolean,
    "string": _string,
}


@dataclass(frozen=True)
class Cast(DataTransform):
    """Casts the whole where `whole` is set, else these fields; a field that is not there is null from then on."""

    whole: str | None
    fields: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "Cast":
        fields: dict[str, str] = {}
        whole = None
        items = settings.names("spec")
        for item in items:
            name, separator, kind = item.rpartition(":")
            kind = kind.strip().lower()
            if kind not in CASTS or ":" in name:
                raise settings.wrong("spec", f"{item!r} is not FIELD:TYPE; types are {', '.join(CASTS)}")
            if separator:
                fields[name.strip()] = kind
            else:
                whole = kind
        if whole is not None and len(items) > 1:
            raise settings.wrong("spec", "a type for the whole value stands alone")
        settings.without_effect("replace.null.with.default")
        return cls(side, whole, fields)

    def changed(self, data: Any) -> Any:
        if self.whole is not None:
            return _cast(data, self.whole)
        data = fields_of(data)
        return data | {name: _cast(data.get(name), to) for name, to in self.fields.items()}


def _cast(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list | dict | Moment):
        raise CannotTransform(f"it cannot cast {kind_of(value)} to {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and kind != "string":
        raise CannotTransform(f"{value} is beyond 64 bits")
    return CASTS[kind](value)

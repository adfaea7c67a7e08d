"""Transforms of fields: InsertField, ReplaceField, MaskField, ValueToKey and so on, and of the schema around them.

Each function makes a transform from its settings; `side` is the part of the record that it changes.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from replayer.transforms.record import (
    CannotTransform,
    ConnectRecord,
    Moment,
    Side,
    Transform,
    fields_of,
    float32,
    java_text,
    kind_of,
    narrowed,
    transform_data,
)
from replayer.transforms.settings import Settings

# Exponent of ten, for a float.
LARGEST_EXPONENT = 307


def insert_field(settings: Settings, side: Side) -> Transform:
    """Add fields with the record's origin and time, or one with a fixed text; null stays null."""
    fields = [settings.optional(f"{name}.field") for name in ("topic", "partition", "offset", "timestamp", "static")]
    # `!` and `?` say whether the field is required in the schema, and there is none.
    names = [name[:-1] if name and name[-1] in "!?" else name for name in fields]
    text = settings.optional("static.value")
    settings.without_effect("replace.null.with.default")
    if all(name is None for name in names):
        raise settings.wrong("static.field", "no field to insert is named")
    if names[-1] is not None and text is None:
        raise settings.wrong("static.value", "the static field has no value")

    def apply(record: ConnectRecord) -> ConnectRecord:
        data = record.part(side).data
        if data is None:
            return record
        pairs = zip(names, (record.topic, record.partition, record.offset, record.timestamp, text), strict=True)
        added = {name: value for name, value in pairs if name is not None and value is not None}
        return record.with_data(side, fields_of(data) | added)

    return Transform(apply)


def replace_field(settings: Settings, side: Side) -> Transform:
    """Drop and rename fields; null stays null."""
    renames = {}
    for item in settings.items("renames"):
        before, _, after = item.partition(":")
        if not before or not after or ":" in after:
            raise settings.wrong("renames", f"{item!r} is not OLD:NEW")
        renames[before] = after
    settings.without_effect("replace.null.with.default")
    exclude, include = frozenset(settings.items("exclude")), frozenset(settings.items("include"))

    def change(data: Any) -> Any:
        return {
            renames.get(name, name): value
            for name, value in fields_of(data).items()
            if name not in exclude and (not include or name in include)
        }

    # One that only hides fields needs all of them: one that is misspelt would stay.
    names = (*sorted(exclude), *sorted(include), *renames)
    return transform_data(side, change, names, needs_all=not include and not renames)


def mask_field(settings: Settings, side: Side) -> Transform:
    """Replace fields by the empty value of their type, or by a text; null stays null, a null record is an error."""
    replacement = settings.optional("replacement")
    if replacement == "":
        raise settings.wrong("replacement", "it is empty; without it a text becomes empty anyway")
    settings.without_effect("replace.null.with.default")
    fields = settings.names("fields")

    def apply(record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.part(side).data)
        return record.with_data(side, data | {name: _masked(data.get(name), replacement) for name in fields})

    return Transform(apply, side, tuple((name,) for name in fields))


def _masked(value: Any, replacement: str | None) -> Any:
    if value is None:
        return None
    if replacement is None:
        return Moment(0, 0) if isinstance(value, Moment) else type(value)()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise CannotTransform(f"it cannot put a replacement in the place of {kind_of(value)}")
    if isinstance(value, str):
        return replacement
    try:
        number = Decimal(replacement)
    except InvalidOperation as error:
        raise CannotTransform(f"the replacement {replacement!r} is not a number") from error
    if not number.is_finite() or number.adjusted() > LARGEST_EXPONENT:
        raise CannotTransform(f"JSON has no number for the replacement {replacement!r}")
    return float(number) if isinstance(value, float) else narrowed(int(number), 64)


def value_to_key(settings: Settings) -> Transform:
    """Make a new key of fields of the value; a missing field is null in it."""
    settings.without_effect("replace.null.with.default")
    fields = settings.names("fields")

    def apply(record: ConnectRecord) -> ConnectRecord:
        data = fields_of(record.value.data)
        return record.with_data("key", {name: data.get(name) for name in fields})

    return Transform(apply, "value", tuple((name,) for name in fields))


def hoist_field(settings: Settings, side: Side) -> Transform:
    """Wrap the data, null too, in an object with one field."""
    field = settings.text("field")
    return Transform(lambda record: record.with_data(side, {field: record.part(side).data}))


def extract_field(settings: Settings, side: Side) -> Transform:
    """Replace an object by one of its fields, or by null if it is missing; null stays null."""
    version = settings.text("field.syntax.version", "V1").upper()
    if version not in ("V1", "V2"):
        raise settings.wrong("field.syntax.version", "it is V1 or V2")
    settings.without_effect("replace.null.with.default")
    path = settings.made("field", parse_path) if version == "V2" else (settings.text("field"),)
    return replace(transform_data(side, lambda data: value_at(fields_of(data), path)), paths=(path,))


def flatten(settings: Settings, side: Side) -> Transform:
    """Turn objects in objects into fields whose names are joined; arrays stay as they are, null stays null."""
    delimiter = settings.text("delimiter", ".")

    def flattened(data: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in data.items():
            joined = f"{prefix}{delimiter}{name}" if prefix else name
            if isinstance(value, dict):
                yield from flattened(value, joined)
            else:
                yield joined, value

    return transform_data(side, lambda data: dict(flattened(fields_of(data), "")))


def set_schema_metadata(settings: Settings, side: Side) -> Transform:
    """Change the schema of JSON of the form `{"schema": {…}, "payload": …}`; null stays null."""
    # Anything else has no schema to name, and that is an error, as in Connect.
    changes: dict[str, Any] = {}
    name = settings.optional("schema.name")
    if name is not None:
        changes["name"] = name
    if settings.optional("schema.version") is not None:
        changes["version"] = settings.made("schema.version", int)
    settings.without_effect("replace.null.with.default")
    if not changes:
        raise settings.wrong("schema.name", "neither a name nor a version is set")

    def change(data: Any) -> Any:
        if not isinstance(data, dict) or data.keys() != {"schema", "payload"} or not isinstance(data["schema"], dict):
            raise CannotTransform('it has no schema: it is not {"schema": {…}, "payload": …}')
        return data | {"schema": data["schema"] | changes}

    return transform_data(side, change)


def parse_path(text: str) -> tuple[str, ...]:
    """Split a path into its names: split at dots, those within backticks apart (`` `a.b`.c ``); raises ValueError."""
    # A backtick that ends a name must be followed by a dot or the end; one that does not, or has a backslash before it,
    # belongs to the name.
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


def _integer(bits: int, value: Any) -> int:
    if isinstance(value, str):
        number = int(value) if _INTEGER.fullmatch(value) else None
        if number is None or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise CannotTransform(f"{value[:80]!r} is out of range for int{bits}")
        return number
    return narrowed(value, bits)


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
    "int8": partial(_integer, 8),
    "int16": partial(_integer, 16),
    "int32": partial(_integer, 32),
    "int64": partial(_integer, 64),
    "float32": _float32,
    "float64": _float64,
    "boolean": _boolean,
    "string": _string,
}


def cast(settings: Settings, side: Side) -> Transform:
    """Cast the data, or some of its fields, to other types; a missing field becomes null."""
    fields: dict[str, str] = {}
    whole: str | None = None
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

    def change(data: Any) -> Any:
        if whole is not None:
            return _cast(data, whole)
        data = fields_of(data)
        return data | {name: _cast(data.get(name), to) for name, to in fields.items()}

    return transform_data(side, change, fields, needs_all=False)


def _cast(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list | dict | Moment):
        raise CannotTransform(f"it cannot cast {kind_of(value)} to {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and kind != "string":
        raise CannotTransform(f"{value} is beyond 64 bits")
    return CASTS[kind](value)

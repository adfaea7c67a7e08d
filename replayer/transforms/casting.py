"""Cast: fields, or all of a key or value, to another type, with Java's rules for numbers."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replayer.transforms.java import float32, java_text, narrowed
from replayer.transforms.record import CannotTransform, DataTransform, Moment, Side, fields_of, kind_of
from replayer.transforms.settings import Settings

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

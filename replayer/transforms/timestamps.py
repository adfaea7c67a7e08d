"""TimestampConverter: a time in a field, or as the whole key or value, from one form to another."""

from dataclasses import dataclass
from typing import Any

from replayer.transforms.date_formats import DateFormat
from replayer.transforms.java import toward_zero
from replayer.transforms.record import CannotTransform, ConnectRecord, Moment, Side, fields_of, kind_of
from replayer.transforms.settings import Settings

DAY_MS = 86_400_000
NANOSECONDS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
"""How long the units are that `unix.precision` names."""
MILLISECOND = NANOSECONDS["milliseconds"]


@dataclass(frozen=True)
class TimestampConverter:
    """An integer is a Unix time in `unit` (ns), a text is read by `format`; `field` None means all of it."""

    side: Side
    field: str | None
    target: str
    format: DateFormat | None
    unit: int

    @classmethod
    def of(cls, settings: Settings, side: Side) -> "TimestampConverter":
        target = settings.choice("target.type", ("string", "unix", "Date", "Time", "Timestamp"))
        blank = not settings.text("format", "").strip()
        if target == "string" and blank:
            raise settings.wrong("format", "a text needs one")
        precision = settings.choice("unix.precision", tuple(NANOSECONDS), "milliseconds")
        settings.without_effect("replace.null.with.default")
        form = None if blank else settings.made("format", DateFormat)
        return cls(side, settings.text("field", "") or None, target, form, NANOSECONDS[precision])

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        data = record.part(self.side).data
        if data is None:
            return record
        if self.field is None:
            return record.with_data(self.side, self._converted(data))
        data = fields_of(data)
        return record.with_data(self.side, data | {self.field: self._converted(data.get(self.field))})

    def _converted(self, value: Any) -> Any:
        return None if value is None else self._shown(self._milliseconds(value))

    def _milliseconds(self, value: Any) -> int:
        match value:
            case Moment():
                return value.ms
            case str() if self.format is not None:
                return self.format.parse(value)
            case str():
                raise CannotTransform("a text can only be read with a format")
            case int() if not isinstance(value, bool):
                return toward_zero(value * self.unit, MILLISECOND)
            case _:
                raise CannotTransform(f"{kind_of(value)} is no time")

    def _shown(self, ms: int) -> Any:
        match self.target:
            case "unix":
                return toward_zero(ms * MILLISECOND, self.unit)
            case "string":
                assert self.format is not None
                return self.format.format(ms)
            case "Date":
                return Moment(ms - ms % DAY_MS, ms // DAY_MS)
            case "Time":
                return Moment(ms % DAY_MS, ms % DAY_MS)
            case _:
                return Moment(ms, ms)

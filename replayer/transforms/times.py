"""TimestampConverter, and dates as text by a pattern of java.text.SimpleDateFormat, in UTC and English."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from replayer.transforms import record
from replayer.transforms.settings import Settings

DAY_MS = 86_400_000
# How long the units are that `unix.precision` names.
NANOSECONDS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
MILLISECOND = NANOSECONDS["milliseconds"]
MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
_SHORT_MONTHS = [name[:3].lower() for name in MONTHS]
NUMERIC = frozenset("yMLdDHkKhmsSu")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TOKEN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z']+", re.DOTALL)
_ZONE = re.compile(r"(?:UTC|GMT|Z)?(?:([+-])([0-9]{2}):?([0-9]{2})?)?")


@dataclass(frozen=True)
class _Token:
    """A letter of the pattern and its repetitions, or a text (letter "")."""

    letter: str
    count: int
    text: str

    @property
    def numeric(self) -> bool:
        return self.letter in NUMERIC and not (self.letter in "ML" and self.count > 2)


class DateFormat:
    """A pattern; raises ValueError for one that is malformed or uses letters that are not known here."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tokens = _tokens(pattern)
        self._expression = re.compile("".join(self._expressions()), re.IGNORECASE)

    def format(self, ms: int) -> str:
        """Format a time in ms since the epoch; raises CannotTransform outside of the years 1 to 9999."""
        try:
            moment = EPOCH + timedelta(milliseconds=ms)
        except OverflowError as error:
            raise record.CannotTransform(f"the time {ms} is outside of the years 1 to 9999") from error
        return "".join(_FORMATS[t.letter](moment, t.count) if t.letter else t.text for t in self._tokens)

    def parse(self, text: str) -> int:
        """Parse a text to ms since the epoch; text after the match is ignored, as Java does. Raises CannotTransform."""
        match = self._expression.match(text)
        if match is None:
            raise record.CannotTransform(f"{text[:80]!r} does not match the format {self.pattern!r}")
        fields: dict[str, str] = {}
        for number, token in enumerate(token for token in self._tokens if token.letter):
            fields[token.letter] = match[number + 1]
        if len(fields.get("y", "0000")) < 3 and any(t.letter == "y" and t.count < 3 for t in self._tokens):
            raise record.CannotTransform(f"the century of {text[:80]!r} is not known: use yyyy")
        try:
            return _milliseconds(fields)
        except (OverflowError, ValueError) as error:
            raise record.CannotTransform(f"{text[:80]!r} is outside of the years 1 to 9999") from error

    def _expressions(self) -> list[str]:
        found = []
        for token, following in zip(self._tokens, [*self._tokens[1:], _Token("", 0, "")], strict=True):
            if not token.letter:
                found.append(re.escape(token.text))
            elif token.numeric:
                digits = f"{{{token.count}}}" if following.numeric else "+"
                found.append(rf"[ \t]*([0-9]{digits})")
            else:
                found.append(rf"[ \t]*({_WORDS[token.letter]})")
        return found


def _tokens(pattern: str) -> list[_Token]:
    tokens = []
    at = 0
    for match in _TOKEN.finditer(pattern):
        if match.start() != at:
            break
        at = match.end()
        text = match[0]
        if match[1]:
            if match[1] not in _FORMATS:
                raise ValueError(f"the letter {match[1]} of SimpleDateFormat is not supported; quote text with '")
            tokens.append(_Token(match[1], len(text), ""))
        else:
            tokens.append(_Token("", 0, text if text[0] != "'" else text[1:-1].replace("''", "'") or "'"))
    if at != len(pattern):
        raise ValueError("a ' is not closed")
    return tokens


def _milliseconds(fields: dict[str, str]) -> int:
    """Return ms of a date's fields; overflow carries over, as in a lenient Calendar."""
    month = fields.get("M", fields.get("L", "1"))
    months = int(month) - 1 if month.isdigit() else _SHORT_MONTHS.index(month[:3].lower())
    day = fields.get("d", "1")
    if "D" in fields and "d" not in fields:
        months, day = 0, fields["D"]
    years, months = divmod(int(fields.get("y", 1970)) * 12 + months, 12)
    moment = datetime(years, months + 1, 1, tzinfo=UTC) + timedelta(
        days=int(day) - 1,
        hours=_hours(fields),
        minutes=int(fields.get("m", 0)),
        seconds=int(fields.get("s", 0)),
        milliseconds=int(fields.get("S", 0)),
    )
    return (moment - _zone(fields) - EPOCH) // timedelta(milliseconds=1)


def _hours(fields: dict[str, str]) -> int:
    if "H" in fields:
        return int(fields["H"])
    if "k" in fields:
        return int(fields["k"]) % 24
    afternoon = 12 if fields.get("a", "").lower() == "pm" else 0
    return int(fields.get("K", fields.get("h", 0))) % 12 + afternoon


def _zone(fields: dict[str, str]) -> timedelta:
    match = _ZONE.fullmatch(next((fields[letter] for letter in "zZX" if letter in fields), "").upper())
    if match is None or match[1] is None:
        return timedelta()
    ahead = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    return ahead if match[1] == "+" else -ahead


def _number(value: int, count: int) -> str:
    return str(value).rjust(count, "0")


def _year(moment: datetime, count: int) -> str:
    return f"{moment.year % 100:02}" if count == 2 else _number(moment.year, count)


def _month(moment: datetime, count: int) -> str:
    if count <= 2:
        return _number(moment.month, count)
    return MONTHS[moment.month - 1][: 3 if count == 3 else None]


_FORMATS: dict[str, Callable[[datetime, int], str]] = {
    "G": lambda _moment, _count: "AD",
    "y": _year,
    "M": _month,
    "L": _month,
    "d": lambda moment, count: _number(moment.day, count),
    "D": lambda moment, count: _number(moment.timetuple().tm_yday, count),
    "E": lambda moment, count: WEEKDAYS[moment.weekday()][: 3 if count <= 3 else None],
    "u": lambda moment, count: _number(moment.isoweekday(), count),
    "a": lambda moment, _count: "AM" if moment.hour < 12 else "PM",
    "H": lambda moment, count: _number(moment.hour, count),
    "k": lambda moment, count: _number(moment.hour or 24, count),
    "K": lambda moment, count: _number(moment.hour % 12, count),
    "h": lambda moment, count: _number(moment.hour % 12 or 12, count),
    "m": lambda moment, count: _number(moment.minute, count),
    "s": lambda moment, count: _number(moment.second, count),
    "S": lambda moment, count: _number(moment.microsecond // 1000, count),
    "z": lambda _moment, count: "UTC" if count < 4 else "Coordinated Universal Time",
    "Z": lambda _moment, _count: "+0000",
    "X": lambda _moment, _count: "Z",
}
_ZONES = r"(?:UTC|GMT)?[+-][0-9]{2}:?(?:[0-9]{2})?|UTC|GMT|Z"
_WORDS = {
    "G": "AD",
    "M": "|".join(MONTHS) + "|" + "|".join(name[:3] for name in MONTHS),
    "L": "|".join(MONTHS) + "|" + "|".join(name[:3] for name in MONTHS),
    "E": "|".join(WEEKDAYS) + "|" + "|".join(name[:3] for name in WEEKDAYS),
    "a": "AM|PM",
    "z": _ZONES,
    "Z": _ZONES,
    "X": _ZONES,
}


def convert_timestamp(settings: Settings, side: record.Side) -> record.Transform:
    """Convert a time, or a field with one, between integers of some unit, text by a format, and Connect's types."""
    target = settings.choice("target.type", ("string", "unix", "Date", "Time", "Timestamp"))
    blank = not settings.text("format", "").strip()
    if target == "string" and blank:
        raise settings.wrong("format", "a text requires one")
    unit = NANOSECONDS[settings.choice("unix.precision", tuple(NANOSECONDS), "milliseconds")]
    settings.without_effect("replace.null.with.default")
    form = None if blank else settings.made("format", DateFormat)
    field = settings.text("field", "") or None

    def convert(value: Any) -> Any:
        return None if value is None else _as_type(_read_time(value, form, unit), target, form, unit)

    def change(data: Any) -> Any:
        if field is None:
            return convert(data)
        data = record.fields_of(data)
        return data | {field: convert(data.get(field))}

    return record.transform_data(side, change, () if field is None else (field,))


def _read_time(value: Any, form: DateFormat | None, unit: int) -> int:
    """Return ms since the epoch of a value; an integer counts units of so many ns."""
    match value:
        case record.Moment():
            return value.ms
        case str() if form is not None:
            return form.parse(value)
        case str():
            raise record.CannotTransform("a text can only be read with a format")
        case int() if not isinstance(value, bool):
            return record.toward_zero(value * unit, MILLISECOND)
        case _:
            raise record.CannotTransform(f"{record.kind_of(value)} is not a time")


def _as_type(ms: int, target: str, form: DateFormat | None, unit: int) -> Any:
    match target:
        case "unix":
            return record.toward_zero(ms * MILLISECOND, unit)
        case "string":
            assert form is not None
            return form.format(ms)
        case "Date":
            return record.Moment(ms - ms % DAY_MS, ms // DAY_MS)
        case "Time":
            return record.Moment(ms % DAY_MS, ms % DAY_MS)
        case _:
            return record.Moment(ms, ms)

"""Sizes, durations and times as people write them: `128MiB`, `5m`, `2026-01-31T12:00:00Z`."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

SIZES = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def wall_clock() -> int:
    """Return the time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def parse_size(text: Any) -> Any:
    """Return bytes from `128MiB`; other types than texts pass through. Raises ValueError."""
    if not isinstance(text, str):
        return text
    number, unit = _number_and_unit(text)
    if number is None or (unit or "B") not in SIZES:
        raise ValueError(f"{text!r} is not a size; write a number with one of {', '.join(SIZES)}")
    return int(number * SIZES[unit or "B"])


def parse_duration(text: Any) -> Any:
    """Return seconds from `5m`; other types than texts pass through. Raises ValueError."""
    if not isinstance(text, str):
        return text
    number, unit = _number_and_unit(text)
    if number is None or (unit or "s") not in MILLISECONDS:
        raise ValueError(f"{text!r} is not a duration; write a number with one of {', '.join(MILLISECONDS)}")
    return float(number * MILLISECONDS[unit or "s"] / 1000)


def format_size(size: int) -> str:
    """Return an exact size as `parse_size` takes it: `128MiB`."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % SIZES[unit] == 0), "B")
    return f"{size // SIZES[unit]}{unit}"


def bytes_text(size: int) -> str:
    """Return a number of bytes for people, in units of 1000: `128.0 kB`."""
    if size < 1000:
        return "1 byte" if size == 1 else f"{size:,} bytes"
    power = next((power for power in range(1, 8) if size < 1000 ** (power + 1)), 8)
    return f"{size / 1000**power:,.1f} {'kMGTPEZY'[power - 1]}B"


def format_duration(seconds: float) -> str:
    """Return a duration as `parse_duration` takes it, exact to the millisecond: `5m`."""
    milliseconds = round(seconds * 1000)
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if milliseconds % MILLISECONDS[unit] == 0)
    return f"{milliseconds // MILLISECONDS[unit]}{unit}"


def timestamp_text(timestamp: int) -> str:
    """Return a timestamp (ms) as RFC 3339, or as its number beyond the years 1 to 9999, which records may have."""
    try:
        # A division would round milliseconds of distant years.
        return (_EPOCH + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp)


def time_text(timestamp: int | None, exact: Callable[[int], str] = timestamp_text) -> str:
    """Return a timestamp (ms) as a table shows it: `2026-01-31T12:00:00Z`, or "-" for None and for Kafka's -1."""
    if timestamp is None or timestamp == -1:
        return "-"
    day, sign, _ = exact(timestamp).partition(".")
    return f"{day}Z" if sign else day


def _number_and_unit(text: str) -> tuple[Decimal | None, str]:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text.strip(), re.ASCII)
    return (Decimal(match[1]), match[2]) if match else (None, "")

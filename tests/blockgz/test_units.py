"""Sizes and durations, read and written."""

import random

import pytest

from blockgz.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64kB", 64_000), ("1.5KiB", 1536), ("128 MiB", 128 * 1024**2), ("0.1GB", 100_000_000), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1 mib", "1KB", "-1B", "1e6", "١MiB", "1 MiB MiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("250ms", 0.25), ("1.5h", 5400), ("7d", 604800), ("30", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-1s", "nan", "1M"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_what_is_written_reads_back() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for _ in range(300):
        size = numbers.randrange(1, 2**20) * numbers.choice([1, 1024, 1024**2])
        assert parse_size(format_size(size)) == size
        milliseconds = numbers.randrange(1, 10**6) * numbers.choice([1, 1000, 60_000])
        assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000

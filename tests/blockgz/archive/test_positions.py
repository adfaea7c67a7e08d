import random
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.positions import (
    AT_END,
    AT_START,
    AfterStart,
    AtOffset,
    AtTime,
    BeforeEnd,
    OffsetRange,
    Position,
    parse_position,
    parse_time,
    position_text,
    resolve_position,
    resolve_range,
    seek_time,
)
from blockgz.errors import UsageError
from blockgz.units import timestamp_text
from index_format.records import Record
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened

NOW = 1_760_000_000_123
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", AtOffset(0)),
        ("1760000000", AtOffset(1_760_000_000)),
        ("9223372036854775807", AtOffset(2**63 - 1)),
        ("+5", AfterStart(5)),
        ("-5", BeforeEnd(5)),
        ("earliest", AT_START),
        ("latest", AT_END),
        ("@1760000000", AtTime(1_760_000_000_000)),
        ("@1760000000123", AtTime(1_760_000_000_123)),
        ("-1h", AtTime(NOW - HOUR)),
        ("-1h30m", AtTime(NOW - HOUR - HOUR // 2)),
        ("-2d", AtTime(NOW - 48 * HOUR)),
        ("-250ms", AtTime(NOW - 250)),
        ("2025-10-09", AtTime(1_759_968_000_000)),
        ("2025-10-09T08:53:20Z", AtTime(1_760_000_000_000)),
        ("2025-10-09T08:53:20", AtTime(1_760_000_000_000)),
        ("2025-10-09t08:53:20z", AtTime(1_760_000_000_000)),
        ("2025-10-09 10:53:20.007+02:00", AtTime(1_760_000_000_007)),
        ("2025-10-09T08:53:20.0071Z", AtTime(1_760_000_000_008)),
        ("1969-12-31T23:59:59.999Z", AtTime(-1)),
    ],
)
def test_forms_of_positions(text: str, position: Position) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.5",
        "@",
        "@17",
        "@176000000012",
        "-",
        "+",
        "--1",
        "1h",
        "+1h",
        "-1y",
        "-999999999999w",
        "2025-13-01",
        "2025-10",
        "٣",
        "9" * 19,
    ],
)
def test_what_is_not_a_position_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_position(text, NOW)
    assert "earliest" in caught.value.remedy


def test_a_time_is_not_an_offset() -> None:
    assert parse_time("-1h", NOW) == AtTime(NOW - HOUR)
    with pytest.raises(UsageError):
        parse_time("1760000000", NOW)


def seek(opened: Opened, timestamp: int) -> int:
    async def use(archive: Archive) -> int:
        return await seek_time(await archive.open_partition("orders", 0), timestamp)

    return opened.read(use)


@pytest.mark.slow
def test_time_seeks_agree_with_brute_force_where_timestamps_go_backwards(opened: Opened, writer: ArchiveWriter) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    partition = writer.partition("orders", 0)
    offset, clock = rng.randrange(100), 1000
    for _ in range(rng.choice([3, 70, 140])):
        offsets, timestamps = [], []
        for _ in range(rng.randrange(1, 12)):
            offset += rng.choice([1, 1, 1, 2, 9])
            clock += rng.choice([0, 1, 5, -30, -200, 80])
            offsets.append(offset)
            timestamps.append(max(clock, -1))
        partition.commit(records(offsets, timestamps=timestamps), next_offset=offset + rng.choice([1, 3]))
        offset = partition.marker.next_offset or 0
    stamps = [record.timestamp for record in partition.records]
    for timestamp in {-5, 0, min(stamps), max(stamps), max(stamps) + 1, *rng.sample(range(-1, max(stamps) + 2), 60)}:
        expected = next((r.offset for r in partition.records if r.timestamp >= timestamp), partition.marker.next_offset)
        assert seek(opened, timestamp) == expected, f"seed {seed}, time {timestamp}"
        assert opened.counts.requests <= 5


def test_ranges(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(100, 150)))
    partition.commit(records(range(150, 200)), next_offset=205)

    def resolved(start: Position | None, end: Position | None) -> OffsetRange:
        async def use(archive: Archive) -> OffsetRange:
            return await resolve_range(await archive.open_partition("orders", 0), start, end)

        return opened.read(use)

    at_160 = AtTime(1_760_000_000_160)
    assert resolved(None, None) == (100, 205)
    assert resolved(AtOffset(0), AtOffset(10**6)) == (100, 205)
    assert resolved(AtOffset(120), AtOffset(110)) == (120, 120)
    assert resolved(AfterStart(5), AfterStart(7)) == (105, 112)
    assert resolved(BeforeEnd(10), None) == (195, 205)
    assert resolved(None, at_160) == (100, 160)
    assert resolved(at_160, AT_END) == (160, 205)
    assert resolved(AtTime(2 * NOW), None) == (205, 205)
    assert resolved(BeforeEnd(10**6), AfterStart(10**6)) == (100, 205)


def test_an_empty_partition_has_an_empty_range(opened: Opened, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0)

    async def use(archive: Archive) -> tuple[OffsetRange, int]:
        partition = await archive.open_partition("orders", 0)
        return await resolve_range(partition, AtTime(0), AT_END), await resolve_position(BeforeEnd(3), partition)

    assert opened.read(use) == ((0, 0), 0)


def test_text_records_are_sought_by_block(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0, record_format="text")
    partition.commit([Record(n, 1000 + n, 0, None, b"0123456789", ()) for n in range(10)], block_bytes=55)
    assert seek(opened, 1000) == 0
    assert seek(opened, 1003) == 0
    assert seek(opened, 1005) == 5
    assert seek(opened, 1010) == 10


BERLIN = ZoneInfo("Europe/Berlin")
NOON = 1_764_331_200_000
"""2025-11-28T12:00:00Z, 13:00 in Berlin."""


@pytest.mark.parametrize(
    ("text", "zone", "time"),
    [
        ("now", None, "2025-11-28T12:00:00.000Z"),
        ("05:27", None, "2025-11-28T05:27:00.000Z"),
        ("05:27:30.250", None, "2025-11-28T05:27:30.250Z"),
        ("05:27", BERLIN, "2025-11-28T04:27:00.000Z"),
        ("12:30", BERLIN, "2025-11-28T11:30:00.000Z"),
        ("2025-11-28", BERLIN, "2025-11-27T23:00:00.000Z"),
        ("2025-07-01T12:00", BERLIN, "2025-07-01T10:00:00.000Z"),
        ("2025-07-01T12:00Z", BERLIN, "2025-07-01T12:00:00.000Z"),
        ("2025-07-01T12:00+05:00", BERLIN, "2025-07-01T07:00:00.000Z"),
        ("2025-11-28T12:00:00", None, "2025-11-28T12:00:00.000Z"),
        ("@1764331200", BERLIN, "2025-11-28T12:00:00.000Z"),
        ("-1h", BERLIN, "2025-11-28T11:00:00.000Z"),
    ],
)
def test_times_without_a_zone_are_of_utc_or_of_the_given_one(text: str, zone: ZoneInfo | None, time: str) -> None:
    assert timestamp_text(parse_time(text, NOON, zone).timestamp) == time
    assert parse_position(text, NOON, zone) == parse_time(text, NOON, zone)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2025-10-26T02:30", BERLIN, ["is two times in Europe/Berlin", "2025-10-26T00:30:00", "2025-10-26T01:30:00"]),
        ("2025-03-30T02:30", BERLIN, ["does not exist in Europe", "2025-03-30T00:30:00", "2025-03-30T01:30:00"]),
        ("12:00:01", None, ["still to come", "12:00 now (UTC)", "2025-11-27T12:00:01", "2025-11-28T12:00:01"]),
        ("13:01", BERLIN, ["still to come", "13:00 now (Europe/Berlin)", "2025-11-27T13:01"]),
        ("yesterday", None, ["write 2025-11-27 for its midnight", "-1d"]),
        ("today", BERLIN, ["write 2025-11-28 for its midnight"]),
        ("latest", None, ["it is a position", "leave the option out", "now"]),
        ("earliest", None, ["it is a position"]),
        ("1764331200", None, ["write @1764331200"]),
        ("25:00", None, ["has none of the known forms", "05:27", "-1h"]),
        ("5:27", None, ["has none of the known forms"]),
    ],
)
def test_times_that_may_mean_something_else_are_refused_with_what_to_write(
    text: str, zone: ZoneInfo | None, expected: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, NOON, zone)
    told = f"{caught.value.what}\n{caught.value.why}\n{caught.value.remedy}"
    assert text in caught.value.what
    assert all(part in told for part in expected), told


def test_what_is_written_in_a_refusal_of_a_change_of_the_clocks_is_taken() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(2000):
        zone = ZoneInfo(chance.choice(["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu"]))
        text = _local(datetime(2025, 1, 1, tzinfo=zone) + timedelta(minutes=15 * chance.randrange(4 * 24 * 365)))
        times = _readings(text, zone)
        shown = [_local(datetime.fromtimestamp(time / 1000, zone)) == text for time in times]
        try:
            found = parse_time(text, NOON, zone).timestamp
        except UsageError as error:
            written = error.remedy.removeprefix("write ").split(" or ")
            assert [parse_time(each, NOON, zone).timestamp for each in written] == sorted(times)
            assert shown == [("two times" in error.what)] * 2
            assert times[0] != times[1]
        else:
            assert times == [found, found]
            assert all(shown)
    for text in ("2025-04-06T01:45", "2025-10-05T02:15"):
        with pytest.raises(UsageError):
            parse_time(text, NOON, ZoneInfo("Australia/Lord_Howe"))


def _local(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M}"


def _readings(text: str, zone: ZoneInfo) -> list[int]:
    """Return what a local time is before and after a change of the clocks, ms since the epoch."""
    time = datetime.fromisoformat(text)
    return [round(time.replace(tzinfo=zone, fold=fold).timestamp() * 1000) for fold in (0, 1)]


@pytest.mark.parametrize(
    ("text", "zone", "stored"),
    [
        ("2025-11-28", None, "2025-11-28"),
        ("2025-11-28T05:00:00", None, "2025-11-28T05:00:00"),
        ("@1764331200", BERLIN, "@1764331200"),
        ("-1h", BERLIN, "-1h"),
        ("17", BERLIN, "17"),
        ("latest", BERLIN, "latest"),
        ("2025-11-28T05:00:00Z", BERLIN, "2025-11-28T05:00:00Z"),
        ("2025-11-28T05:00:00+01:00", BERLIN, "2025-11-28T05:00:00+01:00"),
        ("2025-11-28", BERLIN, "2025-11-27T23:00:00.000Z"),
        ("05:27", None, "2025-11-28T05:27:00.000Z"),
        ("05:27", BERLIN, "2025-11-28T04:27:00.000Z"),
        ("now", None, "2025-11-28T12:00:00.000Z"),
    ],
)
def test_a_job_stores_times_that_mean_the_same_everywhere(text: str, zone: ZoneInfo | None, stored: str) -> None:
    assert position_text(text, parse_position(text, NOON, zone), zone) == stored

"""Selections of records, pages of them and positions, against what was written."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from blockgz.archive import paging
from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.paging import Missing, Page, missing_between, page_at, page_before, page_from
from blockgz.archive.partition import ArchivedPartition, LostRange, SkipDamage
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
from blockgz.archive.selection import SKIPS, DamagePolicies, Positions, Selection, select, selected, selected_batches
from blockgz.errors import UsageError
from blockgz.record_filter import KeyIn, Not, RecordFilter
from blockgz.store.address import LocalAddress
from blockgz.units import timestamp_text
from index_format.objects import Gap
from index_format.records import Record, iter_records
from tests.index_format.builders import record
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.opened import Opened
from tests.support.sampling import seeded_random


def read(opened: Opened, record_filter: RecordFilter) -> list[Record]:
    async def use(archive: ArchiveReader) -> list[Record]:
        partition = await archive.open_partition("orders", 0)
        selection = Selection(partition, OffsetRange(0, partition.next_offset))
        async with aclosing(selected(selection, record_filter)) as batches:
            return [record async for batch in batches for record in iter_records(batch)]

    return opened.read(use)


def test_catalogs_chunks_and_blocks_without_wanted_timestamps_are_not_read(
    opened: Opened, writer: ArchiveWriter
) -> None:
    partition = writer.partition("orders", 0)
    # A catalog of chunks with timestamps 0 to 63, which have no index at all, and one chunk whose times go to and fro.
    partition.pretend(range(64))
    partition.commit(records(range(64, 100), timestamps=[1000 + 37 * n % 36 for n in range(36)]), block_bytes=500)
    wanted = [record for record in partition.records if 1010 <= record.timestamp < 1012]
    assert read(opened, RecordFilter(since=1010, until=1012)) == wanted
    assert len(wanted) == 2
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes
    assert opened.counts.requests == 3, "marker, index, one run of blocks"
    assert read(opened, RecordFilter(since=2000)) == []
    assert (opened.counts.requests, opened.counts.data_bytes_fetched) == (2, 0)


def test_runs_of_wanted_blocks_are_read_without_what_lies_between(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    times = [5] * 10 + [9] * 50 + [5] * 10
    partition.commit(records(range(70), timestamps=times), block_bytes=200)
    assert [r.offset for r in read(opened, RecordFilter(until=6))] == [*range(10), *range(60, 70)]
    assert opened.counts.requests == 4
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes / 2


def found(opened: Opened, *conditions: KeyIn | Not) -> list[int]:
    async def read(archive: ArchiveReader) -> list[int]:
        chosen = await select(archive, "orders", None, Positions())
        batches = selected_batches(chosen, RecordFilter(conditions=conditions), None, DamagePolicies())
        return [offset async for _, batch in batches for offset in batch.column("offset").to_pylist()]

    return opened.read(read)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 12])
def test_only_blocks_that_may_hold_the_key_are_read(writer: ArchiveWriter, opened: Opened, bits: int | None) -> None:
    partition = writer.partition("orders", 0)
    partition.key_filter_bits = bits
    rows = [record(offset, bytes(50), b"user-%d" % (offset // 4)) for offset in range(400)]
    for start in range(0, 400, 100):
        partition.commit(rows[start : start + 100])
    all_bytes = sum(index.data.bytes for index in partition.indexes)
    assert found(opened, KeyIn([b"user-50"])) == [200, 201, 202, 203]
    assert opened.counts.data_bytes_fetched < all_bytes / 10 if bits else opened.counts.data_bytes_fetched == all_bytes
    assert found(opened, KeyIn([b"user-0", b"user-99"])) == [0, 1, 2, 3, 396, 397, 398, 399]
    assert found(opened, KeyIn([b"nobody"])) == []
    assert found(opened, Not(KeyIn([b"user-50"]))) == [offset for offset in range(400) if offset // 4 != 50]


@pytest.mark.slow
def test_no_record_is_missed_by_any_search(writer: ArchiveWriter, opened: Opened) -> None:
    rng = seeded_random()
    partition = writer.partition("orders", 0)
    keys = [None, b"", *(b"%d" % number for number in range(40))]
    offset, rows = 0, []
    for _ in range(12):
        partition.key_filter_bits = rng.choice([None, 1, 2, 8])
        chunk = []
        for _ in range(rng.randint(1, 30)):
            chunk.append(record(offset, bytes(rng.randint(0, 80)), rng.choice(keys)))
            offset += rng.choice([1, 1, 2])
        partition.commit(chunk, next_offset=offset)
        rows += chunk
    for _ in range(40):
        wanted = rng.sample(keys, rng.randint(1, 3))
        assert found(opened, KeyIn(wanted)) == [row.offset for row in rows if row.key in wanted]


def with_partition(root: Path, work: Callable[[ArchivedPartition], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(ArchivePlace(LocalAddress(str(root)))) as archive:
            await work(await archive.open_partition("orders", 0))

    asyncio.run(run())


def made_by_chance(writer: ArchiveWriter, rng: random.Random) -> tuple[PartitionWriter, list[Gap]]:
    """A partition whose chunks have holes, and gaps between them; more chunks than a marker lists."""
    partition = writer.partition("orders", 0, record_format=rng.choice(["json", "arrow"]))
    gaps: list[Gap] = []
    offset = rng.randrange(30)
    for _ in range(rng.choice([1, 5, 80])):
        told = []
        if rng.random() < 0.3 and partition.records:
            told = [Gap(offset, offset + rng.randrange(1, 9), "retention")]
            offset = told[0].end
        start = offset + rng.choice([0, 0, 3])
        offsets = [each for each in range(start, start + rng.randrange(1, 20)) if rng.random() < 0.8] or [start]
        offset = offsets[-1] + 1 + rng.choice([0, 2])
        partition.commit(records(offsets), next_offset=offset, gaps=told, block_bytes=rng.choice([100, 600]))
        gaps += told
    return partition, gaps


def check(page: Page, partition: PartitionWriter, gaps: list[Gap]) -> None:
    """The page is gapless and right."""
    at = page.start
    for item in page.items:
        if isinstance(item, Record):
            assert item.offset == at
            at += 1
        else:
            assert item.start == at
            assert item.start < item.end
            kinds = {"gap" if any(each in gap for gap in gaps) else "hole" for each in range(item.start, item.end)}
            assert kinds == {item.kind}
            at = item.end
    assert at == page.end
    assert page.records == [each for each in partition.records if page.start <= each.offset < page.end]


@pytest.mark.slow
def test_pages_both_ways_tell_of_every_offset(tmp_path: Path) -> None:
    rng = seeded_random()
    for number in range(4):
        root = tmp_path / str(number)
        partition, gaps = made_by_chance(ArchiveWriter(root), rng)

        async def walk(
            archived: ArchivedPartition, partition: PartitionWriter = partition, gaps: list[Gap] = gaps
        ) -> None:
            count = rng.randrange(1, 60)
            page = await page_from(archived, 0, count)
            assert page.start == archived.start_offset
            assert not page.has_before
            seen = []
            while True:
                check(page, partition, gaps)
                seen += page.records
                assert page.has_after == (page.end < archived.next_offset)
                if not page.has_after:
                    break
                page = await page_from(archived, page.end, count)
            assert seen == partition.records
            page, below = await page_at(archived, AT_END, count), []
            assert page.end == archived.next_offset
            while True:
                check(page, partition, gaps)
                below = page.records + below
                if not page.has_before:
                    break
                page = await page_before(archived, page.start, count)
            assert below == partition.records
            for _ in range(10):
                place = rng.randrange(archived.next_offset + 5)
                check(await page_from(archived, place, count), partition, gaps)
                check(await page_before(archived, place, count), partition, gaps)

        with_partition(root, walk)


def test_pages_cross_folders_of_a_truncated_log(tmp_path: Path) -> None:
    first = ArchiveWriter(tmp_path).partition("orders", 0)
    first.commit(records(range(10)))
    first.commit(records(range(10, 20)))
    second = first.truncated(10)
    second.commit(records(range(10, 40), value_bytes=30))
    expected = first.records[:10] + second.records

    async def look(archived: ArchivedPartition) -> None:
        for count in (3, 7, 100):
            page, seen = await page_from(archived, 0, count), []
            seen += page.records
            while page.has_after:
                page = await page_from(archived, page.end, count)
                seen += page.records
            assert seen == expected
            page = await page_before(archived, 40, count)
            below = page.records
            while page.has_before:
                page = await page_before(archived, page.start, count)
                below = page.records + below
            assert below == expected

    with_partition(tmp_path, look)


def test_damage_stands_in_its_place(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    partition = writer.partition("orders", 0)
    for start in (0, 20, 40):
        partition.commit(records(range(start, start + 20)))
    (tmp_path / partition.keys.chunks / "00000000000000000020.index.json").unlink()
    data = tmp_path / partition.keys.chunks / "00000000000000000040.gz"
    body = bytearray(data.read_bytes())
    body[len(body) // 2 :] = bytes(len(body) - len(body) // 2)
    data.write_bytes(body)

    async def look(archived: ArchivedPartition) -> None:
        for page in (await page_from(archived, 0, 100), await page_before(archived, 60, 100)):
            damaged = [item for item in page.items if isinstance(item, Missing)]
            assert {item.kind for item in damaged} == {"damage"}
            assert (damaged[0].start, damaged[0].end) == (20, 40)
            assert all(40 < item.start < item.end <= 60 for item in damaged[1:])
            assert damaged[1:]
            lost = {each for item in damaged for each in range(item.start, item.end)}
            assert [each.offset for each in page.records] == [each for each in range(60) if each not in lost]

    with_partition(tmp_path, look)


@pytest.mark.slow
def test_a_damaged_catalog_costs_its_own_chunks_only(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    partition = writer.partition("orders", 0)
    for start in range(200):
        partition.commit(records([start]))
    catalogs = sorted(path for path in (tmp_path / partition.keys.home / "_catalog").rglob("*") if path.is_file())
    catalogs[0].write_bytes(b"torn")

    async def look(archived: ArchivedPartition) -> None:
        forward, backward = await page_from(archived, 0, 500), await page_before(archived, 200, 500)
        assert forward.items == backward.items
        (damage,) = (item for item in forward.items if isinstance(item, Missing))
        assert damage.kind == "damage"
        assert damage.end - damage.start == 64
        assert len(forward.records) == 200 - 64

    with_partition(tmp_path, look)


def test_a_page_is_bounded_by_bytes_and_tells_what_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 3_000)
    writer = ArchiveWriter(tmp_path)
    index = writer.partition("orders", 0).commit(records(range(100), value_bytes=1_000), block_bytes=500)

    async def look(archived: ArchivedPartition) -> None:
        page = await page_from(archived, 10, 50)
        assert 1 <= len(page.records) <= 5
        assert page.opened_bytes == index.data.bytes
        assert page.records[0].offset == 10

    with_partition(tmp_path, look)


def test_seeking(tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit(records(range(50)), next_offset=60)

    async def look(archived: ArchivedPartition) -> None:
        first = await page_at(archived, AtTime(partition.records[30].timestamp), 5)
        assert [each.offset for each in first.records] == [30, 31, 32, 33, 34]
        newest = await page_at(archived, BeforeEnd(3), 5)
        assert [each.offset for each in newest.records] == [45, 46, 47, 48, 49]
        assert newest.items[-1] == Missing(50, 60, "hole", paging.HOLE)

    with_partition(tmp_path, look)


def test_overlapping_reasons_are_told_once() -> None:
    known = [Missing(2, 6, "gap", "a"), Missing(4, 8, "damage", "b")]
    found = list(missing_between(0, 10, known))
    assert [(each.start, each.end, each.kind) for each in found] == [
        (0, 2, "hole"),
        (2, 6, "gap"),
        (6, 8, "damage"),
        (8, 10, "hole"),
    ]


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
    async def use(archive: ArchiveReader) -> int:
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
        async def use(archive: ArchiveReader) -> OffsetRange:
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

    async def use(archive: ArchiveReader) -> tuple[OffsetRange, int]:
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
    chance = seeded_random()
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


def test_damage_of_earlier_runs_is_named_once_though_it_has_grown() -> None:
    partition = cast("ArchivedPartition", object())
    damage = DamagePolicies(SKIPS)
    damage.earlier += [(partition, LostRange(5, 8, "torn")), (partition, LostRange(0, 2, "gone"))]
    policy = cast("SkipDamage", damage.of(partition))
    policy.skipped += [LostRange(5, 9, "torn"), LostRange(20, 30, "torn")]
    assert [each[:2] for _, each in damage.skipped] == [(5, 9), (0, 2), (20, 30)]

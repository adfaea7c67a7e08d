"""Cuts by time: against a plain judge, and on records whose clocks are wrong."""

import random

import pytest

from blockgz.archive import cuts
from blockgz.archive.archive import Archive
from blockgz.archive.cuts import Cut, cut_lines, find_cut
from blockgz.archive.group_tables import EndsAround
from blockgz.archive.positions import AtTime, BeforeTime, Budget, Rule
from blockgz.archive.selection import Positions, select
from index_format.groups import ConsumerGroups, LogEnd, LogEnds, encode
from index_format.keys import TopicFolder, dated_key, groups_home
from index_format.records import Record
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, PartitionWriter, records
from tests.support.opened import Opened
from tests.support.selections import judged_cut

MINUTE = 60_000
HOUR = 60 * MINUTE
T0 = 1_760_000_000_000 // HOUR * HOUR
"""The time of the first record, a full hour."""


def cut(opened: Opened, at: int, rule: Rule | None = None, budget: Budget | None = None) -> Cut:
    async def use(archive: Archive) -> Cut:
        position = BeforeTime(at, rule, budget or Budget())
        (selection,) = await select(archive, "orders", None, Positions(None, position))
        assert selection.cut is not None
        assert selection.offsets.end == selection.cut.end
        return selection.cut

    return opened.read(use)


def put_ends(
    archive: ArchiveWriter, at: int, ends: dict[int, int], *, incarnation: int = 1, topic_id: str = "id-1"
) -> None:
    """Store a table that was asked at a time, as an archiver does whose round takes 100 ms."""
    table = ConsumerGroups(
        archive_id=ARCHIVE_ID,
        topic="orders",
        topic_id=topic_id,
        interval=MINUTE,
        groups=(),
        ends=LogEnds(at, at + 100, tuple(LogEnd(*each) for each in sorted(ends.items()))),
    )
    slot = -(-(at + 100) // MINUTE) * MINUTE
    archive.put(dated_key(groups_home(archive.layout, TopicFolder("orders", incarnation)), slot), encode(table))


def skewed(rng: random.Random, count: int) -> list[int]:
    """Timestamps of a log, of one of many kinds."""
    ordered = [1000 + 10 * n for n in range(count)]
    late = range(begin := rng.randrange(count), min(count, begin + rng.randrange(1, 40)))
    ahead = rng.choice([300, 10**6])
    kinds = (
        ordered,
        [max(0, each + rng.randrange(-60, 60)) for each in ordered],
        [1500] * count,
        ordered[::-1],
        [each + ahead * (n == begin) for n, each in enumerate(ordered)],
        [each + 400 * (n % 3 == 0) for n, each in enumerate(ordered)],
        [rng.randrange(1000) if n in late else each for n, each in enumerate(ordered)],
        [-1] * count,
        [rng.choice([-1, 0, rng.randrange(4000), each]) for each in ordered],
    )
    return rng.choice(kinds)


@pytest.mark.parametrize("round_", range(10))
def test_cuts_agree_with_the_judge(
    opened: Opened, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    settled = rng.choice([3, 10, 1000])
    monkeypatch.setattr(cuts, "SETTLED", settled)
    partition = writer.partition("orders", 0)
    offset = rng.randrange(100)
    stamps = skewed(rng, rng.choice([5, 60, 140]))
    rows = list[tuple[int, int]]()
    while stamps:
        offsets = list[int]()
        for _ in stamps[: rng.randrange(1, 14)]:
            offset += rng.choice([1, 1, 1, 2, 9])
            offsets.append(offset)
        mine, stamps = stamps[: len(offsets)], stamps[len(offsets) :]
        rows += zip(offsets, mine, strict=True)
        partition.commit(records(offsets, timestamps=mine), next_offset=offset + rng.choice([1, 3]))
        offset = partition.marker.next_offset or 0
    first, end = partition.marker.start_offset or 0, partition.marker.next_offset or 0
    for at in sorted({0, 1, *rng.sample(range(900, 2600), 10), 10**7}):
        lower = rng.choice([None, rng.randrange(first, end + 3)])
        upper = rng.choice([None, rng.randrange(first, end + 3)])
        seen = EndsAround(lower, None if lower is None else at - 5, upper, None if upper is None else at + 5)

        async def use(archive: Archive, rule: Rule, at: int = at, seen: EndsAround = seen) -> Cut:
            return await find_cut(await archive.open_partition("orders", 0), BeforeTime(at, rule), seen)

        found = opened.read(lambda archive: use(archive, "majority"))
        start = first if lower is None else min(lower, end)
        stop = end if lower is None or upper is None else min(upper, end)
        told = f"seed {seed}, time {at}, {seen}"
        assert found.end == judged_cut(rows, at, min(start, stop), max(start, stop), settled), told
        kafka = next((each for each, timestamp in rows if timestamp >= at), end)
        assert (found.first, opened.read(lambda archive: use(archive, "first")).end) == (kafka, kafka), told
        later = [timestamp for each, timestamp in rows if each < found.end and timestamp >= at]
        earlier = [timestamp for each, timestamp in rows if each >= found.end and 0 <= timestamp < at]
        assert (found.later, found.latest) == (len(later), max(later, default=None)), told
        assert (found.earlier, found.earliest) == (len(earlier), min(earlier, default=None)) or (
            found.at_least and found.earlier <= len(earlier)
        ), told


def test_one_record_with_a_clock_ahead_moves_no_cut(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {100: 85 * MINUTE})
    found = cut(opened, T0 + 50 * MINUTE)
    assert (found.end, found.first, found.later, found.earlier) == (834, 100, 1, 0)
    assert found.doubt is None
    (line,) = cut_lines([("orders", 0, found)])
    assert line == (
        "orders:0  ends before offset 834 (Kafka's rule: 100). 1 record stamped 2025-10-09T08:50:00Z or later is "
        "included (offset 100, stamped 2025-10-09T09:31:00Z); 0 stamped before it are left out."
    )


def an_hour(writer: ArchiveWriter, ahead: dict[int, int], count: int = 1000) -> PartitionWriter:
    """A partition of an hour's records, some of which have clocks ahead by so much, in ms."""
    partition = writer.partition("orders", 0)
    for first in range(0, count, 100):
        offsets = range(first, first + 100)
        stamps = [T0 + n * HOUR // 1000 + ahead.get(n, 0) for n in offsets]
        partition.commit(records(offsets, timestamps=stamps), block_bytes=1000)
    return partition


def test_the_ends_of_the_log_decide_where_clocks_do_not(opened: Opened, writer: ArchiveWriter) -> None:
    ahead = dict.fromkeys(range(200, 700), 2 * HOUR)
    an_hour(writer, ahead, 3000)
    at = T0 + 50 * MINUTE
    without = cut(opened, at)
    assert without.doubt is not None
    put_ends(writer, at - 3 * MINUTE, {0: 780})
    put_ends(writer, at + 2 * MINUTE, {0: 860})
    found = cut(opened, at)
    assert (found.end, found.first, found.later, found.doubt) == (834, 200, 500, None)
    assert (found.seen.lower, found.seen.upper) == (780, 860)
    assert found.reaches


def test_two_thousand_records_ahead_are_never_passed_without_a_word(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, dict.fromkeys(range(100, 2100), 5 * HOUR), 4000)
    found = cut(opened, T0 + 3 * HOUR)
    assert found.differs
    assert found.doubt is not None


def test_a_backfill_behind_the_time_is_left_out(opened: Opened, writer: ArchiveWriter) -> None:
    partition = an_hour(writer, {}, 3000)
    old = [T0 - HOUR + n for n in range(500)]
    partition.commit(records(range(3000, 3500), timestamps=old), block_bytes=1000)
    found = cut(opened, T0 + 50 * MINUTE)
    assert (found.end, found.earlier, found.later) == (834, 500, 0)
    assert found.doubt == "500 records stamped before the time would be left out, from offset 3000 on"
    put_ends(writer, T0 + 49 * MINUTE, {0: 800})
    put_ends(writer, T0 + 51 * MINUTE, {0: 870})
    assert cut(opened, T0 + 50 * MINUTE).doubt is None


def test_the_cut_stays_when_the_archive_grows(opened: Opened, writer: ArchiveWriter) -> None:
    partition = an_hour(writer, {100: 45 * MINUTE}, 3000)
    at = T0 + 50 * MINUTE
    before = cut(opened, at).end
    for first in range(3000, 5000, 100):
        partition.commit(records(range(first, first + 100), timestamps=[T0 - HOUR] * 100), block_bytes=1000)
    assert cut(opened, at).end == before


def test_tables_of_another_topic_or_a_damaged_one_say_nothing(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {})
    at = T0 + 50 * MINUTE
    put_ends(writer, at - 3 * MINUTE, {0: 100}, topic_id="another")
    slot = at + 5 * MINUTE
    writer.put(dated_key(groups_home(writer.layout, TopicFolder("orders")), slot), b"torn")
    assert cut(opened, at).seen == EndsAround()


def test_an_archive_that_lacks_the_end_says_so(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {})
    at = T0 + 2 * HOUR
    put_ends(writer, at - 3 * MINUTE, {0: 1500})
    found = cut(opened, at)
    assert (found.end, found.lacks, found.reaches) == (1000, 500, False)
    assert cut_lines([("orders", 0, found)]) == [
        "orders:0  the archive lacks 500 offsets from before 2025-10-09T10:00:00Z"
    ]


def test_a_silent_topic_reaches_the_time(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {})
    at = T0 + 5 * HOUR
    put_ends(writer, at - 3 * MINUTE, {0: 1000})
    put_ends(writer, at + 3 * MINUTE, {0: 1000})
    assert cut(opened, at).reaches


def test_a_log_that_was_truncated_is_known_from_both_folders(opened: Opened, writer: ArchiveWriter) -> None:
    older = an_hour(writer, {})
    newer = older.truncated(900)
    stamps = [T0 + 55 * MINUTE + n for n in range(300)]
    newer.commit(records(range(900, 1200), timestamps=stamps), block_bytes=1000)
    at = T0 + 50 * MINUTE
    put_ends(writer, at - 2 * MINUTE, {0: 800})
    put_ends(writer, at + 2 * MINUTE, {0: 950})
    found = cut(opened, at)
    assert (found.seen.lower, found.seen.upper, found.end) == (800, 900, 834)
    put_ends(writer, at + 30 * MINUTE, {0: 1200}, incarnation=2)
    assert cut(opened, at).seen.upper == 900


def test_blocks_beyond_the_budget_leave_the_cut_undecided(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, dict.fromkeys(range(0, 1000, 3), 2 * HOUR))
    found = cut(opened, T0 + 50 * MINUTE, budget=Budget(left=300))
    assert found.undecided is not None
    assert found.doubt is not None
    assert found.at_least


def test_a_damaged_block_leaves_the_cut_undecided(opened: Opened, writer: ArchiveWriter) -> None:
    partition = an_hour(writer, dict.fromkeys(range(0, 1000, 3), 2 * HOUR))
    index = partition.indexes[3]
    key = partition.keys.chunks + index.data.name
    stored = writer.stored(key)
    writer.put(key, stored[:300] + b"\0" * 40 + stored[340:])
    assert cut(opened, T0 + 50 * MINUTE).undecided == "a block that would decide is damaged"


def test_text_is_cut_at_a_block(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0, record_format="text")
    partition.commit([Record(n, 1000 + n, 0, None, b"0123456789", ()) for n in range(10)], block_bytes=55)
    assert [cut(opened, at).end for at in (1000, 1003, 1005, 2000)] == [0, 0, 5, 10]


def test_few_requests_are_made_where_clocks_are_right(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {}, 7_000)
    assert cut(opened, T0 + 100 * MINUTE).end == 1667
    assert opened.counts.requests <= 10


def test_times_around_each_other_meet(opened: Opened, writer: ArchiveWriter) -> None:
    an_hour(writer, {100: 45 * MINUTE})
    at = AtTime(T0 + 50 * MINUTE)

    async def use(archive: Archive) -> list[tuple[int, int]]:
        ranges = [Positions(None, at), Positions(at, None)]
        return [tuple((await select(archive, "orders", None, each))[0].offsets) for each in ranges]

    (first, end), (start, last) = opened.read(use)
    assert (first, end, last) == (0, start, 1000)


def ranged(opened: Opened, start: AtTime | None, end: AtTime | None) -> tuple[str, ...]:
    async def use(archive: Archive) -> tuple[str, ...]:
        return (await select(archive, "orders", None, Positions(start, end)))[0].notes

    return opened.read(use)


def test_records_behind_the_bound_of_a_range_are_noted(opened: Opened, writer: ArchiveWriter) -> None:
    partition = an_hour(writer, {}, 3000)
    at = AtTime(T0 + 50 * MINUTE)
    assert ranged(opened, at, None) == ranged(opened, None, at) == ()
    for first, count in ((3000, 500), (3500, 20)):
        stamps = [T0 - HOUR + n for n in range(count)]
        partition.commit(records(range(first, first + count), timestamps=stamps), block_bytes=1000)
    partition.commit(records([3520, 3521], timestamps=[T0, T0 + 4 * HOUR]))
    text = (
        "orders:0  offset 834 is the first record stamped 2025-10-09T08:50:00Z or later: at least 521 records stamped "
        "before that are behind it"
    )
    requests = opened.counts.requests
    assert ranged(opened, at, None) == (f"{text}, and included",)
    assert opened.counts.requests - requests <= 6
    assert ranged(opened, None, at) == (f"{text}, and left out",)
    assert ranged(opened, at, AtTime(T0 + 2 * HOUR)) == (
        "orders:0  offset 2000 is the first record stamped 2025-10-09T10:00:00Z or later: at least 521 records stamped "
        "before that are behind it, and left out",
    ), "those before the end are in order"


def test_a_few_records_close_to_the_bound_are_not_noted(opened: Opened, writer: ArchiveWriter) -> None:
    partition = an_hour(writer, {})
    at = T0 + 50 * MINUTE
    partition.commit(records(range(1000, 1010), timestamps=[at - 1000 - n for n in range(10)]))
    assert ranged(opened, AtTime(at), None) == ()
    partition.commit(records([1010], timestamps=[at - 1000]))
    (note,) = ranged(opened, AtTime(at), None)
    assert "at least 11 records" in note

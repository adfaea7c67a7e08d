"""Following an archive that grows, reading ahead, and cuts by time, against a plain judge."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
from click.testing import CliRunner

from blockgz.archive import cuts
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.cuts import Cut, cut_lines, find_cut
from blockgz.archive.follow import POLLS_PER_LISTING, Follower, last_records
from blockgz.archive.group_tables import EndsAround
from blockgz.archive.partition import prefetched
from blockgz.archive.positions import AtTime, BeforeTime, Budget, OffsetRange, Rule
from blockgz.archive.selection import Positions, Selection, select
from blockgz.errors import StoreUnavailable
from blockgz.record_filter import KeyIn, RecordFilter
from blockgz.store.reader import CountingReader
from index_format.errors import MalformedObject
from index_format.groups import ConsumerGroups, LogEnd, LogEnds, encode
from index_format.keys import TopicFolder, dated_key, groups_home
from index_format.records import Record, iter_records
from replayer.cli import main
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, PartitionWriter, records
from tests.support.opened import Opened
from tests.support.selections import judged_cut

News = list[tuple[str, int, int]]


def following(opened: Opened, steps: list[Callable[[], object]], said: list[str]) -> list[News]:
    """What each step's poll tells, after the archive was changed by it."""

    async def use(archive: ArchiveReader) -> list[News]:
        begin = [(each, each.next_offset) for each in await archive.open_topic("orders")]
        follower = Follower(archive, "orders", begin, said.append, watch_for_partitions=True)
        told = []
        for step in steps:
            step()
            told.append([(str(partition), *offsets) for partition, offsets, *_ in await follower.poll()])
        return told

    return opened.read(use)


def test_each_offset_is_reported_once(opened: Opened, writer: ArchiveWriter) -> None:
    first, second = (writer.partition("orders", number) for number in range(2))
    first.commit(records(range(5)))
    said: list[str] = []
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: first.commit(records(range(5, 9))),
        lambda: (first.commit(records([9])), second.commit(records(range(3)))),
        lambda: second.lose(10),
        lambda: (first.advance(20), second.commit(records([10]))),
        lambda: None,
    ]
    assert following(opened, steps, said) == [
        [],
        [("orders:0", 5, 9)],
        [("orders:0", 9, 10), ("orders:1", 0, 3)],
        [("orders:1", 3, 10)],
        [("orders:0", 10, 20), ("orders:1", 10, 11)],
        [],
    ]
    assert said == ["partition orders:1 has a gap [3..10): retention"]


def test_a_topic_that_was_created_again_continues_after_its_old_end(opened: Opened, writer: ArchiveWriter) -> None:
    old = writer.partition("orders", 0)
    old.commit(records(range(5)))
    said: list[str] = []

    def created_again() -> None:
        old.commit(records(range(5, 7)))
        writer.partition("orders", 0, incarnation=2).commit(records(range(3)))
        old.hand_over("orders~2")

    steps: list[Callable[[], object]] = [lambda: old.hand_over("orders~2"), created_again, lambda: None]
    assert following(opened, steps, said) == [[], [("orders:0", 5, 7), ("orders~2:0", 0, 3)], []]
    assert said == ["partition orders:0 continues as orders~2:0: the topic was created again"]


def test_a_topic_that_was_created_again_twice_between_two_looks_is_told_whole(
    opened: Opened, writer: ArchiveWriter
) -> None:
    first, other = (writer.partition("orders", number) for number in range(2))
    first.commit(records(range(5)))

    def created_again() -> None:
        first.commit(records(range(5, 7)))
        second = writer.partition("orders", 0, incarnation=2)
        second.commit(records(range(3)))
        for number in range(2):
            writer.partition("orders", number, incarnation=3).commit(records(range(1)))
        first.hand_over("orders~2")
        second.hand_over("orders~3")
        other.hand_over("orders~3")

    told = [("orders:0", 5, 7), ("orders~2:0", 0, 3), ("orders~3:0", 0, 1), ("orders~3:1", 0, 1)]
    assert following(opened, [created_again, lambda: None], []) == [told, []]


def test_a_log_that_was_truncated_twice_between_two_looks_is_told_from_the_lower_place(
    opened: Opened, writer: ArchiveWriter
) -> None:
    first = writer.partition("orders", 0)
    for start in range(0, 30, 10):
        first.commit(records(range(start, start + 10)))
    said: list[str] = []

    def truncated_twice() -> None:
        second = first.truncated(10)
        for start in range(10, 50, 10):
            second.commit(records(range(start, start + 10), value_bytes=30))
        second.truncated(40).commit(records(range(40, 60), value_bytes=40))

    assert following(opened, [truncated_twice, lambda: None], said) == [[("orders~3:0", 10, 60)], []]
    assert said == ["partition orders:0 continues as orders~3:0 from offset 10: its log was truncated there"]


def test_new_partitions_are_found(opened: Opened, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0)
    said: list[str] = []
    steps: list[Callable[[], object]] = [lambda: None] * POLLS_PER_LISTING
    steps += [lambda: writer.partition("orders", 1).commit(records(range(4)))]
    assert following(opened, steps, said)[-1] == [("orders:1", 0, 4)]
    assert said == ["partition orders:1 is new"]


def test_a_marker_that_went_back_ends_it(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    first = partition.marker
    partition.commit(records(range(5)))

    def replaced() -> None:
        partition.marker = first
        partition.store_marker()

    with pytest.raises(MalformedObject, match="went back from offset 5 to 0"):
        following(opened, [replaced], [])


def test_a_store_that_does_not_answer_is_asked_on(
    opened: Opened, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = writer.partition("orders", 0)
    said: list[str] = []
    down = False
    get: Callable[[CountingReader, str, int], Awaitable[bytes]] = CountingReader.get

    async def unreliable(reader: CountingReader, key: str, max_bytes: int) -> bytes:
        if down:
            raise StoreUnavailable("the store does not answer", why="it is down")
        return await get(reader, key, max_bytes)

    monkeypatch.setattr(CountingReader, "get", unreliable)

    def switch(off: bool) -> None:
        nonlocal down
        down = off

    steps: list[Callable[[], object]] = [
        lambda: switch(off=True),
        lambda: partition.commit(records(range(2))),
        lambda: switch(off=False),
    ]
    assert following(opened, steps, said) == [[], [], [("orders:0", 0, 2)]]
    assert said == ["the store does not answer (it is down); retrying"]


SILENT = StoreUnavailable("the store does not answer", why="it is down")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[Callable[[], object]]], None]:
    """Has each call of a CountingReader method for a marker, or for data, preceded by the next of some steps."""

    def script(method: str, steps: list[Callable[[], object]]) -> None:
        original: Callable[..., Awaitable[object]] = getattr(CountingReader, method)
        waiting = iter(steps)

        async def called(reader: CountingReader, key: str, *arguments: object) -> object:
            if method == "get_range" or key.endswith("last_chunk_index.json"):
                next(waiting)()
            return await original(reader, key, *arguments)

        monkeypatch.setattr(CountingReader, method, called)

    return script


def fails() -> None:
    raise SILENT


def interrupts() -> None:
    raise KeyboardInterrupt


def test_tail_prints_each_record_once_though_the_store_is_silent_meanwhile(
    opened: Opened, writer: ArchiveWriter, scripted: Callable[[str, list[Callable[[], object]]], None]
) -> None:
    partition = writer.partition("orders", 0)

    def commits() -> None:
        partition.commit(records(range(5)))
        partition.commit(records(range(5, 9)))

    scripted("get", [lambda: None, commits, interrupts])
    scripted("get_range", [lambda: None, fails, fails, lambda: None])
    options = ["-F", "--interval", "100ms", "-f", "%o\\n", "-a", str(opened.root)]
    done = CliRunner().invoke(main, ["tail", "orders", *options])
    assert (done.exit_code, done.stdout.split()) == (130, [str(n) for n in range(9)])
    assert done.stderr == "the store does not answer (it is down); retrying\n"


def test_get_waits_on_though_the_store_is_silent_meanwhile(
    opened: Opened, writer: ArchiveWriter, scripted: Callable[[str, list[Callable[[], object]]], None]
) -> None:
    partition = writer.partition("orders", 0)
    scripted("get", [lambda: None, fails, fails, lambda: partition.commit(records(range(5)))])
    options = ["-F", "--interval", "100ms", "-f", "%o\\n", "-a", str(opened.root)]
    done = CliRunner().invoke(main, ["get", "orders:0:4", *options])
    assert (done.exit_code, done.stdout) == (0, "4\n")
    assert done.stderr == "the store does not answer (it is down); retrying\n"


def last(opened: Opened, count: int, record_filter: RecordFilter, start: int = 0, end: int = 2**62) -> list[Record]:
    async def use(archive: ArchiveReader) -> list[Record]:
        partition = await archive.open_partition("orders", 0)
        batches = await last_records(Selection(partition, OffsetRange(start, end)), record_filter, count)
        return [record for batch in batches for record in iter_records(batch)]

    return opened.read(use)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 10, 33, 1000])
@pytest.mark.parametrize(
    "record_filter", [RecordFilter(), RecordFilter(conditions=(KeyIn([None]),)), RecordFilter(until=1_760_000_000_030)]
)
def test_the_last_records_are_those_of_the_whole(
    opened: Opened, writer: ArchiveWriter, count: int, record_filter: RecordFilter
) -> None:
    partition = writer.partition("orders", 0)
    for chunk in (range(0, 40, 3), range(40, 41), range(50, 90)):
        partition.commit(records(chunk), block_bytes=300)
    partition.advance(200)
    for start, end in ((0, 2**62), (5, 60), (41, 50), (50, 57)):
        inside = [r for r in partition.records if start <= r.offset < end]
        if record_filter.conditions:
            inside = [r for r in inside if r.key is None]
        if record_filter.until is not None:
            inside = [r for r in inside if r.timestamp < record_filter.until]
        assert last(opened, count, record_filter, start, end) == inside[len(inside) - min(count, len(inside)) :]


def test_only_the_end_is_read(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.pretend(range(100))
    partition.commit(records(range(100, 200)), block_bytes=500)
    assert [r.offset for r in last(opened, 3, RecordFilter())] == [197, 198, 199]
    assert opened.counts.requests == 3
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes / 5


async def numbers(count: int, fail_after: int | None = None) -> AsyncIterator[int]:
    for number in range(count):
        if number == fail_after:
            raise LookupError("the source broke")
        yield number


def test_results_come_in_order_whatever_finishes_first() -> None:
    async def run() -> list[int]:
        turns: dict[int, asyncio.Event] = {number: asyncio.Event() for number in range(4)}

        async def work(number: int) -> int:
            if number < 3:
                await turns[number + 1].wait()
            turns[number].set()
            return number

        return [n async for n in prefetched(numbers(4), work, cost=lambda _: 1, budget=4)]

    assert asyncio.run(run()) == [0, 1, 2, 3]


@pytest.mark.parametrize(("budget", "most"), [(1, 1), (3, 3), (10, 10), (0, 1)])
def test_the_budget_bounds_what_runs_at_once(budget: int, most: int) -> None:
    running = 0
    peak = 0

    async def work(number: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async def run() -> list[int]:
        return [n async for n in prefetched(numbers(20), work, cost=lambda _: 1, budget=budget)]

    assert asyncio.run(run()) == list(range(20))
    assert peak <= most


@pytest.mark.parametrize("where", ["source", "work"])
def test_an_error_comes_after_the_results_before_it(where: str) -> None:
    async def work(number: int) -> int:
        if where == "work" and number == 5:
            raise LookupError("the work broke")
        return number

    async def run() -> list[int]:
        found: list[int] = []
        with pytest.raises(LookupError):
            async for number in prefetched(
                numbers(20, 5 if where == "source" else None), work, cost=lambda _: 1, budget=8
            ):
                found.append(number)
        return found

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_closing_early_cancels_what_is_under_way() -> None:
    cancelled: list[int] = []

    async def work(number: int) -> int:
        try:
            if number:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    async def run() -> None:
        async with aclosing(prefetched(numbers(5), work, cost=lambda _: 1, budget=3)) as results:
            async for _ in results:
                await asyncio.sleep(0)
                break

    asyncio.run(run())
    assert cancelled == [1, 2]


MINUTE = 60_000
HOUR = 60 * MINUTE
T0 = 1_760_000_000_000 // HOUR * HOUR
"""The time of the first record, a full hour."""


def cut(opened: Opened, at: int, rule: Rule | None = None, budget: Budget | None = None) -> Cut:
    async def use(archive: ArchiveReader) -> Cut:
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

        async def use(archive: ArchiveReader, rule: Rule, at: int = at, seen: EndsAround = seen) -> Cut:
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

    async def use(archive: ArchiveReader) -> list[tuple[int, int]]:
        ranges = [Positions(None, at), Positions(at, None)]
        return [tuple((await select(archive, "orders", None, each))[0].offsets) for each in ranges]

    (first, end), (start, last) = opened.read(use)
    assert (first, end, last) == (0, start, 1000)


def ranged(opened: Opened, start: AtTime | None, end: AtTime | None) -> tuple[str, ...]:
    async def use(archive: ArchiveReader) -> tuple[str, ...]:
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

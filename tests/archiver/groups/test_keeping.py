"""Tables of groups: what is kept of a cluster, and when."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
from msgspec import UNSET

from archiver.groups import LONGEST_MS, GroupKeeper, GroupTables, KeepingContext, seconds_to_round
from blockgz.errors import AccessDenied, BrokerUnreachable, StoreError
from blockgz.kafka.groups import GroupAnswer, GroupAnswers
from blockgz.store.local import LocalStore
from index_format import groups
from index_format.errors import BlockgzError
from index_format.groups import ConsumerGroups, GroupPosition, LogEnd, LogEnds
from index_format.keys import TopicFolder
from index_format.objects import ArchiveInfo

HOME = "topic=orders/_groups/"
IDS = {"orders": "id-1", "payments": "id-2"}


class Cluster:
    """Groups that stand at one offset each or at none, or whose offset is a failure."""

    def __init__(self) -> None:
        self.offsets: dict[str, int | Exception | None] = {}
        self.not_listed: set[str] = set()
        self.counts = {"orders": 4, "payments": 4}
        self.partitions_asked: list[dict[str, int]] = []
        self.ids_of = dict(IDS)
        self.ends: dict[tuple[str, int], int] | Exception = {}
        self.after_ends: Callable[[], object] = lambda: None
        self.refuses: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.asked: list[list[str]] = []
        self.most_asked: int | None = None
        """So many groups are asked before the time is over."""
        self.now_ms = 0

    def ids(self) -> list[str]:
        self.hangs.wait(10)
        if self.refuses is not None:
            raise self.refuses
        return [group_id for group_id in self.offsets if group_id not in self.not_listed]

    def answers(self, group_ids: list[str], topics: Mapping[str, int], seconds: float) -> GroupAnswers:
        assert seconds >= 60
        self.asked.append(group_ids)
        answers, failures = dict[str, GroupAnswer](), dict[str, BlockgzError]()
        for group_id in group_ids[: self.most_asked]:
            offset = self.offsets.get(group_id)
            if isinstance(offset, BlockgzError):
                failures[group_id] = offset
            elif isinstance(offset, int):
                positions = {topic: (GroupPosition(0, offset, None),) for topic in topics}
                answers[group_id] = GroupAnswer(self.now_ms, positions)
            elif offset is None:
                answers[group_id] = GroupAnswer(self.now_ms, {})
        self.partitions_asked.append(dict(topics))
        return answers, failures

    def high_watermarks(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self.now_ms += 7
        if isinstance(self.ends, Exception):
            raise self.ends
        self.after_ends()
        return {each: self.ends[each] for each in partitions if each in self.ends}


class Kept:
    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.topics = {"orders"}
        self.store = LocalStore(folder)
        self.now = 0.0
        self.skew_ms = 0
        self.store_clock: Callable[[], float] | None = None
        self.keeper = self.made()

    def made(self, *, has_groups: bool = True) -> GroupKeeper:
        info = ArchiveInfo(archive_id="archive-1", cluster_id=None, layout="topic")
        context = KeepingContext(
            cluster=self.cluster,
            tables=GroupTables(self.store, info, 1000, 5000, lambda topic: (IDS[topic], TopicFolder(topic))),
            own_group="mine",
            is_selected=(lambda group_id: not group_id.startswith("test-")) if has_groups else None,
            topics=lambda: self.topics,
            partitions=lambda: self.cluster.counts,
            topic_ids=lambda topics: {
                each: self.cluster.ids_of[each] for each in topics if each in self.cluster.ids_of
            },
            high_watermarks=self.cluster.high_watermarks,
            store_clock=self.clock_of_store,
            interval_seconds=1,
        )
        return GroupKeeper(context, lambda: self.now, lambda: self.cluster.now_ms + self.skew_ms)

    def clock_of_store(self) -> float:
        return self.store_clock() if self.store_clock is not None else self.cluster.now_ms / 1000

    def round(self) -> dict[str, int]:
        """The newest table of `orders` after one more round."""
        self.now += 1
        self.cluster.now_ms += 1000
        self.keeper.keep()
        return self.newest

    @property
    def slots(self) -> list[int]:
        return sorted(int(each.key.removeprefix(HOME)[:20]) for each in self.store.list(HOME))

    @property
    def table(self) -> ConsumerGroups:
        """The newest one of `orders`."""
        slot = self.slots[-1]
        key = f"{HOME}{slot:020d}.json"
        found = self.store.get(key)
        assert found is not None
        return groups.decode(found.body, key, slot)

    @property
    def ends_known(self) -> int:
        return len(self.table.ends.partitions) if self.table.ends else 0

    @property
    def newest(self) -> dict[str, int]:
        return {group.group_id: group.positions[0].offset for group in self.table.groups}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The causes that were logged."""
    causes: list[str] = []

    class Log:
        def warning(self, event: str, *, cause: str, why: str) -> None:
            assert event == "groups_unknown"
            assert isinstance(why, str)
            causes.append(cause)

    monkeypatch.setattr("archiver.groups.log", Log())
    return causes


def test_groups_of_our_own_and_those_that_are_not_selected_are_left_out(kept: Kept) -> None:
    names = ("billing", "mine", "blockgz-7b0c1f4e", "blockgz-replay-1", "test-1", "search")
    kept.cluster.offsets = dict.fromkeys(names, 5)
    assert kept.round() == {"billing": 5, "search": 5}
    assert [sorted(asked) for asked in kept.cluster.asked] == [["billing", "search"]]


def test_without_a_topic_nobody_is_asked(kept: Kept) -> None:
    kept.cluster.refuses = BrokerUnreachable("no answer")
    kept.topics = set()
    kept.keeper.keep()
    assert (kept.keeper.failures, kept.keeper.age_seconds) == (0, 0)


def test_a_group_that_gives_no_answer_stands_where_it_stood(kept: Kept, warnings: list[str]) -> None:
    kept.cluster.offsets = {"billing": 1, "search": 1}
    kept.round()
    kept.cluster.offsets = {"billing": BrokerUnreachable("no answer"), "search": 2, "new": BrokerUnreachable("none")}
    assert kept.round() == {"billing": 1, "search": 2}
    kept.cluster.offsets["search"] = 3
    assert kept.round() == {"billing": 1, "search": 3}
    assert (kept.keeper.failures, kept.keeper.age_seconds) == (2, 2)
    assert len(warnings) == 1
    kept.cluster.offsets = {"search": 3}
    assert kept.round() == {"billing": 1, "search": 3}, (
        "it is not listed, and its coordinator says so for the first time"
    )
    assert kept.round() == {"search": 3}
    assert [gone.group_id for gone in kept.table.gone or ()] == ["billing"]
    assert kept.keeper.age_seconds == 0


def test_groups_of_a_broker_that_died_stay(kept: Kept, warnings: list[str]) -> None:
    """They are not listed then, without an error, also where another process takes over."""
    half = {f"group-{number:02d}" for number in range(15)}
    others = {f"other-{number:02d}" for number in range(15)}
    kept.cluster.offsets = dict.fromkeys(half | others, 1)
    kept.round()
    asked_at = {group.group_id: group.asked_at for group in kept.table.groups}
    kept.cluster.not_listed = half
    for silence in (BrokerUnreachable("no answer"), AccessDenied("denied")):
        kept.cluster.offsets |= dict.fromkeys(half, silence)
        for number in (2, 3, 4):
            kept.cluster.offsets["other-00"] = number
            newest = kept.round()
            assert newest.keys() == half | others
        assert {group.asked_at for group in kept.table.groups if group.group_id in half} == {asked_at["group-00"]}
        kept.keeper = kept.made()
    kept.cluster.offsets = {}
    kept.cluster.not_listed = set()
    assert len(kept.round()) == 30, "a broker that has just started lists none, and its coordinators know none"
    kept.cluster.offsets = dict.fromkeys(half | others, 5)
    assert kept.round() == dict.fromkeys(half | others, 5)


def test_groups_without_an_answer_do_not_keep_others_from_being_asked(kept: Kept, warnings: list[str]) -> None:
    names = [f"group-{number:02d}" for number in range(20)]
    kept.cluster.offsets = {name: BrokerUnreachable("no answer") for name in names} | {"zebra": 1}
    kept.round()
    kept.cluster.most_asked = 8
    kept.cluster.offsets["zebra"] = 2
    newest = [kept.round() for _ in range(3)]
    assert newest[-1] == {"zebra": 2}
    assert len({name for asked in kept.cluster.asked[1:] for name in asked[:8]}) == 21


def test_groups_that_were_not_asked_in_time(kept: Kept, warnings: list[str]) -> None:
    kept.cluster.offsets = {"billing": 1, "search": 1}
    kept.round()
    kept.cluster.offsets = {"billing": 2, "search": Exception("not asked")}
    assert kept.round() == {"billing": 2, "search": 1}
    assert warnings == ["1 consumer groups were not asked in time"]


@pytest.mark.parametrize("failure", [BrokerUnreachable("no answer"), AccessDenied("denied"), RuntimeError("a bug")])
def test_failures_are_logged_once_until_it_works_again(kept: Kept, warnings: list[str], failure: Exception) -> None:
    kept.cluster.offsets = {"billing": 1}
    for step in range(2):
        kept.cluster.refuses = failure
        for _ in range(3):
            kept.now += 1
            kept.keeper.keep()
        assert (len(warnings), kept.keeper.failures, kept.keeper.age_seconds) == (step + 1, 3 * (step + 1), 3)
        kept.cluster.refuses = None
        assert kept.round() == {"billing": 1}
        assert kept.keeper.age_seconds == 0
    assert kept.keeper.stored == 1


def test_a_store_that_refuses_one_topic_costs_the_others_nothing(kept: Kept, warnings: list[str]) -> None:
    kept.topics = {"bad name", "orders", "gone"}
    kept.cluster.offsets = {"billing": 1}
    assert kept.round() == {"billing": 1}
    assert not warnings, "what the cluster does not have is passed over"
    (kept.store._root / "topic=payments").write_bytes(b"")
    kept.topics = {"orders", "payments"}
    kept.cluster.offsets = {"billing": 2}
    kept.round()
    assert len(warnings) == 1
    assert kept.newest == {"billing": 2}


ENDS = {("orders", 0): 10, ("orders", 1): 20, ("orders", 3): 0}


def test_tables_hold_where_the_partitions_ended(kept: Kept) -> None:
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, ENDS
    kept.round()
    assert kept.table.ends == LogEnds(1000, 1007, (LogEnd(0, 10), LogEnd(1, 20), LogEnd(3, 0))), "3 of 4 answered"
    assert (kept.table.topic_id, kept.table.has_groups) == ("id-1", True)


def test_ends_are_kept_where_groups_are_not(kept: Kept) -> None:
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, ENDS
    kept.keeper = kept.made(has_groups=False)
    kept.round()
    assert (kept.newest, kept.table.groups_asked, kept.ends_known) == ({}, False, 3)
    assert not kept.cluster.asked


@pytest.mark.parametrize("failure", [BrokerUnreachable("no answer"), AccessDenied("denied")])
def test_groups_that_cannot_be_listed_cost_no_ends(kept: Kept, warnings: list[str], failure: Exception) -> None:
    kept.cluster.ends, kept.cluster.refuses = dict(ENDS), failure
    kept.round()
    assert (kept.newest, kept.table.groups_asked, kept.ends_known) == ({}, False, 3)
    assert len(warnings) == 1


def test_ends_that_cannot_be_read_cost_no_groups(kept: Kept, warnings: list[str]) -> None:
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, BrokerUnreachable("no ends")
    assert kept.round() == {"billing": 1}
    assert (kept.table.ends, warnings) == (UNSET, ["no ends"])


@pytest.mark.parametrize("after", [{"orders": "id-9"}, {}])
def test_ends_of_a_topic_that_was_created_again_meanwhile_are_not_stored(kept: Kept, after: dict[str, str]) -> None:
    """Nor its groups, whose answers may be about either topic; without an id after the ends, only the ends."""
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, dict(ENDS)
    kept.cluster.after_ends = lambda: setattr(kept.cluster, "ids_of", after)
    kept.keeper.keep()
    assert [kept.table.ends for _ in kept.slots] == ([] if after else [UNSET])


def test_an_id_that_is_not_that_of_the_table_keeps_the_ends_out(kept: Kept) -> None:
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, dict(ENDS)
    kept.cluster.ids_of = {}
    assert kept.round() == {"billing": 1}
    assert kept.table.ends is UNSET, "the id was not reported"


@pytest.mark.parametrize("skew_ms", [3_600_000, -3_600_000, 0])
def test_a_clock_that_is_an_hour_off_does_not_reach_the_tables(kept: Kept, skew_ms: int) -> None:
    kept.cluster.now_ms = 1_760_000_000_000
    kept.skew_ms = skew_ms
    kept.store_clock = lambda: kept.cluster.now_ms // 1000  # as S3, which reports whole seconds
    kept.cluster.answers = lambda *_: (  # type: ignore[method-assign]
        {"billing": GroupAnswer(kept.cluster.now_ms + skew_ms, {"orders": (GroupPosition(0, 1, None),)})},
        {},
    )
    kept.cluster.offsets, kept.cluster.ends = {"billing": 1}, dict(ENDS)
    kept.round()
    true, near = 1_760_000_001_000, 1000 if skew_ms else 10
    assert kept.table.ends
    times = (kept.slots[-1], kept.table.groups[0].asked_at, kept.table.ends.asked_at, kept.table.ends.answered_at)
    assert all(abs(at - true) <= near + 1000 * (at == times[0]) for at in times), times


def test_a_store_that_does_not_report_its_time(kept: Kept) -> None:
    def refuse() -> float:
        raise StoreError("no time")

    kept.store_clock = refuse
    kept.cluster.offsets = {"billing": 1}
    assert kept.round() == {"billing": 1}


def test_partitions_that_an_answer_lacks_are_asked_about_all_the_same(kept: Kept) -> None:
    kept.cluster.offsets = {"billing": 1}
    kept.round()
    kept.cluster.counts = {"orders": 1, "payments": 4}
    kept.round()
    assert [each["orders"] for each in kept.cluster.partitions_asked] == [4, 4]


def test_once_asks_a_group_that_seems_gone_twice(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.groups.AGAIN_SECONDS", 0)
    kept.cluster.offsets = {"billing": 1, "search": 1}
    kept.round()
    kept.keeper, kept.cluster.offsets = kept.made(), {"search": 1}
    kept.cluster.now_ms += 1000
    kept.keeper.keep_once(lambda: False)
    assert kept.newest == {"search": 1}
    assert kept.cluster.asked[-1] == ["billing"]


def test_once_waits_for_its_round(kept: Kept) -> None:
    kept.cluster.offsets = {"billing": 1}
    kept.keeper.keep_once(lambda: False)
    assert kept.newest == {"billing": 1}


def test_once_waits_neither_for_a_cluster_that_hangs_nor_where_it_is_to_end(kept: Kept, warnings: list[str]) -> None:
    kept.cluster.hangs.clear()
    began = time.monotonic()
    kept.keeper.keep_once(lambda: True)
    ticks = iter(range(1000))

    def is_ending() -> bool:
        kept.now = 40 * next(ticks)
        return False

    kept.keeper.keep_once(is_ending)
    assert time.monotonic() - began < 5
    kept.cluster.hangs.set()
    assert not warnings


def test_rounds_follow_each_other_until_the_end(kept: Kept) -> None:
    kept.cluster.offsets = {"billing": 1}
    kept.cluster.now_ms = 5_990  # ten ms before the next round at the latest place of it
    kept.keeper._phase = 0.0
    kept.keeper.start()
    deadline = time.monotonic() + 10
    while not kept.keeper.stored and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    kept.keeper.close()
    assert kept.keeper.stored == 1


@pytest.mark.parametrize(
    ("now", "interval", "phase", "seconds"),
    [(0, 60, 0.5, 30), (29.5, 60, 0.5, 0.5), (30, 60, 0.5, 60), (31, 60, 0.5, 59), (100.0, 1, 0.25, 0.25)],
)
def test_the_time_of_the_next_round(now: float, interval: float, phase: float, seconds: float) -> None:
    assert seconds_to_round(now, interval, phase) == pytest.approx(seconds)


HOME_FOLDER = "topic=orders~2/_groups/"
MINUTE = 60_000


class Archive:
    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.located = 0
        self.place: tuple[str, TopicFolder] | None = None
        self.tables = self.made()

    def made(self, ends_interval_ms: int | None = 5 * MINUTE) -> "Tables":
        info = ArchiveInfo(archive_id="archive-1", cluster_id=None, layout="topic")
        return Tables(GroupTables(self.store, info, MINUTE, ends_interval_ms, self.locate))

    def locate(self, topic: str) -> tuple[str, TopicFolder]:
        self.located += 1
        return self.place or ("id-2", TopicFolder(topic, 2))

    @property
    def slots(self) -> list[int]:
        return [int(each.key.removeprefix(HOME_FOLDER)[:20]) for each in self.store.list(HOME_FOLDER)]

    def table(self, slot: int) -> ConsumerGroups:
        key = f"{HOME_FOLDER}{slot:020d}.json"
        found = self.store.get(key)
        assert found is not None
        return groups.decode(found.body, key, slot)

    def offsets(self, slot: int) -> dict[str, list[int]]:
        table = self.table(slot)
        assert (table.archive_id, table.topic, table.topic_id, table.interval) == (
            "archive-1",
            "orders",
            "id-2",
            MINUTE,
        )
        return {group.group_id: [each.offset for each in group.positions] for group in table.groups}


class Tables:
    """A process's tables of `orders`, with a round in one call."""

    def __init__(self, tables: GroupTables) -> None:
        self.tables = tables

    def keep(
        self, answers: Mapping[str, GroupAnswer] | None, asked_at: int, ends: LogEnds | None = None, id_: str = "id-2"
    ) -> bool:
        """Whether a table is stored after a round with these answers; None: groups were not asked for."""
        self.tables.open("orders", id_, asked_at, lambda group_id: group_id != "ours")
        if answers is not None:
            self.tables.hear(["orders"], answers)
        return self.tables.keep("orders", asked_at, ends, has_groups=answers is not None)

    def keep_twice(self, answers: Mapping[str, GroupAnswer], asked_at: int) -> bool:
        self.tables.open("orders", "id-2", asked_at, lambda _: True)
        self.tables.hear(["orders"], answers)
        return self.keep(answers, asked_at)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def at(asked_at: int, **offsets: int) -> dict[str, GroupAnswer]:
    """Answers of groups that stand at one offset each."""
    positions = {name: {"orders": (GroupPosition(0, offset, None),)} for name, offset in offsets.items()}
    return {name: GroupAnswer(asked_at, each) for name, each in positions.items()}


def left(asked_at: int, *names: str) -> dict[str, GroupAnswer]:
    """Answers of groups without a position."""
    return dict.fromkeys(names, GroupAnswer(asked_at, {}))


def ends_at(asked_at: int, *offsets: int) -> LogEnds:
    return LogEnds(asked_at, asked_at + 3, tuple(LogEnd(*each) for each in enumerate(offsets)))


def test_a_table_is_stored_where_something_moved(archive: Archive) -> None:
    keep, keep_twice = archive.tables.keep, archive.tables.keep_twice
    assert keep(at(5, b=1, a=1), 7)
    assert not keep(at(MINUTE + 5, a=1, b=1), MINUTE + 7), "nothing moved"
    assert keep(at(2 * MINUTE, a=1, b=2), 2 * MINUTE), "a point of the grid is a slot of its own"
    assert keep_twice(at(3 * MINUTE, a=1) | left(3 * MINUTE, "b"), 3 * MINUTE + 1), "a group is gone"
    assert keep_twice(left(5 * MINUTE, "a"), 5 * MINUTE), "all are"
    assert keep(at(5 * MINUTE + 1, a=1), 5 * MINUTE + 1)
    assert archive.slots == [MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE, 6 * MINUTE]
    assert [archive.offsets(slot) for slot in archive.slots] == [
        {"a": [1], "b": [1]},
        {"a": [1], "b": [2]},
        {"a": [1]},
        {},
        {"a": [1]},
    ]
    assert archive.located == 1


def test_metadata_counts_as_a_move(archive: Archive) -> None:
    assert archive.tables.keep(at(5, a=1), 5)
    answer = GroupAnswer(MINUTE + 5, {"orders": (GroupPosition(0, 1, "host"),)})
    assert archive.tables.keep({"a": answer}, MINUTE + 5)


def test_a_table_is_stored_every_hour(archive: Archive) -> None:
    for asked_at in range(1, 3 * LONGEST_MS, MINUTE):
        archive.tables.keep(at(asked_at, a=1), asked_at)
    assert archive.slots == [MINUTE, MINUTE + LONGEST_MS, MINUTE + 2 * LONGEST_MS]


def test_groups_without_a_position_in_the_topic_are_left_out(archive: Archive) -> None:
    elsewhere = GroupAnswer(5, {"payments": (GroupPosition(0, 1, None),)})
    archive.tables.keep(at(5, a=1) | {"b": elsewhere, "c": GroupAnswer(5, {})}, 5)
    assert archive.offsets(MINUTE) == {"a": [1]}


def test_a_clock_that_is_set_back(archive: Archive) -> None:
    keep = archive.tables.keep
    assert keep(at(10 * MINUTE, a=1), 10 * MINUTE)
    assert not keep(at(MINUTE, a=2), MINUTE)
    assert keep(at(10 * MINUTE + 1, a=2), 10 * MINUTE + 1), "what moved meanwhile is stored later"
    assert archive.slots == [10 * MINUTE, 11 * MINUTE]
    assert archive.made().keep(at(20 * MINUTE, a=1) | at(5, b=1), 5), "an earlier answer may be younger"
    assert archive.slots[-1] == 20 * MINUTE


def test_a_table_of_another_process_stays(archive: Archive) -> None:
    assert archive.tables.keep(at(5, a=1), 5)
    other = archive.made()
    assert not other.keep(at(6, a=2), 6)
    assert archive.offsets(MINUTE) == {"a": [1]}
    assert other.keep(at(MINUTE + 6, a=2), MINUTE + 6), "whatever the other one holds"


def test_another_process_stores_no_table_again_where_nothing_moved(archive: Archive) -> None:
    assert archive.tables.keep(at(5, a=1), 7)
    assert not archive.made().keep(at(5 * MINUTE, a=1), 5 * MINUTE)
    assert archive.made().keep(at(6 * MINUTE, a=2), 6 * MINUTE)
    assert archive.made().keep(at(6 * MINUTE + LONGEST_MS, a=2), 6 * MINUTE + LONGEST_MS)
    assert archive.slots == [MINUTE, 6 * MINUTE, 6 * MINUTE + LONGEST_MS]


def test_a_damaged_table_of_another_process_is_not_relied_on(archive: Archive, tmp_path: Path) -> None:
    assert archive.tables.keep(at(5, a=1), 7)
    (tmp_path / f"{HOME_FOLDER}{MINUTE:020d}.json").write_bytes(b"damaged")
    assert archive.made().keep(at(5 * MINUTE, a=1), 5 * MINUTE)


def test_a_group_leaves_after_two_answers_in_a_row_without_a_position(archive: Archive) -> None:
    """A coordinator that has just started may answer before it has read its offsets."""
    keep = archive.tables.keep
    assert keep(at(5, a=1, b=1), 5)
    assert not keep(at(MINUTE + 5, a=1) | left(MINUTE + 5, "b"), MINUTE + 5)
    assert not keep(at(2 * MINUTE + 5, a=1), 2 * MINUTE + 5), "no answer ends the row"
    assert not keep(at(3 * MINUTE + 5, a=1) | left(3 * MINUTE + 5, "b"), 3 * MINUTE + 5)
    assert keep(at(4 * MINUTE + 5, a=2), 4 * MINUTE + 5)
    stays = archive.table(5 * MINUTE)
    assert [(group.group_id, group.asked_at) for group in stays.groups] == [("a", 4 * MINUTE + 5), ("b", 5)]
    assert stays.gone is UNSET
    assert not keep(at(5 * MINUTE + 5, a=2) | left(5 * MINUTE + 5, "b"), 5 * MINUTE + 5)
    assert keep(at(6 * MINUTE + 5, a=2) | left(6 * MINUTE + 5, "b"), 6 * MINUTE + 5)
    table = archive.table(7 * MINUTE)
    assert [group.group_id for group in table.groups] == ["a"]
    assert [(gone.group_id, gone.at) for gone in table.gone or ()] == [("b", 6 * MINUTE + 5)]


def test_the_groups_that_left_are_listed_for_two_days_or_until_they_are_back(archive: Archive) -> None:
    keep, day = archive.tables.keep, 24 * LONGEST_MS
    keep(at(5, a=1, b=1, c=1), 5)
    archive.tables.keep_twice(at(MINUTE + 5, a=1) | left(MINUTE + 5, "b", "c"), MINUTE + 5)
    assert archive.made().keep(at(day, a=1, c=2), day), "another process goes on with the list"
    assert [gone.group_id for gone in archive.table(day).gone or ()] == ["b"]
    assert archive.made().keep(at(3 * day, a=1, c=2), 3 * day)
    assert archive.table(3 * day).gone is UNSET


def test_another_process_starts_from_the_newest_table(archive: Archive) -> None:
    """After a crash and an hour, a day or a month without an archiver."""
    archive.tables.keep(at(5, a=1, b=1, ours=1), 5)
    for later in (MINUTE, 5 * LONGEST_MS, 40 * 24 * LONGEST_MS, 400 * 24 * LONGEST_MS):
        tables = archive.made()
        assert tables.keep(at(later + 5, a=later), later + 5), "no answer about b"
        assert archive.offsets(later + MINUTE) == {"a": [later], "b": [1]}
        assert archive.made().tables.open("orders", None, later + MINUTE, lambda _: True).topic_id == "id-2"


def test_a_topic_that_was_created_again_starts_without_groups(archive: Archive) -> None:
    assert archive.tables.keep(at(5, a=1), 5)
    archive.place = ("id-3", TopicFolder("orders", 3))
    assert archive.tables.keep({}, 5 + MINUTE, id_="id-3")
    assert archive.slots == [MINUTE]
    assert [each.key for each in archive.store.list("topic=orders~3/")] == [
        f"topic=orders~3/_groups/{2 * MINUTE:020d}.json"
    ]


def test_a_table_with_other_ends_alone_is_stored_every_five_minutes(archive: Archive) -> None:
    for minute in range(70):
        now = minute * MINUTE + 5
        archive.tables.keep(at(now, a=1 if minute < 12 else 2), now, ends_at(now, minute if minute < 30 else 30, 7))
    assert [slot // MINUTE for slot in archive.slots] == [1, 6, 11, 13, 18, 23, 28, 33]
    fresh = archive.table(13 * MINUTE)
    assert fresh.ends == ends_at(12 * MINUTE + 5, 12, 7), "a table with other groups has the ends as of then"


def test_ends_may_be_stored_every_hour(archive: Archive) -> None:
    tables = archive.made(None)
    for minute in range(130):
        tables.keep({}, minute * MINUTE + 5, ends_at(minute * MINUTE + 5, minute))
    assert [slot // MINUTE for slot in archive.slots] == [1, 61, 121]


def test_tables_without_groups_lead_to_the_newest_one_with_groups(archive: Archive) -> None:
    archive.tables.keep(at(5, a=1), 5, ends_at(5, 1))
    assert not archive.tables.keep(None, MINUTE + 5, ends_at(MINUTE + 5, 2)), "a failure of a round costs no table"
    assert archive.tables.keep(None, 6 * MINUTE, ends_at(6 * MINUTE - 5, 2))
    assert archive.made().keep(None, 12 * MINUTE, ends_at(12 * MINUTE - 5, 3))
    assert not archive.made().keep(None, 18 * MINUTE), "it would say nothing"
    tables = [archive.table(slot) for slot in archive.slots]
    assert [each.groups_slot for each in tables] == [UNSET, MINUTE, MINUTE]
    assert archive.made().keep(at(20 * MINUTE, b=1), 20 * MINUTE), "no answer about a"
    assert archive.offsets(20 * MINUTE) == {"a": [1], "b": [1]}


def test_an_archive_without_groups_has_tables_of_ends(archive: Archive) -> None:
    assert archive.tables.keep(None, 5, ends_at(5, 1))
    table = archive.table(MINUTE)
    assert (table.has_groups, table.groups_slot, table.ends) == (False, UNSET, ends_at(5, 1))

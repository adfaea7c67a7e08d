import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
from msgspec import UNSET

from archiver.groups import GroupKeeper, GroupTables, KeepingContext, seconds_to_round
from blockgz.errors import AccessDenied, BrokerUnreachable, StoreError
from blockgz.kafka.groups import GroupAnswer, GroupAnswers
from blockgz.store.local import LocalStore
from index_format import groups
from index_format.errors import BlockgzError
from index_format.groups import ConsumerGroups, GroupPosition, LogEnd, LogEnds
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder

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
        asked = GroupAnswers({}, {})
        for group_id in group_ids[: self.most_asked]:
            offset = self.offsets.get(group_id)
            if isinstance(offset, BlockgzError):
                asked.failures[group_id] = offset
            elif isinstance(offset, int):
                positions = {topic: (GroupPosition(0, offset, None),) for topic in topics}
                asked.answers[group_id] = GroupAnswer(self.now_ms, positions)
            elif offset is None:
                asked.answers[group_id] = GroupAnswer(self.now_ms, {})
        self.partitions_asked.append(dict(topics))
        return asked

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
    kept.cluster.answers = lambda *_: GroupAnswers(  # type: ignore[method-assign]
        {"billing": GroupAnswer(kept.cluster.now_ms + skew_ms, {"orders": (GroupPosition(0, 1, None),)})}, {}
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

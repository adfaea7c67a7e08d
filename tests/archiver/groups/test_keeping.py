import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from archiver.groups.keeping import GroupKeeper, KeepingContext, seconds_to_round
from archiver.groups.tables import GroupTables
from blockgz_runtime.errors import AccessDenied, BrokerUnreachable
from blockgz_runtime.kafka.cluster_groups import Asked, GroupAnswer
from blockgz_runtime.store.local import LocalStore
from index_format import groups
from index_format.errors import BlockgzError
from index_format.groups import GroupPosition
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder

HOME = "topic=orders/_groups/"


class Cluster:
    """Groups that stand at one offset each, or whose offset is a failure."""

    def __init__(self) -> None:
        self.offsets: dict[str, int | Exception] = {}
        self.refuses: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.asked: list[list[str]] = []
        self.now_ms = 0

    def ids(self) -> list[str]:
        self.hangs.wait(10)
        if self.refuses is not None:
            raise self.refuses
        return list(self.offsets)

    def positions(self, group_ids: list[str], topics: Mapping[str, int], seconds: float) -> Asked:
        assert seconds >= 60
        self.asked.append(group_ids)
        asked = Asked({}, {})
        for group_id in group_ids:
            offset = self.offsets[group_id]
            if isinstance(offset, BlockgzError):
                asked.failures[group_id] = offset
            elif isinstance(offset, int):
                positions = {topic: (GroupPosition(0, offset, None),) for topic in topics}
                asked.answers[group_id] = GroupAnswer(self.now_ms, positions)
        return asked


class Kept:
    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster()
        self.topics = {"orders"}
        self.store = LocalStore(folder)
        self.now = 0.0
        info = ArchiveInfo(archive_id="archive-1", cluster_id=None, layout="topic")
        context = KeepingContext(
            cluster=self.cluster,
            tables=GroupTables(self.store, info, 1000, lambda topic: (None, TopicFolder(topic))),
            own_group="mine",
            is_selected=lambda group_id: not group_id.startswith("test-"),
            topics=lambda: self.topics,
            partitions=lambda: {"orders": 4, "payments": 4},
            interval_seconds=1,
        )
        self.keeper = GroupKeeper(context, lambda: self.now, lambda: self.cluster.now_ms)

    def round(self) -> dict[str, int]:
        """The newest table of `orders` after one more round."""
        self.now += 1
        self.cluster.now_ms += 1000
        self.keeper.keep()
        return self.newest

    @property
    def newest(self) -> dict[str, int]:
        keys = sorted(each.key for each in self.store.list(HOME))
        found = self.store.get(keys[-1])
        assert found is not None
        table = groups.decode(found.body, keys[-1], int(keys[-1].removeprefix(HOME)[:20]))
        return {group.group_id: group.positions[0].offset for group in table.groups}


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

    monkeypatch.setattr("archiver.groups.keeping.log", Log())
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
    assert kept.cluster.asked[-1] == ["new", "billing", "search"], "who waited longest is asked first"
    assert (warnings, kept.keeper.failures, kept.keeper.age_seconds) == (["none"], 2, 2)
    kept.cluster.offsets = {"search": 3}
    assert kept.round() == {"search": 3}, "it is not listed any more"
    assert kept.keeper.age_seconds == 0


def test_a_group_that_may_not_be_asked_is_left_out(kept: Kept, warnings: list[str]) -> None:
    kept.cluster.offsets = {"billing": 1, "search": 1}
    kept.round()
    kept.cluster.offsets["billing"] = AccessDenied("denied")
    assert kept.round() == {"search": 1}
    assert warnings == ["denied"]


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

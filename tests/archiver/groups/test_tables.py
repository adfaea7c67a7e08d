from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import UNSET

from archiver.groups import LONGEST_MS, GroupTables
from blockgz.kafka.groups import GroupAnswer
from blockgz.store.local import LocalStore
from index_format import groups
from index_format.groups import ConsumerGroups, GroupPosition, LogEnd, LogEnds
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder

HOME = "topic=orders~2/_groups/"
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
        return [int(each.key.removeprefix(HOME)[:20]) for each in self.store.list(HOME)]

    def table(self, slot: int) -> ConsumerGroups:
        key = f"{HOME}{slot:020d}.json"
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
    (tmp_path / f"{HOME}{MINUTE:020d}.json").write_bytes(b"damaged")
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

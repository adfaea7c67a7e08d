from pathlib import Path

import pytest

from archiver.groups.tables import LONGEST_MS, GroupTables
from blockgz_runtime.kafka.cluster_groups import GroupAnswer
from blockgz_runtime.store.local import LocalStore
from index_format import groups
from index_format.groups import GroupPosition
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder

HOME = "topic=orders~2/_groups/"
MINUTE = 60_000


class Archive:
    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.located = 0
        self.tables = self.made()

    def made(self) -> GroupTables:
        info = ArchiveInfo(archive_id="archive-1", cluster_id=None, layout="topic")
        return GroupTables(self.store, info, MINUTE, self.locate)

    def locate(self, topic: str) -> tuple[str, TopicFolder]:
        self.located += 1
        return "id-2", TopicFolder(topic, 2)

    @property
    def slots(self) -> list[int]:
        return [int(each.key.removeprefix(HOME)[:20]) for each in self.store.list(HOME)]

    def offsets(self, slot: int) -> dict[str, list[int]]:
        key = f"{HOME}{slot:020d}.json"
        found = self.store.get(key)
        assert found is not None
        table = groups.decode(found.body, key, slot)
        assert (table.archive_id, table.topic, table.topic_id, table.interval) == (
            "archive-1",
            "orders",
            "id-2",
            MINUTE,
        )
        return {group.group_id: [each.offset for each in group.positions] for group in table.groups}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def at(asked_at: int, **offsets: int) -> dict[str, GroupAnswer]:
    """Answers of groups that stand at one offset each."""
    positions = {name: {"orders": (GroupPosition(0, offset, None),)} for name, offset in offsets.items()}
    return {name: GroupAnswer(asked_at, each) for name, each in positions.items()}


def test_a_table_is_stored_where_something_moved(archive: Archive) -> None:
    keep = archive.tables.keep
    assert keep("orders", at(5, b=1, a=1), 7)
    assert not keep("orders", at(MINUTE + 5, a=1, b=1), MINUTE + 7), "nothing moved"
    assert keep("orders", at(2 * MINUTE, a=1, b=2), 2 * MINUTE), "a point of the grid is a slot of its own"
    assert keep("orders", at(3 * MINUTE, a=1), 3 * MINUTE + 1), "a group is gone"
    assert keep("orders", {}, 5 * MINUTE), "all are"
    assert keep("orders", at(5 * MINUTE + 1, a=1), 5 * MINUTE + 1)
    assert archive.slots == [MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE, 6 * MINUTE]
    assert [archive.offsets(slot) for slot in archive.slots] == [
        {"a": [1], "b": [1]},
        {"a": [1], "b": [2]},
        {"a": [1]},
        {},
        {"a": [1]},
    ]
    assert archive.located == 5, "the cluster is not asked for what is not stored"


def test_metadata_counts_as_a_move(archive: Archive) -> None:
    assert archive.tables.keep("orders", at(5, a=1), 5)
    answer = GroupAnswer(MINUTE + 5, {"orders": (GroupPosition(0, 1, "host"),)})
    assert archive.tables.keep("orders", {"a": answer}, MINUTE + 5)


def test_a_table_is_stored_every_hour(archive: Archive) -> None:
    for asked_at in range(1, 3 * LONGEST_MS, MINUTE):
        archive.tables.keep("orders", at(asked_at, a=1), asked_at)
    assert archive.slots == [MINUTE, MINUTE + LONGEST_MS, MINUTE + 2 * LONGEST_MS]


def test_groups_without_a_position_in_the_topic_are_left_out(archive: Archive) -> None:
    elsewhere = GroupAnswer(5, {"payments": (GroupPosition(0, 1, None),)})
    archive.tables.keep("orders", at(5, a=1) | {"b": elsewhere, "c": GroupAnswer(5, {})}, 5)
    assert archive.offsets(MINUTE) == {"a": [1]}


def test_a_clock_that_is_set_back(archive: Archive) -> None:
    keep = archive.tables.keep
    assert keep("orders", at(10 * MINUTE, a=1), 10 * MINUTE)
    assert not keep("orders", at(MINUTE, a=2), MINUTE)
    assert keep("orders", at(10 * MINUTE + 1, a=2), 10 * MINUTE + 1), "what moved meanwhile is stored later"
    assert archive.slots == [10 * MINUTE, 11 * MINUTE]
    assert archive.made().keep("orders", at(20 * MINUTE, a=1) | at(5, b=1), 5), "an earlier answer may be younger"
    assert archive.slots[-1] == 20 * MINUTE


def test_a_table_of_another_process_stays(archive: Archive) -> None:
    assert archive.tables.keep("orders", at(5, a=1), 5)
    other = archive.made()
    assert not other.keep("orders", at(6, a=2), 6)
    assert archive.offsets(MINUTE) == {"a": [1]}
    assert other.keep("orders", at(MINUTE + 6, a=2), MINUTE + 6), "whatever the other one holds"


def test_another_process_stores_no_table_again_where_nothing_moved(archive: Archive) -> None:
    assert archive.tables.keep("orders", at(5, a=1), 7)
    assert not archive.made().keep("orders", at(5 * MINUTE, a=1), 5 * MINUTE)
    assert archive.made().keep("orders", at(6 * MINUTE, a=2), 6 * MINUTE)
    assert archive.made().keep("orders", at(6 * MINUTE + LONGEST_MS, a=2), 6 * MINUTE + LONGEST_MS)
    assert archive.slots == [MINUTE, 6 * MINUTE, 6 * MINUTE + LONGEST_MS]


def test_a_damaged_table_of_another_process_is_not_relied_on(archive: Archive, tmp_path: Path) -> None:
    assert archive.tables.keep("orders", at(5, a=1), 7)
    (tmp_path / f"{HOME}{MINUTE:020d}.json").write_bytes(b"damaged")
    assert archive.made().keep("orders", at(5 * MINUTE, a=1), 5 * MINUTE)

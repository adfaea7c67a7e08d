"""Positions of groups from tables of the archive, and from CSV."""

import asyncio
from pathlib import Path

import pytest

from blockgz.archive.archive import Archive
from blockgz.errors import NotInArchive, UsageError
from blockgz.kafka.groups import GroupOffset
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.groups import ConsumerGroups, Group, GroupPosition, encode
from index_format.keys import TopicFolder, dated_key, groups_home
from replayer.groups.planning import archived_groups, meant_groups, positions_in_csv, positions_of
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records


def test_the_table_of_a_time(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(3)))
    folder = TopicFolder("orders")
    for slot, offset in ((60_000, 1), (120_000, 2)):
        group = Group("team-a", slot - 5, (GroupPosition(0, offset, "m"),))
        table = ConsumerGroups(archive_id=ARCHIVE_ID, topic="orders", topic_id=None, interval=60_000, groups=(group,))
        writer.put(dated_key(groups_home("topic", folder), slot), encode(table))
    archive = Archive(LocalReader(LocalAddress(str(tmp_path))))

    def offsets(at_ms: int | None) -> object:
        return positions_of(asyncio.run(archived_groups(archive, folder, at_ms)))

    assert offsets(None) == {"team-a": {0: GroupOffset(2, "m")}}
    assert offsets(119_999) == {"team-a": {0: GroupOffset(1, "m")}}
    with pytest.raises(NotInArchive, match="the archive does not say where consumer groups stood on orders"):
        offsets(59_999)


def test_a_name_that_is_no_group_is_refused() -> None:
    positions = {"billing": {0: GroupOffset(1)}, "search": {0: GroupOffset(2)}}
    assert meant_groups(positions, (), "orders") == positions
    assert set(meant_groups(positions, ("bil*",), "orders")) == {"billing"}
    with pytest.raises(NotInArchive, match="no consumer group is 'bilings' in orders") as caught:
        meant_groups(positions, ("search", "bilings"), "orders")
    assert caught.value.why == "groups there are billing, search"
    assert meant_groups({}, (), "orders") == {}


def test_csv_of_several_groups() -> None:
    text = 'group,topic,partition,offset\n"a",orders,0,17\na,orders,1,0\nb,orders,0,3\na,other,0,9\n\n'
    assert positions_in_csv(text, "orders") == {
        "a": {0: GroupOffset(17), 1: GroupOffset(0)},
        "b": {0: GroupOffset(3)},
    }
    assert meant_groups(positions_in_csv(text, "orders"), ["b*"], "a file") == {"b": {0: GroupOffset(3)}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("orders,0,17\n", "line 1 of the positions file is not a position"),
        ("a,orders,0,17\na,orders,0,-1\n", "line 2 of the positions file is not a position"),
        ("a,orders,0,17\na,orders,0,18\n", "line 2 of the positions file names a partition again"),
        ("a,orders,0,9999999999999999999\n", "line 1 of the positions file is not a position"),
    ],
)
def test_csv_that_is_not_understood(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        positions_in_csv(text, "orders")

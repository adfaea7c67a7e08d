import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.inventory import Compared, MissingPartition, Wanted, compare, missing_partitions
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import objects
from index_format.identity import Incarnation, Inventory
from index_format.keys import TopicFolder, inventory_key, topic_home
from tests.support.archives import ArchiveWriter, records

INVENTORY = Inventory(
    incarnations=(
        Incarnation("orders", 1, "a", 10, 20, (0, 1)),
        Incarnation("orders", 2, "b", 20, None, (0, 1, 2)),
        Incarnation("orders", 3, "b", 30, None, (1,)),
        Incarnation("users", 1, None, 10, None, (5,)),
    )
)
HELD = {TopicFolder("orders"): (0,), TopicFolder("orders", 2): (1, 2), TopicFolder("orders", 3): (1,)}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], ["orders:1", "orders~2:0", "users:5"]),
        ([("orders", None)], ["orders~2:0"]),
        ([("orders", [1, 2])], []),
        ([("orders~1", None)], ["orders:1"]),
        ([("orders~1", [0])], []),
        ([("users", None), ("orders", [0])], ["orders~2:0", "users:5"]),
        ([("nothing", None)], []),
    ],
)
def test_what_is_wanted_and_not_held_is_named(wanted: Sequence[Wanted], expected: list[str]) -> None:
    assert [str(each) for each in missing_partitions(INVENTORY, HELD, wanted)] == expected


def test_a_newest_incarnation_that_is_lost_as_a_whole_is_noticed() -> None:
    held = {TopicFolder("orders"): (0, 1)}
    missing = missing_partitions(INVENTORY, held, [("orders", None)])
    assert [str(each) for each in missing] == ["orders~2:0", "orders~2:1", "orders~2:2", "orders~3:1"]


def _compared(root: Path, *wanted: Wanted) -> Compared:
    return asyncio.run(compare(Archive(LocalReader(LocalAddress(str(root)))), wanted))


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_a_lost_folder_is_noticed(tmp_path: Path, layout: str) -> None:
    archive = ArchiveWriter(tmp_path, layout)
    for number in range(3):
        archive.partition("orders", number).commit(records(range(5)))
    assert (_compared(tmp_path)).missing == ()
    home = topic_home(layout, TopicFolder("orders"))
    shutil.rmtree(tmp_path / home / "partition=00001")
    for marker in tmp_path.glob("last_chunk_index.orders-00001.txt"):
        marker.unlink()
    assert (_compared(tmp_path)).missing == (MissingPartition("orders", 1, 1),)
    shutil.rmtree(tmp_path / home)
    for marker in tmp_path.glob("last_chunk_index.orders-*"):
        marker.unlink()
    found = _compared(tmp_path, ("orders", None))
    assert [str(each) for each in found.missing] == ["orders:0", "orders:1", "orders:2"]


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_an_inventory_that_is_declared_is_missed_or_read_as_damaged(tmp_path: Path, layout: str) -> None:
    ArchiveWriter(tmp_path, layout).partition("orders", 0)
    path = tmp_path / inventory_key(layout)
    path.write_bytes(path.read_bytes().replace(b"orders", b"ordera"))
    found = _compared(tmp_path)
    assert found.damage is not None and found.inventory is None
    path.unlink()
    found = _compared(tmp_path)
    assert found.damage is not None and "missing" in found.damage.reason


def test_an_older_archive_has_none_and_lacks_none(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, has_inventory=False).partition("orders", 0)
    assert _compared(tmp_path) == Compared(None, is_expected=True)


def test_a_rebuilt_one_says_so(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0)
    (tmp_path / "_inventory.json").write_bytes(objects.encode(Inventory(rebuilt_at=5)))
    found = _compared(tmp_path)
    assert found.inventory is not None and found.inventory.rebuilt_at == 5

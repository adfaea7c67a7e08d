import random

import pytest

from archiver.commit.commit import PartitionIdentity
from archiver.spark.task import differs
from blockgz.errors import StoreError
from index_format import marker as markers
from index_format.records import Record
from tests.support.archives import records
from tests.support.chunks import archive_all, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor

OFFSETS = [0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14, 20, 25]


@pytest.fixture(autouse=True)
def small_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)


def archived(layout: str) -> tuple[MemoryStore, PartitionIdentity, list[Record]]:
    """One record a chunk, so that the older ones lie two catalogs deep."""
    rows = records(OFFSETS)
    if layout == "seed":
        rows = [Record(row.offset, row.timestamp, row.timestamp_type, None, b"%d" % row.offset, ()) for row in rows]
    store, log, identity = MemoryStore(), MemoryLog(rows), identity_of(layout)
    Actor("a", archive_all(identity, log, "a", lambda: 1), store, log, random.Random(1)).run_to_end()
    return store, identity, rows


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_a_record_is_found_wherever_it_lies_and_told_from_another(layout: str) -> None:
    store, identity, rows = archived(layout)
    marker = markers.decode_marker(store.bodies()[identity.keys.marker])
    assert len(marker.catalogs) >= 2
    for row in rows:
        assert not differs(store, identity.keys, marker, row)
        assert differs(store, identity.keys, marker, row._replace(value=b"another"))
    assert differs(store, identity.keys, marker, rows[3]._replace(key=b"k")) == (layout == "topic")


def test_offsets_without_a_record_make_no_difference() -> None:
    store, identity, rows = archived("topic")
    marker = markers.decode_marker(store.bodies()[identity.keys.marker])
    for offset in (3, 10, 26, 1000):
        assert not differs(store, identity.keys, marker, rows[0]._replace(offset=offset))


def test_what_the_marker_leads_to_and_is_gone_is_an_error() -> None:
    store, identity, rows = archived("topic")
    marker = markers.decode_marker(store.bodies()[identity.keys.marker])
    store.delete(identity.keys.home + marker.catalogs[1][0].name)
    with pytest.raises(StoreError, match="is missing"):
        differs(store, identity.keys, marker, rows[0])

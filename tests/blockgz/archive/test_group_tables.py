import asyncio

import pytest
from msgspec import UNSET

from blockgz.archive.group_tables import WINDOW_MS, GroupTable, config_at, groups_at, vanished_groups
from blockgz.store.reader import CountingReader
from index_format import groups, objects
from index_format.errors import FormatError, MalformedObject, UnsupportedVersion
from index_format.groups import GoneGroup, LogEnd, LogEnds
from index_format.identity import TopicConfig
from index_format.keys import TopicFolder, configs_home, dated_key, groups_home, topic_home
from tests.index_format.builders import group, groups_of
from tests.support.memory_reader import MemoryReader

FOLDER = TopicFolder("orders", 2)
HOUR = 3_600_000
SLOTS = [HOUR, 2 * HOUR, 100 * HOUR, 100 * HOUR + 60_000]


class Stored:
    """An archive's objects, and what was asked for by the last read."""

    def __init__(self, layout: str = "topic") -> None:
        self.layout = layout
        self.objects: dict[str, bytes] = {}
        self.requests = 0

    def put_table(self, slot: int, **changes: object) -> None:
        table = groups_of(group("billing", 0, asked_at=slot, offset=slot), **changes)
        self.objects[dated_key(groups_home(self.layout, FOLDER), slot)] = groups.encode(table)

    def put_ends(self, slot: int, groups_slot: int | None) -> None:
        """A table without groups, which names that one."""
        ends = LogEnds(slot, slot, (LogEnd(0, slot),))
        table = groups_of(groups_asked=False, groups_slot=UNSET if groups_slot is None else groups_slot, ends=ends)
        self.objects[dated_key(groups_home(self.layout, FOLDER), slot)] = groups.encode(table)

    def vanished(self, at_ms: int) -> list[str]:
        table = self.groups_at(at_ms)
        assert table is not None
        return asyncio.run(vanished_groups(MemoryReader(self.objects), self.layout, FOLDER, table))

    def put_config(self, seen_at: int | None, partitions: int) -> None:
        config = TopicConfig(
            topic="orders", topic_id=None, partitions=partitions, replication_factor=1, config={}, defaults={}
        )
        key = topic_home(self.layout, FOLDER) + "_topic_config.json"
        if seen_at is not None:
            config = TopicConfig(
                **{name: getattr(config, name) for name in config.__struct_fields__ if name != "seen_at"},
                seen_at=seen_at,
            )
            key = dated_key(configs_home(self.layout, FOLDER), seen_at)
        self.objects[key] = objects.encode(config)

    def groups_at(self, at_ms: int | None) -> GroupTable | None:
        reader = CountingReader(MemoryReader(self.objects))
        try:
            return asyncio.run(groups_at(reader, self.layout, FOLDER, at_ms))
        finally:
            self.requests = reader.requests

    def partitions_at(self, at_ms: int | None) -> int | None:
        found = asyncio.run(config_at(MemoryReader(self.objects), self.layout, FOLDER, at_ms))
        return None if found is None else found.partitions


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_the_newest_table_that_is_not_later(layout: str) -> None:
    stored = Stored(layout)
    for slot in SLOTS:
        stored.put_table(slot)
    for at_ms, slot in [
        (HOUR, HOUR),
        (HOUR + 5, HOUR),
        (2 * HOUR - 1, HOUR),
        (2 * HOUR, 2 * HOUR),
        (99 * HOUR, 2 * HOUR),
        (100 * HOUR + 59_999, 100 * HOUR),
        (1000 * HOUR, SLOTS[-1]),
    ]:
        found = stored.groups_at(at_ms)
        assert found is not None
        assert (found.slot, found.age_ms) == (slot, at_ms - slot)
        assert found.content.groups[0].positions[0].offset == slot
        assert stored.requests == (2 if at_ms - slot < WINDOW_MS else 3)
    assert stored.groups_at(HOUR - 1) is None
    newest = stored.groups_at(None)
    assert newest is not None
    assert newest.slot == SLOTS[-1]
    assert newest.age_ms > WINDOW_MS


def test_a_topic_without_tables() -> None:
    assert Stored().groups_at(HOUR) is None
    assert Stored().groups_at(None) is None


def test_other_names_are_passed_over() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    home = groups_home("topic", FOLDER)
    stored.objects |= {home + name: b"" for name in ("0.json", "00000000000000000001.json~", "notes")}
    found = stored.groups_at(2 * HOUR)
    assert found is not None
    assert found.slot == HOUR


def test_no_older_table_takes_the_place_of_one_that_cannot_be_read() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    stored.put_table(2 * HOUR)
    key = dated_key(groups_home("topic", FOLDER), 2 * HOUR)
    stored.objects[key] = stored.objects[key][:-9]
    with pytest.raises(MalformedObject, match=key):
        stored.groups_at(3 * HOUR)
    stored.put_table(2 * HOUR, version=2)
    with pytest.raises(UnsupportedVersion, match=f"{key} has version 2"):
        stored.groups_at(3 * HOUR)
    stored.put_table(2 * HOUR, topic="bills")
    with pytest.raises(FormatError, match=f"{key} is of another topic"):
        stored.groups_at(3 * HOUR)


def test_tables_without_groups_are_skipped() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    stored.put_table(2 * HOUR)
    for hour in range(3, 1000):
        stored.put_ends(hour * HOUR, 2 * HOUR)
    for hour, slot, requests in ((2, 2, 2), (3, 2, 4), (999, 2, 4)):
        found = stored.groups_at(hour * HOUR)
        assert found is not None
        assert (found.slot, found.age_ms) == (slot * HOUR, (hour - slot) * HOUR)
        assert stored.requests == requests, "it is named, and not looked for"
    del stored.objects[dated_key(groups_home("topic", FOLDER), 2 * HOUR)]
    found = stored.groups_at(50 * HOUR)
    assert found is not None
    assert found.slot == HOUR, "the one that is named was removed"


def test_a_topic_without_any_table_with_groups() -> None:
    stored = Stored()
    for hour in range(1, 100):
        stored.put_ends(hour * HOUR, None)
    assert stored.groups_at(99 * HOUR) is None
    assert stored.requests == 2


def test_groups_that_vanished_without_leaving() -> None:
    stored = Stored()
    three = [group(name, 0, asked_at=5) for name in ("a", "b", "c")]
    for slot, content in (
        (HOUR, groups_of(*three)),
        (2 * HOUR, groups_of(three[0], gone=(GoneGroup("b", 5),))),
        (3 * HOUR, groups_of(three[0])),
        (4 * HOUR, groups_of(groups_asked=False, groups_slot=3 * HOUR)),
        (5 * HOUR, groups_of()),
        (54 * HOUR, groups_of()),
        (55 * HOUR, groups_of(*three)),
    ):
        stored.objects[dated_key(groups_home("topic", FOLDER), slot)] = groups.encode(content)
    vanished = [stored.vanished(hour * HOUR) for hour in (1, 2, 3, 5, 54, 55)]
    assert vanished == [[], ["c"], [], ["a"], [], []]
    stored.objects[dated_key(groups_home("topic", FOLDER), HOUR)] = b"damaged"
    assert stored.vanished(2 * HOUR) == [], "there is nothing to compare with"


def test_the_configuration_at_a_time() -> None:
    stored = Stored()
    assert stored.partitions_at(HOUR) is None
    stored.put_config(None, 8)
    assert stored.partitions_at(HOUR) == 8
    stored.put_config(HOUR, 4)
    stored.put_config(2 * HOUR, 6)
    times = [(HOUR - 1, 8), (HOUR, 4), (2 * HOUR - 1, 4), (2 * HOUR, 6), (1000 * HOUR, 6), (None, 8)]
    assert [(at_ms, stored.partitions_at(at_ms)) for at_ms, _ in times] == times

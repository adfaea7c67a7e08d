"""Tables of consumer groups: an archiver keeps where groups stand, and a reader finds where they stood."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from blockgz.archive.group_tables import GroupTable, groups_at
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.keys import TopicFolder
from system_test.support.archiving import Site, folder_site
from system_test.support.consumer_groups import commit, committed
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, fill_topic, produce
from system_test.support.waiting import wait_until

Positions = dict[str, dict[int, tuple[int, str | None]]]


class Tables(NamedTuple):
    """A topic of two partitions, groups whose names begin with the topic's, and an archive."""

    site: Site
    topic: str

    @classmethod
    def of(cls, site: Site, topic: str) -> Self:
        fill_topic(site.bootstrap, topic, [NewRecord(b"v", partition=n % 2) for n in range(20)], partitions=2)
        return cls(site, topic)

    @property
    def followed(self) -> tuple[str, ...]:
        return (self.topic, "--groups", f"{self.topic}-*,blockgz-*", "--groups-interval", "500ms")

    def commit(self, name: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        commit(self.site.bootstrap, f"{self.topic}-{name}", self.topic, offsets, metadata)

    def table(self, at_ms: int | None = None) -> GroupTable | None:
        reader = LocalReader(LocalAddress(self.site.address))
        return asyncio.run(groups_at(reader, "topic", TopicFolder(self.topic), at_ms))

    def positions(self, at_ms: int | None = None) -> Positions | None:
        table = self.table(at_ms)
        return table and {
            group.group_id.removeprefix(f"{self.topic}-"): {
                each.partition: (each.offset, each.metadata) for each in group.positions
            }
            for group in table.content.groups
        }

    def wait_for(self, positions: Positions) -> int:
        """The slot of the first table that holds just these."""
        wait_until(lambda: self.positions() == positions, 30, f"a table with {positions}")
        table = self.table()
        assert table is not None
        return table.slot

    @property
    def slots(self) -> list[str]:
        folder = Path(self.site.address) / f"topic={self.topic}" / "_groups"
        return sorted(path.name for path in folder.glob("*.json"))


@pytest.fixture
def tables(site: Site, topic_name: str) -> Tables:
    return Tables.of(site, topic_name)


def test_tables_follow_the_groups(tables: Tables) -> None:
    tables.commit("billing", {0: 3})
    tables.commit("billing", {1: 5}, "host-7")
    billing = {0: (3, None), 1: (5, "host-7")}
    search = {1: (7, "x" * 256)}
    with tables.site.start(*tables.followed, "--http", "127.0.0.1:0", "-v") as running:
        first = tables.wait_for({"billing": billing})
        tables.commit("search", {1: 7}, "x" * 256)
        second = tables.wait_for({"billing": billing, "search": search})
        tables.commit("billing", {0: 4}, "y" * 257)
        third = tables.wait_for({"billing": billing | {0: (4, None)}, "search": search})
        stored = tables.slots
        wait_until(lambda: time.time() * 1000 > third + 3000, 10, "some rounds in which nothing moves")
        assert tables.slots == stored
        with KafkaAdminClient(bootstrap_servers=tables.site.bootstrap) as admin:
            admin.delete_groups([f"{tables.topic}-billing"])
        last = tables.wait_for({"search": search})
        assert running.terminate().exit_code == 0
        assert "WARNING" not in running.stderr
    assert first < second < third < last
    assert tables.positions(first - 1) is None
    assert tables.positions(first) == tables.positions(second - 1) == {"billing": billing}
    assert tables.positions(last - 1) == tables.positions(third)
    table = tables.table(last + 1234)
    assert table is not None
    assert (table.slot, table.age_ms) == (last, 1234)
    tables.site.replayer("verify", tables.topic, "--deep")


def test_a_drain_stores_one_table(tables: Tables) -> None:
    tables.commit("billing", {0: 3})
    before = time.time() * 1000
    done = tables.site.run(*tables.followed, "--once", "--json")
    assert json.loads(done.stdout)["records"] == 20
    assert "WARNING" not in done.stderr
    assert tables.positions() == {"billing": {0: (3, None)}}
    assert len(tables.slots) == 1
    table = tables.table()
    assert table is not None
    assert before < table.content.groups[0].asked_at <= table.slot <= time.time() * 1000 + 500
    tables.commit("billing", {0: 4})
    tables.site.once(*tables.followed, "--groups", "none")
    assert len(tables.slots) == 1
    tables.site.once(*tables.followed, "--workers", "2")
    assert len(tables.slots) == 2
    assert tables.positions() == {"billing": {0: (4, None)}}


def test_archiving_ends_in_time_while_no_broker_answers(own_broker: KafkaBroker, tmp_path: Path) -> None:
    tables = Tables.of(folder_site(own_broker.bootstrap, tmp_path / "archive"), "orders")
    tables.commit("billing", {0: 3})
    with tables.site.start(*tables.followed, "--grace", "2s") as running:
        tables.wait_for({"billing": {0: (3, None)}})
        own_broker.pause()
        wait_until(lambda: "groups_unknown" in running.stderr, 60, "a warning")
        own_broker.resume()
        tables.commit("billing", {0: 9})
        tables.wait_for({"billing": {0: (9, None)}})
        own_broker.pause()
        wait_until(lambda: running.stderr.count("groups_unknown") == 2, 60, "another one, as it worked in between")
        began = time.monotonic()
        running.terminate(seconds=30)
        assert time.monotonic() - began < 10
        own_broker.resume()


NUM_GROUPS = 12
OFFSETS_PARTITIONS = 4
"""Of the topic in which groups keep their offsets; each of two brokers leads half of them."""


@pytest.fixture
def two_brokers() -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    """The second one is not the controller, and may be killed."""
    more = {"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
    with KafkaBroker(more) as first, KafkaBroker(more, joins=first) as second:
        yield first, second


def coordinators(bootstrap: str) -> dict[int, int]:
    """Partition of the offsets' topic -> the broker that leads it."""
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        (described,) = admin.describe_topics(["__consumer_offsets"])
    return {each["partition_index"]: each["leader_id"] for each in described["partitions"]}


def offsets_partition(group: str) -> int:
    """As Kafka has it: String.hashCode, its absolute value modulo the number of partitions."""
    code = 0
    for character in group:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return abs(code - (1 << 32) if code >= 1 << 31 else code) % OFFSETS_PARTITIONS


def commit_past_a_dead_broker(bootstrap: str, group: str, offset: int) -> None:
    """Commit an offset of orders:0 by librdkafka: kafka-python fails if it asks the dead broker for a coordinator."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[Place("orders", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_groups_of_a_broker_that_died_stay_in_the_tables(
    two_brokers: tuple[KafkaBroker, KafkaBroker], tmp_path: Path
) -> None:
    """And are restored; half of them are not listed then, without an error."""
    first, second = two_brokers
    with KafkaAdminClient(bootstrap_servers=first.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", replica_assignments={0: [1], 1: [1]})])
    produce(first.bootstrap, "orders", [NewRecord(b"v", partition=n % 2) for n in range(20)])
    commit(first.bootstrap, "group-00", "orders", {0: 1, 1: 2})
    leaders = coordinators(first.bootstrap)
    assert sorted(leaders.values()) == [1, 1, 2, 2]
    names = [f"group-{number:02d}" for number in range(200)]
    by_broker = {
        each: [name for name in names if leaders[offsets_partition(name)] == each][: NUM_GROUPS // 2] for each in (1, 2)
    }
    groups = sorted(by_broker[1] + by_broker[2])
    assert len(groups) == NUM_GROUPS and "group-00" in groups
    for name in groups:
        commit(first.bootstrap, name, "orders", {0: 1, 1: 2})
    mine = next(name for name in (f"mine-{number}" for number in range(100)) if leaders[offsets_partition(name)] == 1)
    site = folder_site(first.bootstrap, tmp_path / "archive")
    reader = LocalReader(LocalAddress(site.address))

    def table() -> GroupTable | None:
        return asyncio.run(groups_at(reader, "topic", TopicFolder("orders"), None))

    def offset_of(name: str) -> int | None:
        found = table()
        assert found is None or not found.content.gone
        by_group = {group.group_id: group for group in found.content.groups} if found is not None else {}
        assert found is None or by_group.keys() == set(groups), "no group is lost from sight, and none left"
        return by_group[name].positions[0].offset if by_group else None

    def listed() -> set[str]:
        with KafkaAdminClient(bootstrap_servers=first.bootstrap) as admin:
            return {each["group_id"] for each in admin.list_groups(broker_ids=[1])} & set(groups)

    arguments = ("orders", "--groups", "group-*", "--group-id", mine, "--groups-interval", "500ms")
    alive = by_broker[1][0]
    with site.start(*arguments) as running:
        wait_until(lambda: offset_of(alive) == 1, 30, "a table with all groups")
        second.kill()
        assert listed() == set(by_broker[1])
        commit_past_a_dead_broker(first.bootstrap, alive, 3)
        wait_until(lambda: offset_of(alive) == 3, 90, "a table while half of the groups are not listed")
        running.terminate()
    newest = table()
    assert newest is not None
    at = datetime.fromtimestamp(newest.slot / 1000 + 0.001, UTC).isoformat()
    second.start()
    names = ("--map", r"(.*)=again.\1", "--replication-factor", 1)
    restore = ("restore", "--at", at, *names, "--yes", "--json", *site.kafka)
    done = json.loads(site.replayer(*restore, timeout=120).stdout)
    assert (done["verdict"], sorted(done["groups"])) == ("OK", groups)
    assert not [warning for warning in done["warnings"] if "consumer groups" in warning]
    assert [committed(first.bootstrap, name, "again.orders", [0, 1]) for name in (alive, by_broker[2][0])] == [
        {0: 3, 1: 2},
        {0: 1, 1: 2},
    ]
    gc.collect()  # sockets that kafka-python did not close after a refused connection are no fault of a later test

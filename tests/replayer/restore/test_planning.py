import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.reader import PassingReader
from index_format import objects
from index_format.groups import encode as encode_groups
from index_format.identity import Acl, Incarnation, TopicConfig, ended
from index_format.keys import TopicFolder, configs_home, dated_key, groups_home, inventory_key
from replayer.replay.surroundings import Surroundings
from replayer.restore.document import RestoreGroups, RestorePlan, WantedTopics
from replayer.restore.planning import found_topics
from tests.index_format.builders import group, groups_of
from tests.support.archives import CLAIMED_MS, ArchiveWriter, put_topic_config, records

AT = CLAIMED_MS + 20
"""Records have their offsets as timestamps, beginning there."""


def planned(writer: ArchiveWriter, at: int = AT, **asked: object) -> RestorePlan:
    archive = Archive(LocalReader(LocalAddress(str(writer.root))))
    around = Surroundings(archive, {}, LocalStore(writer.root.parent / "jobs"))
    wanted = WantedTopics(asked.pop("topics", ()), asked.pop("rename", ()))  # type: ignore[arg-type]
    plan = RestorePlan(archive_id="", at=at, at_rule="majority", **asked)  # type: ignore[arg-type]
    return asyncio.run(found_topics(plan, wanted, around))


def put_dated_config(
    writer: ArchiveWriter, topic: str, partitions: int, seen_at: int, acls: tuple[Acl, ...] | UnsetType = UNSET
) -> None:
    config = TopicConfig(
        topic=topic,
        topic_id=None,
        partitions=partitions,
        replication_factor=3,
        config={"retention.ms": str(seen_at), "confluent.tier.enable": "true"},
        defaults={},
        acls=acls,
        seen_at=seen_at,
    )
    writer.put(dated_key(configs_home("topic", TopicFolder(topic)), seen_at), objects.encode(config))


class Requests(PassingReader):
    """Notes the keys of objects and the folders that are asked for."""

    def __init__(self, reader: LocalReader) -> None:
        super().__init__(reader)
        self.asked: list[str] = []

    async def get(self, key: str, max_bytes: int) -> bytes:
        self.asked.append(key)
        return await super().get(key, max_bytes)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        self.asked.append(prefix)
        return await super().folders(prefix)


@pytest.fixture
def writer(tmp_path: Path) -> ArchiveWriter:
    """`orders` of two partitions and `bills` of one."""
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(40)))
    writer.partition("bills", 0).commit(records(range(40)))
    return writer


def put_inventory(writer: ArchiveWriter, *changed: Incarnation) -> None:
    new = {each.folder: each for each in changed}
    listed = tuple(new.get(each.folder, each) for each in writer.inventory.incarnations)
    writer.inventory = replace(writer.inventory, incarnations=listed)
    writer.put(inventory_key("topic"), objects.encode(writer.inventory))


def test_all_topics_as_of_a_time(writer: ArchiveWriter) -> None:
    put_topic_config(writer, "orders", 6, {"max.message.bytes": "5"})
    plan = planned(writer)
    assert [(each.source, each.target, each.numbers) for each in plan.topics] == [
        ("bills~1", "bills", (0,)),
        ("orders~1", "orders", (0, 1)),
    ]
    assert plan.archive_id == "archive-1"
    bills, orders = plan.topics
    assert (bills.partitions, orders.partitions) == (1, 6)
    assert orders.settings["max.message.bytes"] == "5"
    assert any("does not say what it was like" in note for note in bills.notes)
    assert any("has none from that time" in note for note in orders.notes)


def test_settings_and_partitions_of_the_time(writer: ArchiveWriter) -> None:
    put_topic_config(writer, "orders", 6, {})
    put_dated_config(writer, "orders", 1, AT - 10)
    put_dated_config(writer, "orders", 6, AT + 10)
    writer.partition("orders", 5).commit(records(range(21, 30)))
    (orders,) = planned(writer, topics=("orders",)).topics
    assert (orders.partitions, orders.numbers) == (2, (0, 1)), "a second one was there before anybody saw it"
    assert orders.settings["retention.ms"] == str(AT - 10)
    assert orders.left_behind == {"confluent.tier.enable": "true"}
    (orders,) = planned(writer, AT + 10, topics=("orders",)).topics
    assert (orders.partitions, orders.numbers) == (6, (0, 1, 5))


def test_acls_of_the_time(writer: ArchiveWriter) -> None:
    before, after = (Acl("LITERAL", "orders", f"User:{name}", "*", "READ", "ALLOW") for name in ("a", "b"))
    put_dated_config(writer, "orders", 2, AT - 10, (before,))
    put_dated_config(writer, "orders", 2, AT + 10, (before, after))
    put_dated_config(writer, "bills", 1, AT - 10)
    plan = planned(writer)
    assert [each.acls for each in plan.topics] == [None, (before,)], "who writes none does not know them"
    assert (plan.acls, plan.without_acls, plan.create_acls) == (1, 1, False)
    assert planned(writer, AT + 10, create_acls=True).acls == 2


def test_what_all_topics_share_is_asked_once(writer: ArchiveWriter) -> None:
    for number in range(20):
        writer.partition(f"topic-{number:02}", 0).commit(records(range(3)))
    reader = Requests(LocalReader(LocalAddress(str(writer.root))))
    around = Surroundings(Archive(reader), {}, LocalStore(writer.root.parent / "jobs"))
    plan = asyncio.run(found_topics(RestorePlan(archive_id="", at=AT, groups=None), WantedTopics(), around))
    assert len(plan.topics) == 22
    assert reader.asked.count("_inventory.json") == 1
    per_topic = [key for key in reader.asked if key.startswith("topic=topic-07/")]
    assert sorted(per_topic) == [
        "topic=topic-07/",
        "topic=topic-07/_topic_config.json",
        "topic=topic-07/partition=00000/last_chunk_index.json",
    ]


def test_the_incarnation_of_the_time(writer: ArchiveWriter) -> None:
    writer.partition("orders", 0, incarnation=2).commit(records(range(50, 60)))
    first, second = (each for each in writer.inventory.incarnations if each.topic == "orders")
    put_inventory(writer, replace(first, seen_until=AT + 1), replace(second, seen_from=AT + 2))
    assert [each.source for each in planned(writer, topics=("orders",)).topics] == ["orders~1"]
    assert [each.source for each in planned(writer, AT + 2, topics=("orders",)).topics] == ["orders~2"]
    with pytest.raises(NotInArchive, match="there is nothing to restore"):
        planned(writer, AT + 1, topics=("orders",))
    (left_out,) = planned(writer, AT + 1).left_out
    assert (left_out.topic, "gone" in left_out.why) == ("orders", True)


def test_a_topic_whose_log_was_truncated_is_one_topic(writer: ArchiveWriter) -> None:
    lines = writer.partition("lines", 0)
    lines.commit(records(range(10)))
    writer.partition("lines", 1).commit(records(range(5)))
    lines.truncated(10).commit(records(range(10, 50)))
    put_inventory(writer, *(replace(each, topic_id="one") for each in writer.inventory.incarnations))
    (topic,) = planned(writer, topics=("lines",)).topics
    assert (topic.source, topic.numbers, topic.lacks) == ("lines", (0, 1), ())


def test_one_that_was_first_seen_later_is_taken_with_its_records(writer: ArchiveWriter) -> None:
    put_inventory(writer, *(replace(each, seen_from=AT + 100) for each in writer.inventory.incarnations))
    notes = [note for each in planned(writer).topics for note in each.notes]
    assert sum("it is taken, because it holds records from before" in note for note in notes) == 2
    with pytest.raises(NotInArchive, match="nothing to restore"):
        planned(writer, CLAIMED_MS)


def test_a_topic_that_is_gone_for_good_is_left_out(writer: ArchiveWriter) -> None:
    put_inventory(writer, *ended(writer.inventory, TopicFolder("bills"), None, AT).incarnations)
    plan = planned(writer)
    assert [each.source for each in plan.topics] == ["orders~1"]
    assert [each.topic for each in plan.left_out] == ["bills"]


def test_what_the_archive_lacks(writer: ArchiveWriter) -> None:
    shutil.rmtree(writer.root / "topic=orders" / "partition=00001")
    shutil.rmtree(writer.root / "topic=bills")
    bills, orders = planned(writer).topics
    assert (orders.lacks, orders.numbers) == (("orders:1 is missing",), (0,))
    assert (bills.lacks, bills.numbers) == (("bills:0 is missing",), ())


def test_a_damaged_partition_is_named(writer: ArchiveWriter) -> None:
    marker = next((writer.root / "topic=orders" / "partition=00001").glob("last_chunk_index.json"))
    marker.write_bytes(b"{}")
    (orders,) = planned(writer, topics=("orders",)).topics
    assert orders.numbers == (0,)
    assert orders.lacks[0].startswith("partition 1 cannot be read: ")


def test_without_an_inventory(writer: ArchiveWriter, tmp_path: Path) -> None:
    plain = ArchiveWriter(tmp_path / "plain", has_inventory=False)
    plain.partition("orders", 0).commit(records(range(9)))
    plan = planned(plain)
    assert [each.source for each in plan.topics] == ["orders~1"]
    assert any("no inventory" in warning for warning in plan.warnings)


def test_new_names(writer: ArchiveWriter) -> None:
    renamed = (("(.*)s", r"drill.\1"),)
    assert [each.target for each in planned(writer, rename=renamed).topics] == ["drill.bill", "drill.order"]
    with pytest.raises(UsageError, match=r"bills~1 and orders~1 would both be restored as x"):
        planned(writer, rename=((".*", "x"),))


def test_a_registrys_topic_is_not_restored_with_transactions_without_a_word(writer: ArchiveWriter) -> None:
    writer.partition("_schemas", 0).commit(records(range(40)))
    assert any("--no-transactional" in each for each in planned(writer).warnings)
    assert not planned(writer, transactional=False).warnings
    assert not planned(writer, topics=("orders",)).warnings


def test_the_groups_of_the_time(writer: ArchiveWriter) -> None:
    table = groups_of(group("billing", 0, asked_at=AT - 5, offset=3), group("search", 0, asked_at=AT - 5, offset=4))
    writer.put(dated_key(groups_home("topic", TopicFolder("orders")), AT - 5), encode_groups(table))
    bills, orders = planned(writer).topics
    assert (orders.groups, orders.positions, orders.groups_at) == (("billing", "search"), 2, AT - 5)
    assert any("does not say where consumer groups stood" in note for note in bills.notes)
    assert planned(writer, groups=None).topics[1].groups == ()


def test_groups_that_vanished_without_leaving_are_warned_of(writer: ArchiveWriter) -> None:
    both = groups_of(group("billing", 0, asked_at=AT - 9, offset=3), group("search", 0, asked_at=AT - 9, offset=4))
    left = groups_of(group("billing", 0, asked_at=AT - 5, offset=3))
    for slot, table in ((AT - 7, both), (AT - 5, left)):
        writer.put(dated_key(groups_home("topic", TopicFolder("orders")), slot), encode_groups(table))
    (warning,) = planned(writer).warnings
    assert warning.startswith("consumer groups search had positions on orders before ")
    assert not planned(writer, groups=RestoreGroups(("bill*",))).warnings
    assert not planned(writer, groups=None).warnings


def test_names_that_concern_nothing_are_warned_of(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(3)))
    idle = planned(
        writer,
        rename=(("oders", "x"),),
        groups=RestoreGroups(("bilings",), (("nobody", "x"),)),
    )
    told = "; ".join(idle.warnings)
    for text in ("--map renames no topic", "--groups bilings: no consumer group", "--group-map renames no group"):
        assert text in told
    busy = planned(writer, rename=(("orders", "x"),))
    assert "renames" not in "; ".join(busy.warnings)

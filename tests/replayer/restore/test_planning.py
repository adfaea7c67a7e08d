"""The plan of a restore: what is chosen, its document, its folder, its settings."""

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import AtOffset, BeforeTime
from blockgz.errors import AccessDenied, NotInArchive, UsageError, Verdict
from blockgz.kafka.groups import GroupOffset
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.reader import PassingReader
from index_format import objects
from index_format.groups import encode as encode_groups
from index_format.keys import TopicFolder, configs_home, dated_key, groups_home, inventory_key
from index_format.objects import Acl, Incarnation, Inventory, TopicConfig, ended
from replayer.cli.restore import _code_of, status_command
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import ConfigChange
from replayer.replay.job import is_job_name
from replayer.replay.jobs.folder import JobFolder, JobUndone
from replayer.replay.request import Surroundings
from replayer.restore.begun import restore_document
from replayer.restore.consumers import Applied, _left_out, acls_to_create, set_acls
from replayer.restore.document import (
    AclsDone,
    ChosenIncarnation,
    GroupsDone,
    RestoreFolder,
    RestoreGroups,
    RestorePlan,
    RestoreRecord,
    StandbyReport,
    SwitchOver,
    TopicDone,
    TopicFollowed,
    TopicLeftOut,
    TopicStand,
    TopicToRestore,
    WantedTopics,
    incarnation_at,
    parse_plan,
    plan_text,
    refuse_group_twins,
    refuse_twins,
    restore_name,
    same_topic,
    topic_job,
    wanted_topics,
)
from replayer.restore.planning import KEEPING_ALL, _refusal, first_settings, found_topics, last_settings, replay_of
from replayer.restore.running import TopicOutcome, outcome_document, plan_document, set_last
from tests.index_format.builders import group, groups_of
from tests.support.archives import CLAIMED_MS, ArchiveWriter, put_topic_config, records
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryStore

AT = CLAIMED_MS + 20
"""Records have their offsets as timestamps, beginning there."""


def planned(writer: ArchiveWriter, at: int = AT, **asked: object) -> RestorePlan:
    archive = ArchiveReader(LocalReader(LocalAddress(str(writer.root))))
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
    around = Surroundings(ArchiveReader(reader), {}, LocalStore(writer.root.parent / "jobs"))
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


def test_a_lost_marker_is_rebuilt_before_anything_is_given_up(writer: ArchiveWriter) -> None:
    (writer.root / "topic=orders" / "partition=00001" / "last_chunk_index.json").unlink()
    plan = planned(writer, topics=("orders",))
    (orders,) = plan.topics
    assert orders.lacks[0].endswith("no marker leads to its chunks; archiver repair marker orders:1 rebuilds it")
    refused = str(_refusal(plan, orders, exists=False))
    places = [refused.index(each) for each in ("archiver repair marker orders:1", "repair that first", "--partial")]
    assert places == sorted(places)
    assert _refusal(replace(plan, partial=True), orders, exists=False) is None
    with pytest.raises(ReplayRefused, match="1 of 1 topics cannot be restored as planned") as error:
        _code_of(replace(plan, topics=(replace(orders, refused=refused),)))
    assert error.value.remedy.startswith("repair it first")


def test_positions_in_a_partition_that_is_not_restored_are_named() -> None:
    positions = {"billing": {number: GroupOffset(7 + number) for number in (0, 1)}}
    whole, partial = topic("payments~1"), topic("payments~1", lacks=("payments:1 is missing",), numbers=(0,))
    said = "group billing: its position 8 in payments:1 is left out: the archive lacked it"
    assert (_left_out(whole, positions), _left_out(partial, positions)) == ([], [said])
    report = outcome_document("n", PLAN, [TopicOutcome(partial, "n.p", state="restored")], None, None, 1.0)
    assert report["topics"][0]["do"].startswith("lacks payments:1, and ")
    assert report["verdict"] != Verdict.OK


def test_a_topic_without_some_of_its_partitions_is_not_complete(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    folder = RestoreFolder(store, "night")
    lacks = topic("payments~1", lacks=("partition 1 cannot be read: it is lost",), numbers=(0,))
    begun = replace(RECORD, plan=replace(PLAN, topics=(lacks, topic("small~1")), groups=None))
    folder.begin(begun)
    jobs = [topic_job("night", each.source) for each in begun.plan.topics]
    for job, each in zip(jobs, begun.plan.topics, strict=True):
        folder.put(TopicDone(source=each.source, target=each.target, records=3, verdict=Verdict.OK, at=5), job)
    document = restore_document(folder, store, with_topics=True)
    assert (document["state"], document["topics_done"], document["continue"]) == ("incomplete", 2, None)
    rows = {each["job"]: each["missing"] for each in document["topics"]}
    assert rows[jobs[1]] is None
    assert rows[jobs[0]].startswith("lacks payments:1, and --resume does not add them: ")
    assert f"(replayer undo --job {jobs[0]} -b HOST:PORT)" in rows[jobs[0]]
    assert restore_document(folder, store).keys() == document.keys() - {"topics"}
    status = CliRunner().invoke(status_command, ["night", "--jobs", str(tmp_path)], standalone_mode=False)
    assert (status.return_value, "restore night is incomplete: 2 of 2 topics" in status.output) == (3, True)
    undone = JobUndone(target="payments", target_topic_id="x", records=3, host="h", undone_at=7)
    JobFolder(store, jobs[0]).put(undone)
    document = restore_document(folder, store)
    assert (document["state"], document["topics_done"], document["topics_of"]) == ("incomplete", 1, 2)


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
    idle = planned(writer, rename=(("oders", "x"),), groups=RestoreGroups(("bilings",), (("nobody", "x"),)))
    told = "; ".join(idle.warnings)
    for text in ("--map renames no topic", "--groups bilings: no consumer group", "--group-map renames no group"):
        assert text in told
    busy = planned(writer, rename=(("orders", "x"),))
    assert "renames" not in "; ".join(busy.warnings)


ORDERS = (TopicFolder("orders", 1), TopicFolder("orders", 2), TopicFolder("orders", 3))


def inventory(*lives: tuple[int, int | None], ids: str = "abc") -> Inventory:
    """Incarnations of `orders`, each from and until."""
    return Inventory(
        incarnations=tuple(
            Incarnation("orders", number, ids[number - 1], begin, end, (0,))
            for number, (begin, end) in enumerate(lives, 1)
        )
    )


def chosen(at_ms: int, *lives: tuple[int, int | None]) -> int | str:
    found = incarnation_at("orders", ORDERS[: len(lives)], inventory(*lives), at_ms)
    return found.folder.incarnation if isinstance(found, ChosenIncarnation) else found.why


@pytest.mark.parametrize(("at_ms", "incarnation"), [(10, 1), (19, 1), (30, 2), (99, 2), (100, 3), (10_000, 3)])
def test_the_incarnation_that_existed_then(at_ms: int, incarnation: int) -> None:
    assert chosen(at_ms, (10, 20), (30, 100), (100, None)) == incarnation


def test_one_that_was_deleted_or_created_again_since_still_existed_then() -> None:
    assert chosen(50, (10, 60)) == 1
    assert chosen(50, (10, 60), (70, None)) == 1
    assert chosen(50, (10, None), (70, None)) == 1, "nobody saw its end"


@pytest.mark.parametrize("at_ms", [20, 25, 29])
def test_a_topic_that_was_gone_is_left_out(at_ms: int) -> None:
    why = chosen(at_ms, (10, 20), (30, None))
    assert isinstance(why, str) and "gone" in why


def test_the_first_one_that_was_seen_later_is_in_doubt() -> None:
    found = incarnation_at("orders", ORDERS[:2], inventory((10, 20), (30, None)), 9)
    assert isinstance(found, ChosenIncarnation)
    assert (found.folder.incarnation, found.in_doubt) == (1, True)


@pytest.mark.parametrize("known", [None, Inventory()])
def test_without_an_inventory_the_newest_is_taken_with_a_warning(known: Inventory | None) -> None:
    found = incarnation_at("orders", ORDERS, known, 5)
    assert isinstance(found, ChosenIncarnation)
    assert found.folder == ORDERS[2]
    assert found.note and "the newest is taken" in found.note
    assert not isinstance(found, TopicLeftOut)


def test_folders_of_one_topic_whose_log_was_truncated() -> None:
    lives = (10, None), (20, None), (30, None)
    assert same_topic(ORDERS[2], inventory(*lives, ids="abb")) == ORDERS[1:]
    assert same_topic(ORDERS[2], inventory(*lives, ids="bbb")) == ORDERS
    assert same_topic(ORDERS[2], inventory(*lives)) == ORDERS[2:]
    assert same_topic(ORDERS[2], None) == ORDERS[2:]


def test_topics_by_name_glob_and_regex() -> None:
    known = ["b", "a", "orders", "order-lines", "__internal", "a"]
    assert wanted_topics([], known) == ["a", "b", "order-lines", "orders"]
    assert wanted_topics(["order*", "~orders|a", "orders"], known) == ["order-lines", "orders", "a"]
    with pytest.raises(NotInArchive, match="topic c is not in the archive"):
        wanted_topics(["c"], known)
    with pytest.raises(NotInArchive, match="no archived topic matches"):
        wanted_topics(["c*"], known)
    with pytest.raises(UsageError, match="names an incarnation"):
        wanted_topics(["orders~2"], known)


def test_any_other_archive_time_topic_or_cluster_changes_the_name() -> None:
    asked = ("archive", 1, [("a~1", "a"), ("b~1", "b")], "cluster")
    names = {
        restore_name(*asked),
        restore_name("other", *asked[1:]),
        restore_name("archive", 2, *asked[2:]),
        restore_name("archive", 1, [("a~1", "a"), ("b~1", "c")], "cluster"),
        restore_name("archive", 1, [("a~1", "a")], "cluster"),
        restore_name(*asked[:3], "elsewhere"),
    }
    assert len(names) == 6
    assert restore_name("archive", 1, [("b~1", "b"), ("a~1", "a")], "cluster") == restore_name(*asked)
    assert all(map(is_job_name, names))


def test_jobs_have_names_of_their_own() -> None:
    assert topic_job("night", "orders~2") == "night.orders-2"
    assert topic_job("night", "orders") == "night.orders-1"
    sources = ["orders~2", "orders-2~1", "orders~1", "x" * 249 + "~1", "x" * 248 + "~1", "x" * 249 + "~2"]
    names = {topic_job("night", source) for source in sources}
    assert len(names) == len(sources)
    assert all(map(is_job_name, names))
    with pytest.raises(UsageError, match="not a job name"):
        topic_job("a b", "orders~1")
    with pytest.raises(UsageError, match="not a job name"):
        topic_job("n" * 99, "orders~1")


def topic(source: str, target: str | None = None, **fields: Any) -> TopicToRestore:
    given: dict[str, Any] = {"partitions": 2, "numbers": (0, 1), "settings": {"retention.ms": "-1"}, **fields}
    return TopicToRestore(source=source, target=target or source.partition("~")[0], **given)


PLAN = RestorePlan(
    archive_id="archive-1",
    at=1_760_000_000_000,
    groups=RestoreGroups(("billing*",), (("(.*)", r"drill-\1"),)),
    topics=(
        topic("small~1", bytes=5),
        topic("big~2", "large", bytes=50),
        topic("bad~1", bytes=99, refused="it exists"),
    ),
    left_out=(TopicLeftOut("gone", "it was gone"),),
    warnings=("a warning",),
)


def test_a_plan_is_read_as_it_was_written() -> None:
    assert parse_plan(plan_text(PLAN), "plan.json") == PLAN
    assert parse_plan(plan_text(msgspec.structs.replace(PLAN, groups=None)), "plan.json").groups is None


def test_the_biggest_topic_goes_first_and_refused_ones_do_not() -> None:
    assert [each.source for each in PLAN.restorable] == ["big~2", "small~1"]
    assert [each.source for each in PLAN.refused] == ["bad~1"]
    assert PLAN.bytes == 55


def edited(**changes: Any) -> bytes:
    document = msgspec.json.decode(plan_text(PLAN))
    return msgspec.json.encode(document | changes)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        edited(format="other"),
        edited(version=2),
        edited(topicz=[]),
        edited(topics=[{"source": "a~1"}]),
        edited(topics=[msgspec.to_builtins(topic("a~1", "no/name"))]),
        edited(topics=[msgspec.to_builtins(topic("a~1", partitions=0))]),
        edited(topics=[]),
        edited(at=0),
        edited(groups={"rename": [["(", "x"]]}),
        edited(groups={"rename": [["(.*)", r"x\7"]]}),
        edited(groups={"rename": [["a{99999999999999}", "x"]]}),
        edited(follow={"rename": [["(", "x"]]}),
    ],
)
def test_what_is_no_plan_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match=r"plan.json is not the plan of a restore"):
        parse_plan(body, "plan.json")


def test_two_groups_of_one_topic_that_get_one_name_are_refused() -> None:
    rename = RestoreGroups(rename=(("(.*)-.*", r"\1"),))
    apart = (topic("a~1", groups=("billing-1", "search-1")), topic("b~1", groups=("billing-2",)))
    refuse_group_twins(msgspec.structs.replace(PLAN, groups=rename, topics=apart))
    twins = msgspec.structs.replace(PLAN, topics=(topic("a~1", groups=("billing-1", "billing-2")),))
    refuse_group_twins(msgspec.structs.replace(twins, groups=None))
    with pytest.raises(UsageError, match="groups billing-1 and billing-2 would both be billing"):
        refuse_group_twins(msgspec.structs.replace(twins, groups=rename))


def test_two_topics_of_one_name_are_refused() -> None:
    twins = [topic("a~1", "x"), topic("b~1", "x")]
    with pytest.raises(UsageError, match="a~1 and b~1 would both be restored as x"):
        refuse_twins(twins)
    with pytest.raises(UsageError, match="would both be restored"):
        parse_plan(edited(topics=msgspec.to_builtins(twins)), "plan.json")
    with pytest.raises(UsageError, match="a~1 is to be restored twice"):
        refuse_twins([topic("a~1", "x"), topic("a~1", "y")])
    refuse_twins([topic("a~1"), topic("b~1")])


def test_a_plan_without_a_rule_keeps_kafkas_and_its_jobs_their_names() -> None:
    document = msgspec.json.decode(plan_text(PLAN))
    del document["at_rule"]
    older = parse_plan(msgspec.json.encode(document), "plan.json")
    (small, *_) = older.topics
    around = Surroundings(ArchiveReader(MemoryReader({})), {}, MemoryStore())
    asked = replay_of(older, small, "night", around).selection
    assert asked.asked == ("earliest", "@1760000000000")
    assert asked.positions.end == BeforeTime(1_760_000_000_000, "first")


def test_the_cuts_of_a_plan_are_where_its_partitions_end() -> None:
    plan = msgspec.structs.replace(PLAN, at_rule="majority", topics=(topic("small~1", cuts={0: 17, 7: 4}),))
    asked = replay_of(
        plan, plan.topics[0], "night", Surroundings(ArchiveReader(MemoryReader({})), {}, MemoryStore())
    ).selection
    assert asked.positions.of(0) == (None, AtOffset(17))
    assert asked.positions.of(1) == (None, BeforeTime(1_760_000_000_000, "majority"))
    assert asked.asked == ("earliest", "@1760000000000", "majority")
    broken = msgspec.structs.replace(plan, topics=(topic("small~1", cuts={0: -1}),))
    with pytest.raises(UsageError, match="not the plan of a restore"):
        parse_plan(plan_text(broken), "plan.json")


RECORD = RestoreRecord(name="night", cluster_id="c", host="h:1", begun_at=1, plan=PLAN)


@pytest.fixture
def folder(tmp_path: Path) -> RestoreFolder:
    return RestoreFolder(LocalStore(tmp_path), "night")


def test_what_was_agreed_to_is_written_once(folder: RestoreFolder) -> None:
    with pytest.raises(UsageError, match="there is no restore night"):
        folder.begun()
    folder.refuse_begun()
    folder.begin(RECORD)
    assert folder.begun() == RECORD
    with pytest.raises(ReplayRefused, match="restore night has begun already"):
        folder.begin(RECORD)
    with pytest.raises(ReplayRefused, match="restore night has begun already"):
        folder.refuse_begun()


def test_what_is_done(folder: RestoreFolder) -> None:
    done = TopicDone(source="a~1", target="a", records=3, verdict="OK", at=5)
    groups, acls = GroupsDone(groups={"billing": 2}, at=6), AclsDone(acls={"a": 2}, at=7)
    assert (folder.get(TopicDone, "night.a-1"), folder.get(GroupsDone), folder.get(AclsDone)) == (None, None, None)
    for _ in range(2):
        folder.put(done, "night.a-1")
        folder.put(groups)
        folder.put(acls)
    assert (folder.get(TopicDone, "night.a-1"), folder.get(GroupsDone), folder.get(AclsDone)) == (done, groups, acls)


def test_damage_is_refused(folder: RestoreFolder, tmp_path: Path) -> None:
    folder.begin(RECORD)
    path = tmp_path / "night" / "restore.json"
    path.write_bytes(path.read_bytes().replace(b"archive-1", b"archive-2"))
    with pytest.raises(ReplayRefused, match="the folder of restore night cannot be read"):
        folder.get(RestoreRecord)


def test_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a job name"):
        RestoreFolder(LocalStore(tmp_path), "a/b")


def test_what_a_standby_follows_and_found(folder: RestoreFolder) -> None:
    later, first = (TopicFollowed(topic=replace(PLAN.topics[each], refused=None), at=5 - each) for each in (0, 1))
    assert (folder.followed(), folder.get(StandbyReport), folder.get(SwitchOver)) == ({}, None, None)
    for topic in (later, first, later):
        folder.put(topic, f"night.{topic.topic.target}-1")
    assert list(folder.followed().items()) == [("big~2", first.topic), ("small~1", later.topic)]
    stand = TopicStand("small~1", "small", "stopped", "created again", "delete it", ("0 [1..2)",))
    report = StandbyReport(state="following", host="h:1", slot_at=7, every=60.0, topics=(stand,), group_notes=("n",))
    for each in (report, replace(report, state="ended")):
        folder.replace(each)
        assert folder.get(StandbyReport) == each
    told = SwitchOver(host="h:2", at=9)
    for other in (told, SwitchOver(host="h:3", at=10)):
        folder.put(other)
    assert folder.get(SwitchOver) == told


DAY = 86_400_000
NOW = 1000 * DAY
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "max.message.bytes": "2000000",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": str(7 * DAY),
}


def topic_settings(oldest: int | None, largest: int = 10, settings: dict[str, str] = SETTINGS) -> TopicToRestore:
    return TopicToRestore(
        source="a~1", target="a", partitions=1, numbers=(0,), settings=settings, oldest=oldest, largest=largest
    )


def test_a_new_topic_keeps_everything_as_it_is_sent() -> None:
    assert first_settings(SETTINGS) == {**KEEPING_ALL, "max.message.bytes": "2000000"}


def test_what_comes_last() -> None:
    restored = topic_settings(NOW - DAY)
    change, notes = last_settings(restored, first_settings(SETTINGS), 3, NOW)
    assert change.values == {
        name: SETTINGS[name]
        for name in ("cleanup.policy", "message.timestamp.type", "min.insync.replicas", "retention.ms")
    }
    assert not notes
    again, _ = last_settings(restored, {**first_settings(SETTINGS), **change.values}, 3, NOW)
    assert not again, "done once, there is nothing to do"


def test_a_raised_limit_comes_last() -> None:
    """Unless the replay, which raised it, has set it back."""
    own = {**first_settings(SETTINGS), "max.message.bytes": "3000000"}
    change, _ = last_settings(topic_settings(NOW - DAY), own, 3, NOW)
    assert change.values["max.message.bytes"] == "2000000"
    lower = {**own, "max.message.bytes": "1000000"}
    assert "max.message.bytes" not in last_settings(topic_settings(NOW), lower, 3, NOW)[0].values


def test_what_somebody_has_set_since_stays() -> None:
    own = {**first_settings(SETTINGS), "retention.ms": "5", "min.insync.replicas": "1"}
    change, _ = last_settings(topic_settings(NOW), own, 3, NOW)
    assert change.values.keys() == {"cleanup.policy", "message.timestamp.type"}


@pytest.mark.parametrize(
    ("changes", "oldest", "largest", "held"),
    [
        ({}, NOW - 8 * DAY, 10, "retention.ms"),
        ({}, NOW - 6 * DAY, 10, None),
        ({}, None, 10, None),
        ({"cleanup.policy": "compact"}, NOW - 8 * DAY, 10, None),
        ({"retention.bytes": "9"}, NOW, 10, "retention.bytes"),
        ({"retention.bytes": "10"}, NOW, 10, None),
        ({"min.insync.replicas": "4"}, NOW, 10, "min.insync.replicas"),
    ],
)
def test_what_would_delete_records_at_once_or_refuse_new_ones_is_not_set(
    changes: dict[str, str], oldest: int | None, largest: int, held: str | None
) -> None:
    settings = {**SETTINGS, **changes}
    change, notes = last_settings(topic_settings(oldest, largest, settings), first_settings(settings), 3, NOW)
    assert len(notes) == (held is not None)
    if held is not None:
        assert held not in change.values
        assert notes[0].startswith(f"{held}={settings[held]} is not set")


@dataclass
class PickyTopic:
    """A restored topic of a cluster that refuses some settings."""

    refuses: dict[str, Exception]
    own: dict[str, str] = field(default_factory=lambda: first_settings(SETTINGS))

    def again(self) -> "PickyTopic":
        return self

    def replication_factor(self, _: str) -> int:
        return 3

    def own_config(self, _: str) -> dict[str, str]:
        return self.own

    def alter(self, _: str, change: ConfigChange) -> None:
        for name in change.values:
            if name in self.refuses:
                raise self.refuses[name]
        self.own |= change.values


def test_a_setting_that_is_refused_at_the_end_is_named_with_the_command(tmp_path: Path) -> None:
    unknown = ReplayRefused("it cannot be changed", why="Unknown topic config name", remedy="check the ACLs")
    cluster = PickyTopic({"cleanup.policy": AccessDenied("no", why="not authorized"), "retention.ms": unknown})
    reader = ArchiveReader(MemoryReader({}))
    around = Surroundings(reader, {"bootstrap.servers": "new:9092"}, LocalStore(tmp_path))
    vars(around).update(admin=cluster, changes=cluster)
    (note,), (warning,) = set_last(topic_settings(None), around)
    assert note.startswith(f"retention.ms={7 * DAY} is not set: Unknown topic config name; to set it: kafka-configs.sh")
    assert "--bootstrap-server new:9092 --alter --entity-type topics --entity-name a " in warning
    assert warning.endswith("--add-config 'cleanup.policy=[compact,delete]'")
    assert cluster.own["min.insync.replicas"] == "2", "the others are set"
    outcome = TopicOutcome(topic("a~1"), "j", "restored", verdict=Verdict.OK, warnings=[warning])
    document = outcome_document("night", RestorePlan(archive_id="a", at=1), [outcome], None, None, 1.0)
    assert (document["verdict"], document["topics"][0]["warnings"]) == ("WARNING", [warning])


def test_settings_that_are_chosen_or_left_out(writer: ArchiveWriter) -> None:
    put_topic_config(writer, "orders", 2, {"segment.bytes": "5", "retention.ms": "7"})
    plan = planned(writer, topics=("orders",), topic_config={"retention.ms": "9"}, omit_topic_config=("segment.bytes",))
    (orders,) = plan.topics
    assert (orders.settings["retention.ms"], "segment.bytes" in orders.settings) == ("9", False)


def acl(name: str, principal: str = "User:a", pattern: str = "LITERAL") -> Acl:
    return Acl(pattern, name, principal, "*", "READ", "ALLOW")


KNOWN = replace(
    PLAN,
    create_acls=True,
    topics=(
        topic("a~1", "copy.a", acls=(acl("a"), acl("*", "User:b"), acl("", "User:b", "PREFIXED"))),
        topic("b~1", "copy.b", acls=()),
        topic("c~1", "copy.c"),
        topic("d~1", "copy.d", acls=(acl("d"),), refused="it exists"),
    ),
)


class Cluster:
    def __init__(self, left_out: tuple[Acl, ...] = (), error: Exception | None = None) -> None:
        self.created: list[Acl] = []
        self._left_out = left_out
        self._error = error

    def create_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        if self._error is not None:
            raise self._error
        self.created += acls
        return self._left_out


def test_topics_get_literal_acls_on_their_new_names() -> None:
    assert acls_to_create(KNOWN) == {"copy.a": (acl("copy.a"), acl("copy.a", "User:b"))}
    assert (KNOWN.acls, KNOWN.without_acls) == (3, 1)
    assert parse_plan(plan_text(KNOWN), "plan.json") == KNOWN


def test_they_are_created_once(folder: RestoreFolder) -> None:
    cluster = Cluster()
    done = set_acls(KNOWN, folder, cluster)
    assert done.counts == {"copy.a": 2}
    assert done.notes == ["no ACL is created for copy.c: the archive does not know which there were"]
    again = set_acls(KNOWN, folder, cluster)
    assert (again.counts, len(cluster.created)) == ({"copy.a": 2}, 2)
    assert again.notes == ["the ACLs were created by an earlier run"]


def test_what_the_client_does_not_know_is_named(folder: RestoreFolder) -> None:
    done = set_acls(KNOWN, folder, Cluster(left_out=(acl("copy.a"),)))
    assert done.counts == {"copy.a": 1}
    assert done.notes[0] == "copy.a: ALLOW READ for User:a from * is not created: this release does not know it"


def test_after_a_failure_they_are_tried_again(folder: RestoreFolder) -> None:
    with pytest.raises(AccessDenied):
        set_acls(KNOWN, folder, Cluster(error=AccessDenied("not allowed")))
    assert set_acls(KNOWN, folder, Cluster()).counts == {"copy.a": 2}


@pytest.mark.parametrize(
    ("acls", "verdict"), [(None, "OK"), (Applied({"a": 2}), "OK"), (Applied({}, error="x"), "FAILURE")]
)
def test_the_report(acls: Applied | None, verdict: str) -> None:
    document = outcome_document("night", RestorePlan(archive_id="a", at=1), [], None, acls, 1.0)
    assert document["verdict"] == verdict
    assert (document["acls"], document["acls_error"]) == (
        None if acls is None else acls.counts,
        None if acls is None else acls.error,
    )
    totals = plan_document("night", KNOWN, 1.0)["totals"]
    assert (totals["acls"], totals["topics_with_unknown_acls"]) == (3, 1)

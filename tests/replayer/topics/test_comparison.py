"""An archived topic compared with a live one, what is planned, and what of a plan is not done."""

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import ArchivePlace, opened
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.address import parse_address
from index_format.objects import Acl
from index_format.objects import TopicConfig as ArchivedTopic
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import ConfigChange, NewTopic, parse_config
from replayer.topics import (
    MIN_INSYNC,
    Difference,
    FoundTopic,
    LiveTopic,
    TopicComparison,
    TopicPlan,
    acl_text,
    carried_over,
    compare_acls,
    compare_all,
    compare_topics,
    creation_note,
    find_topics,
    left_behind,
    literal_acls,
    new_topic,
    partition_count,
    plan_topic,
    without_refused,
)
from tests.support.archives import ArchiveWriter, put_topic_config, records
from tests.support.mock_cluster import MockCluster

ARCHIVED = ArchivedTopic(
    topic="orders",
    topic_id="id",
    partitions=3,
    replication_factor=1,
    config={"cleanup.policy": "compact,delete", "segment.bytes": "1000", "remote.storage.enable": "true"},
    defaults={"retention.ms": "86400000", "flush.ms": "1", "min.insync.replicas": "1"},
)
SAME = {"cleanup.policy": "delete,compact", "segment.bytes": "1000"}
INHERITED = {"retention.ms": "86400000", "flush.ms": "1", "min.insync.replicas": "1"}


def live(
    own: Mapping[str, str] = SAME, inherited: Mapping[str, str] = INHERITED, partitions: int = 3, replicas: int = 1
) -> LiveTopic:
    return LiveTopic(partitions, replicas, own, inherited)


class PickyCluster:
    """A cluster that creates no topic with one of these settings, and may list those that its topics can be given."""

    def __init__(self, *refused: str, listed: frozenset[str] | None = None, creates_any: bool = True) -> None:
        self.refused, self.listed, self.creates_any = refused, listed, creates_any

    def why_uncreatable(self, topic: NewTopic) -> ReplayRefused | None:
        wrong = [name for name in topic.config if name in self.refused]
        if not wrong and self.creates_any:
            return None
        return ReplayRefused("topic cannot be created", why=f"Unknown topic config name: {wrong}", remedy="do it")

    def refuse_uncreatable(self, topic: NewTopic) -> None:
        if error := self.why_uncreatable(topic):
            raise error

    def changeable_settings(self) -> frozenset[str] | None:
        return self.listed


WANTED = NewTopic(
    "copy", 1, {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "5", "segment.bytes": "9"}
)


def accepted(cluster: PickyCluster, *chosen: str) -> tuple[set[str], dict[str, str]]:
    made, why = without_refused(cluster, WANTED, chosen)  # type: ignore[arg-type]
    return set(made.config), why


def test_settings_that_the_cluster_does_not_know_are_left_out() -> None:
    assert accepted(PickyCluster()) == (set(WANTED.config), {})
    kept, why = accepted(PickyCluster("message.timestamp.before.max.ms"))
    assert kept == {"cleanup.policy", "segment.bytes"}
    assert list(why) == ["message.timestamp.before.max.ms"]
    assert "Unknown topic config name" in why["message.timestamp.before.max.ms"]
    kept, why = accepted(PickyCluster(listed=frozenset({"cleanup.policy", "segment.bytes"})))
    assert (kept, list(why)) == ({"cleanup.policy", "segment.bytes"}, ["message.timestamp.before.max.ms"])
    both, _ = accepted(PickyCluster("segment.bytes", listed=frozenset({"cleanup.policy", "segment.bytes"})))
    assert both == {"cleanup.policy"}


@pytest.mark.parametrize(
    ("cluster", "chosen"),
    [
        (PickyCluster("cleanup.policy"), ()),
        (PickyCluster("segment.bytes"), ("segment.bytes",)),
        (PickyCluster(creates_any=False), ()),
    ],
)
def test_what_decides_about_records_or_was_chosen_is_never_left_out(
    cluster: PickyCluster, chosen: tuple[str, ...]
) -> None:
    with pytest.raises(ReplayRefused, match="cannot be created"):
        accepted(cluster, *chosen)


def compared(
    now: LiveTopic | None, archived: ArchivedTopic = ARCHIVED, ignored: tuple[str, ...] = ()
) -> TopicComparison:
    return compare_topics("orders", archived, archived.partitions, now, ignored)


def plan(now: LiveTopic | None, *, archived: ArchivedTopic = ARCHIVED, reset_extra: bool = False) -> TopicPlan:
    return plan_topic(compared(now, archived), None, reset_extra=reset_extra)


def test_acls_that_differ_are_differences_and_missing_ones_are_created() -> None:
    then, now = (Acl("LITERAL", "orders", f"User:{name}", "*", "READ", "ALLOW") for name in ("a", "b"))
    found = replace_compared(live(), (then,), (now,))
    assert (found.state, found.differences) == (
        "differs",
        (
            Difference("acl", "ALLOW READ for User:a from *", None),
            Difference("acl", None, "ALLOW READ for User:b from *"),
        ),
    )
    planned = plan_topic(found, None, reset_extra=True)
    assert planned and planned.acls == (then,)
    assert planned.steps == ("topic orders: ACL ALLOW READ for User:a from * is created",)
    assert any("1 ACLs stay" in note for note in planned.notes)
    assert planned.outstanding(live()) == ("ACL ALLOW READ for User:a from * is missing",)
    assert planned.outstanding(live(), (then, now)) == ()


def test_a_missing_topic_gets_its_acls_too() -> None:
    then = Acl("LITERAL", "orders", "User:a", "*", "READ", "ALLOW")
    planned = plan_topic(replace_compared(None, (then,)), None, reset_extra=False)
    assert planned.compared.state == "missing" and planned.creates is not None
    assert len(planned.steps) == 2


def test_acls_that_are_not_known_are_no_difference() -> None:
    found = replace_compared(live(), None)
    assert found.state == "equal"
    assert "orders: the archive does not know which ACLs it had" in found.notes


def replace_compared(
    now: LiveTopic | None, missing: tuple[Acl, ...] | None, extra: tuple[Acl, ...] = ()
) -> TopicComparison:
    return dataclasses.replace(compared(now), missing_acls=missing, extra_acls=extra)


def test_topics_with_the_same_settings_are_equal_whatever_the_order_of_a_list() -> None:
    found = compared(live())
    assert (found.state, found.differences) == ("equal", ())
    assert found.notes == ("orders: remote.storage.enable=true belonged to the old brokers and is left out",)
    assert not plan(live())


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({**SAME, "segment.bytes": "7"}, Difference("segment.bytes", "1000", "7")),
        ({"cleanup.policy": "compact,delete"}, Difference("segment.bytes", "1000", None)),
        ({**SAME, "flush.messages": "5"}, Difference("flush.messages", None, "5")),
        ({**SAME, "retention.ms": "5"}, Difference("retention.ms", None, "5")),
    ],
    ids=["changed", "not-set", "only-live", "only-live-with-an-archived-default"],
)
def test_a_setting_that_differs(own: dict[str, str], expected: Difference) -> None:
    found = compared(live(own))
    assert (found.state, found.differences) == ("differs", (expected,))
    assert compared(live(own), ignored=(expected.setting,)).state == "equal"


@pytest.mark.parametrize(
    ("own", "inherited"),
    [
        ({**SAME, "retention.ms": "86400000"}, {}),
        ({"cleanup.policy": "compact,delete"}, {**INHERITED, "segment.bytes": "1000"}),
        ({**SAME, "leader.replication.throttled.replicas": "*", "confluent.x": "1"}, INHERITED),
    ],
    ids=["as-the-old-default", "by-the-new-default", "of-the-brokers"],
)
def test_what_is_the_same_in_effect_is_no_difference(own: dict[str, str], inherited: dict[str, str]) -> None:
    assert compared(live(own, inherited)).state == "equal"


def test_partitions_are_added_and_never_removed() -> None:
    fewer, more = plan(live(partitions=2)), plan(live(partitions=4))
    assert fewer.compared.differences == (Difference("partitions", "3", "2"),)
    assert (fewer.adds_to, fewer.steps) == (3, ("topic orders gets 1 more partitions",))
    assert "another partition than those before" in fewer.notes[0]
    assert more.compared.differences == (Difference("partitions", "3", "4"),)
    assert (bool(more), more.steps) == (False, ())
    assert more.notes == ("orders: 4 partitions stay, as none is removed; 3 were archived",)


def test_what_differs_is_set_and_what_only_the_live_topic_has_is_reset_on_request_alone() -> None:
    now = live({**SAME, "segment.bytes": "7", "flush.ms": "9"})
    assert plan(now).change == ConfigChange({"segment.bytes": "1000"})
    assert "flush.ms stays as only the live topic has it" in plan(now).notes[0]
    resets = plan(now, reset_extra=True)
    assert (resets.change, resets.notes) == (ConfigChange({"segment.bytes": "1000"}, ("flush.ms",)), ())
    assert resets.steps == (
        "topic orders: segment.bytes=1000 is set",
        "topic orders: flush.ms is reset to the cluster's",
    )


def test_a_missing_topic_is_created_like_the_archived_one() -> None:
    archived = replace(ARCHIVED, config={**(ARCHIVED.config or {}), "min.insync.replicas": "2"})
    found = compared(None, archived, ("segment.bytes",))
    assert (found.state, found.differences) == ("missing", ())
    made = plan_topic(found, 1, reset_extra=True)
    assert made.creates is not None
    assert (made.creates.partitions, made.creates.replication_factor) == (3, 1)
    assert made.creates.config == {
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "2",
        "retention.bytes": "-1",
        "retention.ms": "86400000",
    }
    assert "min.insync.replicas=2 is above the replication factor 1" in made.notes[0]
    assert "choose with --replication-factor" in plan_topic(found, None, reset_extra=False).notes[0]
    now = live(made.creates.config)
    assert compared(now, archived, ("segment.bytes",)).state == "equal", "what was made like it is equal"
    assert made.outstanding(now) == ()


def test_what_should_be_known_beside_differences() -> None:
    archived = replace(ARCHIVED, replication_factor=3, config={"min.insync.replicas": "2"})
    notes = compared(live({"min.insync.replicas": "2"}, {"retention.ms": "1000"}), archived).notes
    assert notes == (
        "orders: its replication factor was 3 and is 1",
        "orders: min.insync.replicas=2 is above the replication factor 1: producers with acks=all are refused",
        "orders: retention.ms was 86400000 by the old cluster's default and is 1000 by this one's",
    )


def test_a_configuration_that_is_not_archived_is_not_compared() -> None:
    archived = replace(ARCHIVED, config=None, defaults=None)
    found = compared(live(partitions=2), archived)
    assert [each.setting for each in found.differences] == ["partitions"]
    assert "settings are not compared" in found.notes[0]
    assert "seven days" in plan(None, archived=archived).notes[0]


def test_what_is_not_done_of_a_plan_is_named() -> None:
    before = live({**SAME, "segment.bytes": "7", "flush.ms": "9"}, partitions=2)
    planned = plan(before, reset_extra=True)
    assert planned.outstanding(before) == (
        "partitions are 2 and not 3",
        "segment.bytes is 7 and not 1000",
        "flush.ms is still 9",
    )
    assert planned.outstanding(None) == ("the topic is missing",)
    assert planned.outstanding(live()) == ()
    assert plan(live()).outstanding(None) == ()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic, incarnation in (("orders", 1), ("orders", 2), ("users", 1), ("old", 1)):
        archive.partition(topic, 1, incarnation=incarnation).commit(records(range(3)))
    put_topic_config(archive, "orders", 4, {"cleanup.policy": "compact"})
    put_topic_config(archive, "orders", 5, {"cleanup.policy": "delete"}, incarnation=2)
    put_topic_config(archive, "users", 1, {})
    return tmp_path


def found(root: Path, *wanted: str) -> tuple[list[FoundTopic], list[NotInArchive]]:
    async def find() -> tuple[list[FoundTopic], list[NotInArchive]]:
        async with opened(ArchivePlace(parse_address(str(root)))) as archive:
            return await find_topics(archive, wanted)

    return asyncio.run(find())


def brief(found: tuple[list[FoundTopic], list[NotInArchive]]) -> list[tuple[str, int, dict[str, str] | None]]:
    return [(name, partitions, config.config) for name, config, partitions in found[0]]


def test_names_patterns_and_incarnations(root: Path) -> None:
    newest = ("orders", 5, {"cleanup.policy": "delete"})
    assert brief(found(root, "orders")) == [newest]
    assert brief(found(root, "orders~1")) == [("orders", 4, {"cleanup.policy": "compact"})]
    assert brief(found(root, "orders", "~[ou].*s", "orders")) == [newest, ("users", 2, {})], "a partition more was seen"
    with pytest.raises(UsageError, match="orders is named twice"):
        found(root, "orders", "orders~1")
    for wanted in ("nothing", "no*"):
        with pytest.raises(NotInArchive):
            found(root, wanted)


def test_a_topic_whose_configuration_was_not_kept_is_named_beside_the_others(root: Path) -> None:
    topics, unknown = found(root, "*")
    assert [each.name for each in topics] == ["orders", "users"]
    assert [error.what for error in unknown] == ["the archive does not say what topic old was like"]


def test_a_topic_that_the_cluster_does_not_have_is_missing(cluster: MockCluster) -> None:
    config = ArchivedTopic(topic="t", topic_id=None, partitions=2, replication_factor=1, config={}, defaults={})
    (compared,) = compare_all([FoundTopic("t", config, 2)], {"bootstrap.servers": cluster.bootstrap_servers})
    assert compared.state == "missing"


ARCHIVED_LIKE = ArchivedTopic(
    topic="orders",
    topic_id="id",
    partitions=6,
    replication_factor=3,
    config={
        "cleanup.policy": "compact",
        "segment.bytes": "1000",
        "min.insync.replicas": "2",
        "confluent.tier.enable": "true",
        "leader.replication.throttled.replicas": "*",
    },
    defaults={"retention.ms": "86400000", "max.message.bytes": "5000000", "flush.ms": "1"},
)


def test_a_new_topic_is_like_the_archived_one_where_records_are_concerned() -> None:
    topic = new_topic("copy", 6, ARCHIVED_LIKE, {"segment.bytes": "2000"}, without={MIN_INSYNC})
    assert topic.config == {
        "cleanup.policy": "compact",
        "max.message.bytes": "5000000",
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "-1",
        "retention.ms": "86400000",
        "segment.bytes": "2000",
    }
    assert topic.facts.num_partitions == 6
    assert topic.facts.config is not None
    assert topic.facts.config.compacts
    assert topic.facts.config.retention_ms == 86_400_000


@pytest.mark.parametrize(
    "archived",
    [None, ArchivedTopic(topic="t", topic_id=None, partitions=1, replication_factor=None, config=None, defaults=None)],
)
def test_where_the_archive_does_not_report_the_retention_is_not_taken_for_unlimited(
    archived: ArchivedTopic | None,
) -> None:
    facts = new_topic("copy", 1, archived, {}).facts
    assert facts.config is not None
    assert facts.config.retention_ms == 7 * 86_400_000
    assert new_topic("copy", 1, archived, {"retention.ms": "-1"}).facts.config == parse_config(
        {"max.message.bytes": "1048588", "retention.ms": "-1"}
    )


def test_what_belongs_to_the_brokers_stays_behind() -> None:
    assert carried_over(ARCHIVED_LIKE.config) == {
        "cleanup.policy": "compact",
        "min.insync.replicas": "2",
        "segment.bytes": "1000",
    }
    assert left_behind(ARCHIVED_LIKE.config) == {
        "confluent.tier.enable": "true",
        "leader.replication.throttled.replicas": "*",
    }
    assert carried_over(None) == left_behind(None) == {}


def test_settings_that_are_left_out_are_none_of_the_new_topic() -> None:
    topic = new_topic("copy", 1, ARCHIVED_LIKE, {}, without={"retention.ms", "segment.bytes"}, replication_factor=2)
    assert not topic.config.keys() & {"retention.ms", "segment.bytes"}
    assert creation_note(topic).startswith("topic copy is created with 1 partitions, replication factor 2 and cleanup.")


@pytest.mark.parametrize(
    ("archived", "numbers", "expected"), [(ARCHIVED_LIKE, [0], 6), (ARCHIVED_LIKE, [7], 8), (None, [2], 3)]
)
def test_partitions_are_those_that_were_seen(archived: ArchivedTopic | None, numbers: list[int], expected: int) -> None:
    assert partition_count(archived, numbers) == expected


def acl(name: str, principal: str = "User:a", pattern: str = "LITERAL", permission: str = "ALLOW") -> Acl:
    return Acl(pattern, name, principal, "*", "READ", permission)


def test_acls_on_the_new_name_alone_each_once() -> None:
    given = [acl("orders"), acl("ord", pattern="PREFIXED"), acl("*"), acl("*", "User:b", permission="DENY")]
    assert literal_acls(given, "copy") == (acl("copy"), acl("copy", "User:b", permission="DENY"))
    assert literal_acls([], "copy") == ()


def test_what_they_grant_is_compared_by_whatever_pattern() -> None:
    archived = [acl("*"), acl("orders", "User:b")]
    live = [acl("ord", pattern="PREFIXED"), acl("orders", "User:c")]
    found = compare_acls("orders", archived, live)
    assert found == ((acl("orders", "User:b"),), (acl("orders", "User:c"),))
    assert compare_acls("orders", None, live) == (None, ())


def test_text_for_people() -> None:
    assert acl_text(acl("orders")) == "ALLOW READ for User:a from *"
    assert "\x1b" not in acl_text(acl("orders", "User:\x1b[31m"))

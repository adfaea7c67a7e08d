"""Topics, their configurations and groups; partitions that nobody has or that wait to be claimed."""

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.archive import find_incarnation
from archiver.errors import GroupOfAnother, TopicGone
from archiver.ingest.assignment import (
    ASK_AGAIN_SECONDS,
    ASKS_FOR_ENDS,
    LOOKS,
    OWNERS_SECONDS,
    WHOLE,
    Drain,
    GroupMember,
    GroupOffsets,
    UnownedWatch,
)
from archiver.ingest.kafka_cluster import BoundsOrFailure, KafkaCluster, assigned_partitions
from archiver.ingest.kafka_source import KafkaSource, Partition, rebalance_seconds
from archiver.ingest.ownership import ClaimQueue
from archiver.ingest.topics import (
    UNKNOWN_FRESH_SECONDS,
    MissingTopics,
    TopicConfigs,
    TopicDirectory,
    TopicIds,
    TopicWatch,
    keep_topic_config,
    selected_topics,
)
from blockgz import errors
from blockgz.config.model import RunConfig
from blockgz.kafka import LogBounds
from blockgz.kafka.admin import TopicIdAnswers
from blockgz.kafka.connection import client_settings
from blockgz.store.local import LocalStore
from blockgz.topic_patterns import TopicSelection
from index_format import objects
from index_format.keys import TopicFolder
from index_format.objects import Acl, ArchiveInfo, TopicConfig
from tests.support.archives import records, topic_config
from tests.support.executors import Later
from tests.support.memory_store import MemoryStore
from tests.support.mock_cluster import PARTITIONS, MockCluster

ARCHIVE = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")


def directory(told: str | None, *, missing: bool = False, store: MemoryStore | None = None) -> TopicDirectory:
    answers = TopicIdAnswers({"orders": told} if told else {}, frozenset({"orders"} if missing else ()))
    return TopicDirectory(store or MemoryStore(), TopicIds(lambda _: answers, set), ARCHIVE)


def test_a_topic_is_confirmed_by_the_cluster_alone() -> None:
    directory("one").confirm("orders", "one")
    with pytest.raises(errors.BrokerUnreachable, match="is unknown"):
        directory(None).confirm("orders", "one")
    with pytest.raises(errors.PartitionUnavailable, match="created again"):
        directory("two").confirm("orders", "one")


def test_an_id_that_was_told_since_the_claim_is_remembered_where_the_cluster_is_silent() -> None:
    """Otherwise the new topic's records would be taken for the claimed one's as soon as the cluster is silent."""
    answers, now = ["one", "two", None, None, None], [0.0]

    def ask(_: object) -> TopicIdAnswers:
        told = answers.pop(0)
        return TopicIdAnswers({"orders": told} if told else {}, frozenset())

    topics = TopicDirectory(MemoryStore(), TopicIds(ask, set, lambda: now[0]), ARCHIVE, lambda: now[0])
    assert topics.id_of_claimed("orders", "one", 0.0) == "one"
    now[0] = 10.0
    assert topics.id_of_claimed("orders", "one", 0.0) == "two"
    for claimed, claimed_at, told in (("one", 0.0, "two"), ("two", 0.0, None), ("three", 11.0, None)):
        now[0] += 10.0
        assert topics.id_of_claimed("orders", claimed, claimed_at) == told


def test_an_id_that_is_not_confirmed_is_not_used_again() -> None:
    """For a few seconds many partitions share an answer; the topic may have been created again since."""
    told = ["one", "two", "two"]
    ids = TopicIds(lambda _: TopicIdAnswers({"orders": told.pop(0)}, frozenset()), set)
    topics = TopicDirectory(MemoryStore(), ids, ARCHIVE)
    assert topics.locate("orders") == topics.locate("orders") == ("one", TopicFolder("orders"))
    with pytest.raises(errors.PartitionUnavailable):
        topics.confirm("orders", "one")
    assert topics.locate("orders") == ("two", TopicFolder("orders", 2))


def test_a_topic_that_is_not_there_is_gone_and_gets_no_folder() -> None:
    store = MemoryStore()
    with pytest.raises(TopicGone):
        directory(None, missing=True, store=store).locate("orders")
    assert not store.objects


def test_a_topic_that_may_not_be_described_is_denied_and_gets_no_folder() -> None:
    store = MemoryStore()
    answers = TopicIdAnswers({}, frozenset(), {"orders": errors.AccessDenied("topic 'orders' cannot be described")})
    with pytest.raises(errors.AccessDenied, match="cannot be described"):
        TopicDirectory(store, TopicIds(lambda _: answers, set), ARCHIVE).locate("orders")
    assert not store.objects


def test_an_id_that_was_not_reported_is_asked_for_again_soon() -> None:
    now, told = 0.0, TopicIdAnswers({}, frozenset())
    ids = TopicIds(lambda _: told, set, lambda: now)
    topics = TopicDirectory(MemoryStore(), ids, ARCHIVE, lambda: now)
    assert topics.locate("orders")[0] is None
    told = TopicIdAnswers({"orders": "one"}, frozenset())
    ids.heard()
    assert topics.locate("orders")[0] is None, "many partitions share an answer"
    now += UNKNOWN_FRESH_SECONDS + 0.1
    assert topics.locate("orders")[0] == "one"


def test_an_id_that_was_not_known_is_adopted_once_and_tells_topics_apart() -> None:
    store = MemoryStore()
    assert directory(None, store=store).locate("orders") == (None, TopicFolder("orders"))
    later = directory("one", store=store)
    assert later.locate("orders") == ("one", TopicFolder("orders")) and later.archived_id(TopicFolder("orders")) is None
    later.adopt(TopicFolder("orders"), "one")
    later.adopt(TopicFolder("orders"), "two")
    assert later.archived_id(TopicFolder("orders")) == "one"
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="one").incarnation == 1
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="two").incarnation == 2


KEY = "topic=orders/_topic_config.json"


def stored(store: LocalStore) -> TopicConfig:
    found = store.get(KEY)
    assert found is not None
    return objects.decode(found.body, TopicConfig, KEY)


def seen(partitions: int = 4, config: dict[str, str] | None = None, topic_id: str | None = "id-1") -> TopicConfig:
    return TopicConfig(
        topic="orders",
        topic_id=topic_id,
        partitions=partitions,
        replication_factor=3,
        config=config,
        defaults=None if config is None else {"retention.ms": "1000"},
    )


def keep(store: LocalStore, config: TopicConfig, seen_at: int = 1_000) -> bool:
    return keep_topic_config(store, "topic", TopicFolder("orders"), config, seen_at=seen_at)


def dated(store: LocalStore) -> list[tuple[int, TopicConfig]]:
    keys = sorted(each.key for each in store.list("topic=orders/_configs/"))
    found = [store.get(key) for key in keys]
    configs = [objects.decode(each.body, TopicConfig, KEY) for each in found if each is not None]
    assert [int(key.rpartition("/")[2][:20]) for key in keys] == [each.seen_at for each in configs]
    return [(each.seen_at, replace(each, seen_at=UNSET)) for each in configs if each.seen_at is not UNSET]


def test_what_was_seen_last_is_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert keep(store, seen(config={}))
    assert not keep(store, seen(config={})), "nothing changed"
    assert keep(store, seen(6, {"cleanup.policy": "compact"}))
    assert stored(store) == seen(6, {"cleanup.policy": "compact"})


def test_every_version_is_kept_with_its_date(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for seen_at, partitions in [(1, 4), (2, 4), (3, 6), (4, 6), (5, 4)]:
        keep(store, seen(partitions, {}), seen_at)
    keep(store, seen(8, None), 6)
    assert dated(store) == [(1, seen(4, {})), (3, seen(6, {})), (5, seen(4, {})), (6, seen(8, {}))]
    assert stored(store) == seen(8, {})


def test_what_is_not_reported_any_more_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    keep(store, seen(4, {"cleanup.policy": "compact"}))
    assert keep(store, seen(6, None))
    assert stored(store) == seen(6, {"cleanup.policy": "compact"})
    assert keep(store, seen(6, None, topic_id="id-2")), "another topic has another configuration"
    assert stored(store).config is None


def test_acls_make_a_version_of_their_own_and_stay_when_they_are_not_reported(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    granted = replace(seen(config={}), acls=(Acl("LITERAL", "orders", "User:a", "*", "READ", "ALLOW"),))
    keep(store, seen(config={}), 1)
    keep(store, granted, 2)
    assert not keep(store, seen(config={}), 3), "who may not read them changes nothing"
    keep(store, replace(granted, acls=()), 4)
    assert dated(store) == [(1, seen(config={})), (2, granted), (4, replace(granted, acls=()))]
    keep(store, seen(config={}, topic_id="id-2"), 5)
    assert stored(store).acls is UNSET, "another topic has other ACLs"


WHOLE_CONFIG = topic_config(
    "orders",
    4,
    {"cleanup.policy": "compact"},
    {"retention.ms": "1"},
    acls=(Acl("LITERAL", "a", "User:a", "*", "READ", "ALLOW"),),
)


@pytest.mark.parametrize("less", [{"partitions": 0}, {"config": {}}, {"defaults": {}}, {"acls": ()}])
@pytest.mark.parametrize("is_true", [True, False])
def test_less_than_was_known_is_stored_after_a_second_answer(
    tmp_path: Path, less: dict[str, Any], is_true: bool
) -> None:
    """A broker that has just started may know of no ACL, setting or partition."""
    answers = [WHOLE_CONFIG, replace(WHOLE_CONFIG, **less), replace(WHOLE_CONFIG, **less) if is_true else WHOLE_CONFIG]
    waited: list[float] = []
    store = LocalStore(tmp_path)
    for later_process in (False, True):
        configs = TopicConfigs(
            store,
            "topic",
            lambda topic: ("id-1", TopicFolder(topic)),
            lambda topics: dict.fromkeys(topics, answers.pop(0)),
            wait=waited.append,
        )
        configs.keep(["orders"])
        assert len(waited) == later_process
    expected = replace(WHOLE_CONFIG, **less) if is_true else WHOLE_CONFIG
    assert replace(stored(store), topic_id=None) == expected
    assert len(dated(store)) == 1 + is_true


def test_another_process_may_win(tmp_path: Path) -> None:
    class Raced(LocalStore):
        def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
            super().compare_and_swap(key, objects.encode(seen(8, {})), expected)
            return super().compare_and_swap(key, body, expected)

    store = Raced(tmp_path)
    assert not keep(store, seen(4, {}))
    assert stored(store) == seen(8, {})


def test_trouble_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    troubles: list[Exception] = [errors.BrokerUnreachable("no broker"), errors.StoreUnavailable("no store")]

    def describe(topics: Sequence[str]) -> dict[str, TopicConfig]:
        if len(troubles) == 2:
            raise troubles.pop(0)
        return {topic: topic_config(topic, 4, {}, {}) for topic in topics if topic == "orders"}

    def locate(topic: str) -> tuple[str | None, TopicFolder]:
        if troubles:
            raise troubles.pop(0)
        return "id-1", TopicFolder(topic)

    store = LocalStore(tmp_path)
    configs = TopicConfigs(store, "topic", locate, describe)
    configs.keep(["orders", "gone"])
    configs.keep(["orders", "gone"])
    assert store.get(KEY) is None
    configs.keep(["orders", "gone"])
    expected = TopicConfig(topic="orders", topic_id="id-1", partitions=4, replication_factor=1, config={}, defaults={})
    assert stored(store) == expected
    assert [config for _, config in dated(store)] == [expected]


def test_a_topic_that_was_created_again_is_asked_about_when_it_is_claimed(tmp_path: Path) -> None:
    asked: list[str] = []

    def describe(topics: Sequence[str]) -> dict[str, TopicConfig]:
        asked.extend(topics)
        return {}

    configs = TopicConfigs(LocalStore(tmp_path), "topic", lambda topic: (None, TopicFolder(topic)), describe)
    old, new = TopicFolder("orders"), TopicFolder("orders", 2)
    with ThreadPoolExecutor(1) as pool:
        for at, claimed in enumerate([[], [old], [old], [new], [old], [new]]):
            configs.keep_due(["orders", "other"], float(at), pool, claimed)
            pool.submit(bool).result(10)
    assert asked == ["orders", "other", "orders"]


def test_a_damaged_one_is_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.compare_and_swap(KEY, b"{}", None)
    configs = TopicConfigs(
        store,
        "topic",
        lambda topic: (None, TopicFolder(topic)),
        lambda _: {"orders": topic_config("orders", 4, {}, {})},
    )
    configs.keep(["orders"])
    found = store.get(KEY)
    assert found is not None
    assert found.body == b"{}"


def test_a_broker_that_tells_the_partitions_only() -> None:
    mock = MockCluster()
    mock.create_topic("orders")
    cluster = KafkaCluster(client_settings({"bootstrap.servers": mock.bootstrap_servers}, "test"))
    assert cluster.describe(["orders", "gone"]) == {"orders": topic_config("orders", PARTITIONS, None, None)}


def test_topics_are_looked_up_again_when_it_is_time() -> None:
    answers: list[Collection[str]] = [["b-1", "a", "b-2"]]

    def ask() -> dict[str, int]:
        if not answers:
            raise errors.BrokerUnreachable("no answer")
        return dict.fromkeys(answers.pop(), 1)

    later = Later()
    watch = TopicWatch(TopicSelection(["b-*"]), ask, later, every_seconds=30, topics=[], now=1000)
    assert watch.topics(1029.9) is None and not later.submitted
    assert watch.topics(1030) is None and len(later.submitted) == 1
    assert watch.topics(1031) is None and len(later.submitted) == 1, "one look at a time"
    later.carry_out()
    assert watch.topics(1032) == ["b-1", "b-2"]
    assert watch.topics(1061.9) is None and not later.submitted, "the interval counts from the answer"
    assert watch.topics(1062) is None
    later.carry_out()
    assert watch.topics(1063) is None, "without an answer nothing changes"
    assert watch.topics(1093) is None and later.submitted, "and it is asked again"


def test_a_topic_is_gone_if_two_answers_in_a_row_lack_it() -> None:
    """A broker that has just started may know of none."""
    answers = [["a"], ["a", "b"], [], ["a", "b"], ["b"], ["b", "c"], [], ["b"], []]
    seen = []
    with ThreadPoolExecutor(1) as executor:
        watch = TopicWatch(
            TopicSelection(["*"]),
            lambda: dict.fromkeys(answers[len(seen)], 1),
            executor,
            every_seconds=0,
            topics=["a", "b"],
            now=0,
        )
        for _ in answers:
            while (topics := watch.topics(1)) is None:
                pass
            seen.append("".join(topics))
    assert seen == ["ab", "ab", "ab", "ab", "ab", "bc", "bc", "b", "b"]


def test_one_of_the_named_topics_must_exist() -> None:
    assert selected_topics(TopicSelection(["b", "a*"]), ["b", "a1", "c"]) == ["a1", "b"]
    assert selected_topics(TopicSelection(["a*"]), ["b"]) == []
    with pytest.raises(errors.NoSuchTopic) as caught:
        selected_topics(TopicSelection(["e", "d", "x*"]), ["b", "__consumer_offsets"])
    assert caught.value.what == "the cluster has no topic 'd', 'e'" and caught.value.why == "it has b"


def test_patterns_leave_out_drills_which_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """What a replay or a restore made is archived like any other topic."""
    known = ["drill.a", "drill.b", "drill.c", "orders-copy", "restored.orders", "xdrill.a"]
    selection = TopicSelection(["*", "drill.b"], ["*.c"], of_source=True)
    assert selection(known) == ["drill.b", "orders-copy", "restored.orders", "xdrill.a"]
    missing = MissingTopics(selection)
    missing.look([*known[3:], "drill.b"])
    assert not caplog.messages
    for _ in range(3):
        missing.look(known)
    (told,) = caplog.messages
    assert "drill.a" in told and "drill.b" not in told and "drill.c" not in told
    assert TopicSelection(["*"])(known) == known, "other commands do not leave them out"
    MissingTopics(TopicSelection(["orders*"], of_source=True)).look(known)
    assert len(caplog.messages) == 1, "no pattern would match them"


def test_named_topics_that_are_missing_keep_nothing_else_back(caplog: pytest.LogCaptureFixture) -> None:
    selection = TopicSelection(["b", "d", "e", "left-out"], ["left-*"])
    assert selected_topics(selection, ["b"]) == ["b"]
    missing = MissingTopics(selection)
    looks = [(["b"], ["d", "e"], 2), (["b", "d"], ["e"], 0), (["b", "d", "e"], [], 0), (["d"], ["b", "e"], 2)]
    for known, expected, warnings in looks:
        caplog.clear()
        missing.look(known)
        assert missing.names == expected
        assert len(caplog.messages) == warnings, "each is told when it goes missing, not at every look"


ORDERS = ("orders", 1)
OFFSET_FETCH, NOT_COORDINATOR = 9, 16
"""Kafka's numbers of the request and of the error."""
Answer = Mapping[Partition, str] | errors.BrokerUnreachable


class Asked:
    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.topics: list[Sequence[str]] = []

    def __call__(self, topics: Sequence[str]) -> Mapping[Partition, str]:
        self.topics.append(topics)
        answer = self.answers.pop(0)
        if isinstance(answer, errors.BrokerUnreachable):
            raise answer
        return answer


def test_before_subscribing() -> None:
    for answer in ({}, {ORDERS: "mine"}, errors.BrokerUnreachable("no answer")):
        GroupOffsets("group", "mine", Asked(answer), Later()).check(["orders"])
    with pytest.raises(GroupOfAnother) as caught:
        GroupOffsets("group", "mine", Asked({("orders", 0): "mine", ORDERS: "theirs"}), Later()).check(["orders"])
    assert errors.exit_code(caught.value) == 11
    assert all(text in str(caught.value.why) for text in ("orders:1", "theirs", "mine"))
    assert "--group-id" in caught.value.remedy and "--takeover" in caught.value.remedy


def test_with_commits_and_without_waiting() -> None:
    asked, later = Asked({ORDERS: "mine"}, errors.BrokerUnreachable("no answer"), {ORDERS: "theirs"}), Later()
    offsets = GroupOffsets("group", "mine", asked, later)
    offsets.check_again(["orders"], 1000)
    offsets.check_again(["orders"], 1000 + OWNERS_SECONDS)
    assert not asked.topics, "one question at a time, and nobody waits for it"
    later.carry_out()
    offsets.check_again(["orders"], 1001)
    offsets.check_again(["orders"], 1000 + OWNERS_SECONDS)
    assert not later.submitted, "not with every commit"
    offsets.check_again(["orders", "payments"], 1001 + OWNERS_SECONDS)
    later.carry_out()
    offsets.check_again(["orders"], 1001 + OWNERS_SECONDS)
    offsets.check_again(["orders"], 1001 + 2 * OWNERS_SECONDS)
    later.carry_out()
    assert asked.topics == [["orders"], ["orders", "payments"], ["orders"]]
    with pytest.raises(GroupOfAnother):
        offsets.check_again(["orders"], 1002 + 2 * OWNERS_SECONDS)


def test_what_a_cluster_tells() -> None:
    cluster = MockCluster()
    for topic in ("orders", "payments"):
        cluster.create_topic(topic)
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "group"}
    former = Consumer(settings)
    former.commit(offsets=[TopicPartition("orders", 0, 5), TopicPartition("payments", 0, 5, "b")], asynchronous=False)
    former.close()
    source = KafkaSource(settings, 1024**2, metadata="archive-1")
    source.commit({ORDERS: 7})
    source.close()
    asked = KafkaCluster({"bootstrap.servers": cluster.bootstrap_servers})
    assert asked.committed_metadata("group", ["orders"]) == {ORDERS: "archive-1"}
    assert asked.committed_metadata("group", ["orders", "missing", "payments"]) == {
        ORDERS: "archive-1",
        ("payments", 0): "b",
    }
    assert asked.committed_metadata("another", ["orders"]) == {}
    assert asked.committed_metadata("group", []) == {}
    cluster.refuse(OFFSET_FETCH, NOT_COORDINATOR, 1)
    with pytest.raises(errors.BrokerUnreachable):  # and the process lives on
        asked.committed_metadata("group", ["orders"])
    assert asked.committed_metadata("group", ["orders"]) == {ORDERS: "archive-1"}


FIRST, SECOND = ("orders", 0), ("orders", 1)
PATIENCE = 12.0
EVERY = PATIENCE / LOOKS


class Group:
    """What a group says when it is asked: partitions that nobody has, or nothing."""

    def __init__(self) -> None:
        self.unowned: set[Partition] | None = set()
        self.asked: list[Sequence[str]] = []
        self.later = Later()
        self.watch = UnownedWatch(self._ask, self.later, PATIENCE)

    def _ask(self, topics: Sequence[str]) -> set[Partition]:
        self.asked.append(topics)
        if self.unowned is None:
            raise errors.BrokerUnreachable("no answer")
        return self.unowned

    def look(self, now: float) -> set[Partition]:
        """Ask, and take the answer."""
        assert self.watch.look(["orders"], now) == set()
        self.later.carry_out()
        return self.watch.look(["orders"], now)


def test_a_partition_counts_as_forgotten_once_a_rebalance_would_be_over() -> None:
    group = Group()
    group.unowned = {FIRST, SECOND}
    assert group.look(1000) == set()
    group.unowned = {FIRST}  # the other was given out
    assert group.look(1000 + EVERY) == set()
    group.unowned = {FIRST, SECOND}
    assert group.look(1000 + PATIENCE - 0.1) == set()
    assert group.look(1000 + PATIENCE - 0.1 + EVERY) == {FIRST}
    assert group.look(1000 + PATIENCE - 0.1 + 2 * EVERY) == set(), "a rebalance is to give it out first"
    assert group.look(1000 + 2 * PATIENCE) == {SECOND}
    assert group.look(1000 + 3 * PATIENCE) == {FIRST, SECOND}, "and if it does not, there is another"


def test_it_is_asked_now_and_then_and_nobody_waits() -> None:
    group = Group()
    assert group.watch.look(["orders"], 1000) == set()
    assert group.watch.look(["orders"], 1000 + EVERY) == set() and len(group.later.submitted) == 1
    group.later.carry_out()
    assert group.watch.look(["orders"], 1000 + EVERY) == set() and not group.later.submitted
    assert group.watch.look(["payments"], 1000 + 2 * EVERY) == set()
    group.later.carry_out()
    assert group.asked == [["orders"], ["payments"]]


def test_no_answer_says_nothing() -> None:
    group = Group()
    group.unowned = {FIRST}
    assert group.look(1000) == set()
    group.unowned = None
    assert group.look(1000 + PATIENCE) == set()
    group.unowned = {FIRST}
    assert group.look(1000 + PATIENCE + EVERY) == {FIRST}
    group.unowned = set()
    assert group.look(1000 + 3 * PATIENCE) == set()


@pytest.mark.parametrize(("session_ms", "seconds"), [(None, 90), ("6000", 12), ("${env:SESSION}", 90)])
def test_a_rebalance_takes_sessions(session_ms: str | None, seconds: float) -> None:
    kafka = {"session.timeout.ms": session_ms} if session_ms else {}
    config = RunConfig.model_validate(
        {"archive": "./unused", "bootstrap_servers": "b:9092", "topics": ("orders",), "kafka": kafka}
    )
    assert rebalance_seconds(config) == seconds


def test_what_a_member_was_assigned() -> None:
    orders = b"\0\6orders" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\7"
    empty = "\0\3\u00fc-".encode() + b"\0\0\0\0"
    assert list(assigned_partitions(b"\0\1" + b"\0\0\0\2" + orders + empty + b"user")) == [("orders", 0), ("orders", 7)]
    assert list(assigned_partitions(b"")) == list(assigned_partitions(None)) == []


CONFIG = RunConfig(archive="./unused", bootstrap_servers="b:9092", topics=("orders",), once=True)


class Acquired:
    """Stands for the partitions of the process."""

    is_over = True

    def __init__(self) -> None:
        self.ends: dict[Partition, tuple[int, int]] = {}
        self.refused: dict[Partition, errors.BlockgzError] = {}

    def acquire(self, partition: Partition, end: int, high: int) -> None:
        self.ends[partition] = end, high

    def refuse(self, partition: Partition, error: errors.BlockgzError) -> None:
        self.refused[partition] = error

    def give_up(self, *_: object) -> None: ...


def drain(cluster: Any, acquired: Any, executor: ThreadPoolExecutor) -> Drain:
    return Drain(CONFIG, cluster, acquired, {"orders": 4}, WHOLE, lambda: None, executor)


def test_a_topic_that_is_written_to_has_no_open_transaction() -> None:
    mock = MockCluster()
    mock.create_topic("orders")

    class BusyCluster(KafkaCluster):
        """With a topic that grows with every question."""

        def ask_bounds(
            self, partitions: Collection[Partition], isolation_level: str
        ) -> dict[Partition, BoundsOrFailure]:
            found = super().ask_bounds(partitions, isolation_level)
            for _, number in partitions:
                mock.produce("orders", number, records(range(2)))
            return found

    acquired = Acquired()
    with ThreadPoolExecutor(1) as executor:
        drain(BusyCluster({"bootstrap.servers": mock.bootstrap_servers}), acquired, executor).start()
    assert len(acquired.ends) == 4
    assert all(high <= end for end, high in acquired.ends.values()), acquired.ends


class ScriptedCluster:
    """One topic, of which three partitions are asked about in vain."""

    def __init__(self) -> None:
        self.answers: dict[Partition, BoundsOrFailure] = {
            ("orders", 0): LogBounds(0, 10),
            ("orders", 1): errors.PartitionUnavailable("no leader"),
            ("orders", 2): errors.AccessDenied("no"),
            ("orders", 3): errors.PartitionUnavailable("no leader"),
        }
        self.asked: list[Collection[Partition]] = []

    def topics(self) -> dict[str, int]:
        return {"orders": 4}

    def ask_bounds(self, partitions: Collection[Partition], _: str) -> dict[Partition, BoundsOrFailure]:
        self.asked.append(partitions)
        return {partition: self.answers[partition] for partition in partitions}


def test_partitions_without_a_leader_are_asked_for_again_and_left_in_the_end() -> None:
    cluster, acquired, now = ScriptedCluster(), Acquired(), 0.0
    with ThreadPoolExecutor(1) as executor:
        drained = drain(cluster, acquired, executor)
        drained.start()
        assert (acquired.ends, list(acquired.refused)) == ({("orders", 0): (10, 10)}, [("orders", 2)])
        assert len(cluster.asked) == 2, "every end was asked for at once"
        cluster.answers["orders", 3] = LogBounds(0, 7)
        for _ in range(3 * ASKS_FOR_ENDS):
            assert not drained.is_over or now > ASK_AGAIN_SECONDS * (ASKS_FOR_ENDS - 1)
            drained.tick(now)
            executor.submit(int).result()  # the question before it is answered
            now += ASK_AGAIN_SECONDS
        assert drained.is_over
    assert acquired.ends == {("orders", 0): (10, 10), ("orders", 3): (7, 7)}
    assert sorted(acquired.refused) == [("orders", 1), ("orders", 2)]
    assert len(cluster.asked) == 2 * (1 + ASKS_FOR_ENDS)


def test_topics_that_a_second_answer_lacks_are_drained_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may know of none; without partitions the run would end at once, with success."""
    cluster, acquired = ScriptedCluster(), Acquired()
    monkeypatch.setattr(cluster, "topics", dict)
    with ThreadPoolExecutor(1) as executor:
        drain(cluster, acquired, executor).start()
    assert ("orders", 0) in acquired.ends


def test_ended_before_an_end_is_known() -> None:
    cluster, acquired = ScriptedCluster(), Acquired()
    with ThreadPoolExecutor(1) as executor:
        drained = drain(cluster, acquired, executor)
        drained.start()
        drained.give_up([])
    assert sorted(acquired.refused) == [("orders", 1), ("orders", 2), ("orders", 3)]


@pytest.mark.parametrize("takeover", [False, True])
def test_a_group_of_another_archive_is_not_joined_unless_it_is_taken_over(takeover: bool) -> None:
    config = RunConfig(archive="./unused", bootstrap_servers="broker:9092", topics=("orders",), takeover=takeover)
    subscribed: list[Sequence[str]] = []
    fetching: Any = SimpleNamespace(subscribe=lambda topics, _: subscribed.append(topics))
    offsets = GroupOffsets("group", "mine", lambda _: {("orders", 0): "theirs"}, Later())
    nobody: Any = None
    member = GroupMember(
        config, nobody, fetching, ["orders"], nobody, offsets, nobody, rest=lambda: None, wait=lambda seconds: None
    )
    with nullcontext() if takeover else pytest.raises(GroupOfAnother):
        member.start()
    assert subscribed == ([["orders"]] if takeover else [])


SECONDS = 10
THREADS = 2


def test_bounds_are_asked_for_in_a_batch_and_sick_partitions_take_no_thread() -> None:
    partitions = [("orders", number) for number in range(40)]
    sick = set(partitions[:30])
    asked: list[Collection[Partition]] = []
    threads = set[str]()

    def ask(wanted: Collection[Partition]) -> dict[Partition, BoundsOrFailure]:
        asked.append(wanted)
        return {
            each: errors.PartitionUnavailable("no leader") if each in sick else LogBounds(1, each[1]) for each in wanted
        }

    def claim(partition: Partition, bounds: LogBounds) -> tuple[Partition, LogBounds]:
        assert partition not in sick
        threads.add(threading.current_thread().name)
        return partition, bounds

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[tuple[Partition, LogBounds]] = ClaimQueue(ask, executor)
        claims = {partition: queue.submit(partition, claim) for partition in partitions}
        queue.ask()
        for partition, result in claims.items():
            if partition in sick:
                with pytest.raises(errors.PartitionUnavailable):
                    result.result(SECONDS)
            else:
                assert result.result(SECONDS) == (partition, LogBounds(1, partition[1]))
        queue.ask()
        again = queue.submit(("orders", 39), claim)
        queue.ask()
        again.result(SECONDS)
    assert asked == [partitions, [("orders", 39)]]


def test_what_a_claim_raises_is_its_results() -> None:
    def claim(partition: Partition, bounds: LogBounds) -> None:
        raise KeyError("x")

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[None] = ClaimQueue(lambda each: dict.fromkeys(each, LogBounds(0, 0)), executor)
        result = queue.submit(("orders", 0), claim)
        queue.ask()
        failure = result.exception(SECONDS)
    assert isinstance(failure, errors.BlockgzError) and isinstance(failure.__cause__, KeyError)


def test_a_fault_of_our_own_leaves_no_claim_waiting_forever() -> None:
    def ask(_: object) -> dict[Partition, LogBounds]:
        raise KeyError("x")

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[None] = ClaimQueue(ask, executor)
        results = [queue.submit(("orders", number), lambda *_: None) for number in range(3)]
        queue.ask()
        assert all(isinstance(result.exception(SECONDS), errors.BlockgzError) for result in results)

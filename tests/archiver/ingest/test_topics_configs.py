"""Topics' configurations, kept beside their chunks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.topics import TopicConfigs, keep_topic_config
from blockgz.errors import BrokerUnreachable, StoreUnavailable
from blockgz.kafka.settings import client_settings
from blockgz.store.local import LocalStore
from index_format import objects
from index_format.identity import Acl, TopicConfig
from index_format.keys import TopicFolder
from tests.support.archives import topic_config
from tests.support.mock_cluster import PARTITIONS, MockCluster

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


WHOLE = topic_config(
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
    answers = [WHOLE, replace(WHOLE, **less), replace(WHOLE, **less) if is_true else WHOLE]
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
    expected = replace(WHOLE, **less) if is_true else WHOLE
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
    troubles: list[Exception] = [BrokerUnreachable("no broker"), StoreUnavailable("no store")]

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

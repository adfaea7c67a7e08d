"""What a new topic is made like."""

import pytest

from index_format.identity import TopicConfig as ArchivedTopic
from replayer.kafka.topic_facts import parse_config
from replayer.topics import (
    MIN_INSYNC,
    carried_over,
    creation_note,
    left_behind,
    new_topic,
    partition_count,
)

ARCHIVED = ArchivedTopic(
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
    topic = new_topic("copy", 6, ARCHIVED, {"segment.bytes": "2000"}, without={MIN_INSYNC})
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
    assert carried_over(ARCHIVED.config) == {
        "cleanup.policy": "compact",
        "min.insync.replicas": "2",
        "segment.bytes": "1000",
    }
    assert left_behind(ARCHIVED.config) == {
        "confluent.tier.enable": "true",
        "leader.replication.throttled.replicas": "*",
    }
    assert carried_over(None) == left_behind(None) == {}


def test_settings_that_are_left_out_are_none_of_the_new_topic() -> None:
    topic = new_topic("copy", 1, ARCHIVED, {}, without={"retention.ms", "segment.bytes"}, replication_factor=2)
    assert not topic.config.keys() & {"retention.ms", "segment.bytes"}
    assert creation_note(topic).startswith("topic copy is created with 1 partitions, replication factor 2 and cleanup.")


@pytest.mark.parametrize(("archived", "numbers", "expected"), [(ARCHIVED, [0], 6), (ARCHIVED, [7], 8), (None, [2], 3)])
def test_partitions_are_those_that_were_seen(archived: ArchivedTopic | None, numbers: list[int], expected: int) -> None:
    assert partition_count(archived, numbers) == expected

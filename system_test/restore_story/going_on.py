"""Consumers that go on in a restored cluster, each with its group's id; what they read is noted."""

import time
from collections import defaultdict
from collections.abc import Collection

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from system_test.restore_story.notes import Found, NoteBook, Stamped
from system_test.restore_story.traffic import stamped
from system_test.support.topics import Record, topic_names
from system_test.support.waiting import wait_until

ASSIGNED_SECONDS = 20.0
"""So long a consumer may take until it has all partitions."""
OURS = "blockgz-"
"""What the groups begin with that a restore leaves behind."""


def go_on(bootstrap: str, book: NoteBook, prefix: str = "") -> set[str]:
    """Reads all topics whose names begin so, then lets every group of such a name go on; the names of the topics."""
    topics = {name for name in topic_names(bootstrap) if name.startswith(prefix)}
    _note(book, bootstrap, None, topics, prefix)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        groups = {each["group_id"] for each in admin.list_groups() if not each["group_id"].startswith(OURS)}
        stand = admin.list_group_offsets([each for each in groups if each.startswith(prefix)])
    for group, offsets in stand.items():
        _note(book, bootstrap, group, {place.topic for place in offsets}, prefix)
    return {name.removeprefix(prefix) for name in topics}


def _note(book: NoteBook, bootstrap: str, group: str | None, topics: Collection[str], prefix: str) -> None:
    for place, records in _read(bootstrap, group, topics).items():
        name = None if group is None else group.removeprefix(prefix)
        book.add(Found(name, place.topic.removeprefix(prefix), place.partition, tuple(records)))


def _read(bootstrap: str, group: str | None, topics: Collection[str]) -> dict[TopicPartition, list[Stamped]]:
    """What a consumer gets that subscribes to topics; one of a group must find a position in every partition.

    This client may join before it knows all topics, and then never asks for their partitions: it is made again.
    """
    while True:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest" if group is None else "none",
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
            max_poll_records=5000,
            metrics_enabled=False,
        )
        try:
            read = _read_by(consumer, group, topics)
        finally:
            consumer.close(autocommit=False)
        if read is not None:
            return read


def _read_by(
    consumer: KafkaConsumer, group: str | None, topics: Collection[str]
) -> dict[TopicPartition, list[Stamped]] | None:
    """None where not all partitions were assigned in time."""
    found = defaultdict[TopicPartition, list[Stamped]](list)

    def is_read(ends: dict[TopicPartition, int]) -> bool:
        for place, records in consumer.poll(timeout_ms=200).items():
            found[place] += [
                stamped(Record(*(getattr(each, name) for name in Record.__annotations__))) for each in records
            ]

        return bool(ends) and all(consumer.position(place) >= end for place, end in ends.items())

    def everything() -> set[TopicPartition]:
        return {TopicPartition(topic, each) for topic in topics for each in consumer.partitions_for_topic(topic) or ()}

    consumer.subscribe(list(topics))
    given_up_at = time.monotonic() + ASSIGNED_SECONDS
    while not consumer.assignment() or consumer.assignment() != everything():
        if time.monotonic() > given_up_at:
            return None
        is_read({})
    ends = consumer.end_offsets(consumer.assignment())
    wait_until(lambda: is_read(ends), 60, f"group {group} to read to the end")
    return {place: found[place] for place in ends}

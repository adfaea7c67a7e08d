"""Positions of consumer groups in a cluster: read, set, removed."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import BROKER_DEADLINE_SECONDS, kafka_failure
from blockgz.kafka.groups import ClusterGroups, CommittedOffset, GroupOffsets, listed_groups
from blockgz.kafka.settings import client_settings, make_client
from replayer.kafka import CLIENT_ID

IDLE = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
ASK_SECONDS = 30.0
"""So long groups are asked, however many there are."""


class GroupOffset(NamedTuple):
    """The offset of the next record that a group reads of a partition, and the text that its consumer left there."""

    offset: int
    metadata: str | None = None


class GroupMembers(NamedTuple):
    """Whether consumers are at work in a group: then its positions are theirs to set."""

    active: bool
    state: str
    clients: tuple[str, ...] = ()


class GroupsInTopic(NamedTuple):
    """The groups that have a position in a topic, and those of which that is not known."""

    found: tuple[str, ...]
    unknown: tuple[str, ...]


class KafkaGroups:
    """The consumer groups of one cluster.

    Calls block, and raise BrokerUnreachable, AccessDenied or PartitionUnavailable.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises UsageError."""
        self._settings = client_settings(properties, CLIENT_ID)
        self._admin: AdminClient = make_client(AdminClient, self._settings)

    def members(self, groups: Collection[str]) -> dict[str, GroupMembers]:
        """Who is at work in each group; a group that does not exist is not active.

        Asked by lists of groups: `describe_consumer_groups` of librdkafka 2.16 aborts the process where the broker of
        a group's coordinator goes away meanwhile.
        """
        listed = listed_groups(self._admin)
        return {group: self._members(group, listed.get(group, ConsumerGroupState.DEAD)) for group in groups}

    def _members(self, group: str, state: ConsumerGroupState) -> GroupMembers:
        if state in IDLE:
            return GroupMembers(active=False, state=state.name)
        try:
            described = self._admin.list_groups(group, timeout=BROKER_DEADLINE_SECONDS)
        except KafkaException as error:
            raise kafka_failure(error.args[0], f"consumer group {group!r} cannot be described") from error
        clients = {str(member.client_id) for each in described for member in each.members}
        return GroupMembers(active=True, state=state.name, clients=tuple(sorted(clients)))

    def positions(self, group: str, topic: str, partitions: Collection[int]) -> dict[int, GroupOffset]:
        """Where a group stands on these partitions of a topic; those where it has no position are left out."""
        wanted = [(topic, partition) for partition in sorted(partitions)]
        with self._offsets(group, f"the positions of consumer group {group!r} in {topic} cannot be read") as offsets:
            found = offsets.committed(wanted, BROKER_DEADLINE_SECONDS)
        return {each.partition: GroupOffset(each.offset, each.metadata_text) for each in found}

    def has_others(self, group: str, topic: str, partitions: Collection[int]) -> bool:
        """Whether a group has positions anywhere else."""
        what = f"the positions of consumer group {group!r} cannot be read"
        own = {(topic, partition) for partition in partitions}
        try:
            topics = self._admin.list_topics(timeout=BROKER_DEADLINE_SECONDS).topics
        except KafkaException as error:
            raise kafka_failure(error.args[0], what) from error
        places = {(name, number) for name, found in topics.items() for number in found.partitions}
        with self._offsets(group, what) as offsets:
            return bool(offsets.committed(sorted(places - own), BROKER_DEADLINE_SECONDS))

    def in_topic(self, topic: str, num_partitions: int, seconds: float = ASK_SECONDS) -> GroupsInTopic:
        """Which groups have a position in a topic; one that gives no answer is not waited for beyond `seconds`."""
        cluster = ClusterGroups(self._settings, self._admin)
        listed = sorted(cluster.ids())
        answers = cluster.positions(listed, {topic: num_partitions}, seconds).answers
        return GroupsInTopic(
            tuple(each for each in listed if each in answers and answers[each].positions),
            tuple(each for each in listed if each not in answers),
        )

    def set_positions(self, group: str, topic: str, positions: Mapping[int, GroupOffset]) -> None:
        """Sets where a group without consumers stands, with no leader epoch: another cluster's mean nothing here."""
        wanted = [
            CommittedOffset(topic, partition, position.offset, (position.metadata or "").encode())
            for partition, position in sorted(positions.items())
        ]
        with self._offsets(group, f"the positions of consumer group {group!r} in {topic} cannot be set") as offsets:
            offsets.commit(wanted)

    def delete(self, group: str) -> None:
        """Delete a group with all its positions; it may be gone already."""
        apart: AdminApart = make_client(AdminApart, self._settings)
        try:
            apart.delete_group(group, BROKER_DEADLINE_SECONDS)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise kafka_failure(failure, f"consumer group {group!r} cannot be deleted") from error

    @contextmanager
    def _offsets(self, group: str, what: str) -> Iterator[GroupOffsets]:
        offsets: GroupOffsets = make_client(GroupOffsets, {**self._settings, "group.id": group})
        try:
            yield offsets
        except KafkaException as error:
            raise kafka_failure(error.args[0], what) from error
        finally:
            offsets.close()

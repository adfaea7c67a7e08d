"""Clients of the simulated cluster: a consumer below the real KafkaSource and KafkaLog, and an admin's questions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from archiver.ingest.kafka_cluster import BoundsOrFailure
from blockgz.errors import BrokerUnreachable, PartitionUnavailable
from blockgz.kafka import LogBounds
from blockgz.kafka.admin import TopicIdAnswers
from index_format.objects import TopicConfig
from tests.support.archives import topic_config
from tests.support.service_simulation.group import Group, Member
from tests.support.service_simulation.logs import Cluster, Log, Partition
from tests.support.service_simulation.virtual_time import NOW

BROKER_SECONDS = 10.0
COMMIT_SECONDS = 0.3
"""Until a commit of the group's offsets is answered."""
FACTS_SECONDS = 3.0
TOPIC_SECONDS = 5.0
"""How often archivers look for topics."""
BASE_MS = 1_760_000_000_000


class Kafka:
    """One cluster and its group, and what clients were told."""

    def __init__(self, cluster: Cluster, group: Group) -> None:
        self.cluster = cluster
        self.group = group
        self.ids_told: dict[tuple[str, str], float] = {}
        """Host and topic id -> when the question was asked that was last answered with that id."""
        self.ids_first_told: dict[tuple[str, str], float] = {}
        """Host and topic id -> when that id was answered first."""
        self.versions_seen: dict[tuple[str, Partition], tuple[str, int]] = {}
        """Host and partition -> the topic id and version of the log that was looked at last."""

    def request(self, what: str) -> str:
        """Somebody asks the cluster: takes a moment; gives the host."""
        hub = NOW.hub
        hub.note_request(what)
        task = hub.current
        assert task is not None
        hub.sleep(0.002 + 0.018 * hub.rng.random())
        return task.host.name

    def wait_for_answer(self, host: str, seconds: float) -> bool:
        """Whether the cluster answers the host within that time; takes it all where it does not."""
        cluster, hub = self.cluster, NOW.hub
        if cluster.answers(host):
            return True
        hub.sleep(min(seconds, max(0.0, cluster.answers_at(host) - hub.now)))
        return cluster.answers(host)

    def saw(self, host: str, partition: Partition, log: Log) -> None:
        self.versions_seen[host, partition] = (log.topic_id, log.version)


@dataclass
class Position:
    offset: int
    topic_id: str
    version: int
    told_end: int | None = None
    is_broken: bool = False
    """An error was told; nothing is fetched until it is assigned again."""
    was_missing: bool = False


class SimulatedConsumer:
    """What the archiver uses of confluent_kafka.Consumer.

    One that consumes notices that its log was truncated since the bounds were asked for; one that reads single records
    is asked for an offset of the log as it is.
    """

    def __init__(self, kafka: Kafka, settings: Mapping[str, Any]) -> None:
        task = NOW.hub.current
        assert task is not None
        self._host = task.host.name
        self._kafka = kafka
        self._is_committed_only = settings.get("isolation.level") != "read_uncommitted"
        self._consumes = "queued.min.messages" not in settings
        self._positions: dict[Partition, Position] = {}
        self._paused: set[Partition] = set()
        self._member: Member | None = None
        self._on_commit = settings.get("on_commit")
        self._unanswered: list[tuple[float, Sequence[TopicPartition]]] = []
        """Commits, and when each is answered."""
        self._is_revoking = False

    def subscribe(
        self, topics: Sequence[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> None:
        def revoke(consumer: object, partitions: Sequence[TopicPartition]) -> None:
            self._is_revoking = True
            on_revoke(consumer, partitions)
            self._is_revoking = False

        def told(callback: Callable[..., None]) -> Callable[[Sequence[Partition]], None]:
            return lambda partitions: callback(self, [TopicPartition(*each) for each in partitions])

        if self._member is None:
            member = Member(self._host, frozenset(topics), told(on_assign), told(revoke), told(on_lost))
            self._member = member
            self._kafka.group.join(member)
        else:
            self._check_left(self._member.topics.difference(topics))
            self._member.topics = frozenset(topics)
            self._kafka.group.rebalance()

    def _check_left(self, topics: Collection[str]) -> None:
        """A topic that was there all the time is not left because one answer lacked it."""
        for name in topics:
            topic = self._kafka.cluster.topics.get(name)
            if topic is not None and topic.created_at < NOW.hub.now - 3 * TOPIC_SECONDS:
                NOW.hub.failures.append(AssertionError(f"{self._host} leaves topic {name}, which is there"))

    def unsubscribe(self) -> None:
        if self._member is not None:
            self._kafka.group.unsubscribe(self._member)
            self._member = None

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._place(each)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_revoking and any(at > NOW.hub.now for at, _ in self._unanswered):
            # If the answer is FENCED_INSTANCE_ID, librdkafka overflows its stack.
            NOW.hub.failures.append(AssertionError(f"{self._host} gives partitions up before a commit is answered"))
        for each in partitions:
            self._positions.pop((each.topic, each.partition), None)
            self._paused.discard((each.topic, each.partition))

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions.clear()
        self._paused.clear()
        self.incremental_assign(partitions)

    def unassign(self) -> None:
        self._positions.clear()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update((each.topic, each.partition) for each in partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update((each.topic, each.partition) for each in partitions)

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool = True) -> None:
        self._unanswered.append((NOW.hub.now + COMMIT_SECONDS, offsets))
        if self._member is not None and not self._member.is_taken_over:
            for each in offsets:
                self._kafka.group.committed[each.topic, each.partition] = (each.offset, each.metadata)

    def _answer_commits(self) -> None:
        while self._unanswered and self._unanswered[0][0] <= NOW.hub.now:
            _, offsets = self._unanswered.pop(0)
            if self._member is not None and self._member.is_taken_over:
                self._member.refusal = KafkaError._FATAL
                self._on_commit(KafkaError(KafkaError.FENCED_INSTANCE_ID), [])
            else:
                self._on_commit(None, offsets)

    def committed(self, partitions: Sequence[TopicPartition], timeout: float = BROKER_SECONDS) -> list[TopicPartition]:
        host = self._kafka.request("committed")
        if not self._kafka.wait_for_answer(host, timeout):
            fail(KafkaError._TIMED_OUT)
        if self._unanswered:  # answers come in order
            NOW.hub.sleep(max(0.0, self._unanswered[-1][0] - NOW.hub.now))
        found = [(each, self._kafka.group.committed.get((each.topic, each.partition))) for each in partitions]
        return [TopicPartition(each.topic, each.partition, *(known or (-1001, None))) for each, known in found]

    def poll(self, timeout: float = 0) -> Message | None:
        return next(iter(self.consume(1, timeout)), None)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        host = self._kafka.request("list_topics")
        if not self._kafka.wait_for_answer(host, timeout):
            fail(KafkaError._TRANSPORT)
        return SimpleNamespace(topics=dict(self._kafka.cluster.topics))

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        hub, kafka = NOW.hub, self._kafka
        until = hub.now + timeout
        while True:
            is_answered = kafka.cluster.answers(self._host)
            self._answer_commits()
            if self._member is not None:
                if (code := self._member.refusal) is not None and not self._member.is_out:
                    hub.sleep(max(timeout, 0.1))
                    return [Message(topic="", partition=-1, error=refusal(code))]
                # Callbacks come between messages of one call: some of what it returns is from before them.
                earlier = self._gather(num_messages) if is_answered and kafka.group.is_due(self._member) else []
                if kafka.group.serve(self._member, is_answered=is_answered) and not earlier:
                    continue
                if earlier:
                    return earlier
            messages = self._gather(num_messages) if is_answered else []
            if messages or hub.now >= until:
                return messages
            assert hub.current is not None
            kafka.cluster.waiting.append(hub.current)
            hub.park(until - hub.now)

    def close(self) -> None:
        if self._member is not None:
            if self._kafka.cluster.answers(self._host):
                self._kafka.group.leave(self._member)
            else:
                NOW.hub.call_at(NOW.hub.now + 12.0, lambda: self._kafka.group.expire(self._host))
            self._member = None
        self._positions.clear()

    def memberid(self) -> str:
        return self._host

    def _place(self, place: TopicPartition) -> None:
        partition = (place.topic, place.partition)
        log = self._kafka.cluster.log(partition)
        seen = self._kafka.versions_seen.get((self._host, partition)) if self._consumes else None
        topic_id, version = seen or ((log.topic_id, log.version) if log else ("", 0))
        self._positions[partition] = Position(place.offset, topic_id, version)
        self._paused.discard(partition)

    def _end(self, log: Log) -> int:
        return log.stable_end if self._is_committed_only else log.high

    def _gather(self, most: int) -> list[Message]:
        messages: list[Message] = []
        places = list(self._positions.items())
        NOW.hub.rng.shuffle(places)
        for partition, position in places:
            if len(messages) >= most:
                break
            if partition not in self._paused and not position.is_broken:
                messages += self._messages_of(partition, position, min(40, most - len(messages)))
        return messages

    def _messages_of(self, partition: Partition, position: Position, most: int) -> list[Message]:
        log = self._kafka.cluster.log(partition)
        if log is None:
            if position.was_missing:
                return []
            position.was_missing = True
            return [error_at(partition, KafkaError.UNKNOWN_TOPIC_OR_PART)]
        position.was_missing = False
        if log.has_leader and (code := trouble_of(log, position)) is not None:
            position.is_broken = True
            return [error_at(partition, code)]
        return self._read(partition, position, log, most) if log.has_leader else []

    def _read(self, partition: Partition, position: Position, log: Log, most: int) -> list[Message]:
        position.topic_id, position.version = log.topic_id, log.version
        entries = log.from_offset(position.offset, most)
        if entries:
            position.offset, position.told_end = entries[-1].offset + 1, None
            return [message_of(partition, entry) for entry in entries]
        end = self._end(log)
        if position.told_end == end or end < position.offset:
            return []
        position.offset, position.told_end = end, end
        return [Message(topic=partition[0], partition=partition[1], offset=end, error=KafkaError(EOF))]


EOF = KafkaError._PARTITION_EOF


def trouble_of(log: Log, position: Position) -> int | None:
    """What a broker answers instead of records."""
    if position.topic_id == log.topic_id and any(end < position.offset for end in log.truncations[position.version :]):
        return int(KafkaError._LOG_TRUNCATION)
    if not log.low <= position.offset <= log.high:
        return int(KafkaError._AUTO_OFFSET_RESET)
    return None


def message_of(partition: Partition, entry: Any) -> Message:
    return Message(
        topic=partition[0],
        partition=partition[1],
        offset=entry.offset,
        key=None,
        value=entry.value,
        timestamp=(1, BASE_MS + int(entry.appended_at * 1000)),
        leader_epoch=entry.epoch,
    )


def error_at(partition: Partition, code: int) -> Message:
    return Message(topic=partition[0], partition=partition[1], offset=-1001, error=KafkaError(code))


def refusal(code: int) -> KafkaError:
    return KafkaError(code, "simulated", code == KafkaError._FATAL)


def fail(code: int) -> NoReturn:
    raise KafkaException(KafkaError(code))


class SimulatedCluster:
    """What the archiver uses of KafkaCluster."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def topics(self) -> dict[str, int]:
        self._reach("topics")
        known = {name: len(topic.logs) for name, topic in sorted(self._kafka.cluster.topics.items())}
        if self._kafka.cluster.has_started:
            self._kafka.cluster.has_started = False
            return dict(list(known.items())[1:])
        return known

    def cluster_id(self) -> str | None:
        host = self._kafka.request("cluster_id")
        return "cluster" if self._kafka.wait_for_answer(host, FACTS_SECONDS) else None

    def topic_ids(self, topics: Collection[str]) -> TopicIdAnswers:
        asked_at, cluster = NOW.hub.now, self._kafka.cluster
        host = self._kafka.request("topic_ids")
        if not self._kafka.wait_for_answer(host, FACTS_SECONDS):
            return TopicIdAnswers({}, frozenset())
        if any(cluster.id_hiccups.get(scope, -1.0) > NOW.hub.now for scope in (None, host)):
            NOW.hub.sleep(FACTS_SECONDS)
            return TopicIdAnswers({}, frozenset())
        ids = {topic: cluster.topics[topic].topic_id for topic in topics if topic in cluster.topics}
        for topic_id in ids.values():
            self._kafka.ids_told[host, topic_id] = asked_at
            self._kafka.ids_first_told.setdefault((host, topic_id), NOW.hub.now)
        return TopicIdAnswers(ids if cluster.tells_ids else {}, frozenset(set(topics) - set(ids)))

    def ask_bounds(self, partitions: Collection[Partition], isolation_level: str) -> dict[Partition, BoundsOrFailure]:
        try:
            host = self._reach("bounds")
        except BrokerUnreachable as error:
            return dict.fromkeys(partitions, error)
        answers: dict[Partition, BoundsOrFailure] = {}
        for partition in partitions:
            log = self._kafka.cluster.log(partition)
            if log is None:
                answers[partition] = PartitionUnavailable(f"{partition} is unknown")
            elif log.has_leader:
                self._kafka.saw(host, partition, log)
                end = log.stable_end if isolation_level == "read_committed" else log.high
                answers[partition] = LogBounds(log.low, end)
            else:
                answers[partition] = BrokerUnreachable(f"{partition} has no leader")
        if any(isinstance(answer, BrokerUnreachable) for answer in answers.values()):
            NOW.hub.sleep(BROKER_SECONDS)
        return answers

    def committed_metadata(self, group_id: str, topics: Collection[str]) -> dict[Partition, str]:
        self._reach(f"committed {group_id}")
        committed = self._kafka.group.committed.items()
        return {partition: metadata for partition, (_, metadata) in committed if partition[0] in topics and metadata}

    def unowned(self, group_id: str, topics: Collection[str]) -> set[Partition]:
        self._reach(f"members of {group_id}")
        return {partition for partition in self._kafka.group.unowned() if partition[0] in topics}

    def describe(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        self._reach("describe")
        known = self._kafka.cluster.topics
        return {topic: topic_config(topic, len(known[topic].logs), {}, {}) for topic in topics if topic in known}

    def _reach(self, what: str) -> str:
        host = self._kafka.request(what)
        if not self._kafka.wait_for_answer(host, BROKER_SECONDS):
            raise BrokerUnreachable("cannot reach a Kafka broker")
        return host

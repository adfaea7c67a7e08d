"""The archiver's consumer, with librdkafka's settings: directly assigned partitions, as Arrow batches."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pydantic import SecretStr

from archiver.errors import MemberRefused, UnreadableRecord
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, BlockgzError, PartitionUnavailable, UnresolvedReference, UsageError
from blockgz.kafka.connection import LacksKerberos, client_settings, kafka_failure, make_client, report
from blockgz.kafka.fetching import ConfluentClient, FetchClient, KernelClient, Rising, Told, kernel_takes
from blockgz.kafka.secrets import without_code
from blockgz.references import resolve_references
from index_format.records import Record

# Bytes that librdkafka takes for a queued record in addition to key and value, which it counts; measured with 2.16.
QUEUED_RECORD_FOOTPRINT = 320
LEAST_FETCH_BYTES = 1024**2
# A fetch that waits for records at the ends of some logs holds up partitions that begin then: by librdkafka's default
# for half a second, which is for those who follow.
FETCH_WAIT_MS_OF_ONCE = 20
CLIENT_ID = "blockgz-archiver"
# librdkafka's default.
SESSION_MS = 45_000
DEAD_LETTER_TIMEOUT_MS = 10_000
DEAD_LETTER_QUEUE_KBYTES = 32 * 1024

# A kind of client, made of its settings.
Client = Callable[[dict[str, Any]], Any]


def queue_settings(share_bytes: int) -> dict[str, int]:
    """Return bounds of librdkafka's queue for a share of memory; it stops to fetch at either of the first two."""
    # An answer that began below the bounds is added whole and inflated, one for each broker: so it is small.
    fetch_bytes = max(LEAST_FETCH_BYTES, share_bytes // 32)
    # Keys and values have half the share; the other half is for what is around them.
    content_bytes = max(LEAST_FETCH_BYTES, share_bytes // 2)
    return {
        "queued.min.messages": max(1000, share_bytes // 2 // QUEUED_RECORD_FOOTPRINT),
        "queued.max.messages.kbytes": content_bytes // 1024,
        "fetch.max.bytes": fetch_bytes,
        "fetch.message.max.bytes": fetch_bytes,
    }


def cluster_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of every client of a run."""
    return client_settings({"bootstrap.servers": config.bootstrap_servers, **config.kafka}, CLIENT_ID)


def consumer_settings(config: RunConfig, *, queue_bytes: int) -> dict[str, Any]:
    """Return the settings of the consumer, which commits and resets nothing; `queue_bytes` bounds prefetching."""
    return {
        "fetch.queue.backoff.ms": 10,
        **queue_settings(queue_bytes),
        "check.crcs": True,
        **({"fetch.wait.max.ms": FETCH_WAIT_MS_OF_ONCE} if config.once else {}),
        "topic.metadata.refresh.interval.ms": 30_000,
        **_group_settings(config),
        **cluster_settings(config),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": config.isolation_level,
    }


def dead_letter_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the producer of dead letters: a record is acknowledged by all replicas in sync."""
    return {
        "message.timeout.ms": DEAD_LETTER_TIMEOUT_MS,
        "queue.buffering.max.kbytes": DEAD_LETTER_QUEUE_KBYTES,
        # The broker decides what is too large for it; this only keeps librdkafka from deciding before.
        "message.max.bytes": 1_000_000_000,
        "partitioner": "murmur2_random",
        **cluster_settings(config),
        "acks": "all",
        "enable.idempotence": True,
    }


def _group_settings(config: RunConfig) -> dict[str, Any]:
    static = {"group.instance.id": config.group_instance_id} if config.group_instance_id else {}
    if config.group_protocol == "consumer":
        return {"group.protocol": "consumer", **static}
    return {"partition.assignment.strategy": "cooperative-sticky", **static}


def rebalance_seconds(config: RunConfig) -> float:
    """Return the seconds that a rebalance of the classic protocol takes if a member dies: two sessions."""
    told = config.kafka.get("session.timeout.ms")
    session_ms = int(told) if isinstance(told, str) and told.isdecimal() else SESSION_MS  # or it is a reference
    return 2 * session_ms / 1000


def check_settings(config: RunConfig, named: Callable[[str], str]) -> None:
    """Raise UsageError if librdkafka refuses the user's settings. Ask no broker.

    `named` says how the user knows one of them. A secret that cannot be looked up here is taken to be right.
    """
    _check(Consumer, consumer_settings(config, queue_bytes=config.memory), config, named)
    if config.dead_letter_topic is not None:
        _check(Producer, dead_letter_settings(config), config, named)


def _check(kind: Client, settings: dict[str, Any], config: RunConfig, named: Callable[[str], str]) -> None:
    del settings["bootstrap.servers"]
    lost = [name for name, value in settings.items() if isinstance(value, SecretStr) and not _is_there(value)]
    settings |= dict.fromkeys(lost, "unknown")
    if lost:
        settings = {name: value for name, value in settings.items() if not name.startswith("ssl.key")}
    refusal = _refusal(kind, settings)
    if refusal is None:
        return
    if isinstance(refusal, LacksKerberos):
        raise refusal
    for name in config.kafka:
        others = {other: value for other, value in settings.items() if other != name}
        if name in settings and _refusal(kind, others) is None:
            raise UsageError(
                f"{named(name)}: librdkafka refuses it, or a related setting", why=refusal.why, remedy=refusal.remedy
            ) from refusal
    raise refusal


def _is_there(value: SecretStr) -> bool:
    try:
        resolve_references(value.get_secret_value(), os.environ)
    except UnresolvedReference:
        return False
    return True


def _refusal(kind: Client, settings: dict[str, Any]) -> UsageError | None:
    try:
        make_client(kind, without_code(settings)).close()
    except UsageError as refusal:
        return refusal
    return None


# A batch takes about a tenth of that to be handed over and encoded, its records apart: a tenth of a core at most.
SECONDS_A_PARTITION = 0.002
MESSAGES_WORTH_A_BATCH = 250
# Bytes that an Arrow batch takes in addition to its content, as measured: buffers are rounded up.
BATCH_FOOTPRINT = 8192
# Bytes that a message takes in addition to its value, at least.
MESSAGE_FOOTPRINT = 512

# Topic and partition.
Partition = tuple[str, int]


# Messages of one partition, and where its log ended, if the broker reported that since the last time. Messages may have
# come after the end was reported.
Batched = tuple[Sequence[Any], int | None]


class Batching:
    """Messages by partition, held until they are worth a batch. All methods belong to the consumer thread."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        """`most_bytes` bounds what is held, roughly; `clock` in monotonic seconds."""
        self._most_bytes = most_bytes
        self._clock = clock
        self._messages: defaultdict[Partition, list[Any]] = defaultdict(list)
        self._ends: dict[Partition, int] = {}
        self._num_messages = self._num_bytes = 0
        self._taken_at = clock()

    def add(self, partition: Partition, messages: Iterable[Any]) -> None:
        """Hold messages, which follow those held."""
        self._messages[partition].extend(messages)

    def count(self, messages: int, num_bytes: int) -> None:
        self._num_messages += messages
        self._num_bytes += num_bytes

    def end(self, partition: Partition, position: int) -> None:
        """Hold that the log ends at `position` for now."""
        self._ends[partition] = position

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._messages.pop(partition, None)
            self._ends.pop(partition, None)

    @property
    def partitions(self) -> set[Partition]:
        """Return the partitions of which something is held."""
        return {*self._messages, *self._ends}

    def take(self, partition: Partition) -> Batched:
        return self._messages.pop(partition, ()), self._ends.pop(partition, None)

    def is_due(self, partitions: int) -> bool:
        """Return whether to take all that is held, as `partitions` are consumed; with a few, nearly always."""
        if self._num_messages >= MESSAGES_WORTH_A_BATCH * len(self._messages) or self._num_bytes >= self._most_bytes:
            return True
        return self._clock() - self._taken_at >= partitions * SECONDS_A_PARTITION

    def take_all(self) -> dict[Partition, Batched]:
        """Return all that is held, and hold nothing afterwards."""
        self._num_messages = self._num_bytes = 0
        self._taken_at = self._clock()
        return {partition: self.take(partition) for partition in self.partitions}


FIRST_MESSAGES_A_POLL = 8
# Errors of the group that are taken note of at a time.
TOLD_A_POLL = 100
# Bytes taken from librdkafka's queue at a time, roughly: the queue fills again in the meantime.
BYTES_A_POLL = 2 * 1024**2
# Seconds of a poll that does not get as many messages as it requests.
POLL_SECONDS = 0.1
# Errors that librdkafka logs by itself.
LOGGED_ANYWAY = (KafkaError._AUTHENTICATION, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._TRANSPORT)
# A rebalance waits so long, at most, for the answer to a commit of the group's offsets.
COMMIT_ANSWER_SECONDS = 5.0
# Seconds to ask for leaders, at most, before anything is fetched; librdkafka keeps asking by itself.
LEADERS_SECONDS = 2.0


@dataclass(frozen=True)
class Fetched:
    """Consecutive records of a partition."""

    partition: Partition
    batch: pa.RecordBatch
    leader_epoch: int | None
    num_bytes: int
    """Bytes of the batch in memory."""

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record; there is at least one."""
        offset: int = self.batch.column("offset")[-1].as_py()
        return offset


@dataclass(frozen=True)
class EndReached:
    """The partition has no readable record at or above `position` for now; control records below it are passed."""

    partition: Partition
    position: int


@dataclass(frozen=True)
class RecordRefused:
    """A record that the client cannot hand over."""

    partition: Partition
    record: Record
    """Without its headers."""
    error: UnreadableRecord

    @property
    def offset(self) -> int:
        return self.record.offset


@dataclass(frozen=True)
class PartitionFailed:
    """The client gave up on a partition, such as when retention passed the position."""

    partition: Partition
    error: BlockgzError


Event = Fetched | EndReached | RecordRefused | PartitionFailed


class GroupListener(Protocol):
    """Callbacks for partitions that the consumer group assigns or takes away; called inside `poll`."""

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Note that these partitions are this process's now; `KafkaSource.consume` starts them."""

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Give up partitions that go to another process once this call returns."""

    def lost(self, partitions: Sequence[Partition]) -> None:
        """Give up partitions that another process has already."""


class KafkaSource:
    """The consumer of this process. All methods belong to one thread.

    The kernel's client fetches if there is one. The group's member is a client of confluent-kafka: the same one that
    fetches else, or one that only takes part in the group.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        batching_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        poll_seconds: float = POLL_SECONDS,
        metadata: str = "",
    ) -> None:
        """`batching_bytes` bounds what is batched into batches; `metadata` goes along with committed offsets.

        Raises UsageError for settings that are refused.
        """
        self._settings = {**settings, "on_commit": self._commit_answered}
        self._client: FetchClient
        self._member: Consumer | None = None
        if kernel_takes(settings):
            self._client = make_client(KernelClient, dict(settings))
        else:
            self._member = make_client(Consumer, self._settings)
            self._client = ConfluentClient(self._member)
        self._fetches_apart = self._member is None
        self._consuming: set[Partition] = set()
        # Also partitions that are not consumed: librdkafka keeps them paused when it is given them again.
        self._paused: set[Partition] = set()
        self._batching = Batching(batching_bytes, clock)
        self._poll_seconds = poll_seconds
        self._metadata = metadata
        self._at_once = FIRST_MESSAGES_A_POLL
        # The error that the group reported, until the next poll.
        self._refusal: BlockgzError | None = None
        # Why a call was refused after a fatal error, until a poll has looked for the group's own words.
        self._fatal: KafkaError | None = None
        # Positions that the group confirmed.
        self._committed: dict[Partition, int] = {}
        # One partition of each commit that the group has not answered yet.
        self._unanswered: list[TopicPartition] = []
        # Bytes of a record that polls do not count, as measured last.
        self._uncounted = 0

    @property
    def _group_member(self) -> Consumer:
        """Made if there is a group."""
        if self._member is None:
            self._member = make_client(Consumer, self._settings)
        return self._member

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        """Share the topics' partitions with the other members of the group."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            # Taken note of only; each partition is consumed when its claim succeeded, from where the archive ends.
            consumer.incremental_assign([])
            for partition in _plain(partitions):
                self._committed.pop(partition, None)  # another member may have committed since
            listener.assigned(_plain(partitions))

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            listener.revoked(_plain(partitions))
            leave(consumer, partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            listener.lost(_plain(partitions))
            leave(consumer, partitions)

        def leave(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._await_commit()
            self._forget(_plain(partitions))
            if self._fetches_apart:
                consumer.incremental_unassign([])  # as it was assigned: it fetches nothing itself

        with self._refused_later():
            self._group_member.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def join_again(self, topics: Sequence[str], listener: GroupListener) -> None:
        """Give all partitions up and join the group as a new member would, which makes it rebalance."""
        with self._refused_later():
            self._group_member.unsubscribe()
            self.subscribe(topics, listener)

    def consume(self, positions: Mapping[Partition, int]) -> None:
        if not self._consuming:
            # A client that knows no leaders yet may notice for a second at the latest that it is to fetch.
            with suppress(KafkaException):
                self._client.ask_leaders(LEADERS_SECONDS)
        with self._refused_later():
            self._client.assign(positions)
        self._consuming.update(positions)
        self.resume(self._paused.intersection(positions))

    def release(self, partitions: Sequence[Partition]) -> None:
        """Consume these partitions no longer; they stay this process's in the group."""
        if self._consuming.intersection(partitions):
            self._forget(partitions)

    def pause(self, partitions: Collection[Partition]) -> None:
        """Fetch nothing of these until `resume`. What the client fetched already is dropped and fetched again then."""
        # Messages that wait here to become batches still come. A partition that is released and consumed again is not
        # paused.
        if pausing := self._consuming.intersection(partitions):
            self._paused |= pausing
            with self._refused_later():
                self._client.pause(pausing)

    def resume(self, partitions: Collection[Partition]) -> None:
        """Fetch these from the positions where fetching was paused."""
        if resuming := self._consuming.intersection(partitions):
            self._paused -= resuming
            with self._refused_later():
                self._client.resume(resuming)

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Report to the group how far the archive is, for lag tools; advisory, not waited for."""
        # Positions that the group confirmed already are left out.
        news = [
            TopicPartition(*partition, at, self._metadata)
            for partition, at in positions.items()
            if self._committed.get(partition) != at
        ]
        if news:
            with suppress(KafkaException), self._refused_later():
                self._group_member.commit(offsets=news, asynchronous=True)
                self._unanswered.append(news[0])

    def _commit_answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take note of an answer; called inside `poll`. A later `commit` repeats positions that were not confirmed."""
        del self._unanswered[:1]
        if error is None:
            self._committed |= {(each.topic, each.partition): each.offset for each in partitions if not each.error}

    def _await_commit(self) -> None:
        """Wait until the group has answered all commits."""
        # The thread of librdkafka 2.16 recurses until its stack overflows if a commit is answered with
        # FENCED_INSTANCE_ID after `incremental_unassign` was called for a member without partitions. A coordinator
        # answers in order, and an answer is handled before later requests to librdkafka.
        if self._unanswered:
            with suppress(KafkaException):  # no answer in time, or a fatal error
                self._group_member.committed(self._unanswered[:1], timeout=COMMIT_ANSWER_SECONDS)

    @contextmanager
    def _refused_later(self) -> Iterator[None]:
        """Have `poll` raise MemberRefused if a call is refused because of a fatal error before it."""
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() != KafkaError._FATAL:
                raise
            self._fatal = error.args[0]

    def batched(self, partitions: Iterable[Partition]) -> list[Event]:
        """Return records that were polled and waited to be worth a batch; they wait no longer."""
        return [event for each in partitions for event in self._fetched(each, self._batching.take(each))]

    def _forget(self, partitions: Sequence[Partition]) -> None:
        leaving = self._consuming.intersection(partitions)
        with self._refused_later():
            self._client.unassign(leaving)
        self._consuming -= leaving
        self._batching.forget(leaving)

    def poll(self) -> list[Event]:
        """Return what arrived and was worth a batch, in offset order per partition. Wait for at most `poll_seconds`.

        Raises MemberRefused if the group has no place for this consumer any longer; only a new one may join again.
        Raises AccessDenied if the group may not be joined now; the client goes on asking. Both are raised by the poll
        after the one that met them, so that what came with them is not lost.
        """
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        events = self._told_by_group()
        polled, num_messages, num_bytes = self._client.poll(self._at_once, self._poll_seconds)
        num_bytes += (MESSAGE_FOOTPRINT + self._uncounted) * num_messages
        self._batching.count(num_messages, num_bytes)
        for each in polled:
            if isinstance(each, Told):
                events += () if self._is_told_by_group(each) else self._told(each)
            else:
                self._batching.add(each.partition, each.messages)
        # What a rebalance took away inside the calls above may lie among the messages.
        self._batching.forget(self._batching.partitions - self._consuming)
        if self._batching.is_due(len(self._consuming)):
            for partition, batched in self._batching.take_all().items():
                events += self._fetched(partition, batched)
        if batches := [event.batch for event in events if isinstance(event, Fetched)]:
            self._uncounted = self._client.uncounted(batches)
        self._at_once = messages_a_poll(num_messages, num_bytes, self._at_once, self._client.most_messages)
        if self._fatal is not None and self._refusal is None:
            self._refusal = _refused(self._fatal)
        return events

    def _told_by_group(self) -> list[Event]:
        """Return what the group reports to a member that is a client of its own."""
        # Rebalances happen inside `consume`.
        if self._member is None or not self._fetches_apart:
            return []
        messages: list[Any] = self._member.consume(TOLD_A_POLL, 0)
        return [event for each in messages for event in self._told(Told(None, each.offset(), each.error()))]

    def _is_told_by_group(self, told: Told) -> bool:
        """Return whether the fetching client reports what the group's member reports as well."""
        has_member = self._fetches_apart and self._member is not None
        return has_member and told.error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED

    def _told(self, told: Told) -> Iterable[Event]:
        """Handle an event that is not a record, after the records before it."""
        partition, error = told.partition, told.error
        if error.code() == KafkaError._FATAL:
            self._refusal = _refused(error)
            return ()
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._refusal = AccessDenied(
                "the user may not join the consumer group",
                why=error.str(),
                remedy="grant Read on the group of --group-id to this user, or choose another group",
            )
            return ()
        if partition is None or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            if error.code() not in LOGGED_ANYWAY:
                report(error)
            return ()
        if error.code() == KafkaError._PARTITION_EOF:
            self._batching.end(partition, told.offset)
            return ()
        return (*self._fetched(partition, self._batching.take(partition)), _failed(partition, error))

    def _fetched(self, partition: Partition, batched: Batched) -> list[Event]:
        events: list[Event] = []
        messages, end = batched
        for piece in self._client.pieces(messages) if messages else ():
            if isinstance(piece, Rising):
                batch, leader_epoch = piece
                events.append(Fetched(partition, batch, leader_epoch, batch.nbytes + BATCH_FOOTPRINT))
            else:
                error = UnreadableRecord(
                    f"the record at {name_of(partition)}:{piece.record.offset} cannot be read by the Kafka client",
                    why=piece.why,
                    remedy="--on-bad-record skip archives the others and records a gap",
                )
                events.append(RecordRefused(partition, piece.record, error))
        if end is not None:
            events.append(EndReached(partition, end))
        return events

    def close(self) -> None:
        self._unanswered = []  # a client that leaves its group waits for answers itself, and takes no more calls
        if self._member is not None:
            self._member.close()
        if self._fetches_apart:
            self._client.close()


def messages_a_poll(records: int, num_bytes: int, asked: int, most: int) -> int:
    """Return how many messages to ask for next, as the last poll asked for `asked` and gave records of `num_bytes`."""
    # About BYTES_A_POLL; no more than `most`, and eight times as many as before, as larger ones may follow.
    fitting = BYTES_A_POLL * records // num_bytes if records else asked
    return max(1, min(most, 8 * asked, fitting))


def _failed(partition: Partition, error: KafkaError) -> Event:
    failure = kafka_failure(error, f"{name_of(partition)} cannot be read")
    if isinstance(failure, AccessDenied):
        return PartitionFailed(partition, failure)
    # Taking the partition over again finds out what happened to it: retention, truncation, another leader, a new topic.
    return PartitionFailed(partition, PartitionUnavailable(failure.what, why=failure.why))


def _refused(error: KafkaError) -> MemberRefused:
    return MemberRefused(
        "the consumer group refuses this process",
        why=error.str(),
        remedy="give every process its own --group-instance-id",
    )


def _plain(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [(partition.topic, partition.partition) for partition in partitions]


def name_of(partition: Partition) -> str:
    """Return a partition as people write it, such as `orders:3`."""
    return f"{partition[0]}:{partition[1]}"

"""Questions of the archiver to the cluster: topics and their ids, the bounds of logs, and single records."""

import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import UNSET

from archiver.errors import UnreadableRecord
from archiver.ingest.kafka_source import Partition, name_of
from archiver.logs import LogEvent, log
from blockgz.errors import AccessDenied, BlockgzError, PartitionUnavailable, ShuttingDown
from blockgz.kafka import LogBounds
from blockgz.kafka.admin import (
    FACTS_DEADLINE_SECONDS,
    NOTHING_TOLD,
    OF_THE_TOPIC,
    TopicIdAnswers,
    answered,
    ask_configs,
    has_controller,
    high_watermarks,
    log_bounds,
    topic_acls,
    topic_ids,
)
from blockgz.kafka.connection import (
    BROKER_DEADLINE_SECONDS,
    DENIED,
    ConnectionErrors,
    cluster_metadata,
    kafka_failure,
    make_client,
)
from blockgz.kafka.fetching import Message, UnreadableMessage, batch_of, readable_runs
from blockgz.kafka.groups import KafkaGroups
from index_format.objects import EVERY_TOPIC, AclsOfTopics, TopicConfig
from index_format.records import Record, iter_records

# One record of each log is wanted. librdkafka counts the queue of all partitions: one that is full of the first ones'
# records, or a fetch that waits at the end of a log, would hold up the others.
SINGLE_READS = {
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 64 * 1024,
    "fetch.wait.max.ms": 10,
}
# Seconds that a new partition waits while no record of the others arrives.
POLL_SECONDS = 0.01
# Seconds between polls while nothing is wanted, and errors per poll: without a broker, forty a second pile up.
SERVE_SECONDS, MOST_ERRORS = 10.0, 10_000
MESSAGES_AT_ONCE = 1000
NOTHING_THERE = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)


# An offset, and the first message at or above it; None at the log's end.
_Wanted = tuple[int, Future[Message | None]]


class RecordReader:
    """Reads single records of many logs with one consumer; a log that does not answer holds up only who asks for it.

    One thread makes all calls of the consumer: the client lets no call begin while another thread polls.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raise UsageError for settings that librdkafka refuses."""
        self._consumer: Consumer = make_client(Consumer, {**settings, **SINGLE_READS})
        self._guard = threading.Lock()
        self._wanted: dict[Partition, _Wanted] = {}
        self._assigned: dict[Partition, _Wanted] = {}
        self._asked = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="records", daemon=True)
        self._thread.start()

    def record_at(
        self, partition: Partition, offset: int, deadline_seconds: float = BROKER_DEADLINE_SECONDS
    ) -> Record | None:
        """Return the record at that offset, or None if the log no longer holds one there. Safe to call from any thread.

        Raises UnreadableRecord if the client cannot hand it over, and what `first_record` raises.
        """
        found = self._first(partition, offset, deadline_seconds)
        if found is None or found.offset() != offset:
            return None
        try:
            return next(iter_records(batch_of([found], [found.headers()])))
        except SystemError as refusal:  # its headers cannot be handed over
            raise UnreadableRecord(_failing(partition, offset), why=str(refusal)) from None

    def first_record(self, partition: Partition, offset: int) -> int | None:
        """Return the offset of the first record at or above that one, or None at the log's end. Safe for any thread.

        Raises BrokerUnreachable after the deadline, PartitionUnavailable if another thread reads of the partition,
        ShuttingDown after `close`, and what the broker says of the partition.
        """
        found = self._first(partition, offset, BROKER_DEADLINE_SECONDS)
        return None if found is None else found.offset()

    def _first(self, partition: Partition, offset: int, deadline_seconds: float) -> Message | None:
        future: Future[Message | None] = Future()
        wanted = offset, future
        with self._guard:
            if self._is_closed:
                raise ShuttingDown("the program is ending")
            if partition in self._wanted:
                raise PartitionUnavailable(f"another record of {name_of(partition)} is being read")
            self._wanted[partition] = wanted
        self._asked.set()
        try:
            return future.result(deadline_seconds)
        except TimeoutError:
            raise kafka_failure(KafkaError(KafkaError._TIMED_OUT), _failing(partition, offset)) from None
        finally:
            self._forget(partition, wanted)

    def close(self) -> None:
        """End; whoever waits for a record gets ShuttingDown."""
        with self._guard:
            self._is_closed = True
            for _, future in self._wanted.values():
                if not future.done():
                    future.set_exception(ShuttingDown("the program is ending"))
        self._asked.set()
        self._thread.join()
        self._consumer.close()

    def _forget(self, partition: Partition, wanted: _Wanted) -> None:
        with self._guard:
            if self._wanted.get(partition) is wanted:
                del self._wanted[partition]

    def _read(self) -> None:
        while not self._is_closed:
            if not self._asked.wait(SERVE_SECONDS):
                self._consumer.consume(MOST_ERRORS, 0)
                continue
            self._asked.clear()
            while (self._wanted or self._assigned) and not self._is_closed:
                self._assign()
                message = self._consumer.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)

    def _assign(self) -> None:
        """Have the consumer fetch what is wanted now, and nothing else."""
        with self._guard:
            wanted = {partition: each for partition, each in self._wanted.items() if not each[1].done()}
        gone = [TopicPartition(*each) for each in self._assigned if wanted.get(each) is not self._assigned[each]]
        new = [
            TopicPartition(*partition, each[0])
            for partition, each in wanted.items()
            if self._assigned.get(partition) is not each
        ]
        if gone:
            self._consumer.incremental_unassign(gone)
        if new:
            self._consumer.incremental_assign(new)
        self._assigned = wanted

    def _take(self, message: Message) -> None:
        """Answer who waits for it; what else comes is nobody's."""
        error = message.error()
        if error is None or message.topic() is not None:
            answered = [(message.topic(), message.partition())]
        elif error.code() in DENIED:
            answered = list(self._assigned)
        else:  # of a connection: the partitions that it matters to meet their deadlines
            answered = []
        for partition in answered:
            wanted = self._assigned.get(partition)
            with self._guard:
                if wanted is None or wanted[1].done():
                    continue
                if error is not None and error.code() not in NOTHING_THERE:
                    wanted[1].set_exception(kafka_failure(error, _failing(partition, wanted[0])))
                else:
                    wanted[1].set_result(None if error is not None else message)


def read_records(settings: Mapping[str, Any], partition: Partition, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a log at offsets [start, end), with a consumer of its own.

    Nothing if retention has passed the start, and without records that the client cannot hand over. Raises
    BrokerUnreachable, and what the broker says of the partition.
    """
    consumer: Consumer = make_client(Consumer, dict(settings))
    with closing(consumer):
        consumer.assign([TopicPartition(*partition, start)])
        while messages := consumer.consume(1, BROKER_DEADLINE_SECONDS):
            messages += consumer.consume(MESSAGES_AT_ONCE, 0)  # with a deadline, it would wait for all of them
            errors = [error for each in messages if (error := each.error()) is not None]
            records = [each for each in messages if each.error() is None]
            below = [each for each in records if (each.offset() or 0) < end]
            for run in readable_runs(below):
                if not isinstance(run, UnreadableMessage):
                    yield batch_of(*run)
            if len(below) < len(records) or {each.code() for each in errors} & set(NOTHING_THERE):
                return
            if errors:
                raise kafka_failure(errors[0], _failing(partition, start))
    raise kafka_failure(KafkaError(KafkaError._TIMED_OUT), _failing(partition, start))


def _failing(partition: Partition, offset: int) -> str:
    return f"the record at {name_of(partition)}:{offset} cannot be read"


BoundsOrFailure = LogBounds | BlockgzError
# Answers for each partition; raises nothing.
AskBounds = Callable[[Collection[Partition]], Mapping[Partition, BoundsOrFailure]]


@dataclass(frozen=True)
class PartitionLog:
    """One partition's log for the protocols; a LogReader."""

    partition: Partition
    known: LogBounds
    """Bounds that were requested before, together with those of other partitions."""
    ask: AskBounds
    records: RecordReader
    confirm: Callable[[str], None]
    """See LogReader."""

    def bounds(self, at_least: int) -> LogBounds:
        """Return the known bounds, unless they end below `at_least`: the log may have grown since."""
        if self.known.end >= at_least:
            return self.known
        answer = self.ask([self.partition])[self.partition]
        if isinstance(answer, BlockgzError):
            raise answer
        return answer

    def record_at(self, offset: int) -> Record | None:
        return self.records.record_at(self.partition, offset)

    def first_record(self, offset: int) -> int | None:
        return self.records.first_record(self.partition, offset)


MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class KafkaCluster:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raise UsageError for settings that librdkafka refuses."""
        self._connection_errors = ConnectionErrors()
        self.admin: AdminClient = make_client(AdminClient, {**settings, "error_cb": self._connection_errors})
        self._settings = dict(settings)
        self._bootstrap = settings["bootstrap.servers"]
        self._was_reached = False
        self._has_controller = False
        # Questions that were denied, each with its topic.
        self._denied: set[tuple[str, str]] = set()

    def topics(self) -> dict[str, int]:
        """Return all topics with their numbers of partitions. Raises BrokerUnreachable or AccessDenied."""
        known = self._known_topics()
        return {name: len(topic.partitions) for name, topic in known.items() if topic.error is None}

    def cluster_id(self) -> str | None:
        """Return the cluster's id; None if no broker answers, or if the cluster has no controller."""
        with suppress(KafkaException):
            metadata = self.admin.list_topics(timeout=FACTS_DEADLINE_SECONDS)
            if has_controller(metadata):
                cluster_id: str | None = metadata.cluster_id
                return cluster_id
        return None

    def topic_ids(self, topics: Collection[str]) -> TopicIdAnswers:
        """Return the ids of topics, as far as the cluster reports them now."""
        self.admin.poll(0)  # for what the client has to log
        if not self._is_controlled():
            return NOTHING_TOLD
        answers = topic_ids(self.admin, topics)
        self._note_denied("id", answers.ids, answers.denied)
        return answers

    def bounds(self, partitions: Iterable[Partition], isolation_level: str) -> dict[Partition, LogBounds]:
        """Return the bounds of logs in a few requests, without partitions that nobody answers for.

        The end is the last stable offset under `read_committed`, the high watermark under `read_uncommitted`. Raises
        BrokerUnreachable or AccessDenied if there is no answer at all.
        """
        if not self._was_reached:
            self._known_topics()
        bounds, failures = log_bounds(self.admin, partitions, isolation_level)
        reason = next(iter(failures.values()), None)
        if reason is not None and not bounds and reason.code() not in MISSING:
            raise kafka_failure(reason, f"the bounds of the logs at {self._bootstrap} cannot be read")
        return bounds

    def ask_bounds(self, partitions: Collection[Partition], isolation_level: str) -> dict[Partition, BoundsOrFailure]:
        """Return the bounds of logs, or the failure of each partition without an answer; raise nothing."""
        # Partitions without a leader are not asked about: librdkafka would wait for one, and the others with it.
        try:
            leaderless = self._leaderless(partitions)
            bounds, failures = log_bounds(self.admin, set(partitions) - leaderless, isolation_level)
        except BlockgzError as error:
            return dict.fromkeys(partitions, error)
        failures |= dict.fromkeys(leaderless, KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        answers: dict[Partition, BoundsOrFailure] = {
            partition: kafka_failure(error, f"the bounds of {name_of(partition)} cannot be read")
            for partition, error in failures.items()
        }
        return {**answers, **bounds}

    def high_watermarks(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return where these logs end, whatever is archived; logs without an answer or a leader are left out."""
        return high_watermarks(self.admin, set(partitions) - self._leaderless(partitions))

    def _leaderless(self, partitions: Iterable[Partition]) -> set[Partition]:
        known = self._known_topics()
        return {
            (topic, number)
            for topic, number in partitions
            if topic in known and number in known[topic].partitions and known[topic].partitions[number].leader == -1
        }

    def watermarks(self, partitions: Collection[Partition], isolation_level: str) -> dict[Partition, "LogView"]:
        """Return the bounds and high watermarks of logs; otherwise as `bounds`."""
        # High watermarks come first: between two answers a log only grows, which must not look like a transaction.
        high = self.bounds(partitions, "read_uncommitted")
        bounds = high if isolation_level == "read_uncommitted" else self.bounds(partitions, isolation_level)
        return {each: LogView(bounds[each], high[each].end) for each in bounds.keys() & high.keys()}

    def committed_metadata(self, group_id: str, topics: Sequence[str]) -> dict[Partition, str]:
        """Return the metadata of the offsets that the group committed for these topics, if there is any."""
        known = self._known_topics()
        partitions = [(topic, number) for topic in topics if topic in known for number in known[topic].partitions]
        return KafkaGroups(self._settings, self.admin).metadata(group_id, partitions) if partitions else {}

    def unowned(self, group_id: str, topics: Sequence[str]) -> set[Partition]:
        """Return the partitions that no member of a group of the classic protocol has; none while it rebalances.

        Asked by `list_groups`, which is deprecated: `describe_consumer_groups` of librdkafka 2.16 aborts the process
        where the group's coordinator goes away. Raises BrokerUnreachable or AccessDenied.
        """
        try:
            groups = self.admin.list_groups(group_id, timeout=BROKER_DEADLINE_SECONDS)
        except KafkaException as error:
            raise kafka_failure(error.args[0], f"consumer group {group_id!r} cannot be described") from error
        stable = next((group for group in groups if group.state == "Stable"), None)
        if stable is None:
            return set()
        owned = {each for member in stable.members for each in assigned_partitions(member.assignment)}
        known = self.topics()
        return {(topic, number) for topic in topics for number in range(known.get(topic, 0))} - owned

    def describe(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """Return these topics as the cluster has them, without their ids; those that it does not have are left out."""
        known = self._known_topics()
        described, denied = {}, {}
        wanted = [topic for topic in topics if topic in known and known[topic].error is None]
        answers = ask_configs(self.admin, wanted) if self._has_controller else {}
        acls = self._acls() if wanted else None
        for topic in wanted:
            partitions = known[topic].partitions
            replicas = {len(partition.replicas) for partition in partitions.values()}
            try:
                what = f"the configuration of topic {topic!r} cannot be read"
                entries = answered(answers[topic], what) if topic in answers else None
            except AccessDenied as error:
                denied[topic], entries = error, None
            config, defaults = _config(entries)
            described[topic] = TopicConfig(
                topic=topic,
                topic_id=None,
                partitions=len(partitions),
                replication_factor=max(replicas, default=None),
                config=config,
                defaults=defaults,
                acls=UNSET if acls is None else acls.concerning(topic),
            )
        self._note_denied("configuration", described.keys() - denied.keys(), denied)
        return described

    def _acls(self) -> AclsOfTopics | None:
        """Return the ACLs of all topics, in one request; None if they may not be read, or without an authorizer."""
        if not self._has_controller:
            return None
        try:
            acls = topic_acls(self.admin, self._settings, FACTS_DEADLINE_SECONDS)
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                denied = AccessDenied("the ACLs cannot be read", why=error.args[0].str())
                self._note_denied("ACLs", (), {EVERY_TOPIC: denied})
            return None
        self._note_denied("ACLs", (EVERY_TOPIC,), {})
        return AclsOfTopics(acls)

    def _note_denied(self, what: str, told: Iterable[str], denied: Mapping[str, AccessDenied]) -> None:
        """Log that a topic's id or configuration may not be asked for: once, until it may."""
        self._denied -= {(what, topic) for topic in told}
        for topic, error in denied.items():
            if (what, topic) not in self._denied:
                log.warning(LogEvent.DESCRIBE_DENIED, topic=topic, asked=what, why=error.why)
                self._denied.add((what, topic))

    def _known_topics(self) -> dict[str, Any]:
        metadata = cluster_metadata(self.admin, self._connection_errors, self._bootstrap)
        self._was_reached = True
        self._has_controller = has_controller(metadata)
        return dict(metadata.topics)

    def _is_controlled(self) -> bool:
        """Return whether the cluster had a controller when it was asked last, or has one now."""
        if not self._has_controller:
            with suppress(KafkaException):
                self._has_controller = has_controller(self.admin.list_topics(timeout=FACTS_DEADLINE_SECONDS))
        return self._has_controller


def assigned_partitions(assignment: bytes | None) -> Iterator[Partition]:
    """Yield what a member of a consumer group was assigned; `assignment` is Kafka's ConsumerProtocolAssignment."""
    # That is a version, 2 bytes, and an array of topics, each with an array of partitions.
    stream = BytesIO(assignment or bytes(6))

    def number(layout: str) -> int:
        found: int = struct.unpack(layout, stream.read(struct.calcsize(layout)))[0]
        return found

    number(">h")
    for _ in range(number(">i")):
        topic = stream.read(number(">h")).decode()
        for _ in range(number(">i")):
            yield topic, number(">i")


def _config(entries: Any) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    if entries is None:
        return None, None
    told = [entry for entry in entries.values() if entry.value is not None and not entry.is_sensitive]
    own = {entry.name: entry.value for entry in told if entry.source in OF_THE_TOPIC}
    defaults = {entry.name: entry.value for entry in told if entry.name not in own}
    return dict(sorted(own.items())), dict(sorted(defaults.items()))


WATERMARK_SECONDS = 30.0
# Until a partition is assigned it costs nothing to look for one.
FIRST_LOOK_SECONDS = 1.0


class LogView(NamedTuple):
    """The bounds of a log; None if no broker answers for it."""

    bounds: LogBounds | None = None
    """Up to the last stable offset under read_committed."""
    high_watermark: int | None = None
    earlier_end: int | None = None
    """The end of the log at the previous question, WATERMARK_SECONDS earlier."""


AskEnds = Callable[[Collection[Partition]], Mapping[Partition, LogView]]


class Watch:
    """Calls `look` in a thread, after the seconds that `wait` gives each time, until `close`."""

    def __init__(self, name: str, look: Callable[[], object], wait: Callable[[], float]) -> None:
        self._look, self._wait = look, wait
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to wait for the first look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A question in progress is not waited for: nobody reads its answer."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._wait()):
            self._look()


class WatermarkWatch(Watch):
    """The newest answers; scrapes read them and never ask."""

    def __init__(
        self, partitions: Callable[[], Collection[Partition]], ask: AskEnds, clock: Callable[[], float]
    ) -> None:
        """`partitions` gives those to ask about; `ask` answers, or leaves out what nobody answers for."""
        super().__init__("watermarks", self.refresh, lambda: WATERMARK_SECONDS if self.logs else FIRST_LOOK_SECONDS)
        self._partitions = partitions
        self._ask = ask
        self._clock = clock
        self.logs: Mapping[Partition, LogView] = {}
        self._asked_at: float | None = None

    @property
    def age_seconds(self) -> float | None:
        """Return the seconds since the last answer; None before the first."""
        return None if self._asked_at is None else self._clock() - self._asked_at

    def refresh(self) -> None:
        """Ask once. Without an answer the last ones stay, and age."""
        partitions = self._partitions()
        if not partitions:
            return
        try:
            ends = self._ask(partitions)
        except BlockgzError as error:
            log.warning(LogEvent.WATERMARKS_UNKNOWN, cause=error.what, why=error.why)
            return
        before = {partition: each.bounds.end for partition, each in self.logs.items() if each.bounds}
        self.logs = {partition: each._replace(earlier_end=before.get(partition)) for partition, each in ends.items()}
        if ends:
            self._asked_at = self._clock()

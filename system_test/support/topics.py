"""Topics through a foreign client: everything here is kafka-python, nothing is librdkafka.

kafka-python's producer refuses three kinds of records that Kafka accepts: key and value both null, a header with a
null value, and a header key that is not UTF-8 (see `raw_header_key`). Those are written as record batches of
kafka-python's own record layer, one batch each, in their place. Its consumer cannot read the last kind at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import for_code
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from system_test.support.waiting import wait_until

Header = tuple[str, bytes | None]

CREATE_TIME = 0
LOG_APPEND_TIME = 1

STORED_AS_GZIP = {"compression.type": "gzip"}
"""For topics that others fill with codecs that kafka-python cannot read here: the broker stores gzip whatever comes."""

_MAX_RECORD = 32 << 20
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to produce. Without a timestamp (ms) the client takes the current time."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as Kafka gave it. Timestamps are ms, types CREATE_TIME or LOG_APPEND_TIME (Kafka's ids)."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str | None] | None = None
) -> None:
    """Create a topic, its configuration given in Kafka's names, and wait until every partition has a leader.

    Records are kept for ever unless the configuration says otherwise: tests write old timestamps. None leaves a
    setting to the broker.
    """
    settings = {"retention.ms": "-1", **(config or {})}
    with _admin(bootstrap) as admin:
        admin.create_topics(
            {
                topic: {
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": {name: value for name, value in settings.items() if value is not None},
                }
            },
            wait_for_metadata=False,
        )
        admin.wait_for_topics([topic], timeout_ms=_SECONDS * 1000)


def alter_topic(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic; they are in force when the call returns."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
    with _admin(bootstrap) as admin:
        admin.alter_configs([resource])

        def in_force() -> bool:
            described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
            found = described["topic"][topic]
            return all(found[name]["value"] == value for name, value in config.items())

        wait_until(in_force, _SECONDS, f"{topic} to take {config}")


def own_config(bootstrap: str, topic: str) -> dict[str, str]:
    """What is set for the topic itself, its cluster's settings and Kafka's defaults aside."""
    with _admin(bootstrap) as admin:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    found = described["topic"][topic]
    return {name: entry["value"] for name, entry in found.items() if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"}


def topic_names(bootstrap: str) -> set[str]:
    """The topics of the cluster, its own internal ones aside."""
    with _admin(bootstrap) as admin:
        return {name for name in admin.list_topics() if not name.startswith("__")}


def partition_count(bootstrap: str, topic: str) -> int:
    with _admin(bootstrap) as admin:
        (described,) = admin.describe_topics([topic])
        return len(described["partitions"])


def fill_topic(
    bootstrap: str,
    topic: str,
    records: Iterable[NewRecord],
    partitions: int = 1,
    config: Mapping[str, str | None] | None = None,
) -> list[int]:
    """Create a topic and produce records into it; return their offsets."""
    create_topic(bootstrap, topic, partitions, config)
    return produce(bootstrap, topic, records)


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Raise the number of a topic's partitions to `partitions`."""
    with _admin(bootstrap) as admin:
        admin.create_partitions({topic: partitions})


def offsets_for_times(
    bootstrap: str, topic: str, timestamps: Iterable[int], partition: int = 0
) -> dict[int, int | None]:
    """Kafka's own answers: for each timestamp (ms) the earliest offset whose record has it or a later one."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, metrics_enabled=False)
    try:
        where = TopicPartition(topic, partition)
        answers = {time: consumer.offsets_for_times({where: time})[where] for time in timestamps}
        return {time: None if answer is None else int(answer.offset) for time, answer in answers.items()}
    finally:
        consumer.close(autocommit=False)


def raw_header_key(content: bytes) -> str:
    """A header key for `NewRecord` that is written as exactly these bytes, UTF-8 or not."""
    return _RawText(content)


class _RawText(str):
    """kafka-python's record layer asks header keys to encode themselves; this one answers with given bytes."""

    _content: bytes

    def __new__(cls, content: bytes) -> Self:
        text = super().__new__(cls, content.decode("latin-1"))
        text._content = content
        return text

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self._content


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; the broker removes its files a little later."""
    with _admin(bootstrap) as admin:
        admin.delete_topics([topic])


def produce(bootstrap: str, topic: str, records: Iterable[NewRecord], *, compression: str | None = None) -> list[int]:
    """Produce by the idempotent producer and return the offset of each record, in the order given.

    Within a partition the log has the records in the order given. `compression` is `gzip` or None.
    """
    with _producer(bootstrap, compression_type=compression) as producer, _admin(bootstrap) as admin:
        pending: list[Any] = []
        for record in records:
            if _beyond_producer(record):
                producer.flush(_SECONDS)
                pending.append(_write_batch(admin, topic, record))
            else:
                pending.append(_send(producer, topic, record))
        producer.flush(_SECONDS)
        return [entry if isinstance(entry, int) else entry.get(_SECONDS).offset for entry in pending]


class Transactions:
    """A transactional producer. Each `commit` and `abort` is one whole transaction with the records given.

    As a context manager it aborts in the end what is undecided. The two record kinds that kafka-python's producer
    refuses raise its error here.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._open = False
        self._producer = _producer(bootstrap, transactional_id=transactional_id)
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close(0)
            raise

    def begin(self, topic: str, records: Iterable[NewRecord]) -> list[int]:
        """Open a transaction and return the offsets of its records once they are in the log, still undecided."""
        self._producer.begin_transaction()
        self._open = True
        sent = [_send(self._producer, topic, record) for record in records]
        self._producer.flush(_SECONDS)
        return [future.get(_SECONDS).offset for future in sent]

    def end(self, *, committed: bool) -> None:
        """Decide the open transaction; its marker takes one offset in every partition it wrote to."""
        self._open = False
        if committed:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def commit(self, topic: str, records: Iterable[NewRecord]) -> list[int]:
        """One committed transaction; returns the offsets of its records."""
        offsets = self.begin(topic, records)
        self.end(committed=True)
        return offsets

    def abort(self, topic: str, records: Iterable[NewRecord]) -> list[int]:
        """One aborted transaction, its records written to the log first; returns their offsets."""
        offsets = self.begin(topic, records)
        self.end(committed=False)
        return offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._open:
                self.end(committed=False)
        finally:
            self._producer.close(_SECONDS)


def read(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[Record]:
    """Every record of a partition, from its low watermark to where the log ended when the call began.

    With `committed` that end is the last stable offset and aborted records are left out; otherwise everything up to
    the high watermark is returned.
    """
    level = "read_committed" if committed else "read_uncommitted"
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=level,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
        fetch_max_wait_ms=50,
        max_poll_records=5000,
        metrics_enabled=False,
    )
    try:
        source = TopicPartition(topic, partition)
        consumer.assign([source])
        consumer.seek_to_beginning(source)
        end = consumer.end_offsets([source])[source]
        found: list[Record] = []
        while consumer.position(source) < end:
            for batch in consumer.poll(timeout_ms=500).values():
                found.extend(_record(message) for message in batch if message.offset < end)
        return found
    finally:
        consumer.close(autocommit=False)


def watermarks(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """The low and the high watermark of a partition."""
    with _admin(bootstrap) as admin:
        return _offset(admin, topic, partition, OffsetSpec.EARLIEST), _offset(admin, topic, partition)


def last_stable_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Where a read_committed reader has to stop for now: the first undecided record, or the high watermark."""
    with _admin(bootstrap) as admin:
        return _offset(admin, topic, partition, level=IsolationLevel.READ_COMMITTED)


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """Raise the low watermark of a partition to the offset `before`; it is raised when the call returns."""
    with _admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, partition): before})


@contextmanager
def _admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        yield admin


def _producer(bootstrap: str, **settings: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=bootstrap,
        max_request_size=_MAX_RECORD,
        batch_size=256 << 10,
        linger_ms=5,
        metrics_enabled=False,
        **settings,
    )


def _send(producer: KafkaProducer, topic: str, record: NewRecord) -> Any:
    return producer.send(
        topic,
        value=record.value,
        key=record.key,
        headers=list(record.headers),
        partition=record.partition,
        timestamp_ms=record.timestamp,
    )


def _beyond_producer(record: NewRecord) -> bool:
    bare = record.key is None and record.value is None
    return bare or any(value is None or isinstance(key, _RawText) for key, value in record.headers)


def _write_batch(admin: KafkaAdminClient, topic: str, record: NewRecord) -> int:
    """Write one record as a batch of its own, without producer id, and return its offset."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=_MAX_RECORD)
    builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=record.partition, records=builder.buffer())
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=_SECONDS * 1000,
        topic_data=[data(name=topic, partition_data=[partition])],
        max_version=9,
    )
    leader = _leader(admin, topic, record.partition)

    async def exchange() -> Any:
        return await admin._manager.send(request, node_id=leader)

    answer = admin._manager.run(exchange).responses[0].partition_responses[0]
    if answer.error_code:
        raise for_code(answer.error_code)(answer.error_message)
    return int(answer.base_offset)


def _leader(admin: KafkaAdminClient, topic: str, partition: int) -> int:
    (described,) = admin.describe_topics([topic])
    leaders: Sequence[int] = [
        entry["leader_id"] for entry in described["partitions"] if entry["partition_index"] == partition
    ]
    return leaders[0]


def _offset(
    admin: KafkaAdminClient,
    topic: str,
    partition: int,
    spec: OffsetSpec = OffsetSpec.LATEST,
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    where = TopicPartition(topic, partition)
    return int(admin.list_partition_offsets({where: spec}, isolation_level=level)[where].offset)


def _record(message: Any) -> Record:
    return Record(
        offset=message.offset,
        timestamp=message.timestamp,
        timestamp_type=message.timestamp_type,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
    )

"""Whether the prototype gives what confluent-kafka gives: every field of every record, and where logs end."""

from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.bare import CONSUMER
from benchmarks.prototype.fetcher import drained
from benchmarks.prototype.native import Native
from index_format.records import Record, iter_records

Logs = dict[int, list[Record]]
"""Records by partition."""


def by_prototype(native: Native, bootstrap: str, topic: str) -> Logs:
    """All records of a topic."""
    logs: defaultdict[int, list[Record]] = defaultdict(list)
    for partition, cut in drained(native, bootstrap, topic):
        cut.batch.validate(full=True)
        logs[partition] += iter_records(cut.batch)
    return dict(logs)


def by_librdkafka(bootstrap: str, topic: str, partitions: int) -> Logs:
    """The same through confluent-kafka, read_committed as it is by default."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    logs: defaultdict[int, list[Record]] = defaultdict(list)
    while partitions:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                kind, time = message.timestamp()
                # librdkafka counts the types from 0, Kafka from -1.
                logs[message.partition()].append(
                    Record(
                        message.offset(), time, kind - 1, message.key(), message.value(), tuple(message.headers() or ())
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions -= 1
            elif error.code() != KafkaError._AUTO_OFFSET_RESET:
                raise SystemExit(error.str())
    consumer.close()
    return dict(logs)


def check_equal(native: Native, bootstrap: str, topic: str, partitions: int) -> int:
    """How many records are equal; ends the program at the first that is not."""
    ours, theirs = by_prototype(native, bootstrap, topic), by_librdkafka(bootstrap, topic, partitions)
    if ours != theirs:
        raise SystemExit(f"{topic}: {difference(ours, theirs)}")
    return sum(map(len, ours.values()))


def difference(ours: Logs, theirs: Logs) -> str:
    """Where two readings part."""
    for partition in sorted({*ours, *theirs}):
        mine, other = ours.get(partition, []), theirs.get(partition, [])
        for row, (left, right) in enumerate(zip(mine, other, strict=False)):
            if left != right:
                return f"partition {partition}, record {row}: {left} where librdkafka has {right}"
        if len(mine) != len(other):
            return f"partition {partition}: {len(mine)} records where librdkafka has {len(other)}"
    return "no difference"

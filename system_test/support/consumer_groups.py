"""Consumer groups through a foreign client: positions committed, looked at, and read on from."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata


@contextmanager
def consuming(bootstrap: str, group: str, *, otherwise: str = "none") -> Iterator[KafkaConsumer]:
    """A consumer of the group that commits nothing by itself; it starts at a committed position, or `otherwise`."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset=otherwise,
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
        metrics_enabled=False,
    )
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False)


def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int], metadata: str = "m") -> None:
    """Commits these offsets by partition."""
    with consuming(bootstrap, group) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in offsets])
        where = {TopicPartition(topic, each): OffsetAndMetadata(at, metadata, -1) for each, at in offsets.items()}
        consumer.commit(where)


def committed(bootstrap: str, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int | None]:
    """Where the group stands; None where it has no position."""
    with consuming(bootstrap, group) as consumer:
        return {partition: consumer.committed(TopicPartition(topic, partition)) for partition in partitions}


def read_on(bootstrap: str, group: str, topic: str, partition: int) -> list[bytes | None]:
    """The values that a consumer of the group gets from where it stands to the end."""
    place = TopicPartition(topic, partition)
    with consuming(bootstrap, group) as consumer:
        consumer.assign([place])
        (end,) = consumer.end_offsets([place]).values()
        values: list[bytes | None] = []
        # The last offset may be a transaction's marker: the position moves past it.
        while consumer.position(place) < end:
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values

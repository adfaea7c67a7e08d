"""Topics as they are filled, on librdkafka's mock cluster."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.data import START_MS, STEP_MS, TopicShape, produce_all, values
from tests.support.mock_cluster import MockCluster


@pytest.mark.parametrize("keys", [True, False])
def test_a_topic_is_filled_round_robin_with_keys_and_times(keys: bool) -> None:
    """The times decide what a range of time reads; the producer's own clock would make nonsense of it."""
    cluster = MockCluster()
    shape = TopicShape(64, 200, keys=keys)
    cluster.create_topic(shape.name)
    produce_all(cluster.bootstrap_servers, shape)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test"})
    made = list(values(shape))
    for partition in range(shape.partitions):
        consumer.assign([TopicPartition(shape.name, partition, 0)])
        numbers = range(partition, shape.records, shape.partitions)
        found = consumer.consume(len(numbers), timeout=30)
        assert [message.value() for message in found] == [made[number] for number in numbers]
        assert [message.timestamp()[1] for message in found] == [START_MS + number * STEP_MS for number in numbers]
        assert [message.key() for message in found] == [b"key-%d" % n if keys else None for n in numbers]
    consumer.close()

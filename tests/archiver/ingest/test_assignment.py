"""Where `--once` ends."""

from typing import Any

from archiver.config.model import RunConfig
from archiver.ingest.assignment import WHOLE, Drain
from archiver.ingest.kafka_cluster import KafkaCluster, KafkaLog
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import Partition
from tests.support.archives import records
from tests.support.mock_cluster import MockCluster


class Acquired:
    """Stands for the partitions of the process."""

    def __init__(self) -> None:
        self.ends: dict[Partition, tuple[int, int]] = {}

    def acquire(self, partition: Partition, end: int, high: int) -> None:
        self.ends[partition] = end, high


def test_a_topic_that_is_written_to_has_no_open_transaction() -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    config = RunConfig(archive="./unused", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",), once=True)

    class BusyLog(KafkaLog):
        """Of a topic that grows with every question."""

        def bounds(self, partition: Partition) -> Any:
            found = super().bounds(partition)
            cluster.produce("orders", partition[1], records(range(2)))
            return found

    log, acquired = BusyLog(consumer_settings(config, queue_bytes=0)), Acquired()
    known: Any = KafkaCluster({"bootstrap.servers": cluster.bootstrap_servers})
    owner: Any = acquired
    Drain(config, known, log, owner, ["orders"], WHOLE, lambda: None).start()
    log.close()
    assert len(acquired.ends) == 4
    assert all(high <= end for end, high in acquired.ends.values()), acquired.ends

"""The logs of a cluster, as a repair reads them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cache

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_cluster import KafkaCluster, PartitionLog, RecordReader
from archiver.ingest.kafka_settings import CLIENT_ID
from archiver.maintain.repair.diverged import Source
from blockgz.errors import UsageError
from blockgz.kafka.settings import client_settings

NOT_ASKED = LogBounds(-1, -1)
READS_FOR_REPAIR = {
    "group.id": "blockgz-repair",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


@contextmanager
def log_source(kafka: Mapping[str, str]) -> Iterator[Source]:
    """The cluster that librdkafka's settings name; raises UsageError where they name none."""
    if "bootstrap.servers" not in kafka:
        raise UsageError("no cluster is given", why="the partition's log must be read", remedy="give -b HOST:PORT")
    settings = client_settings(kafka, CLIENT_ID)

    @cache
    def cluster() -> KafkaCluster:  # made when the plan asks for it: a client asks for tokens as soon as there is one
        return KafkaCluster(settings)

    @cache
    def records(level: str) -> RecordReader:
        reader = RecordReader(settings | READS_FOR_REPAIR | {"isolation.level": level})
        return readers.enter_context(closing(reader))

    def log_of(topic: str, partition: int, level: str) -> PartitionLog:
        return PartitionLog(
            (topic, partition),
            NOT_ASKED,
            lambda asked: cluster().ask_bounds(asked, level),
            records(level),
            lambda _: None,  # the plan compares ids itself
        )

    def id_of(topic: str) -> str | None:
        cluster().topics()  # raises where no broker answers or none lets this user in
        return cluster().topic_ids([topic]).ids.get(topic)

    with ExitStack() as readers:
        yield Source(log_of, id_of)

"""Archives to topics by Spark on executors that die: judged by a foreign client and by `replayer verify`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from replayer.spark import register
from system_test.conftest import _required
from system_test.support.archiving import Site, folder_site
from system_test.support.bulk import produce_bulk
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.spark import spark_session
from system_test.support.topics import STORED_AS_GZIP, Record, create_topic, read

WHOLE = str(2**50)
"""taskBytes that leave every partition to one task."""
RECORDS = 2400
VALUE_BYTES = 16_000
"""Two transactions and a half for each of two partitions."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark_executor_memory": "768m",
        "spark_sql_execution_arrow_maxRecordsPerBatch": "50",
        "spark_sql_execution_arrow_maxBytesPerBatch": "1m",
    }
    with _required(), spark_session("local-cluster[2,1,768]", **settings) as session:
        register(session)
        yield session


@pytest.fixture(scope="module")
def site(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return folder_site(broker.bootstrap, tmp_path_factory.mktemp("spark") / "archive")


@pytest.fixture(scope="module")
def large(site: Site) -> str:
    """An archived topic of two partitions that takes several transactions each."""
    topic = "spark-large"
    create_topic(site.bootstrap, topic, 2)
    produce_bulk(site.bootstrap, topic, RECORDS, partitions=2, value_bytes=VALUE_BYTES, seed=7)
    site.once(topic, "--block-bytes", "256KiB")
    return topic


def archived(spark: SparkSession, site: Site, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("blockgz").options(path=site.address, subscribe=topic, includeHeaders="true")
    return reader.options(**{"taskBytes": WHOLE, **options}).load()


def write(rows: DataFrame, site: Site, target: str, **options: str) -> None:
    writer = rows.write.format("blockgz-kafka").mode("append").option("kafka.bootstrap.servers", site.bootstrap)
    writer.options(topic=target, **options).save()


def empty_copy(site: Site, topic: str, name: str, partitions: int = 2) -> str:
    target = f"{topic}-{name}"
    create_topic(site.bootstrap, target, partitions, STORED_AS_GZIP)
    return target


def contents(records: list[Record]) -> list[tuple[object, ...]]:
    return [(record.timestamp, record.key, record.value, record.headers) for record in records]


def same(site: Site, topic: str, copy: str, partitions: int = 2) -> None:
    """A reader of committed records finds in the copy what stands in the topic, once and in order."""
    for partition in range(partitions):
        wanted = contents(read(site.bootstrap, topic, partition))
        assert contents(read(site.bootstrap, copy, partition)) == wanted, f"partition {partition}"


Passing = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def in_first_attempt(after: int, death: Callable[[], None]) -> Passing:
    """Passes rows on; the first attempt of partition 1's task dies after so many of them."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if passed >= after and batch.column("partition")[0].as_py() == 1 and context.attemptNumber() == 0:
                death()

    return passing


def worker_dies() -> None:
    os._exit(3)


def executor_dies() -> None:
    """The JVM that the worker's daemon is a child of, with all that it runs."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    os._exit(3)


@pytest.mark.parametrize("death", [worker_dies, executor_dies])
def test_a_task_that_dies_half_way(spark: SparkSession, site: Site, large: str, death: Callable[[], None]) -> None:
    copy = empty_copy(site, large, death.__name__)
    rows = archived(spark, site, large)
    dying = rows.mapInArrow(in_first_attempt(RECORDS // 2 * 3 // 4, death), rows.schema)
    write(dying, site, copy, transactional="true", job=copy)
    same(site, large, copy)
    assert len(read(site.bootstrap, copy, 1, committed=False)) > RECORDS // 2, (
        "nothing was rolled back: it died too late"
    )
    write(rows, site, copy, transactional="true", job=copy)
    same(site, large, copy)

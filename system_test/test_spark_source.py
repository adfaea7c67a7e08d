"""Format `blockgz` in a real Spark, judged by Spark's own Kafka source over the same offsets."""

from __future__ import annotations

import json
import random
import runpy
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from replayer.spark import register
from system_test.conftest import required_parts
from system_test.support.archiving import Site, folder_site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.contents import records_of_every_content
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.spark import spark_session
from system_test.support.topics import NewRecord, Transactions, create_topic, produce, read, watermarks
from tests.support.sampling import in_long_run

EXAMPLES = Path(__file__).parent.parent / "docs/examples"
FIRST_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with required_parts(), spark_session() as session:
        register(session)
        yield session


@pytest.fixture(scope="module")
def site(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return folder_site(broker.bootstrap, tmp_path_factory.mktemp("spark") / "archive")


def archived(spark: SparkSession, site: Site, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("blockgz").options(path=site.address, subscribe=topic, includeHeaders="true", **options)
    return reader.load()


def in_kafka(spark: SparkSession, site: Site, topic: str, **options: str) -> DataFrame:
    own = {"kafka.bootstrap.servers": site.bootstrap, "kafka.isolation.level": "read_committed"}
    return spark.read.format("kafka").options(subscribe=topic, includeHeaders="true", **own, **options).load()


def assert_equal(left: DataFrame, right: DataFrame) -> int:
    """The same columns and the same rows, each as often; how many."""
    assert [(field.name, field.dataType) for field in left.schema] == [(f.name, f.dataType) for f in right.schema]
    assert left.exceptAll(right).count() == right.exceptAll(left).count() == 0
    return left.count()


def nasty(site: Site, topic: str) -> int:
    """Every content, transactions committed and aborted, over three partitions; how many can be read."""
    create_topic(site.bootstrap, topic, 3)
    spread = [
        replace(record, partition=n % 3, timestamp=FIRST_MS + n) for n, record in enumerate(records_of_every_content())
    ]
    produce(site.bootstrap, topic, spread)
    with Transactions(site.bootstrap, topic) as transactions:
        transactions.commit(topic, [NewRecord(b"committed", partition=n % 3) for n in range(20)])
        transactions.abort(topic, [NewRecord(b"aborted", partition=n % 3) for n in range(20)])
        transactions.commit(topic, [NewRecord(b"committed", partition=n % 3) for n in range(20)])
    return len(spread) + 40


@pytest.mark.parametrize(
    ("record_format", "codec"), [("json", "gzip"), pytest.param("arrow", "zstd", marks=in_long_run)]
)
def test_the_archive_and_the_topic_are_equal(spark: SparkSession, site: Site, record_format: str, codec: str) -> None:
    topic = f"nasty-{record_format}-{codec}-{uuid.uuid4().hex[:6]}"
    readable = nasty(site, topic)
    site.once(topic, "--record-format", record_format, "--codec", codec, "--block-bytes", "4KiB")
    assert assert_equal(archived(spark, site, topic), in_kafka(spark, site, topic)) == readable
    assert archived(spark, site, topic, minPartitions="8").rdd.getNumPartitions() >= 8

    offsets = json.dumps({topic: {"0": 17, "1": -2, "2": 60}}), json.dumps({topic: {"0": 90, "1": 100, "2": -1}})
    window = {"startingOffsets": offsets[0], "endingOffsets": offsets[1]}
    assert_equal(archived(spark, site, topic, **window), in_kafka(spark, site, topic, **window))
    times = {"startingTimestamp": str(FIRST_MS + 100), "endingTimestamp": str(FIRST_MS + 400)}
    assert assert_equal(archived(spark, site, topic, **times), in_kafka(spark, site, topic, **times)) == 300


def test_a_compacted_topic(spark: SparkSession, site: Site, topic_name: str) -> None:
    create_compacted_topic(site.bootstrap, topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % n, key=b"%d" % (n % 7)) for n in range(60)])
    compact_and_wait(site.bootstrap, topic_name)
    site.once(topic_name)
    assert_equal(archived(spark, site, topic_name), in_kafka(spark, site, topic_name))


def test_an_error_says_what_to_do(spark: SparkSession, site: Site) -> None:
    with pytest.raises(AnalysisException) as caught:
        archived(spark, site, "nowhere").count()
    assert "topic nowhere is not in the archive" in str(caught.value)
    assert "do:    choose one of these" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@in_long_run
def test_a_stream_through_restarts_neither_loses_nor_doubles(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    """Three runs, each of a few batches over what is archived by then, each begun from the checkpoint of the last."""
    seed = random.randrange(2**32)
    source = random.Random(seed)
    create_topic(site.bootstrap, topic_name, 2)
    number = 0
    for _ in range(3):
        count = source.randrange(200, 400)
        records = [NewRecord(b"%d" % n, partition=source.randrange(2)) for n in range(number, number + count)]
        produce(site.bootstrap, topic_name, records)
        number += count
        site.once(topic_name, "--block-bytes", "1KiB")
        options = {"path": site.address, "subscribe": topic_name, "startingOffsets": "earliest"}
        limit = str(source.randrange(50, 200))
        stream = spark.readStream.format("blockgz").options(**options, maxOffsetsPerTrigger=limit).load()
        query = (
            stream.selectExpr("CAST(value AS STRING)", "partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120), f"seed {seed}"
        assert query.exception() is None, f"seed {seed}"
        told = [json.loads(progress.sources[0].latestOffset)["behind"]["offsets"] for progress in query.recentProgress]
        assert len(told) > 1 and told[0] > told[-1] == 0, f"seed {seed}: {told}"
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(number)), f"seed {seed}"
    ends = [watermarks(site.bootstrap, topic_name, partition)[1] for partition in range(2)]
    places = [(partition, offset) for partition in range(2) for offset in range(ends[partition])]
    assert sorted((row["partition"], row["offset"]) for row in rows) == places


def test_the_past_from_the_archive_and_the_present_from_kafka(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/backfill_then_live.py: topic and archive grow before, between and after its runs; no seam shows."""
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    create_topic(site.bootstrap, "orders", 3)
    chance = random.Random(17)

    def more(count: int, partitions: int) -> None:
        records = [NewRecord(b"%d" % n, partition=chance.randrange(partitions)) for n in range(count)]
        with Transactions(site.bootstrap, "orders") as writer:
            writer.commit("orders", records)
            writer.abort("orders", records[:5])

    for name, value in {"BLOCKGZ_ARCHIVE": site.address, "KAFKA": site.bootstrap, "OUT": str(tmp_path / "out")}.items():
        monkeypatch.setenv(name, value)
    example = str(EXAMPLES / "backfill_then_live.py")
    more(300, partitions=2)  # nothing in the third until the archive's part is settled
    site.once("orders")
    more(100, partitions=3)
    runpy.run_path(example)
    seam = json.loads((tmp_path / "out" / "seam.json").read_text())["orders"]
    more(200, partitions=3)
    site.once("orders")
    runpy.run_path(example)
    rows = spark.read.parquet(str(tmp_path / "out" / "orders")).collect()
    found = sorted((row.partition, row.offset, bytes(row.value)) for row in rows)
    topic = [(number, each) for number in range(3) for each in read(site.bootstrap, "orders", number)]
    assert found == sorted((number, each.offset, each.value) for number, each in topic)
    for row in rows:
        assert (row.batch == "archive") == (row.offset < seam[str(row.partition)])
    assert {row.batch for row in rows} == {"archive", "0", "1"}

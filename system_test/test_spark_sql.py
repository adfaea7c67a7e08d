"""Format `blockgz` as Spark finds it by itself: without `register`, as SQL, with filters that leave blocks out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from system_test.conftest import required_parts
from system_test.support.spark import spark_session
from tests.support.archives import ArchiveWriter, records

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FIRST = datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)
RECORDS, CHUNK = 2000, 250
PAGE = Path(__file__).parents[1] / "docs" / "spark.md"
ROUNDS = 6


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    with required_parts(), spark_session(**warehouse) as session:
        yield session


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of two partitions; the record at an offset is that many milliseconds after the first."""
    root = tmp_path_factory.mktemp("sql")
    writer = ArchiveWriter(root)
    for topic in ("orders", "payments"):
        for partition in range(2):
            part = writer.partition(topic, partition)
            for first in range(0, RECORDS, CHUNK):
                part.commit(records(range(first, first + CHUNK)), block_bytes=4096)
    return root


def read(spark: SparkSession, archive: Path, *, pushed: bool) -> DataFrame:
    spark.conf.set(PUSHDOWN, str(pushed).lower())
    return spark.read.format("blockgz").options(path=str(archive), subscribe="orders,payments").load()


def test_the_first_lines_of_the_page(spark: SparkSession, archive: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As they stand there, in a session that nothing was registered in."""
    lines = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    exec(lines.replace("./archive", str(archive)), {})
    assert "|partition|offset|" in capfd.readouterr().out


def test_sql_needs_nothing_but_the_package(spark: SparkSession, archive: Path) -> None:
    options = f"path '{archive}', subscribe 'orders', includeHeaders true"
    spark.sql(f"CREATE TEMPORARY VIEW orders USING blockgz OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*), max(offset), count(headers) FROM orders WHERE partition = 1").collect()
    assert tuple(row) == (RECORDS, RECORDS - 1, RECORDS // 5)
    found = spark.sql("SELECT CAST(value AS STRING) AS text FROM orders WHERE offset = 18 AND partition = 0").collect()
    assert [each.text.rstrip("x") for each in found] == ["value of 18 "]


def test_a_table_is_refused_with_what_to_write_instead(spark: SparkSession, archive: Path) -> None:
    """Spark would keep it, and hand no option over when it is read."""
    with pytest.raises(Exception, match=r"CREATE TEMPORARY VIEW name USING blockgz OPTIONS"):
        spark.sql(f"CREATE TABLE kept USING blockgz OPTIONS (path '{archive}', subscribe 'orders')")


def test_all_three_formats_are_known(spark: SparkSession, archive: Path) -> None:
    """Those that write refuse what they were given, which is to say that they were found."""
    rows = read(spark, archive, pushed=False).limit(1)
    for name, said in (("blockgz-kafka", "kafka.bootstrap.servers"), ("blockgz-archive", "has no column headers")):
        with pytest.raises(Exception, match=said):
            rows.write.format(name).mode("append").save()


def test_filters_leave_blocks_out_and_no_row(spark: SparkSession, archive: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        low = chance.randrange(RECORDS)
        high = low + chance.randrange(1, 400)
        since, until = (FIRST + timedelta(milliseconds=each) for each in (low, high))
        wanted = chance.choice(
            [
                (col("timestamp") >= since) & (col("timestamp") < until),
                (col("offset") > low) & (col("partition") == 1),
                col("offset").isin(low, high, 3) & (col("topic") == "payments"),
                (col("timestamp") > until) & (col("offset") <= high + 10) & ~(col("partition") == 0),
            ]
        )
        plain, pushed = (
            sorted(
                read(spark, archive, pushed=pushed).where(wanted).collect(),
                key=lambda row: (row.topic, row.partition, row.offset),
            )
            for pushed in (False, True)
        )
        assert plain == pushed, f"seed {seed}"


def test_blocks_that_hold_no_row_are_not_read(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    """Their data is gone: only a read that leaves them out succeeds."""
    writer = ArchiveWriter(tmp_path)
    part = writer.partition("orders", 0)
    for first in range(0, RECORDS, CHUNK):
        part.commit(records(range(first, first + CHUNK)), block_bytes=4096)
    for data in sorted(tmp_path.rglob("*.gz"))[1:]:
        data.unlink()
    spark.conf.set(PUSHDOWN, "true")
    orders = spark.read.format("blockgz").options(path=str(tmp_path), subscribe="orders").load()
    assert orders.where(col("offset") < CHUNK).count() == CHUNK
    assert orders.where(col("timestamp") < FIRST + timedelta(milliseconds=CHUNK)).count() == CHUNK
    with pytest.raises(Exception, match="is missing"):
        orders.where(col("offset") < CHUNK + 1).count()


def test_a_schema_leaves_columns_out(spark: SparkSession, archive: Path) -> None:
    spark.conf.set(PUSHDOWN, "false")
    reader = spark.read.format("blockgz").options(path=str(archive), subscribe="orders")
    few = reader.schema("offset bigint, key binary").load()
    assert few.columns == ["offset", "key"] and few.count() == 2 * RECORDS
    assert few.where("offset = 8").first() == (8, b"8")
    with pytest.raises(Exception, match="the schema has column value as string"):
        reader.schema("value string").load().count()


def test_a_stream_with_a_wrong_schema_says_so(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    """Spark would cover an error of the reader's maker with one of its own."""
    stream = spark.readStream.format("blockgz").schema("value string").load(str(archive), subscribe="orders")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="ReadFailed: the schema has column value as string\n"):
        writer.trigger(availableNow=True).start().awaitTermination()

"""Format `blockgz` in a real Spark: as batch, SQL and stream, judged by Spark's own Kafka source; and `archiver spark`
on topics whose logs have holes where batches meet.
"""

import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import LongType, StringType, StructField, StructType

from system_test.support.archive_broker import Endpoint, serving
from system_test.support.archiving import Site, folder_site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.contents import produce_nasty
from system_test.support.spark import job_command, job_environment, run_job, spark_session
from system_test.support.topics import NewRecord, Transactions, create_topic, produce, read
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, records
from tests.support.protobuf_values import ANSWERS, message, value
from tests.support.sampling import in_long_run
from tests.support.schema_registry import avro_value, registry_of, schema_registry

pytestmark = pytest.mark.timeout(900, func_only=True)

EXAMPLES = Path(__file__).parent.parent / "docs/examples"
FIRST_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows the format by the files of the package alone."""
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    with spark_session(**warehouse) as session:
        yield session


def archived(spark: SparkSession, site: Site, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("blockgz").options(path=site.address, subscribe=topic, includeHeaders="true", **options)
    return reader.load()


def in_kafka(spark: SparkSession, site: Site | Endpoint, topic: str, **options: str) -> DataFrame:
    own = {"kafka.bootstrap.servers": site.bootstrap, "kafka.isolation.level": "read_committed"}
    return spark.read.format("kafka").options(subscribe=topic, includeHeaders="true", **own, **options).load()


def assert_equal(left: DataFrame, right: DataFrame) -> int:
    """The same columns and the same rows, each as often; how many."""
    assert [(field.name, field.dataType) for field in left.schema] == [(f.name, f.dataType) for f in right.schema]
    assert left.exceptAll(right).count() == right.exceptAll(left).count() == 0
    return left.count()


@pytest.mark.parametrize(
    ("record_format", "codec"), [("json", "gzip"), pytest.param("arrow", "zstd", marks=in_long_run)]
)
def test_the_archive_and_the_topic_are_equal(
    spark: SparkSession, broker_site: Site, record_format: str, codec: str
) -> None:
    topic = f"nasty-{record_format}-{codec}-{uuid.uuid4().hex[:6]}"
    readable = produce_nasty(broker_site.bootstrap, topic, 3)
    broker_site.once(topic, "--record-format", record_format, "--codec", codec, "--block-bytes", "4KiB")
    assert assert_equal(archived(spark, broker_site, topic), in_kafka(spark, broker_site, topic)) == readable
    assert archived(spark, broker_site, topic, minPartitions="8").rdd.getNumPartitions() >= 8

    offsets = json.dumps({topic: {"0": 17, "1": -2, "2": 60}}), json.dumps({topic: {"0": 90, "1": 100, "2": -1}})
    window = {"startingOffsets": offsets[0], "endingOffsets": offsets[1]}
    assert_equal(archived(spark, broker_site, topic, **window), in_kafka(spark, broker_site, topic, **window))
    times = {"startingTimestamp": str(FIRST_MS + 100), "endingTimestamp": str(FIRST_MS + 400)}
    assert (
        assert_equal(archived(spark, broker_site, topic, **times), in_kafka(spark, broker_site, topic, **times)) == 300
    )


def test_sparks_own_source_reads_the_archive_from_a_broker_over_it(
    spark: SparkSession, broker_site: Site, topic_name: str, tmp_path: Path
) -> None:
    readable = produce_nasty(broker_site.bootstrap, topic_name, 3)
    broker_site.once(topic_name, "--block-bytes", "4KiB")
    with serving(broker_site, topics=(topic_name,)) as endpoint:
        assert assert_equal(in_kafka(spark, endpoint, topic_name), in_kafka(spark, broker_site, topic_name)) == readable
        times = {"startingTimestamp": str(FIRST_MS + 100), "endingTimestamp": str(FIRST_MS + 400)}
        assert in_kafka(spark, endpoint, topic_name, **times).count() == 300
        own = {"kafka.bootstrap.servers": endpoint.bootstrap, "startingOffsets": "earliest", "subscribe": topic_name}
        stream = spark.readStream.format("kafka").options(**own).load().writeStream.trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("streamed").awaitTermination()
        assert spark.table("streamed").count() == readable


def test_a_compacted_topic(spark: SparkSession, broker_site: Site, topic_name: str) -> None:
    create_compacted_topic(broker_site.bootstrap, topic_name)
    produce(broker_site.bootstrap, topic_name, [NewRecord(b"%d" % n, key=b"%d" % (n % 7)) for n in range(60)])
    compact_and_wait(broker_site.bootstrap, topic_name)
    broker_site.once(topic_name)
    assert_equal(archived(spark, broker_site, topic_name), in_kafka(spark, broker_site, topic_name))


def test_an_error_says_what_to_do(spark: SparkSession, broker_site: Site) -> None:
    with pytest.raises(AnalysisException) as caught:
        archived(spark, broker_site, "nowhere").count()
    assert "topic nowhere is not in the archive" in str(caught.value)
    assert "do:    choose one of these" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_past_from_the_archive_and_the_present_from_kafka(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/backfill_then_live.py: topic and archive grow before, between and after its runs; no seam shows."""
    create_topic(site.bootstrap, "orders", 3)
    chance = random.Random(17)

    def more(count: int, partitions: int) -> None:
        records = [NewRecord(b"%d" % n, partition=chance.randrange(partitions)) for n in range(count)]
        with Transactions(site.bootstrap, "orders") as writer:
            writer.commit("orders", records)
            writer.abort("orders", records[:5])

    for name, text in {"BLOCKGZ_ARCHIVE": site.address, "KAFKA": site.bootstrap, "OUT": str(tmp_path / "out")}.items():
        monkeypatch.setenv(name, text)
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


OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": "string", "default": "none"}]}
ROW = StructType([StructField("id", LongType()), StructField("name", StringType())])
COUNT = 20


def archive_values(root: Path, *values: bytes | None) -> None:
    kept = zip(records(range(len(values))), values, strict=True)
    ArchiveWriter(root).partition("orders", 0).commit([each._replace(key=b"k", value=found) for each, found in kept])


def test_avro_of_two_schemas_as_batch_sql_and_stream(spark: SparkSession, tmp_path: Path) -> None:
    def value(n: int) -> bytes:
        return avro_value(2, NEW, {"id": n, "note": "x"}) if n % 2 else avro_value(1, OLD, {"id": n})

    archive_values(tmp_path / "archive", *map(value, range(COUNT)))
    expected = [(n, "x" if n % 2 else "none", "k") for n in range(COUNT)]
    with schema_registry({1: OLD, 2: NEW}, {"orders-value": 2}) as (url, _):
        options = {"path": str(tmp_path / "archive"), "subscribe": "orders", "startingOffsets": "earliest"}
        options |= {"keyFormat": "string", "valueFormat": "avro", "schemaRegistry": url}
        rows = spark.read.format("blockgz").options(**options).load().orderBy("offset")
        assert [tuple(row) for row in rows.select("value.id", "value.note", "key").collect()] == expected
        given = ", ".join(f"{name} '{value}'" for name, value in options.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING blockgz OPTIONS ({given})")
        assert spark.sql("SELECT sum(value.id) FROM orders WHERE offset >= 10").collect()[0][0] == sum(range(10, COUNT))
        stream = spark.readStream.format("blockgz").options(**options).load().selectExpr("value.*", "key")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        assert query.awaitTermination(120) and query.exception() is None
        copied = spark.read.parquet(str(tmp_path / "out")).select("id", "note", "key")
        assert sorted(tuple(row) for row in copied.collect()) == expected


def test_protobuf_with_imports(spark: SparkSession, tmp_path: Path) -> None:
    orders = []
    for n in range(COUNT):
        order = message("shop.Order")
        order.id, order.to.zip = n, f"{n:05}"
        order.counts["x"] = n
        orders.append(value(order.SerializeToString()))
    archive_values(tmp_path, *orders)
    with registry_of(ANSWERS) as (url, _):
        options = {"path": str(tmp_path), "subscribe": "orders", "valueFormat": "protobuf", "schemaRegistry": url}
        rows = spark.read.format("blockgz").options(**options).load()
        found = rows.selectExpr("int(value.id) AS id", "value.to.zip", "value.counts['x']", "value.note").orderBy("id")
        assert [tuple(row) for row in found.collect()] == [(n, f"{n:05}", n, None) for n in range(COUNT)]


def test_changes_of_debezium_and_what_is_none(spark: SparkSession, tmp_path: Path) -> None:
    changes: list[bytes | None] = [
        json.dumps({"before": None, "after": {"id": n, "name": "x"}, "op": "c", "ts_ms": 1000 * n}).encode()
        for n in range(COUNT)
    ]
    archive_values(tmp_path, *changes, None, b"{")
    options = {"path": str(tmp_path), "subscribe": "orders", "valueFormat": "json", "valueSchema": ROW.json()}
    reader = spark.read.format("blockgz").options(**options, envelope="debezium")
    rows = reader.option("onBadValue", "column").load()
    good = rows.where("bad IS NULL AND op IS NOT NULL").selectExpr("op", "after.id", "unix_seconds(changed_at)")
    assert sorted(tuple(row) for row in good.collect()) == [("c", n, n) for n in range(COUNT)]
    assert [row["offset"] for row in rows.where("bad IS NOT NULL").collect()] == [COUNT + 1]
    with pytest.raises(Exception, match=rf"the record orders:0:{COUNT + 1} cannot be decoded"):
        reader.option("onBadValue", "fail").load().selectExpr("max(after.id)").collect()
    with pytest.raises(AnalysisException, match="set both valueFormat json and valueSchema") as caught:
        spark.read.format("blockgz").options(path=str(tmp_path), subscribe="orders", valueFormat="json").load()
    assert "Traceback" not in str(caught.value)


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FIRST = datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)
RECORDS, CHUNK = 2000, 250
PAGE = Path(__file__).parents[1] / "docs" / "spark.md"
ROUNDS = 6


@pytest.fixture(scope="module")
def two_topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of two partitions; the record at an offset is that many milliseconds after the first."""
    root = tmp_path_factory.mktemp("sql")
    writer = ArchiveWriter(root)
    for topic in ("orders", "payments"):
        for partition in range(2):
            part = writer.partition(topic, partition)
            for first in range(0, RECORDS, CHUNK):
                part.commit(records(range(first, first + CHUNK)), block_bytes=4096)
    return root


def both_topics(spark: SparkSession, two_topics: Path, *, pushed: bool) -> DataFrame:
    spark.conf.set(PUSHDOWN, str(pushed).lower())
    return spark.read.format("blockgz").options(path=str(two_topics), subscribe="orders,payments").load()


def test_the_first_lines_of_the_page(spark: SparkSession, two_topics: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As they stand there, in a session that nothing was registered in."""
    lines = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    exec(lines.replace("./archive", str(two_topics)), {})
    assert "|partition|offset|" in capfd.readouterr().out


def test_sql_needs_nothing_but_the_package(spark: SparkSession, two_topics: Path) -> None:
    options = f"path '{two_topics}', subscribe 'orders', includeHeaders true"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING blockgz OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*), max(offset), count(headers) FROM orders WHERE partition = 1").collect()
    assert tuple(row) == (RECORDS, RECORDS - 1, RECORDS // 5)
    found = spark.sql("SELECT CAST(value AS STRING) AS text FROM orders WHERE offset = 18 AND partition = 0").collect()
    assert [each.text.rstrip("x") for each in found] == ["value of 18 "]


def test_a_table_is_refused_with_what_to_write_instead(spark: SparkSession, two_topics: Path) -> None:
    """Spark would keep it, and hand no option over when it is read."""
    with pytest.raises(Exception, match=r"CREATE TEMPORARY VIEW name USING blockgz OPTIONS"):
        spark.sql(f"CREATE TABLE kept USING blockgz OPTIONS (path '{two_topics}', subscribe 'orders')")


def test_all_three_formats_are_known(spark: SparkSession, two_topics: Path) -> None:
    """Those that write refuse what they were given, which is to say that they were found."""
    rows = both_topics(spark, two_topics, pushed=False).limit(1)
    for name, said in (("blockgz-kafka", "kafka.bootstrap.servers"), ("blockgz-archive", "has no column headers")):
        with pytest.raises(Exception, match=said):
            rows.write.format(name).mode("append").save()


def test_filters_leave_blocks_out_and_no_row(spark: SparkSession, two_topics: Path) -> None:
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
                both_topics(spark, two_topics, pushed=pushed).where(wanted).collect(),
                key=lambda row: (row.topic, row.partition, row.offset),
            )
            for pushed in (False, True)
        )
        assert plain == pushed, f"seed {seed}"


def test_blocks_that_hold_no_row_are_not_read(spark: SparkSession, two_topics: Path, tmp_path: Path) -> None:
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


def test_a_schema_leaves_columns_out(spark: SparkSession, two_topics: Path) -> None:
    spark.conf.set(PUSHDOWN, "false")
    reader = spark.read.format("blockgz").options(path=str(two_topics), subscribe="orders")
    few = reader.schema("offset bigint, key binary").load()
    assert few.columns == ["offset", "key"] and few.count() == 2 * RECORDS
    assert few.where("offset = 8").first() == (8, b"8")
    with pytest.raises(Exception, match="the schema has column value as string"):
        reader.schema("value string").load().count()


def test_a_stream_with_a_wrong_schema_says_so(spark: SparkSession, two_topics: Path, tmp_path: Path) -> None:
    """Spark would cover an error of the reader's maker with one of its own."""
    stream = spark.readStream.format("blockgz").schema("value string").load(str(two_topics), subscribe="orders")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="ReadFailed: the schema has column value as string\n"):
        writer.trigger(availableNow=True).start().awaitTermination()


PARTITIONS = 2


def job(site: Site, topic: str, checkpoint: Path, *options: str) -> dict[str, Any]:
    """The result of a job that ended well."""
    done = run_job(site, topic, checkpoint, *options)
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def gaps(site: Site, topic: str) -> list[Any]:
    found = site.replayer_json("verify", topic, "--deep", "--records")
    if found["verdict"] == "OK":
        return []
    assert found["verdict"] == "WARNING", found
    return [
        (each["partition"], gap["from"], gap["to"], gap["reason"])
        for each in found["partitions"]
        for gap in each["gaps"]
    ]


def borders(checkpoint: Path, topic: str, partition: int = 0) -> list[int]:
    """Where batches ended, as Spark keeps it."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1])[topic][str(partition)] for path in files]


def holes_at(ends: list[int], site: Site, topic: str, partition: int = 0) -> list[int]:
    """Those ends right behind which, or right before which, the log has no record."""
    offsets = {record.offset for record in read(site.bootstrap, topic, partition)}
    return [end for end in ends if end - 1 not in offsets or (end not in offsets and end < max(offsets))]


def transact(site: Site, topic: str, source: random.Random, transactions: int) -> None:
    """Commits, aborts, and records outside of any transaction; the last of each partition is committed."""
    with Transactions(site.bootstrap, topic) as writer:
        for number in range(transactions):
            records = [
                NewRecord(b"%d" % number, key=b"k", partition=source.randrange(PARTITIONS))
                for _ in range(source.randrange(1, 5))
            ]
            kind = source.choice((writer.commit, writer.commit, writer.abort))
            kind(topic, records)
            if source.random() < 0.2:
                produce(site.bootstrap, topic, records)
        writer.commit(topic, [NewRecord(b"end", partition=number) for number in range(PARTITIONS)])


@in_long_run
def test_a_transactional_topic_has_no_gaps_wherever_batches_and_jobs_end(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    """Batches of some offsets, a job that is killed, one that goes on, and one that has lost its checkpoint."""
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    source = random.Random(seed)
    create_topic(site.bootstrap, topic_name, PARTITIONS)
    transact(site, topic_name, source, 7)
    with Transactions(site.bootstrap, topic_name) as writer:  # of one partition, batches without a record
        for _ in range(3):
            writer.abort(topic_name, [NewRecord(b"nothing", partition=1)] * 6)
    transact(site, topic_name, source, 2)
    few = ("--max-offsets", "7")
    home = Path(site.address) / f"topic={topic_name}"
    command = job_command(site, topic_name, tmp_path / "checkpoint", *few)
    with (tmp_path / "stderr").open("w") as says:
        killed = subprocess.Popen(command, env=job_environment(), start_new_session=True, stdout=says, stderr=says)
        try:
            wait_until(
                lambda: len(list(home.glob("*/*.gz"))) >= 3 or killed.poll() is not None, 200, "some batches' chunks"
            )
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "stderr").read_text()[-3000:]
    assert job(site, topic_name, tmp_path / "checkpoint", *few)["batches"] >= 3
    transact(site, topic_name, source, 4)
    job(site, topic_name, tmp_path / "checkpoint", *few)
    at_holes = [
        holes_at(borders(tmp_path / "checkpoint", topic_name, number), site, topic_name, number)
        for number in range(PARTITIONS)
    ]
    assert all(at_holes), "no batch ended at a hole"
    transact(site, topic_name, source, 2)
    job(site, topic_name, tmp_path / "lost", "--max-offsets", "20")
    assert gaps(site, topic_name) == []
    archived = [site.exact(topic_name, number).records for number in range(PARTITIONS)]
    there = [read(site.bootstrap, topic_name, number) for number in range(PARTITIONS)]
    assert list(map(len, archived)) == list(map(len, there))


@in_long_run
def test_holes_of_compaction_are_not_gaps_where_batches_meet(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    """Whole batches are compacted away, behind some that are not."""
    create_compacted_topic(site.bootstrap, topic_name)
    keys = [b"first-%d" % n for n in range(12)] + [b"%d" % (n % 3) for n in range(28)]
    produce(site.bootstrap, topic_name, [NewRecord(b"v", key=key) for key in keys])
    left = compact_and_wait(site.bootstrap, topic_name)
    job(site, topic_name, tmp_path / "checkpoint", "--max-offsets", "6", "--on-gap", "stop")
    assert len(holes_at(borders(tmp_path / "checkpoint", topic_name), site, topic_name)) >= 3
    assert gaps(site, topic_name) == []
    assert len(site.exact(topic_name).records) == len(left)


@in_long_run
def test_what_a_checkpoint_read_for_another_archive_stays_a_gap(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    """The checkpoint is ahead of an older copy of the archive."""

    def more(count: int) -> None:
        with Transactions(site.bootstrap, topic_name) as writer:
            writer.commit(topic_name, [NewRecord(b"%d" % n) for n in range(count)])

    create_topic(site.bootstrap, topic_name)
    more(4)
    job(site, topic_name, tmp_path / "checkpoint")
    older = folder_site(site.bootstrap, tmp_path / "older")
    shutil.copytree(site.address, older.address)
    more(5)
    job(site, topic_name, tmp_path / "checkpoint")
    more(2)
    job(older, topic_name, tmp_path / "checkpoint")
    assert gaps(site, topic_name) == []
    assert gaps(older, topic_name) == [(0, 5, 11, "unverified")]

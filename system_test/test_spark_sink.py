"""Format `blockgz-archive` in a real Spark with executors of its own, judged by topic, checker and `replayer`."""

import base64
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from archiver.spark import register
from replayer.spark import register as register_source
from system_test.support.archiving import Site, folder_site, store_site
from system_test.support.compaction import compact_and_wait, create_compacted_topic
from system_test.support.contents import produce_nasty
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.spark import job_command, job_environment, run_job, spark_session
from system_test.support.topics import NewRecord, create_topic, delete_records, fill_topic, produce
from system_test.support.waiting import wait_until
from tests.support.recording_proxy import RecordingProxy
from tests.support.sampling import in_long_run, mostly_long

FIRST_MS = 1_600_000_000_000
EXECUTORS = "local-cluster[2,1,768]"
ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(scope="module")
def spark(moto: MotoServer) -> Iterator[SparkSession]:
    """Credentials of the store come from the environment of driver and executors."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in moto.env.items():
            environment.setenv(name, value)
        with spark_session(EXECUTORS) as session:
            register(session)
            register_source(session)
            yield session


@pytest.fixture(scope="module")
def site(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return folder_site(broker.bootstrap, tmp_path_factory.mktemp("sink") / "archive")


def from_kafka(
    spark: SparkSession, site: Site, topic: str, *, level: str = "read_committed", **options: str
) -> DataFrame:
    own = {"kafka.bootstrap.servers": site.bootstrap, "kafka.isolation.level": level, "includeHeaders": "true"}
    return spark.read.format("kafka").options(subscribe=topic, **own, **options).load()


def save(data: DataFrame, site: Site, **options: str) -> None:
    settings = {"path": site.address, "isolationLevel": "read_committed", **store_options(site), **options}
    data.write.format("blockgz-archive").mode("append").options(**settings).save()


def store_options(site: Site) -> dict[str, str]:
    return {"endpointUrl": site.store_options[1]} if site.store_options else {}


def verified(site: Site, topic: str) -> dict[str, Any]:
    return site.replayer_json("verify", topic, "--deep", "--records")


@pytest.mark.parametrize("kind", mostly_long(["folder", "s3"]))
def test_a_topic_becomes_the_archive_that_archiver_run_makes(
    spark: SparkSession, site: Site, moto: MotoServer, kind: str
) -> None:
    if kind == "s3":
        site = store_site(site.bootstrap, moto, f"sink-{uuid.uuid4().hex[:6]}")
    topic = f"nasty-{kind}-{uuid.uuid4().hex[:6]}"
    readable = produce_nasty(site.bootstrap, topic, 2)
    options = {"blockBytes": "4KiB"} if kind == "folder" else {"recordFormat": "arrow", "codec": "zstd"}
    data = from_kafka(spark, site, topic)
    save(data.repartition("topic", "partition") if kind == "folder" else data, site, **options)
    if kind == "folder":  # in Arrow, it is for the other source to judge
        for partition in range(2):
            site.exact(topic, partition)
    found = verified(site, topic)
    assert (found["verdict"], sum(each["records"] for each in found["partitions"])) == ("OK", readable)
    archived = (
        spark.read.format("blockgz")
        .options(path=site.address, subscribe=topic, includeHeaders="true", **store_options(site))
        .load()
    )
    assert archived.exceptAll(data).count() == data.exceptAll(archived).count() == 0


@in_long_run
def test_an_archive_with_a_customer_key(
    spark: SparkSession, site: Site, moto: MotoServer, topic_name: str, tmp_path: Path
) -> None:
    """Driver and executors find the key on their machine; the proxy refuses what comes without it, as S3 does."""
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(base64.b64encode(bytes(range(32))).decode())
    fill_topic(site.bootstrap, topic_name, [NewRecord(b"%d" % number) for number in range(100)])
    data = from_kafka(spark, site, topic_name)
    with RecordingProxy(moto.endpoint_url) as proxy:
        path = moto.url(f"key-{uuid.uuid4().hex[:6]}")
        where = {"path": path, "endpointUrl": proxy.endpoint_url}
        own = {"customerKey": f"${{file:{key}}}"}
        rest = {"isolationLevel": "read_committed", "storageClass": "STANDARD_IA"}
        data.write.format("blockgz-archive").mode("append").options(**where, **own, **rest).save()
        reader = spark.read.format("blockgz").options(subscribe=topic_name, includeHeaders="true", **where)
        with pytest.raises(PySparkException, match="is encrypted with a customer key"):
            reader.load().count()
        archived = reader.options(**own).load()
        assert archived.exceptAll(data).count() == data.exceptAll(archived).count() == 0
        assert {"STANDARD_IA"} == {
            each.headers.get("x-amz-storage-class") for each in proxy.sent("PutObject") if each.path.endswith(".gz")
        }


def test_a_compacted_topic_and_holes_between_batches(spark: SparkSession, site: Site, topic_name: str) -> None:
    """Holes inside a batch are the log's; between batches nobody knows."""
    create_compacted_topic(site.bootstrap, topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % n, key=b"%d" % (n % 7)) for n in range(60)])
    left = [record.offset for record in compact_and_wait(site.bootstrap, topic_name)]
    save(from_kafka(spark, site, topic_name), site)
    site.exact(topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"next", key=b"next")])
    save(from_kafka(spark, site, topic_name).where(f"offset > {left[-1]}"), site)
    assert verified(site, topic_name)["verdict"] == "OK"
    (last,) = produce(site.bootstrap, topic_name, [NewRecord(b"beyond", key=key) for key in (b"a", b"b")])[1:]
    save(from_kafka(spark, site, topic_name).where(f"offset >= {last}"), site)
    found = verified(site, topic_name)
    assert found["verdict"] == "WARNING"
    assert found["partitions"][0]["gaps"] == [{"from": last - 1, "to": last, "reason": "unverified"}]


def generated(spark: SparkSession, topic: str, count: int, tasks: int, *, bytes_each: int = 10) -> DataFrame:
    """Records that no broker has, `tasks` partitions of the topic with `count` records each, in order."""
    return spark.range(0, count * tasks, 1, tasks).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        f"CAST(repeat(CAST(id % 10 AS STRING), {bytes_each}) AS BINARY) AS value",
        f"'{topic}' AS topic",
        f"CAST(id DIV {count} AS INT) AS partition",
        f"id % {count} AS offset",
        f"timestamp_millis({FIRST_MS} + id) AS timestamp",
        "0 AS timestampType",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    )


def test_what_spark_cannot_order_is_refused_with_the_remedy(spark: SparkSession, site: Site, topic_name: str) -> None:
    shuffled = generated(spark, topic_name, 500, 2).repartition(4)
    with pytest.raises(PySparkException) as caught:
        save(shuffled, site)
    assert "chunks never overlap" in str(caught.value)
    remedy = 'df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")'
    assert remedy in str(caught.value)
    save(shuffled.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset"), site)
    found = verified(site, topic_name)
    assert (found["verdict"], [each["records"] for each in found["partitions"]]) == ("OK", [500, 500])


def test_columns_and_options_are_checked_before_anything_is_read(spark: SparkSession, site: Site) -> None:
    data = generated(spark, "never", 5, 1)
    for broken, says in (
        (data.drop("headers"), 'do:    read the topic with .option("includeHeaders", "true")'),
        (data.withColumn("value", data["value"].cast("string")), "CAST(value AS BINARY)"),
        (data.withColumn("date", data["timestamp"].cast("date")), "no place for column date"),
    ):
        with pytest.raises(PySparkException) as caught:
            save(broken, site)
        assert says in str(caught.value)
    with pytest.raises(PySparkException) as caught:
        save(data, site, chunkByte="1MiB")
    assert "did you mean chunkBytes?" in str(caught.value)


def failing_once(data: DataFrame, flag: Path, how: str, row: int) -> DataFrame:
    """The same rows; the first task that comes so far raises, ends its process, or stays until its executor dies."""

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > row:
                try:
                    descriptor = os.open(flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                except FileExistsError:
                    pass
                else:
                    if how == "raise":
                        raise RuntimeError("a task that fails")
                    if how == "exit":
                        os._exit(1)
                    with os.fdopen(descriptor, "w") as file:
                        file.write(f"{os.getppid()} {batch.column('partition')[0]} ")
                    signal.pause()
            yield batch

    return data.mapInArrow(passed, data.schema)


@pytest.mark.parametrize("how", mostly_long(["executor", "raise", "exit"]))
def test_tasks_that_fail_while_they_write_are_repeated_and_nothing_is_doubled(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path, how: str
) -> None:
    """The task fails once it has stored data: 32 MiB of records are more than it may hold."""
    flag = tmp_path / "flag"
    data = failing_once(generated(spark, topic_name, 420, 2, bytes_each=100_000), flag, how, 400)
    home = Path(site.address) / f"topic={topic_name}"
    command = [sys.executable, "-c", KILL_EXECUTOR, str(flag), str(home)]
    killer = subprocess.Popen(command) if how == "executor" else None
    spark.conf.set(ROWS_AT_ONCE, "10")
    try:
        save(data, site, memory="32MiB", chunkRecords="100")
    finally:
        spark.conf.unset(ROWS_AT_ONCE)
        if killer is not None:
            killer.kill()
            killer.wait()
    assert flag.exists(), "no task came so far"
    found = verified(site, topic_name)
    assert (found["verdict"], [each["records"] for each in found["partitions"]]) == ("OK", [420, 420])
    stored = {path.name for path in home.glob("partition=*/*.gz")}
    assert any("~e" in name for name in stored), "the task failed before it had stored anything"


KILL_EXECUTOR = """
import os, pathlib, signal, sys, time
flag = pathlib.Path(sys.argv[1])
while not (flag.exists() and flag.read_text().endswith(" ")):
    time.sleep(0.05)
daemon, partition = map(int, flag.read_text().split())
while not list(pathlib.Path(sys.argv[2]).glob(f"partition={partition:05d}/*.gz")):
    time.sleep(0.05)
executor = int(pathlib.Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
assert b"java" in pathlib.Path(f"/proc/{executor}/cmdline").read_bytes()
os.kill(executor, signal.SIGKILL)
"""
"""Waits until a task has stored data; its flag names its worker's parent, pyspark's daemon, a child of the executor."""


def stream(spark: SparkSession, site: Site, topic: str, checkpoint: Path, **options: str) -> Any:
    source = (
        spark.readStream.format("kafka")
        .options(subscribe=topic, startingOffsets="earliest", includeHeaders="true", **options)
        .options(**{"kafka.bootstrap.servers": site.bootstrap, "kafka.isolation.level": "read_committed"})
        .load()
    )
    return (
        source.writeStream.format("blockgz-archive")
        .options(path=site.address, isolationLevel="read_committed", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


@in_long_run
def test_a_stream_that_loses_its_checkpoint_and_two_that_meet(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    create_topic(site.bootstrap, topic_name, 2)
    seed = random.randrange(2**32)
    source = random.Random(seed)

    def more(start: int) -> None:
        records = [NewRecord(b"%d" % n, partition=source.randrange(2)) for n in range(start, start + 300)]
        produce(site.bootstrap, topic_name, records)

    more(0)
    query = stream(spark, site, topic_name, tmp_path / "first", maxOffsetsPerTrigger="100")
    assert query.awaitTermination(120) and query.exception() is None, f"seed {seed}"
    assert len(query.recentProgress) >= 3
    more(300)
    again = stream(spark, site, topic_name, tmp_path / "lost", maxOffsetsPerTrigger="250")
    assert again.awaitTermination(120) and again.exception() is None, f"seed {seed}"
    for partition in range(2):
        site.exact(topic_name, partition)
    more(600)
    both = [stream(spark, site, topic_name, tmp_path / name, maxOffsetsPerTrigger="170") for name in ("one", "other")]
    for query in both:
        try:
            query.awaitTermination(120)
        except PySparkException as error:
            assert "[Fenced]" in str(error)
    last = stream(spark, site, topic_name, tmp_path / "one")
    assert last.awaitTermination(120) and last.exception() is None, f"seed {seed}"
    for partition in range(2):
        site.exact(topic_name, partition)
    found = verified(site, topic_name)
    assert (found["verdict"], sum(each["records"] for each in found["partitions"])) == ("OK", 900), f"seed {seed}"


@in_long_run
def test_the_service_and_the_sink_continue_where_the_other_ended(
    spark: SparkSession, site: Site, topic_name: str
) -> None:
    fill_topic(site.bootstrap, topic_name, [NewRecord(b"%d" % n) for n in range(50)])
    site.once(topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % n) for n in range(50, 100)])
    data = from_kafka(spark, site, topic_name)
    with pytest.raises(PySparkException) as caught:
        save(data, site)
    group = site.marker(topic_name)["group_id"]
    assert f"use groupId {group}, or takeover once" in str(caught.value)
    with pytest.raises(PySparkException, match="isolationLevel read_committed"):
        save(data, site, groupId=group, isolationLevel="read_uncommitted")
    save(data, site, groupId=group)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % n) for n in range(100, 150)])
    site.once(topic_name)
    assert len(site.exact(topic_name).records) == 150
    assert verified(site, topic_name)["verdict"] == "OK"


@in_long_run
def test_retention_that_overtakes_a_job_ends_it_and_the_way_on_records_the_gap(
    spark: SparkSession, site: Site, topic_name: str, tmp_path: Path
) -> None:
    """The checkpoint says 20, the topic begins at 30."""

    def job(checkpoint: str) -> Result:
        return run_job(site, topic_name, tmp_path / checkpoint)

    fill_topic(site.bootstrap, topic_name, [NewRecord(b"%d" % n) for n in range(20)])
    first = job("checkpoint")
    assert first.exit_code == 0, first.stderr
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % n) for n in range(20, 40)])
    delete_records(site.bootstrap, topic_name, before=30)
    lost = job("checkpoint")
    assert lost.exit_code == 1, lost.stderr
    said = lost.stderr.partition("error: the topic no longer holds the records to be archived next\n")[2]
    assert "KAFKA_DATA_LOSS." in said and f"remove the checkpoint {tmp_path / 'checkpoint'}" in said, lost.stderr
    assert verified(site, topic_name)["partitions"][0]["records"] == 20
    again = job("another")
    assert again.exit_code == 0, again.stderr
    found = verified(site, topic_name)["partitions"][0]
    assert (found["records"], found["gaps"]) == (30, [{"from": 20, "to": 30, "reason": "unverified"}])


def test_a_job_whose_driver_dies_between_data_and_marker_loses_and_doubles_nothing(
    site: Site, topic_name: str, tmp_path: Path
) -> None:
    """The marker's lock is held by the test, so that the commit waits; its data is stored, then all of Spark dies."""
    readable = produce_nasty(site.bootstrap, topic_name, 1)
    home = Path(site.address) / f"topic={topic_name}" / "partition=00000"
    home.mkdir(parents=True)
    command, environment = job_command(site, topic_name, tmp_path / "checkpoint"), job_environment()
    with (home / ".last_chunk_index.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        says = (tmp_path / "stderr").open("w")
        with says, subprocess.Popen(command, env=environment, start_new_session=True, stderr=says) as job:
            try:
                wait_until(lambda: list(home.glob("*.gz")) or job.poll() is not None, 200, "data of the batch")
                assert job.poll() is None, (tmp_path / "stderr").read_text()[-3000:]
            finally:
                os.killpg(job.pid, signal.SIGKILL)
        assert not (home / "last_chunk_index.json").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=280)
    assert json.loads(done.stdout)["records"] == readable
    site.exact(topic_name)
    found = verified(site, topic_name)
    assert [each["records"] for each in found["partitions"]] == [readable]
    site.once(topic_name, "--group-id", "blockgz-spark")
    assert not (home.parent.parent / f"topic={topic_name}~2").exists(), "Java and librdkafka spell topic ids alike"

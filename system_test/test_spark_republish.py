"""Archives to topics by Spark on executors and drivers that die: judged by a foreign client."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from replayer.cli import main
from replayer.spark import register
from system_test.support.archiving import Site, folder_site
from system_test.support.bulk import produce_bulk
from system_test.support.contents import records_of_every_content
from system_test.support.executor_deaths import executor_dies
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running, start
from system_test.support.spark import spark_session
from system_test.support.topics import (
    STORED_AS_GZIP,
    NewRecord,
    Record,
    create_topic,
    delete_topic,
    produce,
    read,
    topic_names,
    watermarks,
)
from system_test.support.waiting import wait_until
from tests.support.sampling import in_long_run

pytestmark = pytest.mark.timeout(600, func_only=True)

WHOLE = str(2**50)
"""taskBytes that leave every partition to one task."""
RECORDS = 3000
VALUE_BYTES = 16_000
"""Nearly three transactions for each of two partitions."""
FIRST_MS = 1_600_000_000_000

Passing = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local-cluster[2,1,768]") as session:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
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


def stream(spark: SparkSession, site: Site, copy: str, checkpoint: Path, **options: str) -> None:
    """Streams what the archive has now into the copy, exactly once; `options` are those of the source."""
    rows = spark.readStream.format("blockgz").options(path=site.address, includeHeaders="true", taskBytes=WHOLE)
    rows = rows.option("includeIncarnation", "true")
    query = (
        rows.options(startingOffsets="earliest", **options)
        .load()
        .writeStream.format("blockgz-kafka")
        .option("kafka.bootstrap.servers", site.bootstrap)
        .options(topic=copy, transactional="true", job=copy)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None


def empty_copy(site: Site, topic: str, name: str, partitions: int = 2) -> str:
    target = f"{topic}-{name}"
    create_topic(site.bootstrap, target, partitions, STORED_AS_GZIP)
    return target


def contents(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [(record.timestamp, record.key, record.value, record.headers) for record in records]


def all_contents(site: Site, topic: str, partitions: int) -> list[list[tuple[object, ...]]]:
    """What a reader of committed records finds, by partition."""
    return [contents(read(site.bootstrap, topic, partition)) for partition in range(partitions)]


def same(site: Site, topic: str, copy: str, partitions: int = 2) -> None:
    """Every record stands in the copy once and in order."""
    found, wanted = (all_contents(site, name, partitions) for name in (copy, topic))
    assert [len(records) for records in found] == [len(records) for records in wanted]
    assert found == wanted


def in_first_attempt(bootstrap: str, copy: str, death: Callable[[], None], noted: Path) -> Passing:
    """Passes rows on; the first attempt of partition 1's task dies with a transaction done and one under way."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            doomed = batch.column("partition")[0].as_py() == 1 and context.attemptNumber() == 0
            if doomed and passed >= RECORDS // 2 * 4 // 5:
                wait_until(lambda: watermarks(bootstrap, copy, 1)[1] > RECORDS // 2 * 3 // 5, 120, "much of it written")
                noted.touch()
                death()

    return passing


def worker_dies() -> None:
    os._exit(3)


@in_long_run
@pytest.mark.parametrize("death", [worker_dies, executor_dies])
def test_a_task_that_dies_half_way(
    spark: SparkSession, site: Site, large: str, death: Callable[[], None], tmp_path: Path
) -> None:
    """What the task had open is rolled back, or committed where Spark let its rows end: it goes on behind either."""
    copy = empty_copy(site, large, death.__name__.replace("_", "-"))
    rows = archived(spark, site, large)
    dying = rows.mapInArrow(in_first_attempt(site.bootstrap, copy, death, tmp_path / "died"), rows.schema)
    write(dying, site, copy, transactional="true", job=copy, incarnation="1")
    same(site, large, copy)
    assert (tmp_path / "died").exists()


def test_records_of_every_content(spark: SparkSession, site: Site) -> None:
    """As they come, and spread by key in transactions; then the same write again, and one that is dealt out wrongly."""
    topic = "spark-contents"
    create_topic(site.bootstrap, topic, 3)
    every = [
        replace(record, partition=n % 3, timestamp=FIRST_MS + n) for n, record in enumerate(records_of_every_content())
    ]
    doubled = (("same", b"1"), ("same", None), ("same", b"1"))
    nothing = NewRecord(None, None, 0, timestamp=FIRST_MS)
    produce(site.bootstrap, topic, [*every, NewRecord(b"", b"", 1, doubled, FIRST_MS), nothing])
    site.once(topic, "--block-bytes", "4KiB")
    rows = archived(spark, site, topic)

    plain = empty_copy(site, topic, "plain", 3)
    write(rows, site, plain)
    same(site, topic, plain, 3)
    with pytest.raises(Exception, match="is not empty"):
        write(rows, site, plain)

    by_key = empty_copy(site, topic, "by-key", 2)
    spread = {"transactional": "true", "partitions": "by-key", "job": by_key}
    with pytest.raises(Exception, match="do not say which incarnation"):
        write(rows, site, by_key, **spread)
    spread["incarnation"] = "1"
    write(rows, site, by_key, **spread)
    first = all_contents(site, by_key, 2)
    judged = empty_copy(site, topic, "judged", 2)
    site.replayer("replay", topic, "--to-topic", judged, "--partitions", "by-key", "--yes", *site.kafka)
    assert [sorted(map(repr, records)) for records in first] == [
        sorted(map(repr, records)) for records in all_contents(site, judged, 2)
    ]
    assert sum(map(len, first)) == len(every) + 2

    write(rows, site, by_key, **spread)
    with pytest.raises(Exception, match=r"is not in order|two tasks|was not written|has other rows"):
        write(rows.repartition(2), site, by_key, **spread)
    assert all_contents(site, by_key, 2) == first


@in_long_run
def test_a_stream_whose_checkpoint_is_lost(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    topic = "spark-stream"
    create_topic(site.bootstrap, topic, 2)
    copy = empty_copy(site, topic, "copy")

    def grow(first: int) -> None:
        records = [NewRecord(b"%d" % n, partition=n % 2, timestamp=FIRST_MS + n) for n in range(first, first + 300)]
        produce(site.bootstrap, topic, records)
        site.once(topic, "--block-bytes", "1KiB")

    checkpoint = tmp_path / "checkpoint"
    grow(0)
    stream(spark, site, copy, checkpoint, subscribe=topic, maxOffsetsPerTrigger="200")
    shutil.rmtree(checkpoint)
    grow(300)
    stream(spark, site, copy, checkpoint, subscribe=topic, maxOffsetsPerTrigger="350")
    same(site, topic, copy)


@in_long_run
def test_a_stream_over_a_topic_that_was_created_again(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    """Both have the same offsets: every record of both is in the copy once, the old ones first, checkpoint or not."""
    topic = "spark-again"
    wanted: list[list[bytes]] = [[], []]
    for life, count in enumerate((300, 500)):
        create_topic(site.bootstrap, topic, 2)
        values = [b"%d %d" % (life, n) for n in range(count)]
        records = [NewRecord(value, partition=n % 2, timestamp=FIRST_MS + n) for n, value in enumerate(values)]
        produce(site.bootstrap, topic, records)
        site.once(topic, "--block-bytes", "1KiB")
        for partition in range(2):
            wanted[partition] += values[partition::2]
        if life == 0:
            delete_topic(site.bootstrap, topic)
            wait_until(lambda: topic not in topic_names(site.bootstrap), 60, "topic deleted")
    create_topic(site.bootstrap, copy := f"{topic}-copy", 2, STORED_AS_GZIP)

    checkpoint = tmp_path / "checkpoint"
    for most in ("170", "1000"):
        options = {"subscribe": topic, "maxOffsetsPerTrigger": most}
        stream(spark, site, copy, checkpoint, **options)
        found = [[record.value for record in read(site.bootstrap, copy, partition)] for partition in range(2)]
        assert found == wanted
        shutil.rmtree(checkpoint)
    both = archived(spark, site, topic, includeIncarnation="true")
    assert {row["incarnation"]: row["count"] for row in both.groupBy("incarnation").count().collect()} == {
        1: 300,
        2: 500,
    }
    assert archived(spark, site, f"{topic}~2").count() == 500
    assert archived(spark, site, f"{topic}~1").count() == 300


def replaying(site: Site, topic: str, copy: str, *options: str, env: Mapping[str, str]) -> Running:
    fixed = ("replay", topic, "--spark", "--to-topic", copy, "--yes", "--json", "--master", "local[2]")
    return start("replayer", *fixed, *options, *site.kafka, *site.archive, env={**site.env, **env})


def replayed(
    site: Site, topic: str, copy: str, *options: str, env: Mapping[str, str], check: int = 0
) -> dict[str, Any]:
    with replaying(site, topic, copy, *options, env=env) as program:
        done = program.wait(400).expect(check)
    result: dict[str, Any] = json.loads(done.stdout) if check == 0 else {"stderr": done.stderr}
    return result


def test_the_command_on_executors(
    spark: SparkSession, site: Site, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without transactions by key, and with them as a job that `replayer replay` does not resume."""
    create_topic(site.bootstrap, topic_name, 3)
    records = [NewRecord(b"%d" % n, b"%d" % (n % 39), n % 3, timestamp=FIRST_MS + n) for n in range(600)]
    produce(site.bootstrap, topic_name, [*records, NewRecord(None, None, 2, (("h", None),), FIRST_MS)])
    site.once(topic_name, "--block-bytes", "1KiB")

    def replay(copy: str, *options: str) -> dict[str, Any]:
        arguments = ["replay", topic_name, "--spark", "--to-topic", copy, "--yes", "--json", *options]
        assert main([*arguments, *site.kafka, *site.archive], standalone_mode=False) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    by_key, judged = (empty_copy(site, topic_name, name, 2) for name in ("by-key", "judged"))
    result = replay(by_key, "--partitions", "by-key", "--tombstones", "drop")
    assert (result["records"], result["complete"], result["tasks"]) == (600, True, 3)
    site.replayer(
        *("replay", topic_name, "--to-topic", judged, "--partitions", "by-key", "--tombstones", "drop", "--yes"),
        *site.kafka,
    )
    for partition in range(2):
        found, wanted = (contents(read(site.bootstrap, name, partition)) for name in (by_key, judged))
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        for key in {record[1] for record in wanted}:
            assert [each for each in found if each[1] == key] == [each for each in wanted if each[1] == key]

    copy = empty_copy(site, topic_name, "copy", 3)
    assert replay(copy, "--transactional", "--job", copy)["records"] == 601
    same(site, topic_name, copy, 3)
    arguments = ("replay", topic_name, "--to-topic", copy, "--transactional", "--job", copy, "--resume", "--yes")
    assert f"the folder of job {copy} is missing" in site.replayer(*arguments, *site.kafka, check=2).stderr
    again = replay(copy, "--transactional", "--job", copy, "--resume")
    assert (again["records"], again["records_before"], again["complete"]) == (0, 601, True)
    report = site.replayer_json("verify", topic_name, "--against-topic", copy, *site.kafka)
    assert (report["verdict"], report["records"]) == ("OK", 601)


@in_long_run
def test_a_driver_that_is_killed_and_gone_on_with(site: Site, large: str, tmp_path: Path) -> None:
    """Into fewer partitions than the source has: positions go to more than one group."""
    copy = empty_copy(site, large, "folded", 1)
    env = {"XDG_STATE_HOME": str(tmp_path)}
    named = ("--transactional", "--partitions", "1", "--job", copy)
    with replaying(site, large, copy, *named, env=env) as driver:
        driver.wait_for(lambda: watermarks(site.bootstrap, copy)[1] > 0, 300, "the first records")
        driver.signal(signal.SIGKILL)
        driver.wait(60)
    told = replayed(site, large, copy, *named, env=env, check=2)
    assert "--resume" in told["stderr"]
    result = replayed(site, large, copy, *named, "--resume", env=env)
    assert result["complete"]
    assert result["records"] > 0
    assert result["records"] + result["records_before"] == RECORDS
    assert [each["to"] for each in result["partitions"]] == [RECORDS // 2] * 2
    (found,) = all_contents(site, copy, 1)
    by_source = [[record for record in found if int(str(record[0])) % 2 == n] for n in range(2)]
    assert by_source == all_contents(site, large, 2)
    again = replayed(site, large, copy, *named, "--resume", env=env)
    assert (again["records"], again["records_before"], again["tasks"]) == (0, RECORDS, 0)

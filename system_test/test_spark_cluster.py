"""Spark with executors: pickled work, an executor that dies, an S3 server, a stream begun again and again."""

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from archiver.cli import main as archiver_main
from replayer.cli import main
from replayer.spark import register
from system_test.support.executor_deaths import executors
from system_test.support.object_store import MotoServer
from system_test.support.spark import spark_session
from system_test.support.waiting import wait_until
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.sampling import in_long_run

pytestmark = pytest.mark.timeout(1200, func_only=True)
"""Cut off in the middle of a call, pyspark's connection is of no use to the tests behind."""

ROOT = Path(__file__).parent.parent
RESTARTS = 20
RECORDS = 1000


@pytest.fixture(scope="module")
def spark(moto: MotoServer) -> Iterator[SparkSession]:
    """Executors find the packages by PYTHONPATH, and the store's credentials in their environment."""
    settings = {
        "spark.executor.memory": "768m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        **{f"spark.executorEnv.{name}": value for name, value in moto.env.items()},
    }
    before = {name: os.environ.get(name) for name in moto.env}
    os.environ.update(moto.env)
    try:
        with spark_session("local-cluster[2,1,768]", **settings) as session:
            register(session)
            yield session
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveWriter:
    writer = ArchiveWriter(tmp_path / "archive")
    for number in range(2):
        partition = writer.partition("orders", number)
        for start in range(0, RECORDS, 250):
            partition.commit(records(range(start, start + 250)), block_bytes=5_000)
    return writer


def program(*arguments: object) -> dict[str, Any]:
    """The program in this process, so that its jobs find the session of the module."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"], prog_name="replayer")
    assert result.exit_code == 0, result.stderr + result.stdout
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def stored(archive: ArchiveWriter, moto: MotoServer, prefix: str) -> tuple[str, ...]:
    """The options that name the same archive in the bucket, where this puts it."""
    for path in filter(Path.is_file, archive.root.rglob("*")):
        key = f"{prefix}/{path.relative_to(archive.root)}"
        moto.client.put_object(Bucket=moto.bucket, Key=key, Body=path.read_bytes())
    return "-a", moto.url(prefix), "--endpoint-url", moto.endpoint_url


def places(rows: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in rows.select("partition", "offset").collect())


EVERY = [(partition, offset) for partition in range(2) for offset in range(RECORDS)]


@in_long_run
def test_an_executor_dies_while_it_exports(spark: SparkSession, archive: ArchiveWriter, tmp_path: Path) -> None:
    """Its tasks are done again, and nothing of what it wrote is seen or counted."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not killed and not over.wait(0.05):
            stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each))]
            if any(stage.numTasks > 8 and stage.numCompletedTasks >= 2 for stage in stages):
                victim = random.choice(executors())
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        command = ("export", "orders", tmp_path / "out", "--format", "parquet", "--min-tasks", 12, "-a", archive.root)
        result = program(*command)
    finally:
        over.set()
        thread.join()
    assert killed, "the export was over before it could be disturbed"
    assert result["records"] == len(EVERY)
    rows = pq.read_table(tmp_path / "out").select(["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == EVERY


@in_long_run
def test_an_archive_in_s3(spark: SparkSession, archive: ArchiveWriter, moto: MotoServer, tmp_path: Path) -> None:
    """Executors read the store by themselves."""
    where = stored(archive, moto, "spark")
    exported = program("spark", "export", "orders", tmp_path / "out", "--format", "parquet", "--from", "+100", *where)
    assert exported["records"] == 2 * (RECORDS - 100)
    checked = program("verify", "--spark", "--records", "--task-bytes", "10kB", *where)
    assert checked["verdict"] == "OK"
    assert [each["records"] for each in checked["partitions"]] == [RECORDS, RECORDS]
    options = {"path": moto.url("spark"), "subscribe": "orders", "endpointUrl": moto.endpoint_url}
    assert places(spark.read.format("blockgz").options(**options).load()) == EVERY


@in_long_run
def test_executors_compact_partitions(spark: SparkSession, moto: MotoServer, tmp_path: Path) -> None:
    """Those of the session of the module, which the command finds."""
    writer = ArchiveWriter(tmp_path / "archive")
    for number in range(3):
        partition = writer.partition("orders", number)
        for start in range(0, 700, 10):
            partition.commit(records(range(start, start + 10)))
    where = stored(writer, moto, "compacted")
    command = ("compact", "--master", "local", "--buffer-dir", str(tmp_path / "buffer"), "--yes", "--json", *where)
    result = CliRunner().invoke(archiver_main, command, prog_name="archiver")
    assert result.exit_code == 0, result.stderr + result.stdout
    assert [each["compacted"] for each in json.loads(result.stdout)["partitions"]] == [True] * 3
    checked = program("verify", "--spark", "--records", *where)
    assert checked["verdict"] == "OK"
    assert [(each["records"], each["chunks"]) for each in checked["partitions"]] == [(700, 7)] * 3


class Growing:
    """An archive that is committed to while queries run."""

    def __init__(self, root: Path, source: random.Random) -> None:
        self._source = source
        self._partitions = [ArchiveWriter(root).partition("orders", number) for number in range(2)]
        self.ends = [0, 0]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._grow)
        for number in range(2):
            self._commit(number)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _grow(self) -> None:
        while not self._ended.wait(self._source.uniform(0.2, 0.8)):
            self._commit(self._source.randrange(2))

    def _commit(self, number: int) -> None:
        partition: PartitionWriter = self._partitions[number]
        count = self._source.randrange(20, 120)
        partition.commit(records(range(self.ends[number], self.ends[number] + count)), block_bytes=1_000)
        self.ends[number] += count


TOO_BUSY = "failed to connect back"
"""What Spark says of a Python worker that did not start within 10 s: one more reason to begin again."""


class Interrupted(Exception):
    """A batch that ends half way, as where the driver dies."""


@in_long_run
def test_a_stream_restarted_at_random_points_neither_loses_nor_doubles(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped within a batch, before or after its output is written; the output of a batch is named by its id."""
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    source = random.Random(seed)
    out = tmp_path / "out"
    repeated: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        target = out / f"batch={batch}"
        repeated.extend([batch] if target.exists() else [])
        rows.select("partition", "offset", "value").write.mode("overwrite").parquet(str(target))

    def started(fault: str, skipped: int) -> tuple[StreamingQuery, threading.Event]:
        """A query that comes to grief at the given point of its batch after so many whole ones."""
        reached = threading.Event()
        seen = 0

        def each(rows: DataFrame, batch: int) -> None:
            nonlocal seen
            seen += 1
            if fault == "none" or seen <= skipped:
                write(rows, batch)
                return
            if fault == "stop":
                reached.set()
            if fault == "before":
                raise Interrupted
            write(rows, batch)
            if fault == "after":
                raise Interrupted

        stream = spark.readStream.format("blockgz").options(
            path=str(tmp_path / "archive"),
            subscribe="orders",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(source.randrange(30, 150)),
        )
        writer = stream.load().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return (writer.trigger(availableNow=True) if fault == "none" else writer).start(), reached

    def finished() -> bool:
        query, _ = started("none", 0)
        try:
            return bool(query.awaitTermination(600))
        except StreamingQueryException as error:
            assert TOO_BUSY in str(error), f"seed {seed}"
            return False

    with Growing(tmp_path / "archive", random.Random(seed + 1)) as growing:
        for _ in range(RESTARTS):
            fault = source.choice(["before", "after", "stop", "stop"])
            query, reached = started(fault, source.randrange(2))
            if fault == "stop":
                wait_until(lambda: reached.is_set() or not query.isActive, 600, f"seed {seed}: a batch")  # noqa: B023
                threading.Event().wait(source.uniform(0, 0.3))
                query.stop()
            else:
                with pytest.raises(StreamingQueryException, match=f"Interrupted|{TOO_BUSY}"):
                    query.awaitTermination(600)
    wait_until(finished, 900, f"seed {seed}: the rest")
    rows = spark.read.parquet(str(out)).select("partition", "offset").collect()
    wanted = [(number, offset) for number, end in enumerate(growing.ends) for offset in range(end)]
    assert sorted(map(tuple, rows)) == wanted, f"seed {seed}"
    assert repeated, f"seed {seed}: no batch was ever run again"

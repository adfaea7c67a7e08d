"""The recipes of docs/spark-lakehouse.md, killed and run again, on the newest Spark that each table's jars are for."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from index_format.records import Record
from system_test.support.archiving import folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.spark import kafka_jars
from system_test.support.spark_environments import (
    ROOT,
    WITH_DELTA,
    WITH_ICEBERG,
    delta_jars,
    iceberg_jars,
    spark_command,
    spark_environment,
    spark_variables,
)
from system_test.support.topics import NewRecord, create_topic, produce, read
from system_test.support.waiting import wait_until
from tests.support.archives import CREATE_TIME, ArchiveWriter, PartitionWriter, records
from tests.support.sampling import LONG

pytestmark = [
    pytest.mark.skipif(not LONG, reason="minutes: make lakehouse runs it"),
    pytest.mark.timeout(1800, func_only=True),
]

EXAMPLES = ROOT / "docs" / "examples"
RUN_SECONDS = 600
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG_SETTINGS = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
CONTENT = """
import json, os
from pyspark.sql import SparkSession

rows = SparkSession.builder.getOrCreate().sql(os.environ["QUERY"]).collect()
print(json.dumps([list(row) for row in rows]))
"""
ROWS = "SELECT topic, incarnation, partition, offset, cast(key AS STRING), cast(value AS STRING) FROM {}"


@dataclass(frozen=True)
class Lakehouse:
    """An environment with a table format, and the folder of a test."""

    environment: Path
    jars: str
    settings: Mapping[str, str]
    folder: Path

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def start(self, program: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
        """A program as a user starts it, in a group of its own."""
        own = {"BLOCKGZ_ARCHIVE": self.archive, "TABLE": self.table, "CHECKPOINT": self.checkpoint}
        own |= {"WAREHOUSE": self.folder / "warehouse"}
        named = {**{name: str(value) for name, value in own.items()}, **variables}
        with (self.folder / "stderr").open("w") as says:
            return subprocess.Popen(
                spark_command(self.environment, program, "--jars", self.jars, *options),
                env=spark_variables(self.environment, **named),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=says,
                text=True,
                start_new_session=True,
            )

    def run(self, program: Path, *options: str, **variables: str) -> str:
        """The same to its end; what it printed."""
        done = self.start(program, *options, **variables)
        printed, _ = done.communicate(timeout=RUN_SECONDS)
        assert done.returncode == 0, (self.folder / "stderr").read_text()[-3000:]
        return printed

    def run_killed(self, program: Path, reached: Callable[[], bool], **variables: str) -> None:
        """The same, killed when it has come so far."""
        killed = self.start(program, **variables)
        try:
            wait_until(lambda: reached() or killed.poll() is not None, RUN_SECONDS, "a part to be written")
        finally:
            if killed.poll() is None:
                os.killpg(killed.pid, signal.SIGKILL)
            killed.communicate()
        assert killed.returncode == -signal.SIGKILL, (self.folder / "stderr").read_text()[-3000:]

    def run_again(self, program: Path, **variables: str) -> None:
        """As if it had been killed before the checkpoint noted the last MERGE; then without a checkpoint at all."""
        newest = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink()
        self.run(program, **variables)
        assert newest.exists(), "no batch was run again"
        shutil.rmtree(self.checkpoint)
        self.run(program, **variables)

    def content(self, query: str) -> list[list[Any]]:
        program = self.folder / "content.py"
        program.write_text(CONTENT)
        settings = [each for name, value in self.settings.items() for each in ("--conf", f"{name}={value}")]
        found: list[list[Any]] = json.loads(self.run(program, *settings, QUERY=query).splitlines()[-1])
        return found

    def merges(self) -> int:
        """How many versions a Delta table has beside its first, without rows."""
        return len(list((self.table / "_delta_log").glob("*.json"))) - 1


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Lakehouse]:
    lakehouse = Lakehouse(spark_environment(WITH_DELTA), delta_jars(), DELTA_SETTINGS, tmp_path)
    yield lakehouse


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[Lakehouse]:
    settings = {**ICEBERG_SETTINGS, "spark.sql.catalog.lake.warehouse": str(tmp_path / "warehouse")}
    lakehouse = Lakehouse(spark_environment(WITH_ICEBERG), iceberg_jars(), settings, tmp_path)
    yield lakehouse


def orders(archive: Path) -> list[PartitionWriter]:
    """A topic that was created again, with two partitions each time."""
    writer = ArchiveWriter(archive)
    parts = [writer.partition("orders", number, incarnation=log) for log in (1, 2) for number in range(2)]
    for part in parts:
        for first in range(0, 200, 50):
            part.commit(records(range(first, first + 50)))
    return parts


def truth(parts: list[PartitionWriter]) -> list[list[Any]]:
    return sorted(
        ["orders", part.keys.folder.incarnation, part.keys.partition, each.offset, text(each.key), text(each.value)]
        for part in parts
        for each in part.records
    )


def text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def test_archive_to_delta(delta: Lakehouse) -> None:
    """Killed between two batches, run again over more records; its last batch run once more, and then all of them."""
    example = EXAMPLES / "delta_from_archive.py"
    parts = orders(delta.archive)
    delta.run_killed(example, lambda: delta.merges() >= 2, BATCH="60")
    for part in parts[2:]:
        part.commit(records(range(200, 230)))
    delta.run(example, BATCH="300")
    delta.run_again(example, BATCH="300")
    assert sorted(delta.content(ROWS.format(f"delta.`{delta.table}`"))) == truth(parts)


def test_archive_to_iceberg(iceberg: Lakehouse) -> None:
    """Killed between two partitions, run again over more records, and once more over the same."""
    example = EXAMPLES / "iceberg_from_archive.py"
    parts = orders(iceberg.archive)
    merged = iceberg.folder / "warehouse" / "orders" / "metadata" / "v2.metadata.json"
    iceberg.run_killed(example, merged.exists)
    assert len(iceberg.content(ROWS.format("lake.orders"))) < len(truth(parts))
    for part in parts[2:]:
        part.commit(records(range(200, 230)))
    for _ in range(2):
        iceberg.run(example)
    assert sorted(iceberg.content(ROWS.format("lake.orders"))) == truth(parts)


def change(chance: random.Random, rows: dict[int, str], number: int, key: int) -> list[bytes | None]:
    """The values of the next records of a key, as Debezium writes them: a tombstone follows a delete."""
    before = {"id": key, "name": rows[key]} if key in rows else None
    if before and chance.random() < 0.3:
        del rows[key]
        return [json.dumps({"op": "d", "before": before, "after": None}).encode(), None]
    rows[key] = f"name {number}"
    after = {"id": key, "name": rows[key]}
    return [json.dumps({"op": "u" if before else "c", "before": before, "after": after}).encode()]


def test_changes_to_rows(delta: Lakehouse) -> None:
    """The table equals the rows that the changes were made from: killed, run again, without its checkpoint too."""
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    writer = ArchiveWriter(delta.archive)
    parts = [writer.partition("customers", number) for number in range(2)]
    rows: dict[int, str] = {}

    def more(count: int) -> None:
        made: list[list[Record]] = [[], []]
        for number in range(count):
            key = chance.randrange(30)
            for value in change(chance, rows, number, key):
                offset = len(parts[key % 2].records) + len(made[key % 2])
                made[key % 2].append(Record(offset, offset, CREATE_TIME, b"%d" % key, value, ()))
        for part, added in zip(parts, made, strict=True):
            part.commit(added)

    more(200)
    more(200)
    example = EXAMPLES / "changes_merged.py"
    delta.run_killed(example, lambda: delta.merges() >= 2, BATCH="40")
    more(200)
    delta.run(example, BATCH="300")
    delta.run_again(example, BATCH="300")
    found = delta.content(f"SELECT id, name FROM delta.`{delta.table}`")
    assert sorted(found) == sorted(map(list, rows.items())), f"seed {seed}"


def test_backfill_then_live(broker: KafkaBroker, tmp_path: Path) -> None:
    """Killed as it writes the archive's part, and as it writes Kafka's, on the Spark of the other tests."""
    example = EXAMPLES / "backfill_then_live.py"
    spark = Lakehouse(Path(sys.prefix), kafka_jars(), {}, tmp_path)
    site = folder_site(broker.bootstrap, spark.archive)
    create_topic(site.bootstrap, "orders", 2)
    out = tmp_path / "out"
    variables = {"KAFKA": site.bootstrap, "OUT": str(out)}
    for reached in (out / "orders" / "batch=archive", out / "checkpoint" / "offsets" / "0"):
        produce(site.bootstrap, "orders", [NewRecord(b"%d" % n, partition=n % 2) for n in range(5000)])
        site.once("orders")
        spark.run_killed(example, reached.exists, **variables)
    spark.run(example, **variables)
    found = spark.content(f"SELECT partition, offset, cast(value AS STRING) FROM parquet.`{out}/orders`")
    topic = [(number, each) for number in range(2) for each in read(site.bootstrap, "orders", number)]
    assert sorted(found) == sorted([number, each.offset, text(each.value)] for number, each in topic)

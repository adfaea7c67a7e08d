"""`python -m benchmarks.spark_settings`: what settings of Spark change about reading an archive, on two cores.

Task sizes, columns, conditions, a second reading, a join and the number of files that are written, each beside its
alternative, on records of 1 KB in 4 partitions. The first of four rounds warms up; medians of the others.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.data import TopicShape
from benchmarks.measure import measured_on
from benchmarks.site import Settings, Site, clear, opened
from benchmarks.tables import Table, as_text
from system_test.support.spark import spark_session

ROUNDS = 4
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
TASK_MIB = (8, 32, 128)
FILES = (2, 32, 512)

Act = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_settings", description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of values in the topic")
    given = parser.parse_args()
    print(measured_on())
    shape = TopicShape(given.mb * 1_000_000 // 1024 // 64 * 64, 1024)
    with opened(Settings()) as site:
        folder = site.archived(shape)
        with spark_session() as spark:
            actions = _actions(spark, folder, shape, site)
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(ROUNDS):
                for name, act in actions.items():
                    started = time.perf_counter()
                    act()
                    seconds[name].append(time.perf_counter() - started)
                    site.say(f"{name}: {seconds[name][-1]:.2f} s")
        clear(folder)
    rows = [(name, f"{statistics.median(runs[1:]):.2f}") for name, runs in seconds.items()]
    print(as_text(Table(f"{shape.records:,} records of 1 KB, local[2], warm session", ("", "seconds"), rows)))


def _actions(spark: SparkSession, folder: Path, shape: TopicShape, site: Site) -> dict[str, Act]:
    def rows(**options: str) -> DataFrame:
        return spark.read.format("blockgz").options(path=str(folder), subscribe=shape.name, **options).load()

    def columns(schema: str) -> DataFrame:
        reader = spark.read.format("blockgz").schema(schema)
        return reader.options(path=str(folder), subscribe=shape.name).load()

    last = shape.records // shape.partitions * 99 // 100
    cached = rows().cache()
    copy = str(site.folder("copy"))
    rows().write.parquet(copy)
    few = spark.range(1000).select(fn.col("id").cast("string").alias("name"), fn.col("id").alias("number"))
    joined = rows().withColumn("name", fn.substring(fn.col("key").cast("string"), -3, 3)).join(few, "name", "left")
    tasks = {f"tasks of {mib} MiB": partial(_summed, rows(taskBytes=str(mib << 20))) for mib in TASK_MIB}
    return {
        **tasks,
        "all columns": partial(_read, rows()),
        "value alone": partial(_read, columns("value BINARY")),
        "offset and timestamp": partial(_read, columns("offset BIGINT, timestamp TIMESTAMP")),
        "the last hundredth, not pushed down": partial(_with, spark, PUSHDOWN, "false", partial(_after, rows, last)),
        "the last hundredth, pushed down": partial(_with, spark, PUSHDOWN, "true", partial(_after, rows, last)),
        "a second reading": partial(_summed, rows()),
        "a second reading, cached": partial(_summed, cached),
        "a second reading, from a copy in Parquet": lambda: _summed(spark.read.parquet(copy)),
        "join with 1,000 rows, by shuffle": partial(_with, spark, BROADCAST, "-1", partial(_read, joined)),
        "join with 1,000 rows, by broadcast": partial(_with, spark, BROADCAST, "10MB", partial(_read, joined)),
        **{f"Parquet in {count} files": partial(_written, spark, rows(), count, site) for count in FILES},
    }


def _summed(rows: DataFrame) -> None:
    rows.agg(fn.sum(fn.length("value"))).collect()


def _read(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _after(rows: Callable[[], DataFrame], offset: int) -> None:
    rows().where(fn.col("offset") >= offset).count()


def _with(spark: SparkSession, setting: str, value: str, act: Act) -> None:
    spark.conf.set(setting, value)
    try:
        act()
    finally:
        spark.conf.unset(setting)


def _written(spark: SparkSession, rows: DataFrame, files: int, site: Site) -> None:
    """Written, and read once."""
    folder = str(site.folder("written"))
    rows.repartition(files).write.mode("overwrite").parquet(folder)
    _summed(spark.read.parquet(folder))


if __name__ == "__main__":
    main()

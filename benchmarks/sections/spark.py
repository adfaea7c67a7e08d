"""Loading an archive into Spark, against what Spark itself does with the same files and the same topic."""

import asyncio
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.data import START_MS, STEP_MS, TopicShape
from benchmarks.figures import Json
from benchmarks.site import Site, all_bytes, clear
from benchmarks.tables import Table, times
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import AT_START
from blockgz.archive.selection import scan
from blockgz.store.address import parse_address
from blockgz.store.opening import open_reader
from blockgz.store.reader import CountingReader
from replayer.spark import planning, register
from replayer.spark.source_options import parse_options
from system_test.support.spark import spark_session

TITLE = "Load into Spark (1 KB records, 4 partitions, local[2], warm session)"
SCHEMA = "offset LONG, timestamp LONG, key STRING, value STRING"
RULE = "spark.read.json, schema given"
OURS = ("blockgz, json", "blockgz, arrow")
WINDOW_SHARE = 0.01
VALUES = "lengths of values"
WHOLE = "all columns"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PUSHED, UNPUSHED = "filters pushed down", "filters not pushed down"


def measure(site: Site) -> Json:
    """Loads, a small range of time, and the topic written as JSON by Spark."""
    shape = TopicShape(site.settings.spark_mb * 1_000_000 // 1024 // 64 * 64, 1024)
    json, arrow = site.archived(shape), site.archived(shape, "--record-format", "arrow")
    with spark_session() as spark:
        register(spark)
        loads = _loads(spark, site, shape, json, arrow)
        seconds = _interleaved(site, shape, loads, lambda: _archived(spark, arrow, shape.name, **_bounds(shape)))
        window = _window(spark, json, shape)
        filtered = {name: _filtered(spark, json, shape, is_pushed=name == PUSHED) for name in (PUSHED, UNPUSHED)}
        written = _written(spark, site)
    rows = {name: {"seconds": statistics.median(runs), "runs": runs} for name, runs in seconds.items()}
    result = {
        "records": shape.records,
        "raw_bytes": shape.raw_bytes,
        "stored_bytes": {"json": all_bytes(json), "arrow": all_bytes(arrow)},
        "rows": rows,
        "window": window,
        "filtered_seconds": filtered,
        "written": written,
        "ratios": _ratios(rows, written),
    }
    clear(json)
    clear(arrow)
    site.drop(shape)
    return result


Load = Callable[[], DataFrame]


def _loads(spark: SparkSession, site: Site, shape: TopicShape, json: Path, arrow: Path) -> dict[str, Load]:
    files: dict[str, Any] = {"pathGlobFilter": "*.gz", "recursiveFileLookup": True}
    kafka = {"kafka.bootstrap.servers": site.bootstrap, "subscribe": shape.name}
    return {
        "blockgz, json": lambda: _archived(spark, json, shape.name),
        "blockgz, arrow": lambda: _archived(spark, arrow, shape.name),
        RULE: lambda: spark.read.schema(SCHEMA).json(str(json), **files),
        "spark.read.json, schema inferred": lambda: spark.read.json(str(json), **files),
        "spark.read.text": lambda: spark.read.text(str(json), **files),
        "Spark's Kafka source": lambda: spark.read.format("kafka").options(**kafka).load(),
    }


def _archived(spark: SparkSession, folder: Path, topic: str, **options: str) -> DataFrame:
    return spark.read.format("blockgz").options(path=str(folder), subscribe=topic, **options).load()


def _interleaved(site: Site, shape: TopicShape, loads: Mapping[str, Load], little: Load) -> dict[str, list[float]]:
    """Each load with each action; the first round warms up and does not count.

    Before each of ours `little` is read, for Spark ends Python processes that idle for a minute while others run.
    """
    seconds: dict[str, list[float]] = {}
    for number in range(site.settings.runs + 1):
        for name, load in loads.items():
            for action in (VALUES, WHOLE) if name in (*OURS, RULE) else (VALUES,):
                if name in OURS:
                    little().count()
                started = time.perf_counter()
                _act(load(), action, shape.records)
                taken = time.perf_counter() - started
                site.say(f"{name}, {action}: {taken:.2f} s")
                if number:
                    seconds.setdefault(f"{name}: {action}", []).append(taken)
    return seconds


def _act(frame: DataFrame, action: str, records: int) -> None:
    if action == WHOLE:
        frame.write.format("noop").mode("overwrite").save()
        return
    found = frame.agg(fn.count("*"), fn.sum(fn.length("value"))).collect()[0]
    if found[0] != records or not found[1]:
        raise SystemExit(f"{found} instead of {records} records")


def _window(spark: SparkSession, folder: Path, shape: TopicShape) -> Json:
    """A hundredth of the topic by time: seconds, records, and the share of the archive's bytes that is read."""
    bounds = _bounds(shape)
    started = time.perf_counter()
    records = _archived(spark, folder, shape.name, **bounds).count()
    seconds = time.perf_counter() - started
    if records != int(shape.records * WINDOW_SHARE):
        raise SystemExit(f"{records} records in a hundredth of {shape.records} by time")
    fetched = asyncio.run(_fetched({"path": str(folder), "subscribe": shape.name, **bounds}))
    share, wanted = fetched / all_bytes(folder), records / shape.records
    return {"seconds": seconds, "records": records, "share_of_records": wanted, "share_of_bytes": share}


def _filtered(spark: SparkSession, folder: Path, shape: TopicShape, *, is_pushed: bool) -> float:
    """Seconds for the same hundredth by conditions on the rows."""
    spark.conf.set(PUSHDOWN, str(is_pushed).lower())
    start, end = (datetime.fromtimestamp(int(ms) / 1000, UTC) for ms in _bounds(shape).values())
    started = time.perf_counter()
    rows = _archived(spark, folder, shape.name)
    records = rows.where((fn.col("timestamp") >= start) & (fn.col("timestamp") < end)).count()
    seconds = time.perf_counter() - started
    spark.conf.set(PUSHDOWN, "false")
    if records != int(shape.records * WINDOW_SHARE):
        raise SystemExit(f"{records} records in a hundredth of {shape.records} by conditions")
    return seconds


def _bounds(shape: TopicShape) -> dict[str, str]:
    """The options that choose a hundredth of the topic."""
    start = START_MS + shape.records // 2 * STEP_MS
    end = start + int(shape.records * WINDOW_SHARE) * STEP_MS
    return {"startingTimestamp": str(start), "endingTimestamp": str(end)}


async def _fetched(given: dict[str, str]) -> int:
    """Bytes that planning and tasks of a batch ask the store for: the same calls, over a store that counts."""
    options = parse_options(given, default_start=AT_START)
    async with open_reader(parse_address(given["path"])) as reader:
        counting = CountingReader(reader)
        archive = ArchiveReader(counting, options.place.max_block_bytes)
        wanted = await planning.subscribed(archive, options)
        runs = await planning.ranges(wanted, options)
        for run in await planning.tasks([each.partition for each in wanted], runs, options):
            partition = await archive.open_partition(run.topic, run.partition)
            async for _ in scan(partition, run.start, run.end):
                pass
    return counting.bytes_fetched


def _written(spark: SparkSession, site: Site) -> Json:
    """How Spark alone would archive: its Kafka source into gzipped JSON; beside it our archiver, start-up and all."""
    shape = site.settings.shape()
    topic = site.topic(shape)
    source = {"kafka.bootstrap.servers": site.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    theirs, ours = [], []
    for number in range(site.settings.runs + 1):
        folder = site.folder("written")
        started = time.perf_counter()
        frame = spark.read.format("kafka").options(**source).load()
        text = frame.withColumns({"key": fn.col("key").cast("string"), "value": fn.col("value").cast("string")})
        text.write.option("compression", "gzip").json(str(folder))
        theirs.append(time.perf_counter() - started)
        size = all_bytes(folder)
        shutil.rmtree(folder)
        own = site.folder("archive")
        ours.append(site.archive_to(str(own), shape).cost.seconds)
        own_size = all_bytes(own)
        clear(own)
        if number == 0:
            theirs, ours = [], []
    return {
        "records": shape.records,
        "spark_seconds": statistics.median(theirs),
        "archiver_seconds": statistics.median(ours),
        "spark_bytes": size,
        "archiver_bytes": own_size,
    }


def _ratios(rows: Json, written: Json) -> dict[str, float]:
    found = {}
    for ours in OURS:
        for name in rows:
            other, _, action = name.partition(": ")
            if other not in OURS:
                found[f"{ours} / {other}: {action}"] = rows[name]["seconds"] / rows[f"{ours}: {action}"]["seconds"]
    found["archiver / Spark's Kafka source and JSON writer"] = written["spark_seconds"] / written["archiver_seconds"]
    return found


def tables(result: Json) -> list[Table]:
    rows, ratios = result["rows"], result["ratios"]
    lines = []
    for name, row in rows.items():
        load, _, action = name.partition(": ")
        against = [ratios.get(f"{ours} / {load}: {action}") for ours in OURS]
        rate = result["records"] / row["seconds"]
        lines.append((name, f"{row['seconds']:.2f}", f"{rate:,.0f}", *(times(ratio) for ratio in against)))
    window, written = result["window"], result["written"]
    said = [
        (f"{window['share_of_records']:.2%} of the records by time", f"{window['seconds']:.2f}",
         f"{window['share_of_bytes']:.2%} of the bytes"),
        *((f"by where(), {name}", f"{seconds:.2f}", "") for name, seconds in result["filtered_seconds"].items()),
        (f"Kafka source to gzipped JSON, {written['records']:,} records", f"{written['spark_seconds']:.2f}",
         f"{written['spark_bytes'] / 1e6:,.0f} MB"),
        ("the same by `archiver run --once`", f"{written['archiver_seconds']:.2f}",
         f"{written['archiver_bytes'] / 1e6:,.0f} MB"),
    ]  # fmt: skip
    head = ("", "seconds", "records/s", "blockgz json is", "blockgz arrow is")
    return [Table(TITLE, head, lines), Table("Beside it", ("", "seconds", ""), said)]

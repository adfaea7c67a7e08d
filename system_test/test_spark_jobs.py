"""`replayer spark load | export | verify` in a real Spark, judged by what was written into the archive."""

import json
import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from index_format.records import Record
from replayer.cli import main
from system_test.support.programs import run
from system_test.support.spark import JAVA_OPTIONS, spark_session
from tests.support.archives import ArchiveWriter
from tests.support.corruption import cases, damaged, sample_archive
from tests.support.sampling import in_long_run
from tests.support.schema_registry import avro_value, schema_registry

pytestmark = pytest.mark.timeout(1200, func_only=True)
"""Cut off in the middle of a call, pyspark's connection is of no use to the tests behind."""

FIRST_MS = 1_760_050_800_000
"""An hour before midnight, UTC."""
STEP_MS = 120_000
EXAMPLES = Path(__file__).parent.parent / "docs/examples"
COUNTRIES = ("de", "fr", None)

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": ["null", "string"], "default": None},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ],
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("metastore")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home}/metastore;create=true",
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dderby.stream.error.file={home}/derby.log",
    }
    with spark_session(**settings) as session:
        yield session


def replayer(*arguments: object) -> Result:
    """The program in this process, so that its jobs find the session of the module."""
    return CliRunner().invoke(main, ["spark", *map(str, arguments)], prog_name="replayer")


def checked(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", "--spark", *map(str, arguments)], prog_name="replayer")


def done(result: Result, code: int = 0) -> dict[str, Any]:
    assert result.exit_code == code, result.stderr + result.stdout
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def value_of(number: int) -> bytes | None:
    if number % 11 == 5:
        return None
    country = COUNTRIES[number % 3]
    return json.dumps({"id": number, "country": country, "lines": [{"sku": f"s{number}", "n": 1}]}).encode()


def made(offsets: Sequence[int], values: Any = value_of) -> list[Record]:
    """Minutes apart; null keys, keys that are no text, empty ones; headers twice and without a value."""
    keys = [None, b"", b"k", b"\xff\x00"]
    return [
        Record(
            offset,
            FIRST_MS + offset * STEP_MS,
            0,
            keys[offset % 4],
            values(offset),
            (("h", b"1"), ("h", None), ("h", b"")) if offset % 5 == 0 else (),
        )
        for offset in offsets
    ]


@pytest.fixture
def shop(tmp_path: Path) -> ArchiveWriter:
    """Two partitions of orders, one with a recorded gap, and a topic beside them."""
    writer = ArchiveWriter(tmp_path / "archive")
    first, second = writer.partition("orders", 0), writer.partition("orders", 1, record_format="arrow")
    for start in range(0, 90, 30):
        first.commit(made(range(start, start + 30)))
    second.commit(made(range(10)))
    second.lose(20)
    second.commit(made(range(20, 30)))
    writer.partition("bills", 0).commit(made(range(5)))
    return writer


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(folder, partitioning=None).to_pylist()
    return sorted(rows, key=lambda row: (row.get("topic", ""), row["partition"], row["offset"]))


def expected(partition: int, records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(partition, r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


def seen(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
        )
        for row in rows
    ]


def test_parquet_has_every_record_as_it_was(spark: SparkSession, shop: ArchiveWriter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    where = ("-a", shop.root, "--json")
    command = ("export", "orders", out, "--format", "parquet", "--task-bytes", "4kB", *where)
    result = done(replayer(*command, "--partition-by", "topic,date,hour"))
    truth = expected(0, made(range(90))) + expected(1, made(range(10)) + made(range(20, 30)))
    assert seen(rows_of(out)) == truth
    assert (result["records"], result["bad_values"], result["skipped"]) == (110, 0, [])
    assert result["tasks"] > 3
    assert [(gap["partition"], gap["from"], gap["to"]) for gap in result["gaps"]] == [(1, 10, 20)]
    folders = {path.parent.relative_to(out).as_posix() for path in out.rglob("*.parquet")}
    moments = [datetime.fromtimestamp(record[2] / 1000, UTC) for record in truth]
    assert folders == {f"topic=orders/date={moment:%Y-%m-%d}/hour={moment.hour}" for moment in moments}
    assert {path.name for path in out.iterdir()} - {"topic=orders"} <= {"_SUCCESS", "._SUCCESS.crc"}

    again = replayer(*command)
    assert again.exit_code == 2, again.stderr
    assert "--mode append" in again.stderr
    assert done(replayer(*command, "--mode", "overwrite"))["records"] == 110
    assert len(rows_of(out)) == 110
    done(replayer(*command, "--mode", "append"))
    assert len(rows_of(out)) == 220


def test_only_what_is_selected(spark: SparkSession, shop: ArchiveWriter, tmp_path: Path) -> None:
    def exported(*options: object) -> list[tuple[Any, ...]]:
        name = str(random.randrange(2**32))
        done(replayer("export", *options, tmp_path / name, "--format", "parquet", "--json", "-a", shop.root))
        return [(row["topic"], row["partition"], row["offset"]) for row in rows_of(tmp_path / name)]

    assert exported("orders:0", "--from", "10", "--to", "+5") == [("orders", 0, n) for n in range(10, 15)]
    time = f"@{FIRST_MS + 20 * STEP_MS}"
    early = [("orders", 0, n) for n in range(20)] + [("orders", 1, n) for n in range(10)]
    assert exported("~ord.*", "--until", time) == early
    assert len(exported("*:0", "bills")) == 95
    assert exported("bills", "--key", "k") == [("bills", 0, 2)]
    assert exported("bills", "--from", "latest") == []
    nothing = replayer("export", "x*", tmp_path / "x", "--format", "parquet", "-a", shop.root)
    assert (nothing.exit_code, "no archived topic matches" in nothing.stderr) == (4, True)


def test_json_values_with_a_schema_given_and_found_out(
    spark: SparkSession, shop: ArchiveWriter, tmp_path: Path
) -> None:
    common = ("--value", "json", "--json", "-a", shop.root)
    options = ("--format", "parquet", "--partition-by", "value.country", "--schema", "id BIGINT, country STRING")
    done(replayer("export", "orders", tmp_path / "given", *options, *common))
    rows = rows_of(tmp_path / "given")
    assert [row["value"] for row in rows[:7]] == [
        None if n == 5 else {"id": n, "country": COUNTRIES[n % 3]} for n in range(7)
    ]
    folders = {path.name for path in (tmp_path / "given").iterdir() if path.is_dir()}
    assert folders == {"country=de", "country=fr", "country=__HIVE_DEFAULT_PARTITION__"}

    done(replayer("export", "orders", tmp_path / "found", "--format", "json", "--key-as", "binary", *common))
    lines = [json.loads(line) for path in (tmp_path / "found").glob("*.json") for line in path.read_text().splitlines()]
    assert len(lines) == 110
    (tenth,) = [line for line in lines if (line["partition"], line["offset"]) == (0, 10)]
    assert tenth["value"] == {"country": "fr", "id": 10, "lines": [{"n": 1, "sku": "s10"}]}
    assert tenth["headers"] == [{"key": "h", "value": "MQ=="}, {"key": "h"}, {"key": "h", "value": ""}]

    done(replayer("export", "orders", tmp_path / "csv", "--format", "csv", *common))
    back = spark.read.csv(str(tmp_path / "csv"), header=True, escape='"', multiLine=True).collect()
    (tenth_row,) = [row for row in back if (row["partition"], row["offset"]) == ("0", "10")]
    assert (tenth_row["value.id"], json.loads(tenth_row["value.lines"])) == ("10", [{"sku": "s10", "n": 1}])

    wrong = replayer("export", "orders", tmp_path / "no", *options[:3], "value.nothing", *options[4:], *common)
    assert (wrong.exit_code, "is not a field of the values" in wrong.stderr) == (2, True)


BAD = {3: b"no json", 4: b'{"id": "x"}', 7: b"", 8: b"\xff\xfe", 9: b"[1]", 10: b"null"}


@pytest.mark.parametrize("value_as", ["json", "avro"])
def test_values_that_cannot_be_decoded(spark: SparkSession, shop: ArchiveWriter, tmp_path: Path, value_as: str) -> None:
    """Ended at, made null, or left out; never passed over in silence. The JSON null is a null, and not bad."""

    def value(number: int) -> bytes:
        if value_as == "json":
            return BAD.get(number, b'{"id": %d}' % number)
        good = avro_value(1, OLD, {"id": number})
        return {3: b"", 4: b"\x01" + good[1:], 7: good[:-1], 8: good + b"x", 9: b"\0\0\0\0\x09\0"}.get(number, good)

    shop.partition("bad", 0).commit(made(range(20), value))
    bad = {3, 4, 7, 8, 9}
    with schema_registry({1: OLD}, {"bad-value": 1}) as (url, _):
        schema = ("--schema", "id INT, name STRING") if value_as == "json" else ("--schema-registry", url)
        common = ("--format", "parquet", "--value", value_as, *schema, "--min-tasks", 3, "-a", shop.root)
        failed = replayer("export", "bad", tmp_path / "fail", *common)
        assert failed.exit_code == 1, failed.stderr
        assert re.search("error: the record bad:0:[34789] cannot be decoded", failed.stderr), failed.stderr
        assert "--on-bad-value" in failed.stderr
        assert "java" not in failed.stderr
        assert not list((tmp_path / "fail").glob("*.parquet"))
        nulls = done(replayer("export", "bad", tmp_path / "null", *common, "--on-bad-value", "null", "--json"), 3)
        skips = done(replayer("export", "bad", tmp_path / "skip", *common, "--on-bad-value", "skip", "--json"), 3)
    assert (nulls["records"], nulls["bad_values"], skips["records"], skips["bad_values"]) == (20, 5, 15, 5)
    assert nulls["first_bad_value"].startswith("bad:0:3: the value")
    null = {row["offset"]: row["value"] for row in rows_of(tmp_path / "null")}
    assert {offset for offset, value in null.items() if value is None} - {10} == bad
    assert (null[10] is None) == (value_as == "json")
    assert {row["offset"] for row in rows_of(tmp_path / "skip")} == set(range(20)) - bad


def test_avro_values_of_two_schemas_and_avro_files(spark: SparkSession, shop: ArchiveWriter, tmp_path: Path) -> None:
    def value(number: int) -> bytes:
        if number % 2:
            return avro_value(1, OLD, {"id": number})
        return avro_value(2, NEW, {"id": number, "country": "de", "at": datetime.fromtimestamp(number, UTC)})

    shop.partition("typed", 0).commit(made(range(20), value))
    with schema_registry({1: OLD, 2: NEW}, {"typed-value": 2}) as (url, asked):
        options = ("--value", "avro", "--schema-registry", url, "--json", "-a", shop.root)
        done(replayer("export", "typed", tmp_path / "out", "--format", "avro", *options))
        assert "/subjects/typed-value/versions/latest" in asked
        done(replayer("export", "typed", tmp_path / "old", "--format", "parquet", *options, "--schema", avsc(tmp_path)))
    back = spark.read.format("avro").load(str(tmp_path / "out")).orderBy("offset").collect()
    assert [(row["value"]["id"], row["value"]["country"]) for row in back] == [
        (n, None if n % 2 else "de") for n in range(20)
    ]
    assert [row["value"] for row in rows_of(tmp_path / "old")] == [{"id": n} for n in range(20)]
    gone = replayer("export", "typed", tmp_path / "gone", "--format", "avro", *options)
    assert (gone.exit_code, "does not answer" in gone.stderr) == (1, True)


def avsc(folder: Path) -> Path:
    path = folder / "old.avsc"
    path.write_text(json.dumps(OLD))
    return path


def test_damage_ends_a_job_or_is_skipped_and_named(spark: SparkSession, shop: ArchiveWriter, tmp_path: Path) -> None:
    data = sorted((shop.root / "topic=orders/partition=00000").glob("*.gz"))[1]
    body = bytearray(data.read_bytes())
    body[40] ^= 1
    data.write_bytes(bytes(body))
    common = ("export", "orders:0", tmp_path / "out", "--format", "parquet", "-a", shop.root)
    ended = replayer(*common)
    assert (ended.exit_code, "error: block 0 of" in ended.stderr) == (3, True), ended.stderr
    assert not list((tmp_path / "out").rglob("part-*.parquet"))
    result = done(replayer(*common, "--on-damage", "skip", "--json", "--mode", "overwrite"), 3)
    (lost,) = result["skipped"]
    assert lost["from"] == 30
    kept = [n for n in range(90) if not 30 <= n < lost["to"]]
    assert [row["offset"] for row in rows_of(tmp_path / "out")] == kept
    assert result["records"] == len(kept)


def test_a_table_is_loaded(spark: SparkSession, shop: ArchiveWriter) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    common = ("load", "orders", "--table", "shop.orders", "--partition-by", "date", "-a", shop.root, "--json")
    assert done(replayer(*common, "--to", "+20"))["records"] == 30
    again = replayer(*common)
    assert (again.exit_code, "--mode append" in again.stderr) == (2, True), again.stderr
    assert done(replayer(*common, "--from", "+20", "--mode", "append"))["records"] == 80
    assert spark.table("shop.orders").count() == 110
    assert spark.table("shop.orders").select("partition", "offset").distinct().count() == 110


def reports(root: Path, *options: object) -> tuple[Result, Result]:
    where = ("-a", root, "--json")
    spread = checked("--records", *options, "--task-bytes", "1kB", *where)
    alone = CliRunner().invoke(main, ["verify", "--records", *map(str, where)], prog_name="replayer")
    return spread, alone


def test_verify_reports_what_a_single_process_does(spark: SparkSession, tmp_path: Path) -> None:
    """Of the whole archive and of damaged ones, all but the digests of partitions that several tasks had."""
    sample = sample_archive("topic")
    seed = int(os.environ.get("BLOCKGZ_SEED", random.randrange(2**32)))
    rng = random.Random(seed)
    every = list(cases(sample, rng, 400))
    for number, case in enumerate([None, *rng.sample(every, 5)]):
        root = tmp_path / str(number)
        for key, body in (sample.objects if case is None else damaged(sample, case)).items():
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(body)
        told = f"seed {seed}, {case and case.kind}"
        spread, alone = reports(root, *(["--digests"] if number % 2 else []))
        assert spread.exit_code == alone.exit_code, told + spread.stderr
        ours, theirs = json.loads(spread.stdout), json.loads(alone.stdout)
        parts = 0
        for one, other in zip(ours["partitions"], theirs["partitions"], strict=True):
            if number % 2 == 0 and one["digests"] is None:
                other["digests"] = None
                parts += 1
        assert case is not None or parts == 2, f"{told}: the large partitions were not cut"
        assert ours == theirs, told


@in_long_run
def test_the_program_by_itself(shop: ArchiveWriter, tmp_path: Path) -> None:
    """A session of its own: nothing but three lines where it fails, none of them Java's."""
    where = ("-a", shop.root, "--master", "local[2]", "--conf", "spark.ui.enabled=false")
    forgotten = run("replayer", "spark", "load", "orders", "--table", "orders", *where, timeout=240, check=2)
    errors = [line for line in forgotten.stderr.splitlines() if line.startswith(("error:", "why:", "do:"))]
    assert errors[0] == "error: the table orders would be forgotten as this job ends"
    assert "catalogImplementation=hive" in errors[2]
    assert "\tat " not in forgotten.stderr


@in_long_run
def test_the_program_by_spark_submit(shop: ArchiveWriter) -> None:
    """As docs/spark.md has it: master and settings are spark-submit's, output and exit code the program's."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    options = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
    job = ("verify", "--spark", "orders", "--records", "--json", "-a", str(shop.root))
    done = subprocess.run(
        [submit, *options, str(EXAMPLES / "replayer_job.py"), *job],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(EXAMPLES.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])  # spark-submit puts stderr onto stdout
    assert (report["verdict"], [each["records"] for each in report["partitions"]]) == ("WARNING", [90, 20])


@in_long_run
def test_the_example(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run twice, it keeps what is new, once."""
    shop = ArchiveWriter(tmp_path / "archive")
    for number in range(2):
        shop.partition("orders", number).commit(made(range(55)))
    monkeypatch.setenv("BLOCKGZ_ARCHIVE", str(shop.root))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    runpy.run_path(str(EXAMPLES / "orders_in_spark.py"))
    said = capsys.readouterr().out
    assert "110 records kept" in said
    assert "|     de|   36|" in said
    shop.partition("orders", 2).commit(made(range(7)))
    runpy.run_path(str(EXAMPLES / "orders_in_spark.py"))
    assert "117 records kept" in capsys.readouterr().out

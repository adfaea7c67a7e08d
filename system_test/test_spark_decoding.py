"""Keys and values that the format `blockgz` decodes, on real Spark: tasks ask a registry, as batch, SQL and stream."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from system_test.conftest import required_parts
from system_test.support.spark import spark_session
from tests.support.archives import ArchiveWriter, records
from tests.support.protobuf_values import ANSWERS, message, value
from tests.support.schema_registry import registry_of, schema_registry

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": "string", "default": "none"}]}
ROW = StructType([StructField("id", LongType()), StructField("name", StringType())])
COUNT = 20


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with required_parts(), spark_session() as session:
        yield session


def archived(root: Path, *values: bytes | None) -> None:
    kept = zip(records(range(len(values))), values, strict=True)
    ArchiveWriter(root).partition("orders", 0).commit([each._replace(key=b"k", value=found) for each, found in kept])


def avro(number: int, schema: dict[str, Any], content: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    schemaless_writer(body, parse_schema(schema), content)
    return b"\0" + struct.pack(">I", number) + body.getvalue()


def test_avro_of_two_schemas_as_batch_sql_and_stream(spark: SparkSession, tmp_path: Path) -> None:
    def value(n: int) -> bytes:
        return avro(2, NEW, {"id": n, "note": "x"}) if n % 2 else avro(1, OLD, {"id": n})

    archived(tmp_path / "archive", *map(value, range(COUNT)))
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
    archived(tmp_path, *orders)
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
    archived(tmp_path, *changes, None, b"{")
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

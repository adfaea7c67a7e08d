"""Keys and values that the source decodes, without Spark."""

import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from blockgz.archive.positions import AT_START
from blockgz.errors import UsageError
from blockgz.spark.errors import ReadFailed
from index_format.records import Record
from replayer.spark.source import batch_reader, schema_of
from replayer.spark.source_options import parse_options
from tests.support.archives import ArchiveWriter, records
from tests.support.schema_registry import schema_registry

ROW = StructType([StructField("id", LongType()), StructField("name", StringType())]).json()
CHANGE = {"before": None, "after": {"id": 1, "name": "x"}, "op": "c", "ts_ms": 1_760_000_000_123, "source": {"a": 1}}


def made(*values: bytes | None) -> list[Record]:
    return [
        record._replace(key=b"k", value=value)
        for record, value in zip(records(range(len(values))), values, strict=True)
    ]


def read(path: Path, columns: str | None = None, **options: str) -> pa.Table:
    """All rows, by a reader as Spark pickles it to tasks."""
    given = {"path": str(path), "subscribe": "orders", **options}
    schema = schema_of(given)
    if columns is not None:
        schema = StructType([field for field in schema if field.name in columns.split()])
    reader = batch_reader(given, schema, takes_filters=False)
    tasks = reader.partitions()
    reader = pickle.loads(cloudpickle.dumps(reader))
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    values = (b'{"id": 1, "name": "x"}', b"{", None, b"\xff")
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    return tmp_path


def test_rows_that_do_not_decode(archive: Path) -> None:
    as_json = {"keyFormat": "string", "valueFormat": "json", "valueSchema": ROW}
    found = read(archive, **as_json, onBadValue="column")
    assert found.column("key").to_pylist() == ["k"] * 4
    assert found.column("value").to_pylist() == [{"id": 1, "name": "x"}, None, None, None]
    assert [reason is not None for reason in found.column("bad").to_pylist()] == [False, True, False, True]
    assert read(archive, **as_json, onBadValue="null").column("value").null_count == 3
    assert read(archive, **as_json, onBadValue="skip").column("offset").to_pylist() == [0, 2]
    with pytest.raises(ReadFailed, match="the record orders:0:1 cannot be decoded"):
        read(archive, **as_json)


def test_columns_may_be_left_out(archive: Path) -> None:
    found = read(archive, "offset value", valueFormat="string", onBadValue="null")
    assert found.column_names == ["value", "offset"]
    assert found.column("value").to_pylist()[1:] == ["{", None, None]


def test_changes_of_debezium(tmp_path: Path) -> None:
    deleted = {"before": {"id": 1, "name": "x"}, "after": None, "op": "d", "ts_ms": 1_760_000_000_124}
    wrapped = {"schema": {}, "payload": CHANGE}
    values = [*(json.dumps(each).encode() for each in (CHANGE, deleted, wrapped)), None]
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    found = read(tmp_path, valueFormat="json", valueSchema=ROW, envelope="debezium")
    assert found.column_names[:6] == ["key", "op", "before", "after", "changed_at", "topic"]
    assert found.column("op").to_pylist() == ["c", "d", "c", None]
    assert found.column("after").to_pylist() == [CHANGE["after"], None, CHANGE["after"], None]
    assert found.column("before").to_pylist() == [None, deleted["before"], None, None]
    assert found.column("changed_at").to_pylist()[0] == datetime(2025, 10, 9, 8, 53, 20, 123000, UTC)


def test_a_change_at_a_time_that_no_column_holds(tmp_path: Path) -> None:
    values = (json.dumps({**CHANGE, "ts_ms": time}).encode() for time in (1, 2**62))
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    with pytest.raises(ReadFailed, match=f"in orders:0:1 does not fit (.|\n)*{2**62} ms"):
        read(tmp_path, valueFormat="json", valueSchema=ROW, envelope="debezium")


def test_a_secret_that_a_machine_lacks_makes_no_record_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors may have another environment than the driver."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(b"\0\0\0\0\1\2"))
    given = {"path": str(tmp_path), "subscribe": "orders", "valueFormat": "avro", "onBadValue": "skip"}
    with schema_registry({1: "long"}, {"orders-value": 1}) as (url, _):
        monkeypatch.setenv("REGISTRY", url)
        given["schemaRegistry"] = "${env:REGISTRY}"
        reader = batch_reader(given, schema_of(given), takes_filters=False)
        (task,) = reader.partitions()
        monkeypatch.delenv("REGISTRY")
        with pytest.raises(ReadFailed, match="the environment variable REGISTRY is not set"):
            list(reader.read(task))


@pytest.mark.slow
def test_the_schema_is_that_of_the_registry(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(None))
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    given: dict[str, Any] = {"path": str(tmp_path), "valueFormat": "avro"}
    with schema_registry({1: order}, {"orders-value": 1, "shop.Order": 1}) as (url, _):
        given["schemaRegistry"] = url
        for where in ({"subscribe": "orders~1"}, {"subscribePattern": "ord.*"}, {"assign": '{"orders":[0]}'}):
            assert schema_of(given | where)["value"].dataType.simpleString() == "struct<id:bigint>"
        named = {"subscribe": "other", "valueSubject": "shop.Order"}
        assert schema_of(given | named)["value"].dataType.simpleString() == "struct<id:bigint>"
        with pytest.raises(ReadFailed, match="has no subject other-value"):
            schema_of(given | {"subscribe": "other"})
        with pytest.raises(ReadFailed, match="no envelopes of Debezium"):
            schema_of(given | {"subscribe": "orders", "envelope": "debezium"})
    with pytest.raises(ReadFailed, match="does not answer"):
        schema_of(given | {"subscribe": "orders"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "avro"}, "need a schema registry"),
        ({"valueFormat": "xml"}, "binary or string or json or avro or protobuf"),
        ({"valueFormat": "json"}, "set both valueFormat json and valueSchema"),
        ({"keyFormat": "avro", "keySchema": "{}", "schemaRegistry": "http://x"}, "do not go together"),
        ({"valueFormat": "string", "valueSubject": "x"}, "valueSubject goes with"),
        ({"envelope": "debezium"}, "an envelope needs fields"),
        ({"valueFormat": "json", "valueSchema": ROW, "envelope": "maxwell"}, "debezium"),
        ({"valueFormat": "string", "onBadValue": "ignore"}, "fail or null or skip or column"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({"path": "x", "subscribe": "orders", **options}, default_start=AT_START)
    assert words in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"

"""Values of Avro, JSON and protobuf: what decodes, what is refused, and where schemas come from."""

import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from blockgz.archive.rows import to_rows
from blockgz.errors import NotInArchive, StoreUnavailable, UsageError
from index_format.records import batch_from_records
from replayer.spark import schema_registry as registry_module
from replayer.spark.avro import AvroDecoder, arrow_type, avro_decoder, latest_avro, plain
from replayer.spark.decoding import BAD, JsonDecoder, RowDecoder, TextDecoder, json_type
from replayer.spark.protobuf import ProtobufDecoder, latest_protobuf, message_indexes
from replayer.spark.schema_registry import SchemaRegistry
from tests.support.archives import records
from tests.support.protobuf_values import ANSWERS, FORM, F, answer, field, message, value
from tests.support.schema_registry import avro_value, registry_of, schema_registry


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "shop.Order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": ["int", "long"]}]}
LINES = pa.list_(pa.struct([("n", pa.int64())]))
FIELDS: list[tuple[str, Any, Any, pa.DataType, Any]] = [
    ("flag", "boolean", True, pa.bool_(), True),
    ("number", "long", -(2**63), pa.int64(), -(2**63)),
    ("share", ["float", "double"], 0.5, pa.float64(), 0.5),
    ("raw", "bytes", b"\xff", pa.binary(), b"\xff"),
    ("note", ["null", "string"], None, pa.string(), None),
    ("kind", KIND, "B", pa.string(), "B"),
    ("again", ["null", "Kind"], "A", pa.string(), "A"),
    ("code", {"type": "fixed", "name": "Code", "size": 2}, b"ab", pa.binary(), b"ab"),
    (
        "lines",
        {"type": "array", "items": LINE},
        [{"n": 2**40}],
        pa.list_(pa.struct([("n", pa.int64())])),
        [{"n": 2**40}],
    ),
    ("counts", {"type": "map", "values": "int"}, {"a": 1}, pa.map_(pa.string(), pa.int32()), [("a", 1)]),
    ("day", logical("int", "date"), date(2026, 1, 2), pa.date32(), date(2026, 1, 2)),
    (
        "at",
        logical("long", "timestamp-millis"),
        datetime(2026, 1, 2, tzinfo=UTC),
        pa.timestamp("us", tz="UTC"),
        datetime(2026, 1, 2, tzinfo=UTC),
    ),
    ("price", logical("bytes", "decimal", precision=9, scale=2), Decimal("1.50"), pa.decimal128(9, 2), Decimal("1.50")),
    ("clock", logical("int", "time-millis"), 5, pa.int32(), 5),
    ("id", logical("string", "uuid"), "6e7e2b1c-8f0d-4c55-8f2a-0d4e6f3f7a11", pa.string(), None),
]


def written(schema: Any, value: Any, number: int = 1) -> bytes:
    return avro_value(number, plain(schema), value)


def test_every_type_and_its_value() -> None:
    schema = record(*((name, kind) for name, kind, *_ in FIELDS))
    decoder = pickle.loads(pickle.dumps(avro_decoder(schema, None)))
    assert decoder.type == pa.struct([(name, kind) for name, _, _, kind, _ in FIELDS])
    value = {name: value for name, _, value, *_ in FIELDS}
    (found,) = pa.array([decoder.decode(written(schema, value))], decoder.type).to_pylist()
    assert found == {name: value[name] if seen is None else seen for name, _, _, _, seen in FIELDS}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("a", ["int", "string"])), "not a single column"),
        (record(("next", ["null", "shop.Order"])), "holds itself"),
        ({"type": "record", "name": "X"}, "fields"),
        ({"type": "nonsense"}, "nonsense"),
    ],
)
def test_what_is_not_a_column_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        avro_decoder(schema, None)
    assert why in caught.value.why


def test_a_plain_type_is_a_column_too() -> None:
    assert arrow_type("string") == pa.string()
    assert avro_decoder("string", None).decode(written("string", "x")) == "x"


SCHEMA = record(("id", "long"), ("name", "string"))
GOOD = written(SCHEMA, {"id": 7, "name": "seven"})


@pytest.mark.parametrize("value", [b"", b"\0", b"\1" + GOOD[1:], GOOD[:-1], GOOD + b"x", GOOD[5:]])
def test_what_is_not_a_value_of_the_schema(value: bytes) -> None:
    with pytest.raises(ValueError, match="value"):
        avro_decoder(SCHEMA, None).decode(value)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    decoder = avro_decoder(SCHEMA, None)
    rows = to_rows(batch_from_records([records([1])[0]._replace(value=b"\0\0\0\0\1" + body)]), "t", 0, headers=False)
    decoded = RowDecoder(value=decoder)(rows)
    (value,), (bad,) = decoded.column("value").to_pylist(), decoded.column("bad").to_pylist()
    assert (value is None) == (bad is not None)


def test_values_written_by_another_schema_are_read_by_the_readers() -> None:
    older = record(("id", "int"))
    newer = record(("id", "long"))
    newer["fields"].append({"name": "name", "type": "string", "default": "none"})
    with schema_registry({1: older, 2: newer}, {"orders-value": 2}) as (url, asked):
        decoder = avro_decoder(latest_avro(SchemaRegistry(url), "orders-value"), url)
        assert decoder.decode(written(older, {"id": 7}, 1)) == {"id": 7, "name": "none"}
        assert decoder.decode(written(newer, {"id": 8, "name": "x"}, 2)) == {"id": 8, "name": "x"}
        for _ in range(3):
            decoder.decode(written(older, {"id": 7}, 1))
        with pytest.raises(ValueError, match="has no schema 9"):
            decoder.decode(written(older, {"id": 7}, 9))
        assert asked.count("/schemas/ids/1") == 1
        with pytest.raises(NotInArchive, match="no subject bills-value"):
            latest_avro(SchemaRegistry(url), "bills-value")


def test_a_registry_that_does_not_answer_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "TRIES", 1)
    with schema_registry({}, {}) as (url, _):
        pass
    decoder = AvroDecoder(json.dumps(SCHEMA), url)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        decoder.decode(GOOD)


def test_user_and_password_stay_out_of_errors() -> None:
    with pytest.raises(UsageError) as caught:
        SchemaRegistry("ftp://user:secret@host")
    assert "secret" not in f"{caught.value} {caught.value.why} {caught.value.remedy}"
    assert SchemaRegistry("https://user:secret@host:8081/").url == "https://host:8081"


def test_text_that_is_none_is_named_once() -> None:
    odd = [each._replace(key=b"\xff", value=b"\xfe" if each.offset == 1 else each.value) for each in records(range(3))]
    rows = to_rows(batch_from_records(odd), "t", 0, headers=False)
    decoded = RowDecoder(value=TextDecoder("value"))(rows)
    assert decoded.column("bad").to_pylist() == [None, "the value is not UTF-8", None]
    assert decoded.column("value").to_pylist()[1] is None
    both = RowDecoder(TextDecoder("key"), TextDecoder("value"))(rows)
    assert both.column("bad").to_pylist() == ["the key is not UTF-8"] * 3
    assert both.column("key").null_count == 3


def test_a_number_too_large_for_its_column_is_a_bad_value() -> None:
    """fastavro reads an int of any size."""
    rows = to_rows(batch_from_records(records([1, 2])), "t", 0, headers=False)
    values = pa.array([written("long", 2**40), written("long", 5)], pa.binary())
    decoded = RowDecoder(value=avro_decoder("int", None))(rows.set_column(1, "value", values))
    assert decoded.column("value").to_pylist() == [None, 5]
    assert decoded.column("bad").to_pylist()[0].startswith("a decoded field does not fit its column")


def test_schemas_that_refer_to_others() -> None:
    place = {"type": "record", "name": "Place", "namespace": "shop", "fields": [{"name": "zip", "type": "string"}]}
    buyer = {**record(("at", "shop.Place"), ("before", ["null", "shop.Place"])), "name": "shop.Buyer"}
    order = record(("buyer", "Buyer"), ("to", "Place"))
    used_place = {"name": "shop.Place", "subject": "place", "version": 3}
    used_buyer = {"name": "shop.Buyer", "subject": "buyer", "version": 1}
    answers = {
        "/subjects/orders-value/versions/latest": registry_answer(order, used_buyer, used_place),
        "/subjects/buyer/versions/1": registry_answer(buyer, used_place),
        "/subjects/place/versions/3": registry_answer(place),
        "/schemas/ids/1": registry_answer(order, used_buyer, used_place),
    }
    with registry_of(answers) as (url, _):
        decoder = avro_decoder(latest_avro(SchemaRegistry(url), "orders-value"), url)
        at = {"zip": "20095"}
        value = {"buyer": {"at": at, "before": None}, "to": at}
        assert decoder.decode(written(json.loads(decoder.schema), value)) == value
        del answers["/subjects/place/versions/3"]
        with pytest.raises(StoreUnavailable, match="version 3 of subject place"):
            latest_avro(SchemaRegistry(url), "orders-value")
        answers["/subjects/place/versions/3"] = registry_answer(place, used_buyer)
        with pytest.raises(StoreUnavailable) as caught:
            latest_avro(SchemaRegistry(url), "orders-value")
        assert "circle" in caught.value.why


def registry_answer(schema: Any, *references: dict[str, Any]) -> dict[str, Any]:
    return {"schema": json.dumps(schema), "references": list(references)}


ORDER = types.StructType(
    [
        types.StructField("id", types.LongType()),
        types.StructField("price", types.DoubleType()),
        types.StructField("tags", types.ArrayType(types.StringType())),
        types.StructField("counts", types.MapType(types.StringType(), types.LongType())),
        types.StructField("to", types.StructType([types.StructField("zip", types.StringType())])),
    ]
)


def decoded(*values: bytes | None) -> tuple[list[Any], list[str | None]]:
    columns = {"key": [None] * len(values), "value": list(values)}
    rows = pa.record_batch([pa.array(each, pa.binary()) for each in columns.values()], names=list(columns))
    found = RowDecoder(value=JsonDecoder(json_type("valueSchema", ORDER.json())))(rows)
    return found.column("value").to_pylist(), found.column(BAD).to_pylist()


def test_fields_by_name() -> None:
    whole = {"id": 7, "price": 2, "tags": ["a"], "counts": {"x": 1}, "to": {"zip": "20095"}, "more": [1]}
    text = json.dumps(whole).encode()
    wrapped = json.dumps({"schema": {"type": "struct"}, "payload": whole}).encode()
    expected = {"id": 7, "price": 2.0, "tags": ["a"], "counts": [("x", 1)], "to": {"zip": "20095"}}
    values, bad = decoded(text, wrapped, b"\0\0\0\0\1" + text, b'{"id": null}', b"null", None)
    assert values == [expected, expected, expected, dict.fromkeys(expected), None, None]
    assert bad == [None] * 6


def test_what_does_not_fit_is_null_and_says_why() -> None:
    values, bad = decoded(b'{"id": 1', b"[1]", b'{"id": "x"}', b'{"id": 1.5}', b"", b'{"id": 5}')
    assert [value and value["id"] for value in values] == [None] * 5 + [5]
    assert [reason is not None and reason.startswith("the value is not JSON of its schema: ") for reason in bad] == [
        *[True] * 5,
        False,
    ]


def test_a_decoder_is_sent_to_tasks_before_and_after_its_first_value() -> None:
    decoder = JsonDecoder(json_type("valueSchema", ORDER.json()))
    for _ in range(2):
        sent: JsonDecoder = pickle.loads(pickle.dumps(decoder))
        assert sent == decoder and sent.decode(b'{"id": 7}') == decoder.decode(b'{"id": 7}') == {"id": 7}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("id BIGINT", "fromDDL"),
        ("{}", "fromDDL"),
        ('"string"', "fromDDL"),
        (types.StructType().json(), "no fields"),
        (types.StructType([types.StructField("at", types.TimestampType())]).json(), "JSON has no timestamp"),
    ],
)
def test_what_is_not_a_schema(schema: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        json_type("valueSchema", schema)
    assert words in f"{caught.value.why} {caught.value.remedy}"


@pytest.fixture(scope="module")
def decoder() -> Iterator[ProtobufDecoder]:
    with registry_of(ANSWERS) as (url, _):
        registry = SchemaRegistry(url)
        yield pickle.loads(pickle.dumps(ProtobufDecoder(latest_protobuf(registry, "orders-value"), url)))


def test_every_kind_of_field(decoder: ProtobufDecoder) -> None:
    order = message("shop.Order")
    order.id, order.state, order.to.zip, order.limit.value, order.small = 2**64 - 1, 1, "20095", 0, 2**32 - 1
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    order.at.FromDatetime(at)
    order.tags.extend(["a", "b"])
    order.counts["x"] = 5
    (found,) = pa.array([decoder.decode(value(order.SerializeToString()))], decoder.type).to_pylist()
    assert found == {
        "id": Decimal(2**64 - 1),
        "state": "PAID",
        "to": {"zip": "20095"},
        "at": at,
        "tags": ["a", "b"],
        "counts": [("x", 5)],
        "limit": 0,
        "note": None,
        "small": 2**32 - 1,
    }


def test_what_is_not_set(decoder: ProtobufDecoder) -> None:
    """Fields with presence are null, others have their default."""
    (found,) = pa.array([decoder.decode(value(b""))], decoder.type).to_pylist()
    nulls = {"to": None, "at": None, "limit": None, "note": None}
    assert found == {"id": 0, "state": "OPEN", "tags": [], "counts": [], "small": 0, **nulls}


def test_enum_numbers_that_the_schema_does_not_know(decoder: ProtobufDecoder) -> None:
    found: Any = decoder.decode(value(b"\x10\x09"))
    assert found["state"] == "9"


def test_another_message_of_the_file_is_not_taken_for_the_first(decoder: ProtobufDecoder) -> None:
    with pytest.raises(ValueError, match=r"the value is a shop\.Bill, and the column holds shop\.Order"):
        decoder.decode(value(b"", indexes=b"\2\2"))
    with pytest.raises(ValueError, match="has no message"):
        decoder.decode(value(b"", indexes=b"\2\x0e"))
    with pytest.raises(ValueError, match="has no schema 9"):
        decoder.decode(value(b"", number=9))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_of_protobuf_are_decoded_or_refused(decoder: ProtobufDecoder, body: bytes) -> None:
    for content in (body, value(body), value(b"", indexes=body)):
        with suppress(ValueError, OverflowError):
            pa.array([decoder.decode(content)], decoder.type)


def test_message_indexes() -> None:
    assert message_indexes(b"\0rest", 0) == ((0,), 1)
    assert message_indexes(b"\4\2\4rest", 0) == ((1, 2), 3)
    for torn in (b"", b"\4\2", b"\x80\x80", b"\xff" * 9, b"\1"):
        with pytest.raises(ValueError, match="the value"):
            message_indexes(torn, 0)


def test_what_the_registry_lacks() -> None:
    recursive = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r", syntax="proto3")
    recursive.message_type.add(name="R").field.append(field("next", 1, F.TYPE_MESSAGE, ".r.R"))
    odd = descriptor_pb2.FileDescriptorProto(name="o.proto", dependency=["nowhere.proto"], syntax="proto3")
    answers = {
        f"/subjects/recursive/versions/latest{FORM}": answer(recursive),
        f"/subjects/odd/versions/latest{FORM}": answer(odd),
        f"/subjects/text/versions/latest{FORM}": {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'},
        f"/subjects/avro/versions/latest{FORM}": {"schema": '"string"'},
        f"/subjects/empty/versions/latest{FORM}": answer(descriptor_pb2.FileDescriptorProto(name="e.proto")),
    }
    with registry_of(answers) as (url, _):
        registry = SchemaRegistry(url)
        for subject, words in {
            "recursive": "holds itself",
            "odd": "nowhere.proto",
            "text": "format=serialized",
            "avro": "read as PROTOBUF",
            "empty": "defines no message",
        }.items():
            with pytest.raises(UsageError) as caught:
                latest_protobuf(registry, subject)
            assert words in f"{caught.value.what} {caught.value.why}"
        with pytest.raises(NotInArchive):
            latest_protobuf(registry, "none")

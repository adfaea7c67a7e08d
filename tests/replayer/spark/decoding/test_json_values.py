"""JSON values by a schema that is given."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from blockgz.errors import UsageError
from replayer.spark.decoding import BAD, JsonDecoder, RowDecoder, json_type

ORDER = StructType(
    [
        StructField("id", LongType()),
        StructField("price", DoubleType()),
        StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), LongType())),
        StructField("to", StructType([StructField("zip", StringType())])),
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
        (StructType().json(), "no fields"),
        (StructType([StructField("at", TimestampType())]).json(), "JSON has no timestamp"),
    ],
)
def test_what_is_not_a_schema(schema: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        json_type("valueSchema", schema)
    assert words in f"{caught.value.why} {caught.value.remedy}"

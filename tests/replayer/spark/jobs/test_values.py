"""Options about values, checked before Spark starts."""

import json

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from blockgz.errors import NotInArchive, UsageError
from replayer.cli.options.spark_options import _schema_text
from replayer.spark.export import ValueOptions, check_parts, json_schema, row_decoder
from tests.support.protobuf_values import ANSWERS
from tests.support.schema_registry import registry_of, schema_registry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
BILL = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "double"}]}


def test_a_schema_as_sparks_json() -> None:
    """DDL is Spark's to read, in the system tests."""
    wanted = StructType([StructField("id", LongType()), StructField("name", StringType())])
    assert json_schema(wanted.json()) == wanted


@pytest.mark.parametrize("text", ["{}", '{"type": "struct"}', '{"type": "struct", "fields": []}', "{"])
def test_what_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--schema is not a schema of JSON values"):
        json_schema(text)


def test_topics_of_a_registry_must_agree() -> None:
    subjects = {"orders-value": 1, "copies-value": 1, "bills-value": 2}
    with schema_registry({1: ORDER, 2: BILL}, subjects) as (url, _):
        options = ValueOptions("avro", registry=url)
        decoder = row_decoder(options, ("orders", "copies")).value
        assert decoder is not None
        assert [field.name for field in decoder.type] == ["id"]
        with pytest.raises(UsageError, match="orders and bills have different schemas"):
            row_decoder(options, ("orders", "bills"))
        with pytest.raises(NotInArchive, match="no subject nowhere-value"):
            row_decoder(options, ("nowhere",))


def test_a_registry_that_is_not_an_address_is_not_taken_for_bad_values() -> None:
    with pytest.raises(UsageError, match="--schema-registry is not a URL"):
        row_decoder(ValueOptions("avro", schema=json.dumps(ORDER), registry="localhost:8081"), ("orders",))


def test_values_of_protobuf() -> None:
    with registry_of(ANSWERS) as (url, _):
        decoder = row_decoder(ValueOptions("protobuf", registry=url), ("orders",)).value
        assert decoder is not None and decoder.type.field("id").name == "id"
    with pytest.raises(UsageError, match="--value protobuf needs a schema") as caught:
        ValueOptions("protobuf")
    assert "avsc" not in caught.value.remedy
    with pytest.raises(UsageError, match="--schema goes with"):
        ValueOptions("protobuf", schema="{}", registry="http://x")


def test_a_schema_that_is_longer_than_a_name_may_be() -> None:
    text = ", ".join(f"field_{number} BIGINT" for number in range(100))
    assert _schema_text(text) == text


@pytest.mark.parametrize("parts", [("topic", "value.a.topic"), ("value.a", "value.b.a"), ("value.",), ("offset",)])
def test_parts_that_cannot_be(parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--partition-by"):
        check_parts(parts, decodes=True)

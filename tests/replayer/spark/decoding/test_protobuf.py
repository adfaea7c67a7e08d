"""Values of protobuf against the messages that the library itself writes."""

import pickle
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from blockgz.errors import NotInArchive, UsageError
from replayer.spark.protobuf import ProtobufDecoder, latest_protobuf, message_indexes
from replayer.spark.schema_registry import SchemaRegistry
from tests.support.protobuf_values import ANSWERS, FORM, F, answer, field, message, value
from tests.support.schema_registry import registry_of


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
def test_any_bytes_are_decoded_or_refused(decoder: ProtobufDecoder, body: bytes) -> None:
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

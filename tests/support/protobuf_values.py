"""A schema of protobuf with most kinds of fields, a registry's answers about it, and values of its messages."""

from __future__ import annotations

import base64
import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

F = descriptor_pb2.FieldDescriptorProto


def field(
    name: str, number: int, kind: Any, type_name: str | None = None, label: Any = F.LABEL_OPTIONAL, **more: Any
) -> F:
    return F(name=name, number=number, type=kind, type_name=type_name, label=label, **more)


def shop() -> descriptor_pb2.FileDescriptorProto:
    """A file with an import of ours, two of Google's, a map, an enum, a nested and a second message."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["place.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    order = file.message_type.add(name="Order")
    order.enum_type.add(name="State").value.add(name="OPEN", number=0)
    order.enum_type[0].value.add(name="PAID", number=1)
    order.nested_type.add(name="CountsEntry").options.map_entry = True
    order.nested_type[0].field.extend([field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_INT32)])
    order.oneof_decl.add(name="_note")
    order.field.extend(
        [
            field("id", 1, F.TYPE_UINT64),
            field("state", 2, F.TYPE_ENUM, ".shop.Order.State"),
            field("to", 3, F.TYPE_MESSAGE, ".shop.Place"),
            field("at", 4, F.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            field("tags", 5, F.TYPE_STRING, label=F.LABEL_REPEATED),
            field("counts", 6, F.TYPE_MESSAGE, ".shop.Order.CountsEntry", F.LABEL_REPEATED),
            field("limit", 7, F.TYPE_MESSAGE, ".google.protobuf.Int64Value"),
            field("note", 8, F.TYPE_STRING, proto3_optional=True, oneof_index=0),
            field("small", 9, F.TYPE_UINT32),
        ]
    )
    file.message_type.add(name="Bill").field.add(name="sum", number=1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    return file


def place() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="place.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Place").field.append(field("zip", 1, F.TYPE_STRING))
    return file


def answer(file: descriptor_pb2.FileDescriptorProto, *references: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64encode(file.SerializeToString()).decode()
    return {"schemaType": "PROTOBUF", "schema": text, "references": list(references)}


PLACE = {"name": "place.proto", "subject": "place", "version": 1}
FORM = "?format=serialized"
ANSWERS = {
    f"/subjects/orders-value/versions/latest{FORM}": answer(shop(), PLACE),
    f"/subjects/place/versions/1{FORM}": answer(place()),
    f"/schemas/ids/7{FORM}": answer(shop(), PLACE),
}


def message(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    for file in (place(), shop()):
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def value(body: bytes, number: int = 7, indexes: bytes = b"\0") -> bytes:
    return b"\0" + struct.pack(">I", number) + indexes + body

"""Protobuf values as the Schema Registry's serializers write them, and decoders of all registered values.

A value is a zero byte, the schema's id, message indexes, the message. Types become Arrow's as Spark maps them (its
from_protobuf guide).
"""

import base64
import functools
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, TypeVar

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from blockgz.errors import UsageError
from replayer.spark.avro import AvroDecoder, avro_decoder, latest_avro
from replayer.spark.schema_registry import HEADER_BYTES, Schema, SchemaRegistry, schema_id

PROTOBUF = "PROTOBUF"
MOST_INDEXES = 64

# File descriptors, each after those that it imports; the last one is the schema's.
Files = tuple[bytes, ...]

_SCALARS = {
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


@dataclass(frozen=True)
class ProtobufDecoder:
    """A decoder of the first message of `files`, for every writer's schema in the registry: fields go by number."""

    files: Files
    registry: str

    @property
    def type(self) -> pa.DataType:
        """The type of the column of values; raises UsageError."""
        return _message_type(_first(self.files), ())

    def decode(self, content: bytes) -> object:
        """Return the decoded value; raises ValueError."""
        number = schema_id(content)
        indexes, start = message_indexes(content, HEADER_BYTES)
        written, wanted = _name(self.registry, number, indexes), _first(self.files).full_name
        if written != wanted:
            raise ValueError(f"the value is a {written}, and the column holds {wanted}")
        try:
            return _field_contents(_class(self.files).FromString(content[start:]))
        except (DecodeError, ValueError, OverflowError) as error:
            raise ValueError(f"the value does not match {wanted}: {error}") from error


def latest_protobuf(registry: SchemaRegistry, subject: str) -> Files:
    """Return the newest schema of a subject; raises as the registry does, and UsageError if it cannot be a column."""
    files = _files(registry, registry.latest(PROTOBUF, subject))
    _ = _message_type(_first(files), ())
    return files


def message_indexes(content: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return the path to a value's message in its schema's file, and its start: zigzag varints, 0 for the first one."""
    count, start = _varint(content, start)
    if not 0 <= count <= MOST_INDEXES:
        raise ValueError(f"the value names its message by {count} numbers")
    indexes = []
    for _ in range(count):
        index, start = _varint(content, start)
        indexes.append(index)
    return tuple(indexes) or (0,), start


def _varint(content: bytes, start: int) -> tuple[int, int]:
    found = shift = 0
    for place in range(start, min(len(content), start + 5)):
        found |= (content[place] & 0x7F) << shift
        shift += 7
        if not content[place] & 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
    raise ValueError("the value ends in the numbers of its message")


@functools.lru_cache(maxsize=1024)
def _name(url: str, number: int, indexes: tuple[int, ...]) -> str:
    """Return the name of the message that a writer named; raises ValueError if its schema has no such message."""
    registry = SchemaRegistry(url)
    schema = registry.schema(PROTOBUF, number)
    if schema is None:
        raise ValueError(f"the schema registry has no schema {number}")
    file = _pool(_files(registry, schema))[1]
    messages: Sequence[Descriptor] = list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"schema {number} has no message {list(indexes)}")
        found = messages[index]
        messages = found.nested_types
    return str(found.full_name)


def _files(registry: SchemaRegistry, schema: Schema) -> Files:
    named = {**registry.referred(PROTOBUF, schema), "": schema}
    files = [_file(name, each) for name, each in named.items()]
    there = {file.name for file in files}
    standard: dict[str, bytes] = {}
    for file in files:
        for name in file.dependency:
            if name not in there:
                _add_standard(name, standard)
    return (*standard.values(), *(file.SerializeToString() for file in files))


def _file(name: str, schema: Schema) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except (ValueError, DecodeError) as error:
        raise UsageError(
            "the schema registry gives no descriptors of protobuf",
            why=f"the request was for format=serialized, and the answer has another:  {error}",
            remedy="use a registry that knows it, as Confluent's does since 5.5",
        ) from error
    file.name = name or file.name or "value.proto"
    return file


def _add_standard(name: str, found: dict[str, bytes]) -> None:
    """Google's own files come with the library."""
    if name in found:
        return
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError as error:
        raise UsageError(
            f"the schema imports {name}", why="it is neither in the registry nor among protobuf's own files"
        ) from error
    for each in module.DESCRIPTOR.dependencies:
        _add_standard(each.name, found)
    found[name] = module.DESCRIPTOR.serialized_pb


@functools.lru_cache(maxsize=64)
def _pool(files: Files) -> tuple[descriptor_pool.DescriptorPool, FileDescriptor]:
    # The pool is returned too, because it must live as long as its descriptors are in use.
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            added = pool.AddSerializedFile(file)
    except TypeError as error:
        raise UsageError("the schema registry's schema is not one of protobuf", why=str(error)) from error
    return pool, added


@functools.lru_cache(maxsize=64)
def _first(files: Files) -> Descriptor:
    messages = list(_pool(files)[1].message_types_by_name.values())
    if not messages:
        raise UsageError("the schema of protobuf defines no message")
    return messages[0]


@functools.lru_cache(maxsize=64)
def _class(files: Files) -> type[Message]:
    return message_factory.GetMessageClass(_first(files))


def _message_type(message: Descriptor, inside: tuple[str, ...]) -> pa.DataType:
    if message.full_name in inside:
        raise UsageError(
            "the schema of protobuf cannot be a column",
            why=f"{message.full_name} holds itself, and no column is as deep",
            remedy="keep the bytes, and decode them yourself",
        )
    return pa.struct([(field.name, _type(field, (*inside, message.full_name))) for field in message.fields])


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if (entry := _map_entry(field)) is not None:
        key, value = entry.fields
        return pa.map_(_type(key, inside), _type(value, inside))
    if field.message_type is None:
        found = _SCALARS[field.type]
    elif field.message_type.full_name == _TIMESTAMP:
        found = pa.timestamp("us", tz="UTC")
    elif field.message_type.full_name in _WRAPPERS:
        found = _SCALARS[field.message_type.fields[0].type]
    else:
        found = _message_type(field.message_type, inside)
    return pa.list_(found) if field.is_repeated else found


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a map's entries; None for a field that is none."""
    message = field.message_type
    return message if message is not None and message.GetOptions().map_entry else None


def _field_contents(message: Message) -> dict[str, Any]:
    return {field.name: _content(message, field) for field in message.DESCRIPTOR.fields}


def _content(message: Message, field: Any) -> Any:
    content = getattr(message, field.name)
    if (entry := _map_entry(field)) is not None:
        of_value = entry.fields[1]
        return [(key, _value(each, of_value)) for key, each in content.items()]
    if field.is_repeated:
        return [_value(each, field) for each in content]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(content, field)


def _value(content: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(content)
        return str(content) if known is None else known.name
    if field.message_type is None:
        return content
    if field.message_type.full_name == _TIMESTAMP:
        return content.ToDatetime(tzinfo=UTC)
    return content.value if field.message_type.full_name in _WRAPPERS else _field_contents(content)


T = TypeVar("T")


def avro_values(schema: str, registry: str | None) -> AvroDecoder:
    """Decode to a given schema what schemas of the registry wrote, or without one the given schema."""
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise UsageError("--schema is not an Avro schema", why=str(error), remedy="give a file .avsc") from error
    return avro_decoder(found, None if registry is None else SchemaRegistry(registry).given)


def registered_values(kind: str, url: str, subjects: Sequence[str]) -> AvroDecoder | ProtobufDecoder:
    """Decode to the newest schema of the subjects, which must be one; raises UsageError or NotInArchive."""
    registry = SchemaRegistry(url)
    if kind == "avro":
        return avro_decoder(_one(subjects, lambda subject: latest_avro(registry, subject)), url)
    return ProtobufDecoder(_one(subjects, lambda subject: latest_protobuf(registry, subject)), url)


def _one(subjects: Sequence[str], latest: Callable[[str], T]) -> T:
    found = {subject: latest(subject) for subject in subjects}
    if not found:
        raise UsageError("no topic names a subject of the schema registry", remedy="name topics, or the subject")
    first = found[subjects[0]]
    others = [subject for subject, each in found.items() if each != first]
    if others:
        one, other = (subject.rpartition("-")[0] or subject for subject in (subjects[0], others[0]))
        raise UsageError(
            f"topics {one} and {other} have different schemas",
            why="a column has one type",
            remedy="take them one by one, or give a schema for all with --schema",
        )
    return first

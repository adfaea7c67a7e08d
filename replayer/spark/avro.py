"""Avro values as the Schema Registry's serializers write them: a zero byte, the schema's id, the record.

Their schemas become Arrow types as Spark maps them (its Avro data source guide).
"""

import functools
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from blockgz.errors import StoreUnavailable, UsageError
from replayer.spark.schema_registry import HEADER_BYTES, Schema, SchemaRegistry, schema_id


@dataclass(frozen=True)
class AvroDecoder:
    """Values as the reader's schema has them (JSON). Without a registry all are taken to be written by it."""

    schema: str
    registry: str | None = None

    @property
    def type(self) -> pa.DataType:
        """The type of the column of values; raises UsageError."""
        return arrow_type(json.loads(self.schema))

    def decode(self, value: bytes) -> object:
        """Return the decoded value; raises ValueError."""
        number = schema_id(value)
        reader = _parsed(self.schema)
        writer = reader if self.registry is None else _registered(self.registry, number)
        if writer is None:
            raise ValueError(f"the schema registry has no schema {number}")
        body = io.BytesIO(value)
        body.seek(HEADER_BYTES)
        try:
            decoded = schemaless_reader(body, writer, reader)
        except Exception as error:  # fastavro raises what it meets: EOFError, IndexError, SchemaResolutionError, …
            raise ValueError(f"the value does not match schema {number}: {type(error).__name__} {error}") from error
        if body.tell() != len(value):
            raise ValueError(f"the value continues after what schema {number} describes")
        return decoded


def avro_decoder(schema: Any, registry: str | None) -> AvroDecoder:
    """Return a decoder to that schema (JSON); raises UsageError for what is none, or no column."""
    try:
        ready = plain(schema)
        parse_schema(ready)
        decoder = AvroDecoder(json.dumps(ready), registry)
        _ = decoder.type
    except UsageError:
        raise
    except Exception as error:  # as above
        reason = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise UsageError("the schema is not an Avro schema", why=reason) from error
    return decoder


@functools.lru_cache(maxsize=64)
def _parsed(schema: str) -> Any:
    return parse_schema(json.loads(schema))


@functools.lru_cache(maxsize=1024)
def _registered(url: str, number: int) -> Any:
    """Return the writer's schema of that id: requested once in each Python worker."""
    registry = SchemaRegistry(url)
    schema = registry.schema(AVRO, number)
    return None if schema is None else parse_schema(plain(_whole(registry, schema)))


def latest_avro(registry: SchemaRegistry, subject: str) -> Any:
    """Return the newest schema of a subject as JSON, including those it refers to; raises as the registry does."""
    return _whole(registry, registry.latest(AVRO, subject))


def _whole(registry: SchemaRegistry, schema: Schema) -> Any:
    try:
        others = {name: json.loads(each.text) for name, each in registry.referred(AVRO, schema).items()}
        return _defined(json.loads(schema.text), "", others)
    except ValueError as error:
        raise StoreUnavailable("the schema registry's answer holds no Avro schema", why=str(error)) from error


def _defined(schema: Any, namespace: str, others: dict[str, Any]) -> Any:
    """Return the schema with each definition of `others` at the first use of its name; remove it from `others`."""
    if isinstance(schema, str):
        name = schema if schema in others else _full_name(schema, namespace)
        return _defined(others.pop(name), "", others) if name in others else schema
    if isinstance(schema, list):
        return [_defined(each, namespace, others) for each in schema]
    if "name" in schema and schema["type"] in _NAMED:
        namespace = _full_name(schema["name"], schema.get("namespace", namespace)).rpartition(".")[0]
    made = {name: _defined(value, namespace, others) if name in _PARTS else value for name, value in schema.items()}
    if "fields" in made:
        made["fields"] = [{**each, "type": _defined(each["type"], namespace, others)} for each in made["fields"]]
    return made


AVRO = "AVRO"
MAX_DECIMAL = 38

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# Logical types that columns have as well; values of all others but decimals keep their plain type.
_LOGICAL: dict[tuple[str, str | None], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_NAMED = ("record", "error", "enum", "fixed")
# Keys of a schema whose values are schemas, in addition to the types of fields.
_PARTS = ("type", "items", "values")


def plain(schema: Any) -> Any:
    """Return the schema without logical types that no column has (times of day, durations, UUIDs)."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: value for name, value in schema.items() if name != "logicalType" or _keeps_logical(schema)}
    for name in _PARTS:
        if name in made:
            made[name] = plain(made[name])
    if "fields" in made:
        made["fields"] = [{**field, "type": plain(field["type"])} for field in made["fields"]]
    return made


def arrow_type(schema: Any) -> pa.DataType:
    """Return the column of a `plain` schema; raises UsageError for what no column holds."""
    return _Types().of(schema, "", ())


class _Types:
    """Types by name, as far as the schema was gone through."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, namespace: str, inside: tuple[str, ...]) -> pa.DataType:
        if isinstance(schema, list):
            return self._union(schema, namespace, inside)
        if isinstance(schema, str):
            return self._by_name(schema, namespace, inside)
        if not isinstance(schema["type"], str):
            return self.of(schema["type"], namespace, inside)
        return self._object(schema["type"], schema, namespace, inside)

    def _object(self, kind: str, schema: Mapping[str, Any], namespace: str, inside: tuple[str, ...]) -> pa.DataType:
        logical = schema.get("logicalType")
        if kind in _NAMED:
            return self._type_of_named(kind, schema, namespace, inside)
        if kind == "array":
            return pa.list_(self.of(schema["items"], namespace, inside))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], namespace, inside))
        if logical == "decimal":
            return _decimal(schema)
        return _LOGICAL.get((kind, logical)) or self._by_name(kind, namespace, inside)

    def _type_of_named(
        self, kind: str, schema: Mapping[str, Any], namespace: str, inside: tuple[str, ...]
    ) -> pa.DataType:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = schema
        if kind == "enum":
            return pa.string()
        if kind == "fixed":
            return _decimal(schema) if schema.get("logicalType") == "decimal" else pa.binary()
        here = name.rpartition(".")[0]
        return pa.struct([(each["name"], self.of(each["type"], here, (*inside, name))) for each in schema["fields"]])

    def _by_name(self, name: str, namespace: str, inside: tuple[str, ...]) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = _full_name(name, namespace)
        known = self._named.get(full) or self._named.get(name)
        if known is None:
            raise _unfit(f"it names {name!r}, which it does not define")
        if full in inside or name in inside:
            raise _unfit(f"{full} holds itself, and no column is as deep")
        return self.of(known, namespace, inside)

    def _union(self, branches: list[Any], namespace: str, inside: tuple[str, ...]) -> pa.DataType:
        kinds = list(dict.fromkeys(self.of(each, namespace, inside) for each in branches if each != "null"))
        if not kinds:
            return pa.null()
        if len(kinds) == 1:
            return kinds[0]
        for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
            if set(kinds) == {narrow, wide}:
                return wide
        raise _unfit(f"a union of {', '.join(map(str, kinds))} is not a single column")


def _keeps_logical(schema: Mapping[str, Any]) -> bool:
    kind, logical = schema.get("type"), schema.get("logicalType")
    return (kind, logical) in _LOGICAL or (logical == "decimal" and schema.get("precision", 0) <= MAX_DECIMAL)


def _decimal(schema: Mapping[str, Any]) -> pa.DataType:
    return pa.decimal128(schema["precision"], schema.get("scale", 0))


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _unfit(why: str) -> UsageError:
    return UsageError(
        "the Avro schema cannot be a column",
        why=why,
        remedy="give a schema without that field with --schema, or keep the bytes: --value binary",
    )

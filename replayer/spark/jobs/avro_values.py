"""Avro values as the Schema Registry's serializers write them: a zero byte, the schema's id, the record."""

import functools
import io
import json
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from blockgz_runtime.errors import UsageError
from replayer.spark.jobs.avro_types import arrow_type, plain
from replayer.spark.jobs.schema_registry import SchemaRegistry

HEADER_BYTES = 5


@dataclass(frozen=True)
class AvroDecoder:
    """Values as the reader's schema has them (JSON). Without a registry all are taken to be written by it."""

    schema: str
    registry: str | None = None

    @property
    def type(self) -> pa.DataType:
        """See ValueDecoder; raises UsageError."""
        return arrow_type(json.loads(self.schema))

    def decode(self, value: bytes) -> object:
        """See ValueDecoder."""
        if len(value) < HEADER_BYTES or value[0]:
            raise ValueError("the value does not begin with a zero byte and the id of a schema")
        (number,) = struct.unpack(">I", value[1:HEADER_BYTES])
        reader = _parsed(self.schema)
        writer = reader if self.registry is None else _registered(self.registry, number)
        if writer is None:
            raise ValueError(f"the schema registry has no schema {number}")
        body = io.BytesIO(value)
        body.seek(HEADER_BYTES)
        try:
            decoded = schemaless_reader(body, writer, reader)
        except Exception as error:  # fastavro raises what it meets: EOFError, IndexError, SchemaResolutionError, …
            raise ValueError(f"the value is not as schema {number} says: {type(error).__name__} {error}") from error
        if body.tell() != len(value):
            raise ValueError(f"the value goes on behind what schema {number} says")
        return decoded


def avro_decoder(schema: Any, registry: str | None) -> AvroDecoder:
    """A decoder to that schema (JSON); raises UsageError for what is none, or no column."""
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
    """The writer's schema of that id: asked for once in each Python worker."""
    schema = SchemaRegistry(url).schema(number)
    return None if schema is None else parse_schema(plain(schema))

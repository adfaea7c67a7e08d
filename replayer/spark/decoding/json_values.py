"""JSON values as columns, by a schema that is given."""

import functools
import json
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from blockgz.errors import UsageError
from replayer.spark.decoding.schema_registry import HEADER_BYTES

_WRAPPED = {"schema", "payload"}
"""What Kafka Connect's JsonConverter puts around a value with schemas.enable."""


@dataclass(frozen=True)
class JsonDecoder:
    """Objects with the fields of `type`, others are left out; also those of a Schema Registry's serializer."""

    type: pa.DataType

    def decode(self, content: bytes) -> object:
        """The object; raises ValueError."""
        text = content[HEADER_BYTES:] if content[:1] == b"\0" else content
        reader = self._reader
        try:
            if b'"payload"' in text:
                found = msgspec.json.decode(text)
                if isinstance(found, dict) and found.keys() == _WRAPPED:
                    return msgspec.convert(found["payload"], reader.type)
            return reader.decode(text)
        except msgspec.MsgspecError as error:
            raise ValueError(f"the value is not JSON of its schema: {error}") from error

    @functools.cached_property
    def _reader(self) -> msgspec.json.Decoder[Any]:
        """Made once in each process: a type of Arrow's takes longer to look up than a value to decode."""
        return msgspec.json.Decoder(_python_type(self.type))

    def __getstate__(self) -> dict[str, pa.DataType]:
        return {"type": self.type}


def _python_type(kind: pa.DataType) -> Any:
    """What msgspec checks values by; fields that are missing, and those of no column, are no errors."""
    if pa.types.is_struct(kind):
        fields = {field.name: _python_type(field.type) for field in kind}
        return TypedDict("Fields", fields, total=False) | None  # type: ignore[operator]
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type)] | None  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    plain = {"string": str, "bool": bool, "float": float, "double": float}
    return plain.get(str(kind), int) | None


def json_type(option: str, schema: str) -> pa.DataType:
    """The type of objects with a schema in Spark's JSON; raises UsageError. JSON has no times, decimals and bytes."""
    try:
        found = StructType.fromJson(json.loads(schema))
        kind = to_arrow_type(found, timezone="UTC")
    except Exception as error:  # KeyError, ParseException, …
        raise UsageError(
            f"{option} is not a schema in Spark's JSON",
            why=" ".join(str(error).split())[:300],
            remedy='write StructType.fromDDL("id BIGINT, name STRING").json()',
        ) from error
    unfit = sorted({str(each) for each in _leaves(kind) if not _is_of_json(each)})
    if not len(found.fields) or unfit:
        raise UsageError(
            f"{option} is not a schema of JSON values",
            why=f"JSON has no {unfit[0]}" if unfit else "it has no fields",
            remedy="take such fields as STRING, and convert them after the read",
        )
    return kind


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type)]
    if pa.types.is_map(kind):
        return [kind.key_type, *_leaves(kind.item_type)]
    return _leaves(kind.value_type) if pa.types.is_list(kind) else [kind]


def _is_of_json(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind))

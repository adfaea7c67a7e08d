"""Decoding of keys and values in rows: formats, JSON by a schema, Debezium's envelopes, and the options about them."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from blockgz.errors import BlockgzError, UnresolvedReference, UsageError
from blockgz.spark.formats import FormatOptions
from replayer.spark.schema_registry import HEADER_BYTES

# The column with the reason why a row could not be decoded; null elsewhere.
BAD = "bad"


# Formats whose values begin with the id of a schema in a registry.
REGISTERED = ("avro", "protobuf")


class UndecodableRecord(BlockgzError):
    """A key or value that is not what its format and schema say."""

    exit_code = 1


class Decoder(Protocol):
    """A decoder of keys or values into a column."""

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""

    def decode(self, content: bytes) -> object:
        """Return the decoded content; raises ValueError with the reason as a sentence."""


@dataclass(frozen=True)
class TextDecoder:
    """UTF-8; `what` is a key or a value."""

    what: str
    type = pa.string()

    def decode(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the {self.what} is not UTF-8") from error


@dataclass(frozen=True)
class RowDecoder:
    """A picklable decoder of batches of `rows.to_rows`; by default it leaves rows that it cannot decode, with `BAD`."""

    key: Decoder | None = None
    value: Decoder | None = None
    on_bad: str = "column"
    has_envelope: bool = False

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows decoded; raises UndecodableRecord if bad rows are to fail."""
        rows = handle_bad(self._decoded(rows), self.on_bad)
        return unwrapped(rows) if self.has_envelope else rows

    def _decoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with `BAD` as the last column; a key or value that could not be decoded is null."""
        bad: list[str | None] = [None] * rows.num_rows
        for name, decoder in (("key", self.key), ("value", self.value)):
            if decoder is not None:
                column = _decoded(rows.column(name), decoder, bad)
                rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)
        return rows.append_column(BAD, pa.array(bad, pa.string()))


def handle_bad(rows: pa.RecordBatch, on_bad: str) -> pa.RecordBatch:
    """Return decoded rows as `on_bad` says: `fail` raises UndecodableRecord, `skip` drops rows, `column` leaves all
    as it is.
    """
    if on_bad == "column":
        return rows
    bad = rows.column(BAD)
    if on_bad == "fail" and bad.null_count < len(bad):
        row = pc.index(pc.is_valid(bad), value=True).as_py()
        raise UndecodableRecord(
            f"the record {place_of(rows, row)} cannot be decoded",
            why=bad[row].as_py(),
            remedy="give another format or schema, or continue: onBadValue null, skip or column",
        )
    if on_bad == "skip":
        rows = rows.filter(pc.is_null(bad))
    return rows.drop_columns([BAD])


def place_of(rows: pa.RecordBatch, row: int) -> str:
    """Return how a user names the record of a row."""
    return ":".join(str(rows.column(name)[row]) for name in ("topic", "partition", "offset"))


def _decoded(column: pa.Array, decoder: Decoder, bad: list[str | None]) -> pa.Array:
    kind = decoder.type
    if kind == pa.string():
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    try:
        return _each(column, kind, decoder.decode, bad)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):

        def checked(content: bytes) -> object:
            decoded = decoder.decode(content)
            try:
                pa.array([decoded], kind)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ValueError(f"a decoded field does not fit its column: {error}") from error
            return decoded

        return _each(column, kind, checked, bad)


def _each(column: pa.Array, kind: pa.DataType, decode: Callable[[bytes], object], bad: list[str | None]) -> pa.Array:
    found = []
    for row, content in enumerate(column.to_pylist()):
        try:
            found.append(None if content is None else decode(content))
        except UnresolvedReference:  # a ValueError too, about this machine and no value
            raise
        except ValueError as error:
            found.append(None)
            bad[row] = bad[row] or str(error)
    return pa.array(found, kind)


# The keys of the object around a value of Kafka Connect's JsonConverter with schemas.enable.
_WRAPPED = {"schema", "payload"}


@dataclass(frozen=True)
class JsonDecoder:
    """Objects with the fields of `type`, others are left out; also those of a Schema Registry's serializer."""

    type: pa.DataType

    def decode(self, content: bytes) -> object:
        """Return the object; raises ValueError."""
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
    """Return the type by which msgspec checks values; missing fields, and fields without a column, are allowed."""
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
    """Return the type of a schema in Spark's JSON; raises UsageError. JSON has no times, decimals and bytes."""
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


_TIME = pa.timestamp("us", tz="UTC")


def unwrapped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with `op`, `before`, `after` and `changed_at` in place of `value`; all are null for a tombstone.

    Raises UndecodableRecord for a time that microseconds cannot hold.
    """
    place = rows.schema.get_field_index("value")
    value = rows.column(place)
    columns = {name: pc.struct_field(value, name) for name in ("op", "before", "after")}
    columns["changed_at"] = _instants(pc.struct_field(value, "ts_ms").cast(pa.int64()), rows)
    rows = rows.drop_columns(["value"])
    for number, (name, column) in enumerate(columns.items()):
        rows = rows.add_column(place + number, pa.field(name, column.type), column)
    return rows


def _instants(times: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    try:
        return pc.multiply_checked(times, 1000).cast(_TIME)
    except pa.ArrowInvalid as error:
        distances = pc.abs(times)
        row = pc.index(distances, pc.max(distances)).as_py()
        raise UndecodableRecord(
            f"the time of the change in {place_of(rows, row)} does not fit into a column of times",
            why=f"it is {times[row].as_py()} ms since 1970, and such columns hold microseconds in 64 bits",
            remedy="leave the record out by its offset, or read it without envelope",
        ) from error


FORMATS = ("binary", "string", "json", *REGISTERED)
DEBEZIUM = "debezium"
# How keys or values are encoded: the format, its schema, and the subject in the registry.
Content = tuple[str, str | None, str | None]


@dataclass(frozen=True)
class Decoding:
    key: Content
    value: Content
    registry: str | None
    on_bad: str
    has_envelope: bool


def parse_decoding(options: FormatOptions) -> Decoding | None:
    """None if keys and values stay bytes; raises UsageError."""
    contents = [_content(options, side) for side in ("key", "value")]
    registry = options.text("schemaRegistry")
    on_bad = options.word("onBadValue", ("fail", "null", "skip", "column"), "fail")
    has_envelope = options.text("envelope") is not None and options.word("envelope", (DEBEZIUM,), "") == DEBEZIUM
    if registry is None and any(form in REGISTERED for form, _, _ in contents):
        raise UsageError(
            "avro and protobuf need a schema registry",
            why="a value names its schema by a number alone",
            remedy='add .option("schemaRegistry", "https://HOST:8081")',
        )
    if has_envelope and contents[1][0] not in ("json", *REGISTERED):
        raise UsageError("an envelope needs fields", remedy="set valueFormat to json, avro or protobuf")
    if all(form == "binary" for form, _, _ in contents):
        return None
    return Decoding(contents[0], contents[1], registry, on_bad, has_envelope)


def _content(options: FormatOptions, side: str) -> Content:
    form = options.word(f"{side}Format", FORMATS, "binary")
    schema, subject = options.text(f"{side}Schema"), options.text(f"{side}Subject")
    if (schema is not None) != (form == "json"):
        raise UsageError(
            f"{side}Schema and {side}Format {form} do not go together",
            why="JSON has no schema of its own, and other formats have theirs in the registry",
            remedy=f"set both {side}Format json and {side}Schema, in Spark's JSON, or neither",
        )
    if subject is not None and form not in REGISTERED:
        raise UsageError(f"{side}Subject goes with {side}Format avro or protobuf", why=f"{side}Format is {form}")
    return form, schema, subject


def decoded_rows(wanted: Decoding, topics: Sequence[str]) -> RowDecoder:
    """Return a decoder of rows of the topics; requests schemas from the registry if needed."""
    key, value = (_decoder(side, wanted, topics) for side in ("key", "value"))
    if wanted.has_envelope and value is not None:
        fields = {field.name: field.type for field in value.type} if pa.types.is_struct(value.type) else {}
        missing = [name for name in ("before", "after", "op", "ts_ms") if name not in fields]
        if missing:
            raise UsageError(
                "the values are no envelopes of Debezium",
                why=f"their schema has no field {missing[0]}",
                remedy="remove the option envelope, or name the subject of the topic's values with valueSubject",
            )
    return RowDecoder(key, value, wanted.on_bad, wanted.has_envelope)


def _decoder(side: str, wanted: Decoding, topics: Sequence[str]) -> Decoder | None:
    form, schema, subject = wanted.key if side == "key" else wanted.value
    if form == "string":
        return TextDecoder(side)
    if schema is not None:
        kind = json_type(f"{side}Schema", schema)
        if side == "value" and wanted.has_envelope:
            kind = pa.struct([("before", kind), ("after", kind), ("op", pa.string()), ("ts_ms", pa.int64())])
        return JsonDecoder(kind)
    if wanted.registry is not None and form in REGISTERED:
        from replayer.spark.protobuf import registered_values  # noqa: PLC0415

        subjects = [subject] if subject is not None else [f"{topic}-{side}" for topic in topics]
        return registered_values(form, wanted.registry, subjects)
    return None

"""Options about decoding keys and values of format `blockgz`, and what decodes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from blockgz.errors import UsageError
from blockgz.spark.options import FormatOptions
from replayer.spark.decoding.debezium import check_envelope, envelope_type, unwrapped
from replayer.spark.decoding.rows import REGISTERED, Decoder, RowDecoder, TextDecoder, settled

FORMATS = ("binary", "string", "json", *REGISTERED)
DEBEZIUM = "debezium"
OPTIONS = (
    *("keyFormat", "valueFormat", "keySchema", "valueSchema", "keySubject", "valueSubject"),
    *("schemaRegistry", "onBadValue", "envelope"),
)


class Content(NamedTuple):
    """How keys or values are encoded."""

    form: str
    schema: str | None
    subject: str | None


@dataclass(frozen=True)
class Decoding:
    """What was asked for."""

    key: Content
    value: Content
    registry: str | None
    on_bad: str
    has_envelope: bool


@dataclass(frozen=True)
class DecodedRows:
    """Decodes batches of `read.rows.to_rows`; picklable."""

    decoder: RowDecoder
    on_bad: str
    has_envelope: bool

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Raises UndecodableRecord where bad rows are to fail."""
        rows = settled(self.decoder(rows), self.on_bad)
        return unwrapped(rows) if self.has_envelope else rows


def parse_decoding(options: FormatOptions) -> Decoding | None:
    """None where keys and values stay bytes; raises UsageError."""
    contents = [_content(options, side) for side in ("key", "value")]
    registry = options.text("schemaRegistry")
    on_bad = options.word("onBadValue", ("fail", "null", "skip", "column"), "fail")
    has_envelope = options.text("envelope") is not None and options.word("envelope", (DEBEZIUM,), "") == DEBEZIUM
    if registry is None and any(content.form in REGISTERED for content in contents):
        raise UsageError(
            "avro and protobuf need a schema registry",
            why="a value names its schema by a number alone",
            remedy='add .option("schemaRegistry", "https://HOST:8081")',
        )
    if has_envelope and contents[1].form not in ("json", *REGISTERED):
        raise UsageError("an envelope needs fields", remedy="set valueFormat to json, avro or protobuf")
    if all(content.form == "binary" for content in contents):
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
    return Content(form, schema, subject)


def decoded_rows(wanted: Decoding, topics: Sequence[str]) -> DecodedRows:
    """What decodes rows of the topics; asks the registry where it must.

    Raises UsageError, NotInArchive, AccessDenied or StoreUnavailable.
    """
    key, value = (_decoder(side, wanted, topics) for side in ("key", "value"))
    if wanted.has_envelope and value is not None:
        check_envelope(value.type)
    return DecodedRows(RowDecoder(key, value), wanted.on_bad, wanted.has_envelope)


def _decoder(side: str, wanted: Decoding, topics: Sequence[str]) -> Decoder | None:
    form, schema, subject = wanted.key if side == "key" else wanted.value
    if form == "string":
        return TextDecoder(side)
    if schema is not None:
        from replayer.spark.decoding.json_values import JsonDecoder, json_type  # noqa: PLC0415

        kind = json_type(f"{side}Schema", schema)
        return JsonDecoder(envelope_type(kind) if side == "value" and wanted.has_envelope else kind)
    if wanted.registry is not None and form in REGISTERED:
        from replayer.spark.decoding.registered import registered_values  # noqa: PLC0415

        subjects = [subject] if subject is not None else [f"{topic}-{side}" for topic in topics]
        return registered_values(form, wanted.registry, subjects)
    return None

"""Record format `json`: one lossless JSON object a line (FORMAT.md, "Record format json")."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType

from index_format.record_formats.json_line import Base64, HeaderLine, RecordLine, Text
from index_format.record_formats.json_reading import decode, decode_near
from index_format.record_formats.lines import EncodedLines, count_lines
from index_format.records import TIMESTAMP_TYPES, has_headers, header_rows

_encoder = msgspec.json.Encoder()


class JsonLines:
    """Lossless; readable with zcat, jq, Spark and DuckDB."""

    name = "json"
    needs_contiguous_blocks = False
    framing_bytes = 0

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002
        """See RecordFormat; the format holds every record."""
        return {}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> EncodedLines:
        """See RecordFormat."""
        data = _encoder.encode_lines(_lines(batch, timestamp_type))
        return EncodedLines(data, np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1)

    def merge(self, pieces: Sequence[bytes]) -> bytes:
        """See RecordFormat."""
        return b"".join(pieces)

    def join(self, pieces: Sequence[bytes]) -> bytes:
        """See RecordFormat."""
        return b"".join(pieces)

    def count(self, raw: bytes) -> int:
        """See RecordFormat."""
        return count_lines(raw)

    def decode(self, raw: bytes, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        """See RecordFormat; the offsets stand in the lines."""
        return decode(raw, timestamp_type)

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> pa.RecordBatch:
        """See RecordFormat."""
        return decode_near(raw, offsets, timestamp_type)


def _lines(batch: pa.RecordBatch, timestamp_type: int) -> list[RecordLine]:
    """A line a record; a field that no record of the batch has costs nothing for each of them."""
    return list(
        map(
            RecordLine,
            batch.column("offset").to_pylist(),
            batch.column("timestamp").to_pylist(),
            _type_names(batch.column("timestamp_type"), timestamp_type),
            *_texts(batch.column("key")),
            _header_lines(batch),
            *_texts(batch.column("value")),
        )
    )


def _type_names(column: pa.Array, timestamp_type: int) -> Iterable[str | UnsetType]:
    ids = column.to_numpy()
    if (ids == timestamp_type).all():
        return repeat(UNSET)
    return [UNSET if type_id == timestamp_type else TIMESTAMP_TYPES[type_id] for type_id in ids.tolist()]


def _texts(column: pa.Array) -> tuple[Iterable[Text], Iterable[Base64]]:
    """Each value as text, None for null, and as base64 where its bytes are not UTF-8: in one of the two it is UNSET."""
    try:
        return column.cast(pa.string()).to_pylist(), repeat(UNSET)
    except pa.ArrowInvalid:
        contents = column.to_pylist()
    texts = [_text(content) for content in contents]
    return texts, [content if text is UNSET else UNSET for text, content in zip(texts, contents, strict=True)]


def _text(content: bytes | None) -> Text:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return UNSET


def _header_lines(batch: pa.RecordBatch) -> Iterable[list[HeaderLine] | UnsetType]:
    if not has_headers(batch):
        return repeat(UNSET)
    return [
        [_header_line(key, value) for key, value in headers] if headers else UNSET for headers in header_rows(batch)
    ]


def _header_line(key: str, value: bytes | None) -> HeaderLine:
    text = _text(value)
    if text is UNSET and value is not None:
        return HeaderLine(key, value_base64=value)
    return HeaderLine(key, text)


def json_object(record: Any, **where: Any) -> dict[str, Any]:
    """A record as the plain object that `replayer` prints: `where` first, then the fields of the line.

    The timestamp type is always named here.
    """
    line = RecordLine(record.offset, record.timestamp, TIMESTAMP_TYPES[record.timestamp_type])
    for field in ("key", "value"):
        content = getattr(record, field)
        text = _text(content)
        setattr(line, field if text is not UNSET else f"{field}_base64", text if text is not UNSET else content)
    if record.headers:
        line.headers = [_header_line(key, value) for key, value in record.headers]
    fields: dict[str, Any] = msgspec.to_builtins(line)
    return where | fields

"""Lines of record format `json` as columns: all of a block, or those around some offsets (FORMAT.md, "json")."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType

from index_format.errors import CorruptBlock
from index_format.record_formats.json_line import Base64, HeaderLine, RecordLine, Text
from index_format.records import SCHEMA, TIMESTAMP_TYPE_IDS, header_column

_NOT_LINES = (ValueError, OverflowError, RecursionError, pa.ArrowException)


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record as most are: key and value are text or null, without headers, of the chunk's timestamp type."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None


_plain_lines = msgspec.json.Decoder(_PlainLine).decode_lines
_lines = msgspec.json.Decoder(RecordLine).decode_lines
_line = msgspec.json.Decoder(RecordLine).decode


def decode(raw: bytes, timestamp_type: int) -> pa.RecordBatch:
    """The records of lines as a batch of `records.SCHEMA`; raises CorruptBlock."""
    try:
        try:
            lines = _plain_lines(raw)
        except msgspec.ValidationError:
            return _batch_of_any(_lines(raw), timestamp_type)
        # Straight from str to Arrow: a bytes object for each field would double what this costs.
        keys, values = (pa.array(map_of(lines), pa.string()) for map_of in (_keys, _values))
        types = np.full(len(lines), timestamp_type, np.int8)
        return _batch(lines, pa.array(types), keys, values, header_column([None] * len(lines)))
    except _NOT_LINES as error:
        raise _not_records(error) from error


def decode_near(raw: bytes, offsets: Iterable[int], timestamp_type: int) -> pa.RecordBatch:
    """The first record, the last one, and for each offset the last one below it and the first one not below it.

    Takes lines of rising offsets, which it does not check; raises CorruptBlock where one that it meets is no record.
    """
    starts = {0, _start_of_line(raw, len(raw) - 1)}
    try:
        for offset in offsets:
            start = _first_from(raw, offset)
            if start:
                starts.add(_start_of_line(raw, start - 1))
            starts.add(min(start, max(starts)))
    except _NOT_LINES as error:
        raise _not_records(error) from error
    return decode(b"".join(raw[start : _end_of_line(raw, start)] for start in sorted(starts)), timestamp_type)


def _first_from(raw: bytes, offset: int) -> int:
    """Where the first line of an offset not below `offset` begins: the end of `raw` where there is none."""
    low, high = 0, len(raw)
    while low < high:
        start = _start_of_line(raw, (low + high) // 2)
        end = _end_of_line(raw, start)
        if _line(raw[start:end]).offset < offset:
            low = end
        else:
            high = start
    return low


def _start_of_line(raw: bytes, position: int) -> int:
    """Where the line begins that holds a byte, its own newline included."""
    return raw.rfind(b"\n", 0, position) + 1


def _end_of_line(raw: bytes, position: int) -> int:
    return raw.find(b"\n", position) + 1 or len(raw)


def _keys(lines: Sequence[Any]) -> list[Text]:
    return [line.key for line in lines]


def _values(lines: Sequence[Any]) -> list[Text]:
    return [line.value for line in lines]


def _batch_of_any(lines: Sequence[RecordLine], timestamp_type: int) -> pa.RecordBatch:
    return _batch(
        lines,
        pa.array([_type_id(line, timestamp_type) for line in lines], pa.int8()),
        _contents(_keys(lines), [line.key_base64 for line in lines]),
        _contents(_values(lines), [line.value_base64 for line in lines]),
        header_column([_header_pairs(line.headers) for line in lines]),
    )


def _batch(
    lines: Sequence[Any], types: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array
) -> pa.RecordBatch:
    offsets = pa.array([line.offset for line in lines], pa.int64())
    timestamps = pa.array([line.timestamp for line in lines], pa.int64())
    contents = (column.cast(pa.binary()) for column in (keys, values))
    return pa.record_batch([offsets, timestamps, types, *contents, headers], schema=SCHEMA)


def _contents(texts: Sequence[Text], base64s: Sequence[Base64]) -> pa.Array:
    """Keys or values, each of which must stand exactly once, as text or as base64."""
    if set(base64s) == {UNSET} and UNSET not in texts:
        return pa.array(texts, pa.string())
    return pa.array([_bytes(*pair) for pair in zip(texts, base64s, strict=True)], pa.binary())


def _type_id(line: RecordLine, timestamp_type: int) -> int:
    if isinstance(line.timestamp_type, UnsetType):
        return timestamp_type
    try:
        return TIMESTAMP_TYPE_IDS[line.timestamp_type]
    except KeyError:
        raise ValueError(f"unknown timestamp type {line.timestamp_type!r}") from None


def _bytes(text: Text, content: Base64) -> bytes | None:
    if isinstance(text, UnsetType) == isinstance(content, UnsetType):
        raise ValueError("a key or value must stand exactly once, as text or as base64")
    if not isinstance(content, UnsetType):
        return content
    return text.encode() if isinstance(text, str) else None


def _header_pairs(headers: list[HeaderLine] | UnsetType) -> list[tuple[str, bytes | None]] | None:
    if isinstance(headers, UnsetType):
        return None
    return [(header.key, _bytes(header.value, header.value_base64)) for header in headers]


def _not_records(error: Exception) -> CorruptBlock:
    return CorruptBlock("a block holds a line that is not a record", why=str(error))

"""One line of record format `json` that is too large to be copied: its contents stay where they were inflated."""

import binascii
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from index_format.records import HEADER_TYPE, SCHEMA, TIMESTAMP_TYPE_IDS, content_in_place, header_column

STEP_BYTES = 1024 * 1024
"""Of a content, unescaped or decoded from base64 at once; a multiple of 4."""
LONGEST_ESCAPE_BYTES = 12
_NULL = b"null"


class _LargeHeader(msgspec.Struct, gc=False):
    key: Raw
    value: Raw = Raw()
    value_base64: Raw = Raw()


class _LargeLine(msgspec.Struct, gc=False):
    offset: int
    timestamp: int
    timestamp_type: str | UnsetType = UNSET
    key: Raw = Raw()
    key_base64: Raw = Raw()
    headers: list[_LargeHeader] | UnsetType = UNSET
    value: Raw = Raw()
    value_base64: Raw = Raw()


_line = msgspec.json.Decoder(_LargeLine).decode


def decode_large_line(line: bytearray, timestamp_type: int) -> pa.RecordBatch:
    """The record of one line, which is overwritten by its contents, as a batch that lies on it.

    Raises ValueError or ArrowInvalid where the line is no record.
    """
    record = _line(line)
    if isinstance(record.timestamp_type, str):
        timestamp_type = TIMESTAMP_TYPE_IDS[record.timestamp_type]
    place = _Place(line)
    key, value = place.content(record.key, record.key_base64), place.content(record.value, record.value_base64)
    columns = [pa.array([record.offset], pa.int64()), pa.array([record.timestamp], pa.int64())]
    columns += [pa.array([timestamp_type], pa.int8()), _binary([key]), _binary([value]), _headers(place, record)]
    return pa.record_batch(columns, schema=SCHEMA)


def _headers(place: "_Place", record: _LargeLine) -> pa.ListArray:
    if isinstance(record.headers, UnsetType) or not record.headers:
        return header_column([None])
    keys, values = [], []
    for header in record.headers:
        key = place.content(header.key, Raw())
        if key is None:
            raise ValueError("a header without a key")
        keys.append(key)
        values.append(place.content(header.value, header.value_base64))
    arrays = [_binary(keys).cast(pa.string()), _binary(values)]
    ends = pa.array([0, len(keys)], pa.int32())
    return pa.ListArray.from_arrays(
        ends, pa.StructArray.from_arrays(arrays, fields=list(HEADER_TYPE)), type=SCHEMA.field("headers").type
    )


class _Place:
    """The bytes of the line."""

    def __init__(self, line: bytearray) -> None:
        self._view = memoryview(line)
        self._address = _address(self._view)

    def content(self, text: Raw, base64: Raw) -> memoryview | None:
        """A key or value, which must stand exactly once, as text or as base64."""
        raw, decoded = memoryview(text), memoryview(base64)
        if bool(raw) == bool(decoded):
            raise ValueError("a key or value must appear exactly once, as text or as base64")
        if raw == _NULL:
            return None
        literal = self._written(raw or decoded)
        content = _in_steps(literal, _unescaped) if _has(literal, b"\\") else literal
        if raw:
            content_in_place(content).view(pa.string()).validate(full=True)
            return content
        if len(content) % 4 or _has(content[:-2], b"="):
            raise ValueError("base64 that is not padded at its end")
        return _in_steps(content, lambda part: (binascii.a2b_base64(part, strict_mode=True), len(part)))

    def _written(self, raw: memoryview) -> memoryview:
        """The inside of a JSON string where it can be written to."""
        if raw[0] != ord('"'):
            raise ValueError("a key or value that is not a string")
        start = _address(raw) - self._address
        return self._view[start + 1 : start + len(raw) - 1]


def _in_steps(place: memoryview, decoded: Callable[[memoryview], tuple[bytes, int]]) -> memoryview:
    """Overwrites bytes by what they stand for, which is never longer; `decoded` says how many it took."""
    read = written = 0
    while read < len(place):
        content, taken = decoded(place[read : read + STEP_BYTES])
        place[written : written + len(content)] = content
        read, written = read + taken, written + len(content)
    return place[:written]


def _unescaped(part: memoryview) -> tuple[bytes, int]:
    """The content of JSON text, without a character at its end that is cut."""
    for end in range(len(part), max(len(part) - LONGEST_ESCAPE_BYTES, 0), -1):
        try:
            return msgspec.json.decode(b'"%b"' % bytes(part[:end]), type=str).encode(), end
        except ValueError as error:
            failure = error
    raise failure


def _has(content: memoryview, byte: bytes) -> bool:
    found = np.frombuffer(content, np.uint8)
    return any((found[at : at + STEP_BYTES] == ord(byte)).any() for at in range(0, len(found), STEP_BYTES))


def _binary(contents: Sequence[memoryview | None]) -> pa.BinaryArray:
    """Contents as one column: a single one lies where it lay."""
    if len(contents) == 1 and contents[0] is not None:
        return content_in_place(contents[0])
    return pa.array([None if each is None else bytes(each) for each in contents], pa.binary())


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)

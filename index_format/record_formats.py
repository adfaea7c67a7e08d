"""How records are laid out inside a block; the chunk index names the format."""

import binascii
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from index_format import arrow_functions as pc
from index_format import records
from index_format.errors import CorruptBlock, UnsupportedVersion
from index_format.kernel_choice import KERNEL

# Consecutive records on their way into a block: bytes, or a batch, as the record format has it.
Piece = Any


# For each record, the bytes that the records up to and with it take in a block, the framing apart.
Ends = npt.NDArray[np.int64]


class RecordFormat(Protocol):
    """Turns batches of `records.SCHEMA` into block bytes and back."""

    name: str
    needs_contiguous_blocks: bool
    """True if a reader counts offsets, so that a block may not span a hole."""

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Rows that the format cannot hold without loss, each with the reason; empty when it holds them all."""

    framing_bytes: int
    """Bytes that a block takes for framing, at most."""

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[Any, Ends]:
        """Return the records of a batch without objections; `timestamp_type` is the one in the chunk index."""

    def piece(self, encoded: Any, ends: Ends, start: int, stop: int) -> Piece:
        """Return rows [start, stop) of what `encode` returned, stop > start; keeps nothing of the others in memory."""

    def merge(self, pieces: Sequence[Piece]) -> Piece:
        """Return several pieces as one."""

    def join(self, pieces: Sequence[Piece]) -> bytes:
        """Return the bytes of a block of these records, before compression."""

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytes | bytearray]:
        """Yield consecutive pieces of a block's bytes, cut between records, each like the bytes of a smaller block."""

    def count(self, raw: bytes | bytearray) -> int:
        """Return the number of records in a block's bytes without decoding them; raises CorruptBlock."""

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:
        """Return a block's records, which may lie on `raw` or overwrite a bytearray; raises CorruptBlock."""

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> pa.RecordBatch | None:
        """Return the block's first and last record and each offset's neighbours; None if all are as quick."""


# Bytes of each record: offset, timestamp, its type, the ends of key, value and headers, and the null bits.
FIXED_BYTES = 8 + 8 + 1 + 3 * 4 + 1
# Bytes of each header: the ends of its key and value, and the null bit.
HEADER_BYTES = 2 * 4 + 1
END_MARKER = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_HEADER_SLOT = 8
# Slots of the batch and of compressed buffers in the vtables of a Message and a RecordBatch (Message.fbs).
_COMPRESSION_SLOT = 10
_NOT_THIS = (pa.ArrowException, OSError, ValueError, struct.error, IndexError)


class ArrowStream:
    """Lossless; the fast way into Spark, pandas, Polars and DuckDB."""

    name = "arrow"
    needs_contiguous_blocks = False
    framing_bytes = 2048

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002
        return {}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[pa.RecordBatch, Ends]:  # noqa: ARG002
        sizes = _lengths(batch.column("key")) + _lengths(batch.column("value")) + FIXED_BYTES
        headers = batch.column("headers")
        flat = headers.flatten()
        if len(flat):
            each = _lengths(flat.field("key")) + _lengths(flat.field("value")) + HEADER_BYTES
            before = np.concatenate(([0], np.cumsum(each)))
            ends = headers.offsets.to_numpy() - headers.offsets[0].as_py()
            sizes = sizes + before[ends[1:]] - before[ends[:-1]]
        return batch, np.cumsum(sizes)

    def piece(self, encoded: pa.RecordBatch, ends: Ends, start: int, stop: int) -> pa.RecordBatch:  # noqa: ARG002
        rows = encoded.slice(start, stop - start)
        # A slice holds all of the batch that it was cut from.
        return pa.concat_batches([rows]) if rows.get_total_buffer_size() > 2 * rows.nbytes else rows

    def merge(self, pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return pa.concat_batches(pieces)

    def join(self, pieces: Sequence[pa.RecordBatch]) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, records.SCHEMA) as writer:
            writer.write_batch(pa.concat_batches(pieces))
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytearray]:
        """See RecordFormat; a stream is not cut."""
        whole = bytearray()
        for piece in raw:
            whole += piece
        yield whole

    def count(self, raw: bytes | bytearray) -> int:
        """See RecordFormat; nothing is decoded."""
        return sum(batch.num_rows for batch in _batches(raw))

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        """See RecordFormat; the batch lies on `raw` without a copy where the block holds one."""
        batches = _batches(raw)
        try:
            for batch in batches:
                batch.validate(full=True)
            whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            types = set(pc.unique(whole.column("timestamp_type")).to_pylist())
        except _NOT_THIS as error:
            raise _corrupt(str(error)) from error
        headers = whole.column("headers")
        nested = (headers.values.field("key"), headers.values) if len(headers.values) else ()
        required = [whole.column(field.name) for field in records.SCHEMA if not field.nullable]
        if any(column.null_count for column in (*required, *nested)) or not types <= records.TIMESTAMP_TYPES.keys():
            raise _corrupt("a field that every record has is null or unknown")
        return whole

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> None:
        """See RecordFormat; a few records cost as much as all."""


def _batches(raw: bytes | bytearray) -> list[pa.RecordBatch]:
    source = pa.BufferReader(raw)
    try:
        messages = list(pa.ipc.MessageReader.open_stream(source))
        # Told another kind of message, what reads a schema or a batch crashes.
        if [message.type for message in messages] != ["schema", *["record batch"] * (len(messages) - 1)]:
            raise pa.ArrowInvalid("it is not one schema and batches")
        head, *messages = messages
        same = pa.ipc.read_schema(head).equals(records.SCHEMA)
        compressed = any(map(_is_compressed, messages))
        batches = (
            [pa.ipc.read_record_batch(message, records.SCHEMA) for message in messages]
            if same and not compressed
            else []
        )
        end = source.tell()
    except _NOT_THIS as error:
        raise _corrupt(str(error)) from error
    if not same or compressed:
        raise _corrupt("its buffers are compressed" if same else "its columns are others")
    if end != len(raw) or not raw.endswith(END_MARKER):
        raise _corrupt("it does not end where the block does")
    return batches


def _is_compressed(message: pa.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    header = _table_field(metadata, _indirect(metadata, 0), _HEADER_SLOT)
    batch = None if header is None else _indirect(metadata, header)
    return batch is None or _table_field(metadata, batch, _COMPRESSION_SLOT) is not None


def _indirect(flatbuffer: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", flatbuffer, position)[0])


def _table_field(flatbuffer: bytes, table: int, slot: int) -> int | None:
    vtable = table - struct.unpack_from("<i", flatbuffer, table)[0]
    if vtable < 0 or slot >= struct.unpack_from("<H", flatbuffer, vtable)[0]:
        return None
    distance = struct.unpack_from("<H", flatbuffer, vtable + slot)[0]
    return table + distance if distance else None


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _corrupt(why: str) -> CorruptBlock:
    return CorruptBlock("a block is not the Arrow stream that its index says", why=why)


COUNTED_AT_ONCE = 256 * 1024
NEWLINE = 10


class LineFormat:
    """The half of a RecordFormat that is the same for all formats of lines."""

    def piece(self, encoded: bytes, ends: Ends, start: int, stop: int) -> memoryview:
        """See RecordFormat; a copy where a view would keep more than as much again in memory."""
        lines = memoryview(encoded)[int(ends[start - 1]) if start else 0 : int(ends[stop - 1])]
        return lines if 2 * len(lines) >= len(encoded) else memoryview(bytes(lines))

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytearray]:
        """See RecordFormat; a line that does not end in the piece in which it begins is a part of its own."""
        begun = bytearray()
        for piece in raw:
            first, last = piece.find(b"\n") + 1, piece.rfind(b"\n") + 1
            if begun and first:
                begun += piece[:first]
                yield begun
                begun = bytearray()
            else:
                first = 0
            if last > first:
                yield bytearray(piece[first:last])
            begun += piece[last:]
        if begun:
            yield begun

    def merge(self, pieces: Sequence[bytes]) -> bytes:
        return b"".join(pieces)

    join = merge

    def count(self, raw: bytes | bytearray) -> int:
        """Return the number of lines in a block; raises CorruptBlock if the last one does not end."""
        if raw and not raw.endswith(b"\n"):
            raise CorruptBlock(
                "a block does not hold the records that its index says", why="its last line does not end"
            )
        if KERNEL:
            return int(KERNEL.module.count_lines(raw))
        # Numpy compares and counts without the interpreter's lock; a piece at a time stays in the processor's cache.
        found = np.frombuffer(raw, np.uint8)
        pieces = (found[start : start + COUNTED_AT_ONCE] for start in range(0, len(raw), COUNTED_AT_ONCE))
        return sum(int(np.count_nonzero(piece == NEWLINE)) for piece in pieces)


Text = str | None | UnsetType
Base64 = bytes | UnsetType
# A longer line is decoded in place if it is the only one.
LARGE_LINE_BYTES = 1024 * 1024


class HeaderLine(msgspec.Struct, gc=False):
    """One header; exactly one of the two value fields is set."""

    key: str
    value: Text = UNSET
    value_base64: Base64 = UNSET


class RecordLine(msgspec.Struct, gc=False):
    """One record in the order of its fields on the line."""

    offset: int
    timestamp: int
    timestamp_type: str | UnsetType = UNSET
    key: Text = UNSET
    key_base64: Base64 = UNSET
    headers: list[HeaderLine] | UnsetType = UNSET
    value: Text = UNSET
    value_base64: Base64 = UNSET


_NOT_LINES = (ValueError, KeyError, OverflowError, RecursionError, pa.ArrowException)


class _PlainLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    offset: int
    timestamp: int
    key: str | None
    value: str | None


_plain_lines = msgspec.json.Decoder(_PlainLine).decode_lines
_any_lines = msgspec.json.Decoder(RecordLine).decode_lines
_line = msgspec.json.Decoder(RecordLine).decode
_encoder = msgspec.json.Encoder()


class JsonLines(LineFormat):
    """Lossless; readable with zcat, jq, Spark and DuckDB."""

    name = "json"
    needs_contiguous_blocks = False
    framing_bytes = 0

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002
        return {}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[bytes, Ends]:
        if KERNEL and (found := KERNEL.module.encode_json_lines(batch, timestamp_type)):
            return found[0], np.frombuffer(found[1], np.int64)
        return self.encode_in_python(batch, timestamp_type)

    def encode_in_python(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[bytes, Ends]:
        """Encode as `encode` does without the C extension, and what the extension refuses."""
        data = _encoder.encode_lines(_lines(batch, timestamp_type))
        return data, np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        if len(raw) > LARGE_LINE_BYTES and isinstance(raw, bytearray) and raw.find(b"\n") == len(raw) - 1:
            try:
                return decode_large_line(raw, timestamp_type)
            except _NOT_LINES as error:
                raise _not_records(error) from error
        held = [raw]
        del raw
        return _decode(held.pop(), timestamp_type)

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> pa.RecordBatch:
        """See RecordFormat; takes lines of rising offsets, which it does not check."""
        starts = {0, _start_of_line(raw, len(raw) - 1)}
        try:
            for offset in offsets:
                start = _first_from(raw, offset)
                if start:
                    starts.add(_start_of_line(raw, start - 1))
                starts.add(min(start, max(starts)))
        except _NOT_LINES as error:
            raise _not_records(error) from error
        return _decode(b"".join(raw[start : _end_of_line(raw, start)] for start in sorted(starts)), timestamp_type)


def _lines(batch: pa.RecordBatch, timestamp_type: int) -> list[RecordLine]:
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
    return [UNSET if type_id == timestamp_type else records.TIMESTAMP_TYPES[type_id] for type_id in ids.tolist()]


def _texts(column: pa.Array) -> tuple[Iterable[Text], Iterable[Base64]]:
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
    if not records.has_headers(batch):
        return repeat(UNSET)
    return [
        [_header_line(key, value) for key, value in headers] if headers else UNSET
        for headers in records.header_rows(batch)
    ]


def _header_line(key: str, value: bytes | None) -> HeaderLine:
    text = _text(value)
    if text is UNSET and value is not None:
        return HeaderLine(key, value_base64=value)
    return HeaderLine(key, text)


def json_object(record: Any, **where: Any) -> dict[str, Any]:
    """Return a record as a plain object: `where` first, then the fields of the line and always the timestamp type."""
    line = RecordLine(record.offset, record.timestamp, records.TIMESTAMP_TYPES[record.timestamp_type])
    for field in ("key", "value"):
        content = getattr(record, field)
        text = _text(content)
        setattr(line, field if text is not UNSET else f"{field}_base64", text if text is not UNSET else content)
    if record.headers:
        line.headers = [_header_line(key, value) for key, value in record.headers]
    fields: dict[str, Any] = msgspec.to_builtins(line)
    return where | fields


def _decode(raw: bytes | bytearray, timestamp_type: int) -> pa.RecordBatch:
    """Return the records of lines as a batch of `records.SCHEMA`; raises CorruptBlock."""
    if KERNEL and (columns := KERNEL.module.decode_json_lines(raw, timestamp_type)):
        return records.batch_from_capsules(columns)
    held = [raw]
    del raw
    return decode_in_python(held.pop(), timestamp_type)


def decode_in_python(raw: bytes | bytearray, timestamp_type: int) -> pa.RecordBatch:
    """Decode without C, and what C refuses: lines of another form, wrong ones. Raises CorruptBlock."""
    try:
        try:
            lines = _plain_lines(raw)
        except msgspec.ValidationError:
            others = _any_lines(raw)
            return _batch(
                others,
                pa.array([_type_id(line, timestamp_type) for line in others], pa.int8()),
                _contents([line.key for line in others], [line.key_base64 for line in others]),
                _contents([line.value for line in others], [line.value_base64 for line in others]),
                records.header_column([_header_pairs(line.headers) for line in others]),
            )
        del raw  # as large as what is made of it now
        # Straight from str to Arrow: a bytes object for each field would double what this costs.
        keys = pa.array([line.key for line in lines], pa.string())
        values = _text_column([line.value for line in lines])
        types = pa.repeat(pa.scalar(timestamp_type, pa.int8()), len(lines))
        return _batch(lines, types, keys, values, records.header_column([None] * len(lines)))
    except _NOT_LINES as error:
        raise _not_records(error) from error


def _text_column(texts: list[str | None]) -> pa.Array:
    if len(texts) != 1 or texts[0] is None or len(texts[0]) < records.LARGE_CONTENT_BYTES:
        return pa.array(texts, pa.string())
    # Exactly as large as it is: Arrow's builder would take a quarter more.
    content = texts[0].encode()
    ends = pa.array([0, len(content)], pa.int32())
    return pa.StringArray.from_buffers(1, ends.buffers()[1], pa.py_buffer(content))


def _first_from(raw: bytes, offset: int) -> int:
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
    return raw.rfind(b"\n", 0, position) + 1


def _end_of_line(raw: bytes, position: int) -> int:
    return raw.find(b"\n", position) + 1 or len(raw)


def _batch(
    lines: Sequence[Any], types: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array
) -> pa.RecordBatch:
    offsets = pa.array([line.offset for line in lines], pa.int64())
    timestamps = pa.array([line.timestamp for line in lines], pa.int64())
    contents = (column.view(pa.binary()) for column in (keys, values))
    return pa.record_batch([offsets, timestamps, types, *contents, headers], schema=records.SCHEMA)


def _contents(texts: Sequence[Text], base64s: Sequence[Base64]) -> pa.Array:
    if set(base64s) == {UNSET} and UNSET not in texts:
        return pa.array(texts, pa.string())
    return pa.array([_bytes(*pair) for pair in zip(texts, base64s, strict=True)], pa.binary())


def _type_id(line: RecordLine, timestamp_type: int) -> int:
    if isinstance(line.timestamp_type, UnsetType):
        return timestamp_type
    try:
        return records.TIMESTAMP_TYPE_IDS[line.timestamp_type]
    except KeyError:
        raise ValueError(f"unknown timestamp type {line.timestamp_type!r}") from None


def _bytes(text: Text, content: Base64) -> bytes | None:
    if isinstance(text, UnsetType) == isinstance(content, UnsetType):
        raise ValueError("a key or value must appear exactly once, as text or as base64")
    if not isinstance(content, UnsetType):
        return content
    return text.encode() if isinstance(text, str) else None


def _header_pairs(headers: list[HeaderLine] | UnsetType) -> list[tuple[str, bytes | None]] | None:
    if isinstance(headers, UnsetType):
        return None
    return [(header.key, _bytes(header.value, header.value_base64)) for header in headers]


def _not_records(error: Exception) -> CorruptBlock:
    return CorruptBlock("a block holds a line that is not a record", why=str(error))


class TextLines(LineFormat):
    """Values only: no null, newline, key or header; a reader counts offsets from the block's first."""

    name = "text"
    needs_contiguous_blocks = True
    framing_bytes = 0

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:
        values = batch.column("value")
        if (
            values.null_count == 0
            and batch.column("key").null_count == batch.num_rows
            and not records.has_headers(batch)
            and not pc.any(pc.match_substring(values, b"\n")).as_py()
        ):
            return {}
        reasons = {row: _objection(record) for row, record in enumerate(records.iter_records(batch))}
        return {row: reason for row, reason in reasons.items() if reason}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[bytes, Ends]:  # noqa: ARG002
        values = batch.column("value")
        lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        data = b"".join([value + b"\n" for value in values.to_pylist()])
        return data, np.cumsum(lengths)

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        """See RecordFormat; timestamps are not in the bytes, so they come as -1."""
        if not raw.endswith(b"\n"):
            raise CorruptBlock("a text block does not end with a newline")
        if raw.find(b"\n") == len(raw) - 1 and len(raw) > records.LARGE_CONTENT_BYTES:
            batch = records.batch_without_timestamps(first_offset, [None], [b""])
            return batch.set_column(4, records.SCHEMA.field("value"), records.content_in_place(memoryview(raw)[:-1]))
        found = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero(found == NEWLINE)
        batch = records.batch_without_timestamps(first_offset, [None] * len(ends), [b""] * len(ends))
        edges = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32)
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(found[found != NEWLINE])]
        values = pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
        return batch.set_column(4, records.SCHEMA.field("value"), values)

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> None:
        """See RecordFormat; a few records cost as much as all."""


def _objection(record: records.Record) -> str:
    if record.value is None:
        return "cannot hold a null value"
    if b"\n" in record.value:
        return "cannot hold a value with a newline"
    if record.key is not None:
        return "cannot hold a key"
    return "cannot hold headers" if record.headers else ""


# Bytes of a content that are unescaped or decoded from base64 at once; a multiple of 4.
STEP_BYTES = 1024 * 1024
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


_large_line = msgspec.json.Decoder(_LargeLine).decode


def decode_large_line(line: bytearray, timestamp_type: int) -> pa.RecordBatch:
    """Return the record of a line, which it overwrites; raises ValueError or ArrowInvalid if it is none."""
    record = _large_line(line)
    if isinstance(record.timestamp_type, str):
        timestamp_type = records.TIMESTAMP_TYPE_IDS[record.timestamp_type]
    place = _ContentPlace(line)
    key, value = place.content(record.key, record.key_base64), place.content(record.value, record.value_base64)
    columns = [pa.array([record.offset], pa.int64()), pa.array([record.timestamp], pa.int64())]
    columns += [pa.array([timestamp_type], pa.int8()), _binary([key]), _binary([value]), _headers(place, record)]
    return pa.record_batch(columns, schema=records.SCHEMA)


def _headers(place: "_ContentPlace", record: _LargeLine) -> pa.ListArray:
    if isinstance(record.headers, UnsetType) or not record.headers:
        return records.header_column([None])
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
        ends,
        pa.StructArray.from_arrays(arrays, fields=list(records.HEADER_TYPE)),
        type=records.SCHEMA.field("headers").type,
    )


class _ContentPlace:
    def __init__(self, line: bytearray) -> None:
        self._view = memoryview(line)
        self._address = _address(self._view)

    def content(self, text: Raw, base64: Raw) -> memoryview | None:
        raw, decoded = memoryview(text), memoryview(base64)
        if bool(raw) == bool(decoded):
            raise ValueError("a key or value must appear exactly once, as text or as base64")
        if raw == _NULL:
            return None
        literal = self._written(raw or decoded)
        content = _in_steps(literal, _unescaped) if _has(literal, b"\\") else literal
        if raw:
            records.content_in_place(content).view(pa.string()).validate(full=True)
            return content
        if len(content) % 4 or _has(content[:-2], b"="):
            raise ValueError("base64 that is not padded at its end")
        return _in_steps(content, lambda part: (binascii.a2b_base64(part, strict_mode=True), len(part)))

    def _written(self, raw: memoryview) -> memoryview:
        if raw[0] != ord('"'):
            raise ValueError("a key or value that is not a string")
        start = _address(raw) - self._address
        return self._view[start + 1 : start + len(raw) - 1]


def _in_steps(place: memoryview, decoded: Callable[[memoryview], tuple[bytes, int]]) -> memoryview:
    read = written = 0
    while read < len(place):
        content, taken = decoded(place[read : read + STEP_BYTES])
        place[written : written + len(content)] = content
        read, written = read + taken, written + len(content)
    return place[:written]


def _unescaped(part: memoryview) -> tuple[bytes, int]:
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
    if len(contents) == 1 and contents[0] is not None:
        return records.content_in_place(contents[0])
    return pa.array([None if each is None else bytes(each) for each in contents], pa.binary())


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


RECORD_FORMATS: dict[str, RecordFormat] = {fmt.name: fmt for fmt in (JsonLines(), ArrowStream(), TextLines())}


def record_format(name: str) -> RecordFormat:
    """Return the record format of that name; raises UnsupportedVersion for one this release does not know."""
    try:
        return RECORD_FORMATS[name]
    except KeyError:
        raise UnsupportedVersion(
            f"record format {name!r} is unknown",
            why=f"this release reads {', '.join(sorted(RECORD_FORMATS))}",
            remedy="use a newer release of blockgz",
        ) from None

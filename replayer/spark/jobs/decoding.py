"""What tasks make of keys and values before Spark has them: bytes, text or Avro, and why, where they cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class ValueDecoder(Protocol):
    """Makes something of single values in a task; pickled with it."""

    @property
    def type(self) -> pa.DataType:
        """What it makes of them."""

    def decode(self, value: bytes) -> object:
        """The decoded value; raises ValueError."""


@dataclass(frozen=True)
class RowDecoder:
    """Batches of `rows.to_rows` with decoded columns, and `bad`: why a row could not be decoded, null elsewhere."""

    key_as_text: bool
    value_as_text: bool
    decoder: ValueDecoder | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; what could not be decoded is null."""
        bad: list[str | None] = [None] * rows.num_rows
        if self.key_as_text:
            rows = _replaced(rows, "key", _texts(rows.column("key"), "the key is not UTF-8", bad))
        if self.value_as_text:
            rows = _replaced(rows, "value", _texts(rows.column("value"), "the value is not UTF-8", bad))
        elif self.decoder is not None:
            rows = _replaced(rows, "value", _decoded(rows.column("value"), self.decoder, bad))
        return rows.append_column("bad", pa.array(bad, pa.string()))


def _replaced(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)


def _texts(column: pa.Array, reason: str, bad: list[str | None]) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return _each(column, pa.string(), _text, lambda _: reason, bad)


def _decoded(column: pa.Array, decoder: ValueDecoder, bad: list[str | None]) -> pa.Array:
    try:
        return _each(column, decoder.type, decoder.decode, str, bad)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):

        def checked(value: bytes) -> object:
            decoded = decoder.decode(value)
            try:
                pa.array([decoded], decoder.type)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ValueError(f"a decoded field does not fit its column: {error}") from error
            return decoded

        return _each(column, decoder.type, checked, str, bad)


def _each(
    column: pa.Array,
    kind: pa.DataType,
    decode: Callable[[bytes], object],
    reason: Callable[[ValueError], str],
    bad: list[str | None],
) -> pa.Array:
    found = []
    for row, content in enumerate(column.to_pylist()):
        try:
            found.append(None if content is None else decode(content))
        except ValueError as error:
            found.append(None)
            bad[row] = bad[row] or reason(error)
    return pa.array(found, kind)


def _text(content: bytes) -> str:
    return content.decode()

"""Rows whose keys and values are decoded, and what becomes of those that cannot be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import UnresolvedReference
from index_format.errors import BlockgzError

BAD = "bad"
"""The column with the reason why a row could not be decoded; null elsewhere."""


REGISTERED = ("avro", "protobuf")
"""Formats whose values begin with the id of a schema in a registry."""


class UndecodableRecord(BlockgzError):
    """A key or value that is not what its format and schema say."""

    exit_code = 1


class Decoder(Protocol):
    """Keys or values as a column."""

    @property
    def type(self) -> pa.DataType:
        """What they become."""

    def decode(self, content: bytes) -> object:
        """The decoded content; raises ValueError with a sentence that says why not."""


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
    """Batches of `rows.to_rows` with decoded columns, and `BAD` as the last one."""

    key: Decoder | None = None
    value: Decoder | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; what could not be decoded is null."""
        bad: list[str | None] = [None] * rows.num_rows
        for name, decoder in (("key", self.key), ("value", self.value)):
            if decoder is not None:
                column = _decoded(rows.column(name), decoder, bad)
                rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)
        return rows.append_column(BAD, pa.array(bad, pa.string()))


def settled(rows: pa.RecordBatch, on_bad: str) -> pa.RecordBatch:
    """Decoded rows after `on_bad`: `fail` raises UndecodableRecord, `skip` drops rows, `column` leaves all as it is."""
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
    """How a user names the record of a row."""
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

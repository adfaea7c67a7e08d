"""How records are laid out inside a block; the chunk index names the format."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_format.errors import UnsupportedVersion
from index_format.record_formats.arrow_stream import ArrowStream
from index_format.record_formats.lines import JsonLines, TextLines

__all__ = ["RECORD_FORMATS", "Encoded", "Piece", "RecordFormat", "record_format"]

Piece = Any
"""Consecutive records on their way into a block: bytes, or a batch, as the record format has it."""


class Encoded(Protocol):
    """A batch ready to be cut."""

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """For each record, the bytes that the records up to and with it take in a block, the framing apart."""

    def piece(self, start: int, stop: int) -> Piece:
        """Rows [start, stop), stop > start; keeps nothing of the others in memory."""


class RecordFormat(Protocol):
    """Turns batches of `records.SCHEMA` into block bytes and back."""

    name: str
    needs_contiguous_blocks: bool
    """True if a reader counts offsets, so that a block may not span a hole."""

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Rows that the format cannot hold without loss, each with the reason; empty when it holds them all."""

    framing_bytes: int
    """Bytes that a block takes for framing, at most."""

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> Encoded:
        """Return the records of a batch without objections; `timestamp_type` is the one in the chunk index."""

    def merge(self, pieces: Sequence[Piece]) -> Piece:
        """Return several pieces as one."""

    def join(self, pieces: Sequence[Piece]) -> bytes:
        """Return the bytes of a block of these records, before compression."""

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytes | bytearray]:
        """Yield consecutive pieces of a block's bytes, cut between records, each like the bytes of a smaller block."""

    def count(self, raw: bytes | bytearray) -> int:
        """Return the number of records in a block's bytes without decoding them; raises CorruptBlock."""

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:
        """Return the records of one block whose first offset and timestamp type the chunk index gives.

        The batch may lie on `raw`, and a bytearray be overwritten. Raises CorruptBlock if the bytes are not of this
        format.
        """

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> pa.RecordBatch | None:
        """Return the first and last record of a block, and for each offset the nearest below and at or above it.

        None if all are decoded as quickly; raises as `decode` does, for what it meets.
        """


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

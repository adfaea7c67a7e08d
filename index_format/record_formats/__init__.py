"""How records are laid out inside a block; the chunk index names the format."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import UnsupportedVersion
from .json_lines import JsonLines
from .text_lines import TextLines

__all__ = ["RECORD_FORMATS", "RecordFormat", "record_format"]


class RecordFormat(Protocol):
    """Turns batches of `records.SCHEMA` into block bytes and back."""

    name: str
    needs_contiguous_blocks: bool
    """True where a reader counts offsets, so that a block may not span a hole."""

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Rows that the format cannot hold without loss, each with the reason; empty when it holds them all."""

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> tuple[bytes, npt.NDArray[np.int64]]:
        """Bytes of all records and each record's end in them; `timestamp_type` is the one in the chunk index.

        Only for batches without objections.
        """

    def count(self, raw: bytes) -> int:
        """How many records the bytes of a block hold, told without decoding them."""

    def decode(self, raw: bytes, first_offset: int, timestamp_type: int) -> pa.RecordBatch:
        """The records of one block whose first offset and timestamp type the chunk index gives.

        Raises CorruptBlock where the bytes are not of this format.
        """


RECORD_FORMATS: dict[str, RecordFormat] = {fmt.name: fmt for fmt in (JsonLines(), TextLines())}


def record_format(name: str) -> RecordFormat:
    """The record format of that name; raises UnsupportedVersion for one this release does not know."""
    try:
        return RECORD_FORMATS[name]
    except KeyError:
        raise UnsupportedVersion(
            f"record format {name!r} is unknown",
            why=f"this release reads {', '.join(sorted(RECORD_FORMATS))}",
            remedy="use a newer release of blockgz",
        ) from None

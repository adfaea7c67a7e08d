"""The `.index.json` of an old archive, with all the quirks that its writers had."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from index_format import objects
from index_format.ancestor.keys import MAX_OFFSET
from index_format.chunk_index import ANCESTOR_FIELDS
from index_format.errors import MalformedObject, TooLarge
from index_format.objects import Count, Offset


class OldBlock(NamedTuple):
    """One block as its index says; it may hold no record. Its offsets are [first_offset, next_offset), counted."""

    byte_offset: int
    byte_length: int
    first_offset: int
    num_records: int
    raw_bytes: int | None = None
    """Inflated bytes; None in what was read, because writers left it out or counted characters."""

    @property
    def byte_end(self) -> int:
        return self.byte_offset + self.byte_length

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.num_records


class _Entry(msgspec.Struct):
    num_records: Count
    byte_length: Count
    byte_offset: Offset
    first_record_offset: Offset


class _Index(msgspec.Struct):
    chunks: list[_Entry]


_decoder = msgspec.json.Decoder(_Index, strict=False)


def decode_old_index(body: bytes, name: str, first_offset: int) -> tuple[OldBlock, ...]:
    """The blocks that an index lists, unknown fields ignored; raises TooLarge or MalformedObject.

    `first_offset` is the one in the object's name. Zero-record blocks stay, and so does a first byte_offset above 0.
    """
    if len(body) > objects.MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} has {len(body)} bytes", why=f"an index has at most {objects.MAX_OBJECT_BYTES} bytes")
    try:
        entries = _decoder.decode(body).chunks
    except (ValueError, RecursionError) as error:
        raise MalformedObject(f"{name} is not an index", why=str(error)[:300]) from error
    blocks = tuple(
        OldBlock(entry.byte_offset, entry.byte_length, entry.first_record_offset, entry.num_records)
        for entry in entries
    )
    if blocks and blocks[0].first_offset != first_offset:
        raise MalformedObject(
            f"{name} is another chunk's index", why=f"its first offset is {blocks[0].first_offset}, not {first_offset}"
        )
    if any(a.byte_end != b.byte_offset for a, b in pairwise(blocks)) or any(not b.byte_length for b in blocks):
        raise MalformedObject(f"{name} is damaged", why="its blocks are not contiguous")
    if any(a.next_offset > b.first_offset for a, b in pairwise(blocks)):
        raise MalformedObject(f"{name} is damaged", why="its blocks' offsets do not rise")
    if blocks and max(blocks[-1].next_offset, blocks[-1].byte_end) > MAX_OFFSET:
        raise MalformedObject(f"{name} is damaged", why="its numbers are out of range")
    return blocks


def encode_old_index(blocks: Sequence[OldBlock]) -> bytes:
    """The index as the ancestor wrote it; for blocks whose `raw_bytes` are known."""
    rows = [(b.raw_bytes, b.num_records, b.byte_length, b.byte_offset, b.first_offset) for b in blocks]
    return msgspec.json.encode({"chunks": [dict(zip(ANCESTOR_FIELDS, row, strict=True)) for row in rows]})

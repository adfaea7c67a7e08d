"""Writers of old archives, by hand and with the standard library alone: the ancestor and what forks made of it."""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[bytes | None, bytes | None]
"""Key and value."""
HEADER = bytes.fromhex("1f8b08000000000000ff")


def member(raw: bytes) -> bytes:
    """One gzip member as the ancestor's library wrote it."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15, 8, 0)
    return HEADER + deflater.compress(raw) + deflater.flush() + struct.pack("<II", zlib.crc32(raw), len(raw))


def lines(rows: Sequence[Row]) -> bytes:
    """The ancestor's records: values, a newline after each."""
    return b"".join((value or b"") + b"\n" for _, value in rows)


def delimited(delimiter: bytes) -> Callable[[Sequence[Row]], bytes]:
    """Forks: the key and a delimiter first."""
    return lambda rows: b"".join((key or b"") + delimiter + (value or b"") + b"\n" for key, value in rows)


def binary(rows: Sequence[Row]) -> bytes:
    """Forks: a 4-byte big-endian length and the value, null as length 0."""
    return b"".join(_field(value) for _, value in rows)


def binary_keys(rows: Sequence[Row]) -> bytes:
    """The same with the key first."""
    return b"".join(_field(key) + _field(value) for key, value in rows)


def _field(content: bytes | None) -> bytes:
    return struct.pack(">i", len(content or b"")) + (content or b"")


def rows_of(start: int, end: int) -> list[Row]:
    return [(f"k{offset}".encode(), f'{{"foo":"b\u00e4r","n":{offset}}}'.encode()) for offset in range(start, end)]


@dataclass
class OldChunk:
    """A chunk to be written: `blocks` are rows, or an odd block's raw bytes and the number that its index says."""

    first_offset: int
    blocks: Sequence[Sequence[Row] | tuple[bytes, int]]
    date: str = "2016-02-24"
    index_date: str | None = None
    """Where its index goes, if elsewhere."""
    header: bytes = b""
    """What a fork put before the first block."""
    has_index: bool = True
    digits: int = 12
    edit: Callable[[list[dict[str, Any]]], None] = lambda _: None
    """Changes the index's entries before they are written."""
    damage: Callable[[bytearray], None] = lambda _: None
    """Changes the data after the index was made."""


@dataclass
class OldWriter:
    """Writes one partition of an old archive under `root`."""

    root: Path
    topic: str = "bar"
    partition: int = 0
    encode: Callable[[Sequence[Row]], bytes] = lines
    partition_digits: int = 5
    rows: dict[int, Row] = field(default_factory=dict)

    def write(self, chunk: OldChunk) -> Path:
        """Store data and index; returns the data's path. The marker is another call."""
        data, entries, offset = bytearray(chunk.header), list[dict[str, Any]](), chunk.first_offset
        for block in chunk.blocks:
            is_odd = isinstance(block, tuple)
            raw, count = block if isinstance(block, tuple) else (self.encode(block), len(block))
            stored = member(raw)
            entries.append(
                {
                    "byte_length_uncompressed": len(raw),
                    "num_records": count,
                    "byte_length": len(stored),
                    "byte_offset": len(data),
                    "first_record_offset": offset,
                }
            )
            if not is_odd:
                self.rows.update({offset + number: row for number, row in enumerate(block)})  # type: ignore[arg-type]
            data += stored
            offset += count
        chunk.edit(entries)
        chunk.damage(data)
        stem = f"{self.topic}-{self.partition:0{self.partition_digits}d}-{chunk.first_offset:0{chunk.digits}d}"
        path = self._put(f"{chunk.date}/{stem}.gz", bytes(data))
        if chunk.has_index:
            index = json.dumps({"chunks": entries}, separators=(",", ":"))
            self._put(f"{chunk.index_date or chunk.date}/{stem}.index.json", index.encode())
        return path

    def mark(self, body: str) -> None:
        """Store the marker."""
        self._put(f"last_chunk_index.{self.topic}-{self.partition:05d}.txt", body.encode())

    def _put(self, key: str, body: bytes) -> Path:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path


def set_field(name: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Of every entry of an index."""

    def edit(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            entry[name] = value

    return edit


def drop_field(name: str) -> Callable[[list[dict[str, Any]]], None]:
    """From every entry of an index."""

    def edit(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            del entry[name]

    return edit


def two_blocks(start: int = 0, **settings: Any) -> OldChunk:
    return OldChunk(start, [rows_of(start, start + 50), rows_of(start + 50, start + 100)], **settings)


EMPTY: tuple[bytes, int] = (b"", 0)
HARMLESS = {
    "as the ancestor wrote it": two_blocks(),
    "an empty block first": OldChunk(0, [EMPTY, rows_of(0, 9)]),
    "empty blocks anywhere": OldChunk(0, [rows_of(0, 4), EMPTY, EMPTY, rows_of(4, 9), EMPTY]),
    "a block over any threshold": OldChunk(0, [[(None, b"x" * 3_000_000)], rows_of(1, 9)]),
    "uncompressed length missing": two_blocks(edit=drop_field("byte_length_uncompressed")),
    "uncompressed length in characters": two_blocks(edit=set_field("byte_length_uncompressed", 7)),
    "uncompressed length null": two_blocks(edit=set_field("byte_length_uncompressed", None)),
    "unknown fields": two_blocks(edit=set_field("writer", {"host": "a"})),
    "a header of a fork": two_blocks(header=b"BGZF\x01\x02"),
    "a header that is a member": two_blocks(header=member(b"made by a fork\n")),
    "wider numbers": two_blocks(digits=19),
    "a date of a local zone": two_blocks(date="2016-02-25"),
    "a date that is none": two_blocks(date="2016-02-30"),
    "a name that was taken": two_blocks(date="2016-02-24~e3-ab12cd34"),
    "a pair split by midnight": two_blocks(index_date="2016-02-25"),
    "no index": two_blocks(has_index=False),
    "no index and a header": two_blocks(has_index=False, header=b"not gzip at all"),
    "no index and empty blocks": OldChunk(0, [EMPTY, rows_of(0, 4), EMPTY, rows_of(4, 9)], has_index=False),
    "an index that is no JSON": two_blocks(edit=lambda entries: entries.append({"nonsense": 1})),
    "an index without blocks": two_blocks(edit=list.clear),
    "an index that ends before the data": two_blocks(edit=list.pop),
    "an index of another chunk": two_blocks(edit=set_field("first_record_offset", 500)),
    "one record with newlines": OldChunk(0, [[(None, b"a\nb\n\nc")], rows_of(1, 9)]),
    "an empty value": OldChunk(0, [[(None, b""), (None, b"x"), (None, b"")]]),
    "first offset above 0": two_blocks(start=12_065),
}
"""What writers did that loses nothing."""


def without_keys(rows: dict[int, Row]) -> dict[int, Row]:
    """What is left of them in files that hold values alone."""
    return {offset: (None, value) for offset, (_, value) in rows.items()}

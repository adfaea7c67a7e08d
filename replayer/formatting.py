"""Records as text: kcat's format tokens, kcat's JSON envelope, and this program's own JSON line."""

import re
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from index_format.record_formats.json_lines import json_object
from index_format.records import Headers, Record, iter_records

from .errors import UsageError


class Printer(Protocol):
    """Makes the output for a batch of records of a topic and partition."""

    def __call__(self, topic: str, partition: int, batch: pa.RecordBatch, /) -> bytes:
        """Complete lines, or whatever the template says."""


Field: TypeAlias = Callable[[str, int, Record], bytes]

TOKENS = "%t topic, %p partition, %o offset, %k key, %s value, %T timestamp (ms), %h headers, %K and %S lengths, %%"

_FIELDS: dict[str, Field] = {
    "t": lambda topic, _partition, _record: topic.encode(),
    "p": lambda _topic, partition, _record: b"%d" % partition,
    "o": lambda _topic, _partition, record: b"%d" % record.offset,
    "k": lambda _topic, _partition, record: record.key or b"",
    "s": lambda _topic, _partition, record: record.value or b"",
    "T": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "h": lambda _topic, _partition, record: header_text(record.headers),
    "K": lambda _topic, _partition, record: _length(record.key),
    "S": lambda _topic, _partition, record: _length(record.value),
    "R": lambda _topic, _partition, record: _binary_length(record.value),
}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_CONTROL = {"n": b"\n", "t": b"\t", "r": b"\r"}
_TSTYPES = {0: "create", 1: "logappend"}


def template_printer(template: str) -> Printer:
    """A printer for kcat's `-f`; null keys and values print as nothing, and as length -1. Raises UsageError."""
    pieces = _parse(template)

    def line(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces])

    return _by_record(line)


def envelope_printer() -> Printer:
    """A printer for kcat's `-J`: one JSON object a line; what is not UTF-8 is shown with replacement characters."""
    return _by_record(lambda topic, partition, record: msgspec.json.encode(envelope(topic, partition, record)) + b"\n")


def json_printer() -> Printer:
    """A printer for this program's own lossless line."""
    return _by_record(
        lambda topic, partition, record: (
            msgspec.json.encode(json_object(record, topic=topic, partition=partition)) + b"\n"
        )
    )


def envelope(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record as kcat's `-J` shows it; no timestamp where the record has none, and the broker is unknown: -1."""
    fields: dict[str, Any] = {"topic": topic, "partition": partition, "offset": record.offset}
    if record.timestamp_type in _TSTYPES:
        fields |= {"tstype": _TSTYPES[record.timestamp_type], "ts": record.timestamp}
    fields["broker"] = -1
    if record.headers:
        fields["headers"] = [part for key, value in record.headers for part in (key, _lossy(value))]
    return fields | {"key": _lossy(record.key), "payload": _lossy(record.value)}


def header_text(headers: Headers) -> bytes:
    """Headers as kcat's `%h` shows them: `a=1,b=NULL`."""
    return b",".join([key.encode() + b"=" + (b"NULL" if value is None else value) for key, value in headers])


def _by_record(line: Field) -> Printer:
    return lambda topic, partition, batch: b"".join([line(topic, partition, record) for record in iter_records(batch)])


def _parse(template: str) -> list[bytes | Field]:
    pieces: list[bytes | Field] = []
    for number, part in enumerate(re.split(r"%(.|$)", template, flags=re.DOTALL)):
        if number % 2 == 0:
            pieces.append(_unescaped(part))
        elif part == "%":
            pieces.append(b"%")
        elif part in _FIELDS:
            pieces.append(_FIELDS[part])
        else:
            raise UsageError(f"%{part} is not a format token", why=f"in {template[:80]!r}", remedy=f"use {TOKENS}")
    return [piece for piece in pieces if piece != b""]


def _unescaped(text: str) -> bytes:
    parts = []
    position = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[position : match.start()].encode(errors="surrogateescape"))
        hexadecimal, octal, character = match.groups()
        if hexadecimal or octal:
            parts.append(bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8) & 0xFF]))
        else:
            parts.append(_CONTROL.get(character, character.encode(errors="surrogateescape")))
        position = match.end()
    parts.append(text[position:].encode(errors="surrogateescape"))
    return b"".join(parts)


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _binary_length(content: bytes | None) -> bytes:
    return (-1 if content is None else len(content)).to_bytes(4, "big", signed=True)


def _lossy(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")

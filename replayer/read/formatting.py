"""Records as text: kcat's format tokens, kcat's JSON envelope, and this program's own JSON line."""

import os
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

from blockgz_runtime.errors import UsageError
from index_format.record_formats.json_lines import json_object
from index_format.records import Headers, Record, iter_records


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
_ESCAPE = re.compile(
    rb"\\(?:x(?:0[xX](?=[0-9a-fA-F]))?([0-9][0-9a-fA-F]*)|0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*)|x?(.))", re.DOTALL
)
"""What kcat makes of a backslash, by strtoul: hexadecimal (whose first digit must be decimal), octal, decimal."""
_BASES = (16, 16, 8, 10)
_CONTROL = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
_TSTYPES = {0: b"create", 1: b"logappend"}
_JSON_SPECIAL = re.compile(rb'[\x00-\x1f"\\]')
_JSON_ESCAPES = {bytes([byte]): b"\\u%04X" % byte for byte in range(0x20)} | {
    b'"': b'\\"',
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
}


def template_printer(template: str) -> Printer:
    """A printer for kcat's `-f`; null keys and values print as nothing, and as length -1. Raises UsageError."""
    pieces = _parse(template)

    def line(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces])

    return _by_record(line)


def envelope_printer() -> Printer:
    """A printer for kcat's `-J`: one JSON object a line."""
    return _by_record(lambda topic, partition, record: envelope(topic, partition, record) + b"\n")


def json_printer() -> Printer:
    """A printer for this program's own lossless line."""
    return _by_record(
        lambda topic, partition, record: (
            msgspec.json.encode(json_object(record, topic=topic, partition=partition)) + b"\n"
        )
    )


def envelope(topic: str, partition: int, record: Record) -> bytes:
    """A record as kcat's `-J` prints it, to the byte; the broker, which an archive does not know, is -1.

    As in kcat, bytes that are not UTF-8 stand in the strings as they are, so such a line is not JSON: `--json` is.
    """
    timestamp = b""
    if record.timestamp_type in _TSTYPES:
        timestamp = b'"tstype":"%s","ts":%d,' % (_TSTYPES[record.timestamp_type], record.timestamp)
    headers = b""
    if record.headers:
        parts = [part for key, value in record.headers for part in (_json_string(key.encode()), _json_string(value))]
        headers = b'"headers":[%s],' % b",".join(parts)
    return b'{"topic":%s,"partition":%d,"offset":%d,%s"broker":-1,%s"key":%s,"payload":%s}' % (
        _json_string(topic.encode()),
        partition,
        record.offset,
        timestamp,
        headers,
        _json_string(record.key),
        _json_string(record.value),
    )


def header_text(headers: Headers) -> bytes:
    """Headers as kcat's `%h` shows them: `a=1,b=NULL`, each value cut at its first NUL byte."""
    shown = [(key.encode(), b"NULL" if value is None else value.partition(b"\0")[0]) for key, value in headers]
    return b",".join([b"%b=%b" % pair for pair in shown])


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
    """As kcat does it, but that a NUL byte stands where kcat's text would end."""
    return _ESCAPE.sub(_character, os.fsencode(text))


def _character(escape: re.Match[bytes]) -> bytes:
    *numbers, character = escape.groups()
    for digits, base in zip(numbers, _BASES, strict=True):
        if digits is not None:
            return bytes([int(digits, base) & 0xFF])
    return _CONTROL.get(character, character)


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _binary_length(content: bytes | None) -> bytes:
    return (-1 if content is None else len(content)).to_bytes(4, "big", signed=True)


def _json_string(content: bytes | None) -> bytes:
    """As yajl writes strings: nothing but what JSON must escape is escaped."""
    if content is None:
        return b"null"
    return b'"%s"' % _JSON_SPECIAL.sub(lambda special: _JSON_ESCAPES[special[0]], content)

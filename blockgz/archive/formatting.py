"""Records as text: kcat's format tokens, kcat's JSON envelope, and this program's own JSON line."""

import os
import re
import secrets
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

from blockgz.errors import UsageError
from index_format.record_formats import json_object
from index_format.records import Headers, Record, is_large, iter_records, record_view


class Printer(Protocol):
    """Makes the output for a batch of records of a topic and partition."""

    def __call__(self, topic: str, partition: int, batch: pa.RecordBatch, /) -> Iterable[bytes]:
        """Yield the text that the template gives, in pieces to be written one after the other."""


# Bytes of a large content printed at once; a multiple of 3, for base64.
STEP_BYTES = 3 * 16 * 1024

Field: TypeAlias = Callable[[str, int, Record], bytes]

DEFAULT_TEMPLATE = "%s\\n"
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
    "R": lambda _topic, _partition, record: (-1 if record.value is None else len(record.value)).to_bytes(
        4, "big", signed=True
    ),
}
# Escapes as kcat reads them by strtoul: hexadecimal (whose first digit must be decimal), octal, decimal.
_ESCAPE = re.compile(
    rb"\\(?:x(?:0[xX](?=[0-9a-fA-F]))?([0-9][0-9a-fA-F]*)|0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*)|x?(.))", re.DOTALL
)
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
    """Return a printer for kcat's `-f`; null keys and values print as nothing, and as length -1. Raises UsageError."""
    pieces = _parse(template)

    def fields(topic: str, partition: int, record: Record) -> Iterator[bytes]:
        return (piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces)

    def line(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces])

    return _by_record(line, fields)


def envelope_printer() -> Printer:
    """Return a printer for kcat's `-J`: one JSON object a line."""

    def line(topic: str, partition: int, record: Record) -> bytes:
        return envelope(topic, partition, record) + b"\n"

    return _by_record(line, partial(_split_line, line, _as_bytes))


def json_printer(end: bytes = b"\n") -> Printer:
    """Return a printer for this program's own lossless line, with `end` behind each."""

    def line(topic: str, partition: int, record: Record) -> bytes:
        return msgspec.json.encode(json_object(record, topic=topic, partition=partition)) + end

    return _by_record(line, partial(_split_line, line, _as_text))


def envelope(topic: str, partition: int, record: Record) -> bytes:
    """Return a record as kcat's `-J` prints it, to the byte; an archive knows no broker: it is -1."""
    # As in kcat, bytes that are not UTF-8 stay in the strings, so such a line is not JSON; that of `--json` is.
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
    """Return headers as kcat's `%h` shows them: `a=1,b=NULL`, each value cut at its first NUL byte."""
    shown = [(key.encode(), b"NULL" if value is None else bytes(value).partition(b"\0")[0]) for key, value in headers]
    return b",".join([b"%b=%b" % pair for pair in shown])


def _by_record(line: Field, pieces: Callable[[str, int, Record], Iterable[bytes]]) -> Printer:
    def printed(topic: str, partition: int, batch: pa.RecordBatch) -> Iterable[bytes]:
        if is_large(batch):
            return pieces(topic, partition, record_view(batch, 0))
        return [b"".join([line(topic, partition, record) for record in iter_records(batch)])]

    return printed


# A text in place of a large key or value, that text as it is printed, and the pieces to print instead of it.
_StandIn = tuple[bytes, bytes, Iterable[bytes]]


def _split_line(
    line: Field, shown: Callable[[bytes, bytes], _StandIn], topic: str, partition: int, record: Record
) -> Iterator[bytes]:
    stand_ins: list[_StandIn] = []

    def stand_in(content: bytes | None) -> bytes | None:
        if content is None or len(content) < STEP_BYTES:
            return content if content is None else bytes(content)
        # Random, so that no content can contain it.
        stand_ins.append(shown(content, secrets.token_hex(16).encode()))
        return stand_ins[-1][0]

    small = record._replace(key=stand_in(record.key), value=stand_in(record.value))
    small = small._replace(headers=[(key, stand_in(value)) for key, value in record.headers])
    rest = line(topic, partition, small)
    for _, printed, pieces in sorted(stand_ins, key=lambda each: rest.index(each[1])):
        before, _, rest = rest.partition(printed)
        yield before
        yield from pieces
    yield rest


def _as_bytes(content: bytes, token: bytes) -> _StandIn:
    parts = (content[start : start + STEP_BYTES] for start in range(0, len(content), STEP_BYTES))
    return token, token, (_json_escaped(bytes(part)) for part in parts)


def _as_text(content: bytes, token: bytes) -> _StandIn:
    steps = range(0, len(content), STEP_BYTES)
    try:
        for _ in _texts(content):
            pass
    except UnicodeDecodeError:
        token = b"\xff" + token
        return token, b64encode(token), (b64encode(content[at : at + STEP_BYTES]) for at in steps)
    return token, token, (msgspec.json.encode(text)[1:-1] for text in _texts(content))


def _texts(content: bytes) -> Iterator[str]:
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(content), STEP_BYTES):
        yield decoder.decode(content[start : start + STEP_BYTES], start + STEP_BYTES >= len(content))


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
    # A NUL byte stays, although kcat's text would end there.
    return _ESCAPE.sub(_character, os.fsencode(text))


def _character(escape: re.Match[bytes]) -> bytes:
    *numbers, character = escape.groups()
    for digits, base in zip(numbers, _BASES, strict=True):
        if digits is not None:
            return bytes([int(digits, base) & 0xFF])
    return _CONTROL.get(character, character)


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


def _json_string(content: bytes | None) -> bytes:
    if content is None:
        return b"null"
    return b'"%s"' % _json_escaped(content)


def _json_escaped(content: bytes) -> bytes:
    return _JSON_SPECIAL.sub(lambda special: _JSON_ESCAPES[special[0]], content)

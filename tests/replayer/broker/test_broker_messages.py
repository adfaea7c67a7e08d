"""The messages of `replayer broker`, with kafka-python's copy of Kafka's definitions as the judge."""

import json
import random
import re
import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from replayer.broker import messages
from replayer.broker.messages import APIS, Field, MalformedRequest, read_request, response_pieces, unsigned_varint
from tests.support.sampling import LONG

_PACKAGE = find_spec("kafka")
assert _PACKAGE is not None and _PACKAGE.origin is not None
# Its code is not imported: it warns.
DEFINITIONS = Path(_PACKAGE.origin).parent / "protocol" / "schemas" / "resources"
MUTATED = 1_000_000 if LONG else 5000
VERSIONS = [(key, version) for key, api in APIS.items() for version in range(api.first, api.last + 1)]


def definition(key: int, kind: str) -> Any:
    for path in DEFINITIONS.iterdir():
        if path.name.endswith(f"{kind}.json"):
            found = json.loads(re.sub(r"(?m)^\s*//.*$", "", path.read_text()))
            if found.get("apiKey") == key:
                return found
    raise LookupError(key)


def holds(versions: str, version: int) -> bool:
    if versions == "none":
        return False
    low, dash, high = versions.replace("+", "-999").partition("-")
    return int(low) <= version <= int(high if dash else low)


def defined(fields: Any, structs: Any, version: int) -> list[Any]:
    found: list[Any] = []
    for field in fields:
        if not holds(field["versions"], version) or holds(field.get("taggedVersions", "none"), version):
            continue
        kind = field["type"].removeprefix("[]")
        inside = field.get("fields") or structs.get(kind)
        plain = {"records": "bytes"}.get(kind, kind)
        found.append((field["type"] != kind, defined(inside, structs, version) if inside else plain))
    return found


def ours(fields: Sequence[Field], version: int) -> list[Any]:
    return [
        (field.is_array, field.kind if isinstance(field.kind, str) else ours(field.kind, version))
        for field in fields
        if field.first <= version <= field.last
    ]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_messages_have_the_fields_of_the_protocol(key: int, version: int) -> None:
    api = APIS[key]
    for kind, fields in (("Request", api.request), ("Response", api.response)):
        told = definition(key, kind)
        assert holds(told["validVersions"], version)
        assert holds(told["flexibleVersions"], version) == (version >= api.flexible)
        structs = {each["name"]: each["fields"] for each in told.get("commonStructs", ())}
        assert ours(fields, version) == defined(told["fields"], structs, version)


class Encoder:
    """Writes requests, as a client does."""

    def __init__(self, *, is_flexible: bool) -> None:
        self.is_flexible = is_flexible
        self.out = bytearray()

    def struct(self, fields: Sequence[Field], version: int, values: dict[str, Any]) -> None:
        for field in fields:
            if field.first <= version <= field.last:
                value = values[field.name]
                if field.is_array:
                    self.length(">i", -1 if value is None else len(value))
                for each in (value or ()) if field.is_array else (value,):
                    self.one(field.kind, version, each)
        if self.is_flexible:
            self.out += b"\x01\x05\x03abc"  # a tagged field that nobody knows

    def one(self, kind: str | Sequence[Field], version: int, value: Any) -> None:
        if not isinstance(kind, str):
            self.struct(kind, version, value)
        elif kind in NUMBERS:
            self.out += struct.pack(NUMBERS[kind], value)
        elif kind == "uuid":
            self.out += value
        else:
            raw = value.encode() if isinstance(value, str) else value
            self.length(">h" if kind == "string" else ">i", -1 if raw is None else len(raw))
            self.out += raw or b""

    def length(self, form: str, length: int) -> None:
        self.out += unsigned_varint(length + 1) if self.is_flexible else struct.pack(form, length)


NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "bool": ">?"}


def some(fields: Sequence[Field], version: int, rng: random.Random) -> dict[str, Any]:
    """Values for the fields that a version has."""

    def one(kind: str | Sequence[Field]) -> Any:
        if not isinstance(kind, str):
            return some(kind, version, rng)
        if kind == "bool":
            return rng.random() < 0.5
        if kind in NUMBERS:
            bits = 8 * struct.calcsize(NUMBERS[kind]) - 1
            return rng.randrange(-(2**bits), 2**bits)
        if kind == "uuid":
            return rng.randbytes(16)
        return (
            rng.choice([None, "", "zürich" * 30]) if kind == "string" else rng.choice([None, b"", rng.randbytes(300)])
        )

    return {
        field.name: rng.choice([None, [one(field.kind) for _ in range(rng.randrange(4))]])
        if field.is_array
        else one(field.kind)
        for field in fields
        if field.first <= version <= field.last
    }


def encoded(key: int, version: int, values: dict[str, Any], client: str | None = "client") -> bytes:
    api = APIS[key]
    head = Encoder(is_flexible=False)
    head.out += struct.pack(">hhi", key, version, 77)
    head.one("string", version, client)
    rest = Encoder(is_flexible=version >= api.flexible)
    rest.struct((), version, {})
    rest.struct(api.request, version, values)
    return bytes(head.out + rest.out)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_request_is_read_as_it_was_written(key: int, version: int) -> None:
    rng = random.Random(f"{key} {version}")
    for _ in range(20):
        values = some(APIS[key].request, version, rng)
        found = read_request(encoded(key, version, values))
        assert (found.api.key, found.version, found.correlation, found.client_id) == (key, version, 77, "client")
        assert found.values == values


def test_versions_that_are_not_known_are_answered_with_those_that_are() -> None:
    future = struct.pack(">hhih", 18, 9, 5, -1)
    assert read_request(future).values == {}
    for body in (struct.pack(">hhih", 1, 13, 5, -1), struct.pack(">hhih", 11, 0, 5, -1), b"", b"\0" * 7):
        with pytest.raises(MalformedRequest):
            read_request(body)


@pytest.mark.parametrize("count", [2**31 - 1, 60_000])
def test_an_array_is_not_believed_beyond_the_bytes_at_hand(count: int) -> None:
    request = struct.pack(">hhihi", 3, 1, 5, -1, count)
    with pytest.raises(MalformedRequest, match="too many elements"):
        read_request(request + b"\0" * 100)
    with pytest.raises(MalformedRequest, match="too many elements"):
        read_request(request + b"\0" * 200_000)


def test_mutated_requests_are_read_or_refused() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(MUTATED):
        key, version = rng.choice(VERSIONS)
        body = bytearray(encoded(key, version, some(APIS[key].request, version, rng)))
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(body))
            match rng.randrange(4):
                case 0:
                    body[at] ^= 1 << rng.randrange(8)
                case 1:
                    body[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80" * 4, b"\0" * 4])
                case 2:
                    del body[at : at + rng.randrange(1, 9)]
                case _:
                    body[at:at] = rng.randbytes(rng.randrange(1, 9))
            if not body:
                break
        try:
            read_request(bytes(body))
        except MalformedRequest:
            continue


def test_records_are_not_copied_into_a_response() -> None:
    records = [bytearray(b"x" * 1000), bytearray(b"y" * 10)]
    part = {"partition_index": 3, "high_watermark": 9, "records": records}
    for version in (4, 11, 12):
        values = {"responses": [{"topic": "orders", "partitions": [part]}]}
        pieces = response_pieces(messages.FETCH, version, 5, values)
        assert any(piece is records[0] for piece in pieces) and any(piece is records[1] for piece in pieces)
        assert b"".join(pieces).startswith(struct.pack(">i", 5))

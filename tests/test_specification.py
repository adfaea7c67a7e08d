"""The examples in FORMAT.md are true: they parse, and they agree with each other and with the code."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blockgz.encryption.keyring import LocalKey
from index_format import objects
from index_format.blocks import RECORD_FOOTPRINT, ZlibCompressor
from index_format.encryption import CIPHER, BlockCipher
from index_format.groups import ConsumerGroups
from index_format.key_filter import hashes_of, key_filter
from index_format.keys import LAYOUTS
from index_format.marker import (
    FAN_OUT,
    MAX_GAPS_IN_MARKER,
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Marker,
    decode_catalog,
    decode_index,
)
from index_format.objects import (
    DEFAULT_MAX_BLOCK_BYTES,
    ArchiveInfo,
    BlockEntry,
    ChunkIndex,
    Encryption,
    Inventory,
    TopicConfig,
    TopicInfo,
)
from index_format.record_formats import RECORD_FORMATS, record_format
from index_format.records import TIMESTAMP_TYPES, canonical_bytes, iter_records, record_hash
from tests.golden.test_ancestor import deflates_like_the_ancestor, same_zlib
from tests.index_format.builders import record
from tests.support.format_objects import chunk_of

TEXT = (Path(__file__).parents[1] / "FORMAT.md").read_text()
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
STRUCTS = (ArchiveInfo, Inventory, TopicInfo, TopicConfig, ConsumerGroups, ChunkIndex, Marker, ChunkCatalog)
KINDS: dict[str, Any] = {kind.__struct_defaults__[0]: kind for kind in STRUCTS}


def objects_in_examples() -> dict[str, Any]:
    found = {}
    for example in EXAMPLES:
        if '"format"' in example:
            body = json.dumps(json.loads(example), separators=(",", ":"), ensure_ascii=False).encode()
            found[json.loads(example)["format"]] = body
    return found


OBJECTS = objects_in_examples()
LINES = [example for example in EXAMPLES if '"format"' not in example]


def test_every_kind_of_object_has_an_example() -> None:
    assert set(OBJECTS) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_objects_parse_and_show_every_field_in_its_order(name: str) -> None:
    assert objects.encode(objects.decode(OBJECTS[name], KINDS[name], name)) == OBJECTS[name]


def test_the_marker_leads_to_the_other_examples() -> None:
    marker = objects.decode(OBJECTS["block-gzip-marker"], Marker, "the marker")
    index = decode_index(OBJECTS["block-gzip"], marker.tail[0], "orders", 3)
    assert index.gaps == marker.gaps
    reference = marker.catalogs[0][0]
    assert decode_catalog(OBJECTS["block-gzip-catalog"], reference, 1).entries[-1].name == index.previous


@pytest.mark.parametrize("example", LINES)
def test_lines_are_records(example: str) -> None:
    fmt = record_format("json")
    assert fmt.encode(fmt.decode(example.encode(), 0, 0), 0)[0] == example.encode()


ROWS = [
    record(40 + number, b'{"total":%d}' % (number * 7), b"%d" % number, timestamp=1_760_000_000_000 + number * 1000)
    for number in (0, 1, 2, 4, 5)
]


@same_zlib
def test_the_index_is_that_of_real_records() -> None:
    written = objects.decode(OBJECTS["block-gzip"], ChunkIndex, "the index")
    index, data = chunk_of(ROWS, block_bytes=250, compressor=ZlibCompressor(6))
    assert (index.blocks, hashlib.sha256(data).hexdigest()) == (written.blocks, written.data.sha256)
    assert data[114:220] == ZlibCompressor(6).compress(LINES[1].encode())


def test_the_tail_hash_is_that_of_the_last_record() -> None:
    last = list(iter_records(record_format("json").decode(LINES[1].encode(), 0, 0)))[-1]
    (written,) = re.findall(r"^```hex\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert canonical_bytes(last) == bytes.fromhex(written)
    assert json.loads(OBJECTS["block-gzip-marker"])["tail_hash"] == record_hash(last)


def test_the_key_filter_in_the_text_is_that_of_its_keys() -> None:
    stored = key_filter(hashes_of([b"42", b"4711"]), 10)
    assert f"`{stored.hex()}`" in TEXT
    assert f'"key_filter":"{base64.b64encode(stored).decode()}"' in TEXT


def test_the_encrypted_block_in_the_text_is_that_of_its_keys() -> None:
    data_key, master = bytes(range(32)), LocalKey(b"\x01" * 32)
    (written,) = re.findall(r'^"encryption":.*?}}$', TEXT, re.DOTALL | re.MULTILINE)
    assert msgspec.json.decode("{" + written + "}", type=dict[str, Encryption]) == {
        "encryption": Encryption(CIPHER, master.wrap(data_key))
    }
    (bound_to,) = re.findall(r"^```aad\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    index = objects.decode(OBJECTS["block-gzip"], ChunkIndex, "the index")
    member = ZlibCompressor(6).compress(LINES[1].encode())
    sealed = BlockCipher(data_key, index.archive_id, index.topic, index.partition, index.start_offset).sealed(1, member)
    assert sealed == AESGCM(data_key).encrypt((1).to_bytes(12, "big"), member, bytes.fromhex(bound_to))
    if deflates_like_the_ancestor():
        assert (len(sealed), f"`{sealed[-16:].hex()}`" in TEXT) == (122, True)


def test_numbers_and_names_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(TEXT.split())
    sentences = [
        f"up to {FAN_OUT} older entries",
        f"{FAN_OUT + FAN_OUT**2 + FAN_OUT**3:,} chunks",
        f"lists more than {MAX_GAPS_IN_MARKER} gaps",
        f"no JSON object above {objects.MAX_OBJECT_BYTES >> 20} MiB",
        f"({DEFAULT_MAX_BLOCK_BYTES >> 20} MiB unless it is raised)",
        f"a record per {RECORD_FOOTPRINT} bytes",
        "record formats " + " and ".join(", ".join(f"`{name}`" for name in sorted(RECORD_FORMATS)).rsplit(", ", 1)),
        "layouts " + " and ".join(f"`{name}`" for name in sorted(LAYOUTS, reverse=True)),
        *(f"`{name}`" for name in TIMESTAMP_TYPES.values()),
    ]
    assert [sentence for sentence in sentences if sentence not in text] == []


@pytest.mark.parametrize("kind", [ChunkIndex, Marker, BlockEntry, ChunkEntry, CatalogReference])
def test_every_field_is_mentioned(kind: Any) -> None:
    assert [name for name in kind.__struct_encode_fields__ if f'"{name}"' not in TEXT] == []

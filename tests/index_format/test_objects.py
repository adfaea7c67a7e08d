import json
import subprocess
import sys
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from index_format import objects
from index_format.errors import BlockgzError, FormatError, MalformedObject, TooLarge, UnsupportedVersion
from index_format.groups import ConsumerGroups
from index_format.marker import ChunkCatalog, Marker, ReferenceCatalog, encode
from index_format.objects import Acl, ArchiveInfo, ChunkIndex, Sealed, TopicConfig, TopicInfo
from tests.index_format.builders import MAX_INT64, group, groups_of
from tests.support.format_objects import block_at, chunk_entry, index_of, marker_of

INFO = TopicInfo(topic="orders", topic_id=None, incarnation=1)
EXAMPLES: list[msgspec.Struct] = [
    INFO,
    ArchiveInfo(archive_id="a", cluster_id=None, layout="topic"),
    TopicConfig(
        topic="orders", topic_id="id", partitions=4, replication_factor=3, config={"a": "b"}, defaults={"c": "d"}
    ),
    TopicConfig(
        topic="orders",
        topic_id="id",
        partitions=4,
        replication_factor=3,
        config=None,
        defaults=None,
        acls=(Acl("PREFIXED", "or", "User:CN=a,O=ü", "*", "DESCRIBE_CONFIGS", "DENY"),),
    ),
    groups_of(group("billing", 0, 3)),
    index_of([block_at(0), block_at(1)], bytes(200)),
    marker_of(),
    ChunkCatalog(level=1, entries=(chunk_entry(0, 5),)),
]


def refused(body: bytes, kind: type[msgspec.Struct] = TopicInfo) -> FormatError:
    with pytest.raises(FormatError) as caught:
        objects.decode(body, kind, "_topic.json")
    error = caught.value
    assert "_topic.json" in error.what
    assert "\n" not in error.what + error.why
    assert len(error.what) + len(error.why) < 600
    return error


def topic_json(**fields: Any) -> bytes:
    """The object as others may write it: with white space, without a checksum."""
    plain = json.loads(objects.encode(INFO)) | fields
    del plain["crc32"]
    return json.dumps(plain).encode()


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda each: type(each).__name__)
def test_objects_come_back(value: msgspec.Struct) -> None:
    body = objects.encode(value)
    assert objects.decode(body, type(value), "it") == value
    assert objects.encode(objects.decode(body, type(value), "it")) == body
    assert list(json.loads(body))[:2] == ["format", "version"]
    assert b": " not in body and b"\n" not in body


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda each: type(each).__name__)
def test_every_truncation_is_refused(value: msgspec.Struct) -> None:
    body = objects.encode(value)
    for length in range(len(body)):
        with pytest.raises(MalformedObject):
            objects.decode(body[:length], type(value), "it")


SEALED = [each for each in EXAMPLES if isinstance(each, Sealed)]


def test_what_nothing_else_vouches_for_is_sealed() -> None:
    assert {type(value) for value in SEALED} == {ArchiveInfo, TopicInfo, TopicConfig, ConsumerGroups, Marker}
    body = objects.encode(INFO)
    assert (
        body
        == b'{"format":"block-gzip-topic","version":1,"topic":"orders","topic_id":null,"incarnation":1,"crc32":%d}'
        % (zlib.crc32(b'{"format":"block-gzip-topic","version":1,"topic":"orders","topic_id":null,"incarnation":1'))
    )


@pytest.mark.parametrize("value", SEALED, ids=lambda each: type(each).__name__)
def test_every_flipped_bit_of_a_sealed_object_is_refused(value: msgspec.Struct) -> None:
    body = objects.encode(value)
    for position, bit in product(range(len(body)), range(8)):
        flipped = bytearray(body)
        flipped[position] ^= 1 << bit
        with pytest.raises(FormatError):
            print(
                f"bit {bit} of byte {position}: {bytes(flipped)!r}", objects.decode(bytes(flipped), type(value), "it")
            )


@pytest.mark.parametrize(
    "bytes_within", [b"x", b"k\x85\xad\xf1\xa3%\xe9]M\xba\xf0\xbc\xb4_3u", b"x" * 1000, b'\\"', b"\\u0041"]
)
def test_bytes_within_the_name_of_the_checksum_are_refused(bytes_within: bytes) -> None:
    before, name, after = objects.encode(INFO).rpartition(b"crc3")
    with pytest.raises(MalformedObject):
        objects.decode(before + name + bytes_within + after, TopicInfo, "it")


def test_a_flipped_digit_is_not_an_offset() -> None:
    body = encode(marker_of(start_offset=0, next_offset=110))
    with pytest.raises(MalformedObject) as caught:
        objects.decode(body.replace(b'"next_offset":110', b'"next_offset":910'), Marker, "the marker")
    assert caught.value.why == "its crc32 is not that of the bytes before it"
    assert "remove the field crc32" in caught.value.remedy


def test_a_checksum_closes_the_object() -> None:
    body = objects.encode(INFO)
    before, _, number = body[:-1].rpartition(b',"crc32":')
    for misplaced in (
        b'{"crc32":%b,%b}' % (number, before[1:]),
        body[:-1] + b',"new":1}',
        json.dumps(json.loads(body)).encode(),
    ):
        assert "crc32" in refused(misplaced).why
    for absent in (before + b"}", before + b',"crc32":null}'):
        assert objects.decode(absent, TopicInfo, "it") == INFO


def test_unknown_fields_are_ignored_at_every_level() -> None:
    index = index_of([block_at(0), block_at(1)], bytes(200))
    plain = json.loads(objects.encode(index))
    plain |= {"new": {"deep": [1.5, None, "é"]}, "data": plain["data"] | {"new": 1}}
    plain["chunks"] = [block | {"new": []} for block in plain["chunks"]]
    assert objects.decode(json.dumps(plain).encode(), ChunkIndex, "it") == index


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b"{" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"format":"block-gzip-topic","version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' * 50_000 + b"1" + b"}" * 50_000,
        b"\xff\xfe",
        b"\x00" * 100,
        b"\x1f\x8b\x08\x00",
        b"\xef\xbb\xbf" + objects.encode(INFO),
        objects.encode(INFO) + b"x",
        objects.encode(INFO) * 2,
        objects.encode(INFO).decode().encode("utf-16"),
        topic_json(topic=""),
        topic_json(topic=None),
        topic_json(topic=7),
        topic_json(topic="x" * 1025),
        topic_json(topic="two\nlines"),
        topic_json(topic="\x1b[2J"),
        topic_json(topic="\x85"),
        topic_json(topic_id=7),
        topic_json(incarnation=0),
        topic_json(incarnation=True),
        topic_json(incarnation=1.0),
        topic_json(incarnation="1"),
        topic_json(incarnation=None),
        topic_json(incarnation=2**31 + 1),
        topic_json(incarnation=10**4000),
        topic_json().replace(b'"incarnation": 1', b'"incarnation": NaN'),
        topic_json().replace(b'"incarnation": 1', b'"incarnation": Infinity'),
        topic_json().replace(b'"incarnation": 1', b'"incarnation": 1e2'),
        topic_json().replace(b'"incarnation": 1', b'"incarnation": 01'),
        topic_json().replace(b'"incarnation": 1', b'"incarnation": ' + b"9" * 100_000),
        topic_json().replace(b"orders", b"\xff"),
        topic_json().replace(b"orders", b"\\ud800"),
        topic_json(format="block-gzip"),
        topic_json(format="x" * 10_000),
        topic_json(format="a\nb"),
        topic_json(format=1),
        topic_json(version="1"),
        topic_json(version=True),
        topic_json(version=1.0),
        topic_json(version=None),
        topic_json(version=-1),
        topic_json(version=10**4000),
    ],
    ids=lambda body: body[:60].decode(errors="replace"),
)
def test_damage_is_refused(body: bytes) -> None:
    assert isinstance(refused(body), MalformedObject)


@pytest.mark.parametrize("version", [0, 2, 99, MAX_INT64])
def test_other_versions_are_refused_by_name(version: int) -> None:
    error = refused(b'{"format":"block-gzip-topic","version":%d,"all":"else differs"}' % version)
    assert isinstance(error, UnsupportedVersion)
    assert error.what == f"_topic.json has version {version}"
    assert error.remedy == "use a newer release of blockgz"


def test_the_last_of_duplicate_keys_counts_and_is_checked() -> None:
    body = topic_json()[:-1]
    assert objects.decode(body + b',"topic":"other"}', TopicInfo, "it").topic == "other"
    refused(body + b',"topic":null}')
    refused(body + b',"format":"block-gzip"}')
    refused(body + b',"version":2}')


@pytest.mark.parametrize("field", ["format", "version", "topic", "topic_id", "incarnation"])
def test_required_fields(field: str) -> None:
    plain = json.loads(topic_json())
    del plain[field]
    refused(json.dumps(plain).encode())


def test_size_is_capped_before_parsing() -> None:
    error = refused(b" " * objects.MAX_OBJECT_BYTES + b"x")
    assert isinstance(error, TooLarge)


def test_what_readers_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(objects.encode(INFO))
    monkeypatch.setattr(objects, "MAX_OBJECT_BYTES", size)
    assert objects.decode(objects.encode(INFO), TopicInfo, "it") == INFO
    monkeypatch.setattr(objects, "MAX_OBJECT_BYTES", size - 1)
    with pytest.raises(TooLarge, match="TopicInfo"):
        objects.encode(INFO)


@pytest.mark.parametrize("kind", [ArchiveInfo, ChunkIndex, Marker, ChunkCatalog, ReferenceCatalog])
def test_kinds_are_not_mistaken_for_each_other(kind: type[msgspec.Struct]) -> None:
    assert "is not a" in refused(objects.encode(INFO), kind).what


def test_a_marker_of_every_field_comes_back() -> None:
    marker = marker_of(
        topic_id="id",
        epoch=MAX_INT64,
        start_offset=0,
        next_offset=5,
        leader_epoch=-1,
        tail_hash="0" * 64,
        last_chunk_index=chunk_entry(0, 5).name,
        tail=(chunk_entry(0, 5),),
        catalogs=((),),
        successor="orders~2",
    )
    assert objects.decode(encode(marker), Marker, "it") == marker


def test_errors_carry_what_why_and_remedy() -> None:
    error = BlockgzError("what", why="why", remedy="remedy")
    assert (str(error), error.what, error.why, error.remedy) == ("what", "what", "why", "remedy")
    assert issubclass(FormatError, ValueError)


FIRST_READERS = """
import sys, threading
from pathlib import Path
from index_format.marker import decode_marker

body = Path(sys.argv[1]).read_bytes()
together = threading.Barrier(12)

def read():
    together.wait()
    decode_marker(body, "marker")

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_threads_that_read_their_first_markers_at_once() -> None:
    """Half of such processes crashed when the decoder was made by whoever came first."""
    marker = Path(__file__).parents[1] / "golden" / "current" / "last_chunk_index.json"
    running = [subprocess.Popen([sys.executable, "-c", FIRST_READERS, str(marker)]) for _ in range(6)]
    assert [process.wait(60) for process in running] == [0] * 6

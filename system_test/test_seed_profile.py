"""Profile `seed`, from a real broker: the ancestor's keys, index text, marker and, byte for byte, its data."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from system_test.support.archiving import Site, store_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import NewRecord, create_topic, delete_topic, produce

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "tests" / "golden" / "ancestor.json").read_text())
FIELDS = ("byte_length_uncompressed", "num_records", "byte_length", "byte_offset", "first_record_offset")
PROFILE = ("--once", "--layout", "seed", "--record-format", "text", "--gzip-library", "zlib", "--gzip-level", "6")
TOPIC, PREFIX, DATE = "bar", "pfx", "2016-02-24"
NOON_MS = GOLDEN["marker"]["first_timestamp"]


def member(content: bytes) -> bytes:
    """One gzip member as the ancestor wrote it: zlib level 6, no time, operating system 255."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15, 8, 0)
    deflated = deflater.compress(content) + deflater.flush()
    trailer = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    return bytes.fromhex("1f8b08000000000000ff") + deflated + trailer


def index_text(blocks: list[list[int]]) -> str:
    return json.dumps({"chunks": [dict(zip(FIELDS, block, strict=True)) for block in blocks]}, separators=(",", ":"))


def values(counters: list[int]) -> list[bytes]:
    return [(GOLDEN["value"] % counter).encode() for counter in range(*counters)]


same_zlib = pytest.mark.skipif(
    len(member(b"".join(value + b"\n" for value in values([0, 100, 1])))) != GOLDEN["chunks"][0]["blocks"][0][2],
    reason=f"zlib {zlib.ZLIB_RUNTIME_VERSION} of this machine deflates to other bytes",
)


@pytest.fixture
def bar(broker: KafkaBroker, moto: MotoServer) -> Iterator[Site]:
    """The golden topic, empty, with three partitions; and an empty prefix `pfx`."""
    assert moto.keys(f"{PREFIX}/") == []
    create_topic(broker.bootstrap, TOPIC, 3)
    yield store_site(broker.bootstrap, moto, PREFIX)
    delete_topic(broker.bootstrap, TOPIC)
    for key in moto.keys(f"{PREFIX}/"):
        moto.client.delete_object(Bucket=moto.bucket, Key=key)


@same_zlib
def test_the_golden_topic(bar: Site, moto: MotoServer) -> None:
    """Three runs: 0..99 and 100..199 into partition 0, then 200..299, each into the partition of its remainder by 3."""
    runs = [[([0, 100, 1], 0)], [([100, 200, 1], 0)], [([201, 300, 3], 0), ([202, 300, 3], 1), ([200, 300, 3], 2)]]
    golden = {tuple(chunk["counters"]): chunk for chunk in GOLDEN["chunks"]}
    for chunks in runs:
        for counters, partition in chunks:
            records = [NewRecord(value, partition=partition, timestamp=NOON_MS) for value in values(counters)]
            produce(bar.bootstrap, TOPIC, records)
        bar.once(TOPIC, *PROFILE)
        for counters, partition in chunks:
            chunk = golden[tuple(counters)]
            stem = f"{PREFIX}/{DATE}/{TOPIC}-{partition:05d}-{chunk['first_offset']:012d}"
            data = moto.read(f"{stem}.gz")
            assert data == member(b"".join(value + b"\n" for value in values(counters)))
            assert len(data) == chunk["blocks"][0][2]
            assert moto.read(f"{stem}.index.json").decode() == index_text(chunk["blocks"])
            marker = moto.read(f"{PREFIX}/last_chunk_index.{TOPIC}-{partition:05d}.txt").decode()
            assert marker == f"{stem}.index.json"
    ancestor = {key for key in moto.keys(f"{PREFIX}/") if "/_blockgz/" not in key and not key.endswith(".meta.json")}
    assert len(ancestor) == 2 * len(golden) + 3, "data and index of each chunk, and three markers"

    printed = bar.replayer("cat", TOPIC, "-f", "%p %o %s\n").stdout.splitlines()
    firsts = [line for line in printed if line.split()[1] == "0"]
    assert len(printed) == 300
    assert [line.split(maxsplit=2)[2] for line in firsts] == [GOLDEN["value"] % number for number in (0, 202, 200)]
    assert bar.replayer_json("verify", TOPIC, "--deep", "--records")["verdict"] == "OK"


def test_what_the_format_cannot_hold_stops_or_is_skipped(site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    bad = [NewRecord(None), NewRecord(b"two\nlines"), NewRecord(b"v", key=b"k"), NewRecord(b"v", headers=(("h", b""),))]
    produce(site.bootstrap, topic_name, [NewRecord(b"first"), *bad, NewRecord(b"last")])
    stopped = site.run(topic_name, *PROFILE, check=1)
    assert "offset 1" in stopped.stderr
    assert "null value" in stopped.stderr
    assert "--on-bad-record skip" in stopped.stderr
    (partition,) = site.once(topic_name, *PROFILE, "--on-bad-record", "skip")["partitions"]
    assert partition["skipped"] == len(bad)
    assert site.replayer("cat", topic_name, "-f", "%o %s\n").stdout == "0 first\n5 last\n"
    report = site.replayer_json("verify", topic_name, "--deep", "--records")
    assert report["verdict"] == "WARNING"
    assert {offset for gap in report["partitions"][0]["gaps"] for offset in range(gap["from"], gap["to"])} == {
        1,
        2,
        3,
        4,
    }

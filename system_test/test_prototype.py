"""The prototype of benchmarks/prototype reads what librdkafka reads, and makes the archiver's bytes."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.record import MemoryRecordsBuilder

from benchmarks.prototype.cutting import Answer
from benchmarks.prototype.equality import by_librdkafka, by_prototype, check_equal
from benchmarks.prototype.native import BadBatch, Native, compiled
from benchmarks.prototype.wire import ProtocolFailed
from system_test.conftest import required_parts
from system_test.support.archiving import Site
from system_test.support.contents import records_of_every_content
from system_test.support.environment import run_tool, tool
from system_test.support.topics import (
    STORED_AS_GZIP,
    NewRecord,
    Transactions,
    create_topic,
    delete_records,
    produce,
    raw_header_key,
)

MUTATIONS = 5000
CRC_AT, CRC_STARTS_AT = 17, 21
"""Where the fields stand in a record batch."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with required_parts():
        tool("cc")
    return compiled(tmp_path_factory.mktemp("prototype"))


@pytest.fixture(scope="module")
def native(library: Path) -> Native:
    return Native(library)


def record_batch(codec: int = 0) -> bytes:
    """A batch with a null and a key, values and headers."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 20)
    for number in range(20):
        builder.append(number, b"key" if number % 2 else None, b"v" * number or None, [("h", b"1"), ("h", b"")])
    builder.close()
    return bytes(builder.buffer())


def with_right_crc(native: Native, batch: bytes) -> bytes:
    return batch[:CRC_AT] + struct.pack(">I", native.crc32c(batch[CRC_STARTS_AT:])) + batch[CRC_STARTS_AT:]


def test_its_checksum_is_crc_32c(native: Native) -> None:
    """The check value of the polynomial's definition (RFC 3720)."""
    assert native.crc32c(b"123456789") == 0xE3069283


def test_a_batch_that_is_cut_short_waits_for_the_next_answer(native: Native) -> None:
    batch = record_batch()
    for size in (0, 5, 60, 61, len(batch) - 1):
        answer = Answer(native, memoryview(batch + batch[:size]), 0)
        assert (answer.next_position, sum(cut.batch.num_rows for cut in answer.cut())) == (20, 20)


def test_every_changed_bit_is_noticed(native: Native) -> None:
    batch = record_batch()
    for position in range(CRC_AT, len(batch)):
        changed = bytearray(batch)
        changed[position] ^= 1 << position % 8
        with pytest.raises(BadBatch, match="CRC"):
            Answer(native, memoryview(changed), 0)


@pytest.mark.parametrize("codec", [0, 1])
def test_bytes_that_make_no_sense_are_refused_and_never_crash(native: Native, codec: int) -> None:
    """The checksum is made right again, so that all behind it is met."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    batch = record_batch(codec)
    refused = 0
    for _ in range(MUTATIONS):
        changed = bytearray(batch)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(CRC_STARTS_AT, len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            for cut in Answer(native, memoryview(with_right_crc(native, bytes(changed))), 0).cut():
                cut.batch.validate(full=True)
        except BadBatch:
            refused += 1
    assert MUTATIONS / 10 < refused < MUTATIONS


@pytest.mark.parametrize("config", [{}, STORED_AS_GZIP, {"message.timestamp.type": "LogAppendTime"}])
def test_every_content_is_read(native: Native, site: Site, topic_name: str, config: dict[str, str]) -> None:
    """Null and empty keys and values, headers of all kinds, and three partitions of which one is empty."""
    create_topic(site.bootstrap, topic_name, 3, config)
    records = records_of_every_content()
    produce(site.bootstrap, topic_name, records)
    produce(site.bootstrap, topic_name, [NewRecord(b"other", partition=2)])
    assert check_equal(native, site.bootstrap, topic_name, 3) == len(records) + 1


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_every_codec_and_record_size_is_read(native: Native, site: Site, topic_name: str, codec: str) -> None:
    """From batches of hundreds to a record larger than what is asked for at once."""
    create_topic(site.bootstrap, topic_name, 1, {"max.message.bytes": str(16 << 20)})
    producer = Producer(
        {"bootstrap.servers": site.bootstrap, "compression.type": codec, "linger.ms": 50, "message.max.bytes": 16 << 20}
    )
    for number in range(5000):
        producer.produce(topic_name, b"%d" % number * (number % 100), b"k" if number % 3 else None)
    producer.produce(topic_name, bytes(range(256)) * (6 << 12))
    producer.produce(topic_name, b"last")
    assert producer.flush(60) == 0
    assert check_equal(native, site.bootstrap, topic_name, 1) == 5002


def test_logs_without_records_have_ends(native: Native, site: Site, topic_name: str) -> None:
    """One that never had any, and one whose records were all deleted."""
    create_topic(site.bootstrap, topic_name, 2)
    produce(site.bootstrap, topic_name, [NewRecord(b"gone", partition=1)] * 5)
    delete_records(site.bootstrap, topic_name, 5, partition=1)
    assert by_prototype(native, site.bootstrap, topic_name) == {}


def test_a_log_may_start_inside_a_batch(native: Native, site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"%d" % number, headers=(("h", b"v"),)) for number in range(100)])
    delete_records(site.bootstrap, topic_name, 42)
    found = by_prototype(native, site.bootstrap, topic_name)
    assert [record.offset for record in found[0]] == list(range(42, 100))
    assert found == by_librdkafka(site.bootstrap, topic_name, 1)


def test_control_records_are_left_out_and_aborted_ones_refused(native: Native, site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    with Transactions(site.bootstrap, topic_name) as transactions:
        transactions.commit(topic_name, [NewRecord(b"1"), NewRecord(b"2")])
        transactions.commit(topic_name, [NewRecord(b"4")])
        assert check_equal(native, site.bootstrap, topic_name, 1) == 3
        transactions.abort(topic_name, [NewRecord(b"never")])
        with pytest.raises(ProtocolFailed, match="aborted"):
            by_prototype(native, site.bootstrap, topic_name)


def test_a_header_key_that_is_not_utf_8_is_refused(native: Native, site: Site, topic_name: str) -> None:
    create_topic(site.bootstrap, topic_name)
    produce(site.bootstrap, topic_name, [NewRecord(b"v", headers=((raw_header_key(b"\xff"), b"v"),))])
    with pytest.raises(BadBatch, match="UTF-8"):
        by_prototype(native, site.bootstrap, topic_name)


@pytest.mark.parametrize("record_format", ["json", "arrow"])
def test_the_archiver_makes_the_same_bytes_of_it(
    library: Path, site: Site, topic_name: str, tmp_path: Path, record_format: str
) -> None:
    create_topic(site.bootstrap, topic_name, 2)
    produce(site.bootstrap, topic_name, records_of_every_content())
    site.once(topic_name, "--record-format", record_format)
    folder = tmp_path / "by-prototype"
    words = ["run", topic_name, *site.kafka, "-a", folder, "--once", "--record-format", record_format]
    command = [sys.executable, "-m", "benchmarks.prototype.archiver_with", library, *words]
    run_tool([str(word) for word in command], seconds=60)
    ours, theirs = chunks(Path(site.address)), chunks(folder)
    assert len(ours) == 1
    assert ours == theirs


def chunks(folder: Path) -> dict[str, bytes]:
    """The data files of an archive."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.gz")}

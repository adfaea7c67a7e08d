"""The prototype of benchmarks/prototype reads what librdkafka reads, and makes the archiver's bytes."""

from __future__ import annotations


import pytest
from confluent_kafka import Producer

from benchmarks.prototype.equality import by_librdkafka, by_prototype, check_equal
from benchmarks.prototype.native import BadBatch, Native, compiled
from benchmarks.prototype.wire import ProtocolFailed
from system_test.conftest import required_parts
from system_test.support.archiving import Site
from system_test.support.contents import records_of_every_content
from system_test.support.environment import tool
from system_test.support.topics import (
    STORED_AS_GZIP,
    NewRecord,
    Transactions,
    create_topic,
    delete_records,
    produce,
    raw_header_key,
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    with required_parts():
        tool("cc")
    return Native(compiled(tmp_path_factory.mktemp("prototype")))


def test_its_checksum_is_crc_32c(native: Native) -> None:
    """The check value of the polynomial's definition (RFC 3720)."""
    assert native.crc32c(b"123456789") == 0xE3069283


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

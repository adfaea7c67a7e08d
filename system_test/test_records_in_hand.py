"""The days a backup is bought for: what an archiver had fetched is archived, whatever happened to topic or cluster."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.service import Service
from system_test.support.topics import NewRecord, create_topic, delete_topic, fill_topic, produce

LONG = ("--chunk-interval", "10m")
WATCHFUL = ("--topic-refresh", "1s", "-X", "topic.metadata.refresh.interval.ms=1000")
RECORDS = 500


def fill(broker: KafkaBroker, topic: str, start: int, stop: int) -> None:
    produce(broker.bootstrap, topic, [NewRecord(b"value %d" % number) for number in range(start, stop)])


@contextmanager
def archiving(broker: KafkaBroker, site: Site, topic: str, *arguments: str) -> Iterator[Service]:
    """An archiver that has RECORDS records of a new topic in hand."""
    create_topic(broker.bootstrap, topic, 1)
    fill(broker, topic, 0, RECORDS)
    service = Service(site, topic, *arguments)
    with service.program:
        wait_for(service, "position", RECORDS)
        yield service


def wait_for(service: Service, field: str, offset: int) -> None:
    """Wait until a partition's status has come to that offset."""
    reached = lambda: any((each[field] or 0) >= offset for each in service.partitions())  # noqa: E731
    service.program.wait_for(reached, 40, f"{field} {offset}")


def assert_archived(site: Site, topic: str, offsets: range) -> None:
    records = {record.offset: record for record in site.checked(topic).records}
    assert [records[offset].value for offset in offsets] == [b"value %d" % offset for offset in offsets]
    site.replayer("verify", topic, "--deep", "--records")


def test_a_topic_deleted_while_its_records_are_in_hand(site: Site, broker: KafkaBroker, topic_name: str) -> None:
    with archiving(broker, site, topic_name, *LONG, *WATCHFUL) as service:
        program = service.program
        delete_topic(broker.bootstrap, topic_name)
        program.wait_for(
            lambda: [each["state"] for each in service.partitions()] == ["gone"], 60, "the status says that it is gone"
        )
        done = program.terminate(60)
    assert_archived(site, topic_name, range(RECORDS))
    done.expect(3)
    assert "gone" in done.stderr


def test_a_cluster_that_is_gone(own_broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    site = folder_site(own_broker.bootstrap, tmp_path / "archive")
    with archiving(own_broker, site, topic_name, *LONG) as service:
        program = service.program
        own_broker.kill()
        done = program.terminate(60)
    assert_archived(site, topic_name, range(RECORDS))
    done.expect(0)


def test_a_topic_created_again_while_its_records_are_in_hand(site: Site, broker: KafkaBroker, topic_name: str) -> None:
    with archiving(broker, site, topic_name, *LONG, *WATCHFUL) as service:
        program = service.program
        wait_for(service, "confirmed_offset", RECORDS)
        delete_topic(broker.bootstrap, topic_name)
        fill_topic(broker.bootstrap, topic_name, [NewRecord(b"another %d" % number) for number in range(100)])
        program.wait_for(lambda: "succeeded" in program.stderr, 60, "the new topic gets a folder of its own")
        wait_for(service, "position", 100)
        program.terminate(60).expect(0)
    assert_archived(site, topic_name, range(RECORDS))
    again = site.replayer("cat", f"{topic_name}~2:0", "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in again] == [f"another {number}" for number in range(100)]

"""The days a backup is bought for: what an archiver had fetched is archived, whatever happened to topic or cluster."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from system_test.support.archiving import Site, folder_site
from system_test.support.environment import free_port
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import Running
from system_test.support.topics import NewRecord, create_topic, delete_records, delete_topic, produce

LONG = ("--chunk-interval", "10m")
WATCHFUL = ("--topic-refresh", "1s", "-X", "topic.metadata.refresh.interval.ms=1000")
RECORDS = 500


class Service:
    """A running archiver and its status page."""

    def __init__(self, site: Site, topic: str, *arguments: str) -> None:
        self.topic = topic
        self.address = f"127.0.0.1:{free_port()}"
        self.program: Running = site.start(topic, "--group-id", topic, "--http", self.address, *arguments)

    def status(self) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{self.address}/status", timeout=5) as answer:
                partitions: list[dict[str, Any]] = json.load(answer)["partitions"]
        except OSError:
            return []
        return partitions

    def wait_for(self, field: str, offset: int) -> None:
        """Until a partition's status has come to that offset."""
        self.program.wait_for(
            lambda: any((each[field] or 0) >= offset for each in self.status()), 40, f"{field} {offset}"
        )


def fill(broker: KafkaBroker, topic: str, start: int, stop: int) -> None:
    produce(broker.bootstrap, topic, [NewRecord(b"value %d" % number) for number in range(start, stop)])


@contextmanager
def archiving(broker: KafkaBroker, site: Site, topic: str, *arguments: str) -> Iterator[Service]:
    """An archiver that has RECORDS records of a new topic in hand."""
    create_topic(broker.bootstrap, topic, 1)
    fill(broker, topic, 0, RECORDS)
    service = Service(site, topic, *arguments)
    with service.program:
        service.wait_for("position", RECORDS)
        yield service


def assert_archived(site: Site, topic: str, offsets: range) -> None:
    records = {record.offset: record for record in site.checked(topic).records}
    assert [records[offset].value for offset in offsets] == [b"value %d" % offset for offset in offsets]
    site.replayer("verify", topic, "--deep", "--records")


def test_a_topic_deleted_while_its_records_are_in_hand(broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    with archiving(broker, site, topic_name, *LONG, *WATCHFUL) as service:
        program = service.program
        delete_topic(broker.bootstrap, topic_name)
        program.wait_for(
            lambda: [each["state"] for each in service.status()] == ["gone"], 60, "the status says that it is gone"
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


def test_commits_continue_while_the_cluster_is_gone(own_broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    site = folder_site(own_broker.bootstrap, tmp_path / "archive")
    with archiving(own_broker, site, topic_name, "--chunk-interval", "15s") as service:
        program = service.program
        own_broker.kill()
        program.wait_for(lambda: site.marker(topic_name)["next_offset"] == RECORDS, 60, "the chunk is committed")
        program.kill()
    assert_archived(site, topic_name, range(RECORDS))


def test_retention_that_passes_the_consumer(broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    with archiving(broker, site, topic_name, *LONG) as service:
        program = service.program
        program.signal(signal.SIGSTOP)
        # The fetch that is under way brings the first batch of these; nothing brings the last before it is deleted.
        for start in range(RECORDS, 2 * RECORDS, 50):
            fill(broker, topic_name, start, start + 50)
        delete_records(broker.bootstrap, topic_name, 2 * RECORDS - 50)
        program.signal(signal.SIGCONT)
        service.wait_for("position", 2 * RECORDS)
        program.terminate(60).expect(0)
    checked = site.checked(topic_name)
    (gap,) = checked.gaps
    start, end = gap.start, gap.end
    assert RECORDS <= start < end == 2 * RECORDS - 50, "the gap is just what nobody fetched"
    assert_archived(site, topic_name, range(start))
    assert_archived(site, topic_name, range(end, 2 * RECORDS))


def test_a_topic_created_again_while_its_records_are_in_hand(
    broker: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    with archiving(broker, site, topic_name, *LONG, *WATCHFUL) as service:
        program = service.program
        service.wait_for("confirmed_offset", RECORDS)
        delete_topic(broker.bootstrap, topic_name)
        create_topic(broker.bootstrap, topic_name, 1)
        produce(broker.bootstrap, topic_name, [NewRecord(b"another %d" % number) for number in range(100)])
        program.wait_for(lambda: "succeeded" in program.stderr, 60, "the new topic gets a folder of its own")
        service.wait_for("position", 100)
        program.terminate(60).expect(0)
    assert_archived(site, topic_name, range(RECORDS))
    again = site.replayer("cat", f"{topic_name}~2:0", "--json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in again] == [f"another {number}" for number in range(100)]

"""Rights of the cluster that are taken away for a while: a running service goes on once it has them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from system_test.support.archiving import folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, fill_topic, produce

SECONDS = 90
SESSION = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1500")
"""A member whose heartbeats are denied notices once its session is over, by default after 45 s."""


def values(start: int, stop: int) -> list[NewRecord]:
    return [NewRecord(b"value %d" % number) for number in range(start, stop)]


@pytest.mark.parametrize(
    ("resource", "event"), [(ResourceType.GROUP, " denied "), (ResourceType.TOPIC, " restart ")], ids=["group", "topic"]
)
def test_the_right_to_read_comes_back(
    broker_with_rights: KafkaBroker, topic_name: str, tmp_path: Path, resource: ResourceType, event: str
) -> None:
    broker = broker_with_rights
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    pattern = ResourcePattern(resource, topic_name)
    kinds = ((ACLPermissionType.DENY, ACLOperation.READ), (ACLPermissionType.ALLOW, ACLOperation.ALL))
    rights = [ACL("User:*", "*", asked, kind, pattern) for kind, asked in kinds]
    with (
        KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin,
        site.start(topic_name, "--group-id", topic_name, "--chunk-interval", "1s", *SESSION) as archiver,
    ):
        marker = tmp_path.joinpath("archive", f"topic={topic_name}", "partition=00000", "last_chunk_index.json")
        archiver.wait_for(
            lambda: marker.exists() and site.marker(topic_name)["next_offset"] == 10, SECONDS, "the first records"
        )
        admin.create_acls(rights)
        archiver.wait_for(lambda: event in archiver.stderr, SECONDS, "the denial")
        produce(broker.bootstrap, topic_name, values(10, 20))
        admin.delete_acls(
            [ACLFilter("User:*", "*", right.operation, right.permission_type, pattern) for right in rights]
        )
        archiver.wait_for(lambda: site.marker(topic_name)["next_offset"] == 20, SECONDS, "the records after it")
        done = archiver.terminate(SECONDS)
    assert done.exit_code == 0, done.transcript
    assert "authorization failed" in done.stderr and " stopped " not in done.stderr
    checked = site.exact(topic_name)
    assert (len(checked.records), checked.gaps) == (20, [])

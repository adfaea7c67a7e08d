"""What an operator sees of troubles that are the cluster's: an open transaction, a dead broker, missing rights."""

import json
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import run
from system_test.support.service import Service
from system_test.support.topics import NewRecord, Transactions, fill_topic, produce

SECONDS = 60
PATIENCE_SECONDS = 90
"""Rights come back once a group is joined again, which takes half a minute."""
QUICK = ("--chunk-interval", "1s")
SESSION = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1500")
"""A member whose heartbeats are denied notices once its session is over, by default after 45 s."""


def values(start: int, stop: int) -> list[NewRecord]:
    return [NewRecord(b"value %d" % number) for number in range(start, stop)]


def test_a_hanging_transaction(site: Site, broker: KafkaBroker, topic_name: str) -> None:
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    with Transactions(broker.bootstrap, topic_name) as transactions:
        transactions.begin(topic_name, values(10, 13))
        produce(broker.bootstrap, topic_name, values(13, 18))
        service = Service(site, topic_name, *QUICK)
        with service.program as program:
            service.wait_partition(
                "the transaction is seen",
                durable_offset=10,
                log_end_offset=10,
                high_watermark=18,
                unstable_records=8,
                lag_records=0,
                stuck=None,
            )
            assert f'blockgz_unstable_records{{partition="0",topic="{topic_name}"}} 8.0' in service.get("/metrics")[1]
            assert service.get("/readyz") == (200, "ok\n"), "the archiver does what it can"
            shown = run("archiver", "status", *site.kafka, *site.archive, "--json").stdout
            (partition,) = json.loads(shown)["partitions"]
            assert (partition["lag"], partition["unstable"]) == (8, 8)
            transactions.end(committed=True)
            program.wait_for(
                lambda: site.marker(topic_name)["next_offset"] == 19, SECONDS, "what it held back is archived"
            )
            program.terminate(SECONDS).expect(0)
    site.exact(topic_name)


def deny(
    broker: KafkaBroker, name: str, operation: ACLOperation, resource: ResourceType = ResourceType.TOPIC
) -> list[ACL]:
    """Deny everybody an operation on a topic or a group; return the ACLs.

    Kafka allows whatever no ACL names: the other operations are granted along with it.
    """
    pattern = ResourcePattern(resource, name)
    kinds = ((ACLPermissionType.DENY, operation), (ACLPermissionType.ALLOW, ACLOperation.ALL))
    rights = [ACL("User:*", "*", asked, kind, pattern) for kind, asked in kinds]
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls(rights)
    return rights


def test_a_configuration_that_may_not_be_read(broker_with_rights: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    broker = broker_with_rights
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    deny(broker, topic_name, ACLOperation.DESCRIBE_CONFIGS)
    done = site.run(topic_name, "--once")
    (line,) = [line for line in done.stderr.splitlines() if "describe_denied" in line]
    assert "asked=configuration" in line and "Topic authorization failed" in line
    site.exact(topic_name)


def test_a_topic_that_may_not_be_described_any_more(
    broker_with_rights: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    """Its records in hand are archived all the same."""
    broker = broker_with_rights
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    service = Service(site, topic_name, "--chunk-interval", "10m")
    with service.program as program:
        service.wait_partition("records are in hand", position=10)
        deny(broker, topic_name, ACLOperation.DESCRIBE)
        program.wait_for(lambda: "asked=id" in program.stderr, SECONDS, "it is said to be denied")
        done = program.terminate(SECONDS)
    assert "Topic authorization failed" in done.stderr and "does not answer" not in done.stderr
    assert site.marker(topic_name)["next_offset"] == 10


@pytest.mark.parametrize(
    ("resource", "event"), [(ResourceType.GROUP, " denied "), (ResourceType.TOPIC, " restart ")], ids=["group", "topic"]
)
def test_the_right_to_read_comes_back(
    broker_with_rights: KafkaBroker, topic_name: str, tmp_path: Path, resource: ResourceType, event: str
) -> None:
    broker = broker_with_rights
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    service = Service(site, topic_name, *QUICK, *SESSION)
    with service.program as program:
        service.wait_partition("the first records are archived", durable_offset=10)
        rights = deny(broker, topic_name, ACLOperation.READ, resource)
        program.wait_for(lambda: event in program.stderr, PATIENCE_SECONDS, "the denial")
        produce(broker.bootstrap, topic_name, values(10, 20))
        filters = [
            ACLFilter(each.principal, "*", each.operation, each.permission_type, each.resource_pattern)
            for each in rights
        ]
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_acls(filters)
        program.wait_for(lambda: site.marker(topic_name)["next_offset"] == 20, PATIENCE_SECONDS, "the records after it")
        done = program.terminate(PATIENCE_SECONDS)
    assert done.exit_code == 0, done.transcript
    assert "authorization failed" in done.stderr and " stopped " not in done.stderr
    checked = site.exact(topic_name)
    assert (len(checked.records), checked.gaps) == (20, [])


def test_a_dead_broker_fills_no_log(own_broker: KafkaBroker, topic_name: str, tmp_path: Path) -> None:
    broker = own_broker
    site = folder_site(broker.bootstrap, tmp_path / "archive")
    fill_topic(broker.bootstrap, topic_name, values(0, 10))
    service = Service(site, topic_name, *QUICK)
    with service.program as program:
        service.wait_partition("the records are archived", durable_offset=10)
        broker.kill()
        program.wait_for(lambda: "brokers are down" in program.stderr, SECONDS, "the broker is said to be down")
        broker.start()
        produce(broker.bootstrap, topic_name, values(10, 20))
        service.wait_partition("the archiver continues", durable_offset=20)
        done = program.terminate(SECONDS)
    lines = [line for line in done.stderr.splitlines() if " client_log " in line]
    assert any("Connection refused" in line for line in lines)
    assert len(lines) <= 12, "librdkafka has twenty a second"
    site.exact(topic_name)


def test_a_service_that_starts_before_its_broker_begins_with_it(
    own_broker: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    fill_topic(own_broker.bootstrap, topic_name, values(0, 10))
    own_broker.stop()
    site = folder_site(own_broker.bootstrap, tmp_path / "archive")
    with site.start(topic_name, *QUICK, "--log-format", "json") as service:
        service.wait_for(lambda: '"waiting"' in service.stderr, SECONDS, "it to say that no broker answers")
        own_broker.start()
        service.wait_for(lambda: _archived(tmp_path / "archive"), SECONDS, "the records to be archived")
        ended = service.terminate().expect(0)
    assert ended.stderr.count('"waiting"') == 1
    assert site.exact(topic_name).next_offset == 10


def _archived(folder: Path) -> bool:
    return any(folder.rglob("partition=00000/*.gz"))

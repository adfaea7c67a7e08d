"""What an operator sees of troubles that are the cluster's: an open transaction, a dead broker, missing rights."""

from __future__ import annotations

import json
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.programs import run
from system_test.support.service import Service
from system_test.support.topics import NewRecord, Transactions, fill_topic, produce

SECONDS = 60
QUICK = ("--chunk-interval", "1s")


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


def deny(broker: KafkaBroker, topic: str, operation: ACLOperation) -> None:
    """Whatever no ACL names stays allowed: of this topic the other operations are granted along with it."""
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    kinds = ((ACLPermissionType.DENY, operation), (ACLPermissionType.ALLOW, ACLOperation.ALL))
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls([ACL("User:*", "*", asked, kind, pattern) for kind, asked in kinds])


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

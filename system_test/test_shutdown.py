"""An order to end, while the store hangs."""

from __future__ import annotations

import json
from urllib.request import urlopen

from archiver.service import LAST_REQUESTS_SECONDS
from system_test.support.archiving import store_site
from system_test.support.environment import free_port
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.topics import NewRecord, create_topic, produce

GRACE_SECONDS = 2
LEAVING_SECONDS = 15
"""For the group to be left and the process to end, on a busy machine; a request to a store that hangs takes 60 s."""


def test_a_store_that_hangs_does_not_hold_the_process(
    broker: KafkaBroker, versitygw: VersityGateway, topic_name: str
) -> None:
    site = store_site(broker.bootstrap, versitygw, topic_name)
    create_topic(broker.bootstrap, topic_name)
    records = [NewRecord(b"value %d" % number) for number in range(100)]
    produce(broker.bootstrap, topic_name, records)
    port = free_port()
    options = ("--grace", f"{GRACE_SECONDS}s", "--chunk-interval", "500ms", "--http", f"127.0.0.1:{port}")
    with site.start(topic_name, "--group-id", topic_name, *options) as archiver:

        def told(field: str) -> int:
            try:
                with urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                    partitions = json.load(answer)["partitions"]
            except OSError:
                return 0
            return partitions[0][field] or 0 if partitions else 0

        archiver.wait_for(lambda: told("durable_offset") == 100, 60, "the first records are archived")
        versitygw.pause()
        try:
            produce(broker.bootstrap, topic_name, records)
            archiver.wait_for(lambda: told("position") == 200, 60, "the others are read")
            done = archiver.terminate(GRACE_SECONDS + LAST_REQUESTS_SECONDS + LEAVING_SECONDS)
        finally:
            versitygw.resume()
    assert done.expect(0) and "abandoned" in done.stderr, done.transcript
    site.once(topic_name, "--group-id", topic_name)
    assert len(site.exact(topic_name).records) == 200

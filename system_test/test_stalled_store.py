"""A store that takes a request and never answers: the order to end is heeded all the same."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

from archiver.cli.run import LEAVE_SECONDS
from system_test.support.archiving import store_site
from system_test.support.bulk import produce_bulk
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import create_topic
from tests.support.http_proxy import Answer, HttpProxy, Request

RECORDS = 1000
GRACE = 1.0
ENDING_SECONDS = 5.0


class StallingProxy(HttpProxy):
    """Never answers a PUT of an index until it is released."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.stalled = threading.Event()
        self.released = threading.Event()

    def answer(self, request: Request) -> Answer | None:
        if request.method == "PUT" and request.path.endswith(".index.json"):
            self.stalled.set()
            self.released.wait()
        return self.forward(request)


def test_sigterm_ends_the_process_within_its_grace_while_the_store_stalls(
    broker: KafkaBroker, moto: MotoServer, topic_name: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    create_topic(broker.bootstrap, topic_name)
    produce_bulk(broker.bootstrap, topic_name, RECORDS, partitions=1, value_bytes=100, seed=seed)
    site = store_site(broker.bootstrap, moto, topic_name)
    with StallingProxy(moto.endpoint_url) as proxy:
        behind = replace(site, store_options=("--endpoint-url", proxy.endpoint_url))
        with behind.start(topic_name, "--chunk-records", 100, "--grace", f"{GRACE:g}s", "--json") as archiver:
            archiver.wait_for(proxy.stalled.is_set, 60, "the request that stalls")
            done = archiver.terminate(GRACE + LEAVE_SECONDS + ENDING_SECONDS)
        proxy.released.set()
    assert done.exit_code == 0, done.transcript
    assert " abandoned " in done.stderr and " unanswered " in done.stderr
    assert '"partitions"' in done.stdout
    assert site.marker(topic_name)["next_offset"] is None
    site.run(topic_name, "--once", "--chunk-records", 100)
    assert len(site.exact(topic_name).records) == RECORDS

"""A store that takes a request and never answers: the order to end is heeded all the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from archiver.cli.run import LEAVE_SECONDS
from system_test.support.archiving import Site, store_site
from system_test.support.bulk import produce_bulk
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import create_topic
from tests.support.http_proxy import Answer, HttpProxy, Request

RECORDS = 1000
GRACE = 1.0
ENDING_SECONDS = 5.0
SETTINGS = ("--chunk-records", 100, "--grace", f"{GRACE:g}s")


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


@pytest.fixture
def site(broker: KafkaBroker, moto: MotoServer, topic_name: str) -> Site:
    """A topic with RECORDS, and the archive's address without the proxy."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    create_topic(broker.bootstrap, topic_name)
    produce_bulk(broker.bootstrap, topic_name, RECORDS, partitions=1, value_bytes=100, seed=seed)
    return store_site(broker.bootstrap, moto, topic_name)


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[StallingProxy]:
    with StallingProxy(moto.endpoint_url) as proxy:
        yield proxy
        proxy.released.set()


def test_sigterm_ends_the_process_within_its_grace(site: Site, proxy: StallingProxy, topic_name: str) -> None:
    with behind(proxy, site).start(topic_name, *SETTINGS, "--json") as archiver:
        archiver.wait_for(proxy.stalled.is_set, 60, "the request that stalls")
        done = archiver.terminate(GRACE + LEAVE_SECONDS + ENDING_SECONDS)
    assert done.exit_code == 0, done.transcript
    assert " abandoned " in done.stderr and " unanswered " in done.stderr
    assert '"partitions"' in done.stdout
    assert site.marker(topic_name)["next_offset"] is None
    site.run(topic_name, "--once", *SETTINGS)
    assert len(site.exact(topic_name).records) == RECORDS


def test_a_process_that_the_group_refuses_ends_too(site: Site, proxy: StallingProxy, topic_name: str) -> None:
    settings = (*SETTINGS, "--group-instance-id", "the-same")
    with behind(proxy, site).start(topic_name, *settings) as old:
        old.wait_for(proxy.stalled.is_set, 60, "the request that stalls")
        with site.start(topic_name, *settings) as new:
            done = old.wait(60)
            assert done.exit_code == 11, done.transcript
            assert " unanswered " in done.stderr and "error: " in done.stderr
            new.wait_for(lambda: site.marker(topic_name)["next_offset"] == RECORDS, 60, "the new owner's commits")
            assert new.terminate().exit_code == 0
    assert len(site.exact(topic_name).records) == RECORDS


def behind(proxy: StallingProxy, site: Site) -> Site:
    """The same archive, its store reached through the proxy."""
    return replace(site, store_options=("--endpoint-url", proxy.endpoint_url))

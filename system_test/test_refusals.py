"""A store that refuses requests or never answers: whoever starts is told, and an order to end is obeyed."""

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
from tests.support.fault_proxy import Fault, FaultProxy, no_fault
from tests.support.http_proxy import Answer, HttpProxy, Request

RECORDS = 1000
SETTINGS = ("--chunk-records", 100)
GRACE = 1.0
ENDING_SECONDS = 5.0
WITH_GRACE = (*SETTINGS, "--grace", f"{GRACE:g}s")
each_refusal = pytest.mark.parametrize("fault", [Fault.DENIED, Fault.EXPIRED], ids=lambda fault: fault.name)


@pytest.fixture
def site(broker: KafkaBroker, moto: MotoServer, topic_name: str) -> Site:
    """A topic with RECORDS, and the archive's address without a proxy."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    create_topic(broker.bootstrap, topic_name)
    produce_bulk(broker.bootstrap, topic_name, RECORDS, partitions=1, value_bytes=100, seed=seed)
    return store_site(broker.bootstrap, moto, topic_name)


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[FaultProxy]:
    with FaultProxy(moto.endpoint_url) as proxy:
        yield proxy


def behind(proxy: HttpProxy, site: Site) -> Site:
    """Return the same archive, its store reached through the proxy."""
    return replace(site, store_options=("--endpoint-url", proxy.endpoint_url))


@each_refusal
@pytest.mark.parametrize("once", [(), ("--once",)], ids=["service", "once"])
def test_whoever_starts_is_told_at_once(
    site: Site, proxy: FaultProxy, topic_name: str, fault: Fault, once: tuple[str, ...]
) -> None:
    proxy.decide = lambda _: fault
    done = behind(proxy, site).run(topic_name, *SETTINGS, *once, check=12)
    assert "denied" in done.stderr and " retry " not in done.stderr
    assert set(proxy.operations.values()) == {1}, "nothing is asked again"


@pytest.mark.parametrize("once", [(), ("--once",)], ids=["service", "once"])
def test_a_refusal_of_the_first_claim_ends_the_run(
    site: Site, proxy: FaultProxy, topic_name: str, once: tuple[str, ...]
) -> None:
    proxy.decide = lambda request: Fault.DENIED if "partition%3D" in request.path else Fault.NONE
    done = behind(proxy, site).run(topic_name, *SETTINGS, *once, check=12)
    assert "denied" in done.stderr


def test_a_run_of_once_that_is_refused_in_the_middle_ends_with_12(
    site: Site, proxy: FaultProxy, topic_name: str
) -> None:
    proxy.decide = lambda request: Fault.DENIED if request.path.endswith(".index.json") else Fault.NONE
    done = behind(proxy, site).run(topic_name, *SETTINGS, "--once", check=12)
    assert "denied" in done.stderr and " retry " not in done.stderr
    proxy.decide = no_fault
    site.run(topic_name, "--once", *SETTINGS)
    assert len(site.exact(topic_name).records) == RECORDS


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
def stalling(moto: MotoServer) -> Iterator[StallingProxy]:
    with StallingProxy(moto.endpoint_url) as proxy:
        yield proxy
        proxy.released.set()


def test_sigterm_ends_the_process_within_its_grace(site: Site, stalling: StallingProxy, topic_name: str) -> None:
    with behind(stalling, site).start(topic_name, *WITH_GRACE, "--json") as archiver:
        archiver.wait_for(stalling.stalled.is_set, 60, "the request that stalls")
        done = archiver.terminate(GRACE + LEAVE_SECONDS + ENDING_SECONDS)
    assert done.exit_code == 0, done.transcript
    assert " abandoned " in done.stderr and " unanswered " in done.stderr
    assert '"partitions"' in done.stdout
    assert site.marker(topic_name)["next_offset"] is None
    site.run(topic_name, "--once", *WITH_GRACE)
    assert len(site.exact(topic_name).records) == RECORDS


def test_a_process_that_the_group_refuses_ends_too(site: Site, stalling: StallingProxy, topic_name: str) -> None:
    settings = (*WITH_GRACE, "--group-instance-id", "the-same")
    with behind(stalling, site).start(topic_name, *settings) as old:
        old.wait_for(stalling.stalled.is_set, 60, "the request that stalls")
        with site.start(topic_name, *settings) as new:
            done = old.wait(60)
            assert done.exit_code == 11, done.transcript
            assert " unanswered " in done.stderr and "error: " in done.stderr
            new.wait_for(lambda: site.marker(topic_name)["next_offset"] == RECORDS, 60, "the new owner's commits")
            assert new.terminate().exit_code == 0
    assert len(site.exact(topic_name).records) == RECORDS

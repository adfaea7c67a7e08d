"""Refusals of the store: a running service waits until they pass, whoever starts hears of them at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from system_test.support.archiving import Site, store_site
from system_test.support.bulk import produce_bulk
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import MotoServer
from system_test.support.topics import create_topic
from tests.support.fault_proxy import Fault, FaultProxy, no_fault

RECORDS = 1000
SETTINGS = ("--chunk-records", 100)
each_refusal = pytest.mark.parametrize("fault", [Fault.DENIED, Fault.EXPIRED], ids=lambda fault: fault.name)


@pytest.fixture
def site(broker: KafkaBroker, moto: MotoServer, topic_name: str) -> Site:
    """An empty topic, and the archive's address without the proxy."""
    create_topic(broker.bootstrap, topic_name)
    return store_site(broker.bootstrap, moto, topic_name)


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[FaultProxy]:
    with FaultProxy(moto.endpoint_url) as proxy:
        yield proxy


def behind(proxy: FaultProxy, site: Site) -> Site:
    return replace(site, store_options=("--endpoint-url", proxy.endpoint_url))


def produce(site: Site, topic: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    produce_bulk(site.bootstrap, topic, RECORDS, partitions=1, value_bytes=100, seed=seed)


@each_refusal
@pytest.mark.parametrize("once", [(), ("--once",)], ids=["service", "once"])
def test_whoever_starts_is_told_at_once(
    site: Site, proxy: FaultProxy, topic_name: str, fault: Fault, once: tuple[str, ...]
) -> None:
    produce(site, topic_name)
    proxy.decide = lambda _: fault
    done = behind(proxy, site).run(topic_name, *SETTINGS, *once, check=12)
    assert "denied" in done.stderr and " retry " not in done.stderr
    assert set(proxy.operations.values()) == {1}, "nothing is asked again"


@pytest.mark.parametrize("once", [(), ("--once",)], ids=["service", "once"])
def test_a_refusal_of_the_first_claim_ends_the_run(
    site: Site, proxy: FaultProxy, topic_name: str, once: tuple[str, ...]
) -> None:
    produce(site, topic_name)
    proxy.decide = lambda request: Fault.DENIED if "partition%3D" in request.path else Fault.NONE
    done = behind(proxy, site).run(topic_name, *SETTINGS, *once, check=12)
    assert "denied" in done.stderr


def test_a_run_of_once_that_is_refused_in_the_middle_ends_with_12(
    site: Site, proxy: FaultProxy, topic_name: str
) -> None:
    produce(site, topic_name)
    proxy.decide = lambda request: Fault.DENIED if request.path.endswith(".index.json") else Fault.NONE
    done = behind(proxy, site).run(topic_name, *SETTINGS, "--once", check=12)
    assert "denied" in done.stderr and " retry " not in done.stderr
    proxy.decide = no_fault
    site.run(topic_name, "--once", *SETTINGS)
    assert len(site.exact(topic_name).records) == RECORDS

"""Refusals of the store: a running service waits until they pass, whoever starts hears of them at once."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

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


def archived(site: Site, topic: str) -> int:
    """Up to which offset the archive holds the topic."""
    try:
        return site.marker(topic)["next_offset"] or 0
    except ClientError:
        return 0


def produce(site: Site, topic: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    produce_bulk(site.bootstrap, topic, RECORDS, partitions=1, value_bytes=100, seed=seed)


@each_refusal
def test_a_running_service_continues_when_a_refusal_passed(
    site: Site, proxy: FaultProxy, topic_name: str, fault: Fault
) -> None:
    produce(site, topic_name)
    with behind(proxy, site).start(topic_name, *SETTINGS) as archiver:
        archiver.wait_for(lambda: archived(site, topic_name) == RECORDS, 60, "the first commits")
        proxy.decide = lambda _: fault
        produce(site, topic_name)
        archiver.wait_for(lambda: archiver.stderr.count(" retry ") >= 4, 60, "some tries")
        assert archived(site, topic_name) == RECORDS
        proxy.decide = no_fault
        archiver.wait_for(lambda: archived(site, topic_name) == 2 * RECORDS, 60, "the rest is committed")
        done = archiver.terminate()
    assert done.exit_code == 0, done.transcript
    assert " retry " in done.stderr and "was denied" in done.stderr and " stopped " not in done.stderr
    checked = site.exact(topic_name)
    assert (len(checked.records), checked.gaps, checked.marker["epoch"]) == (2 * RECORDS, [], 1)


def test_a_refusal_that_ends_within_the_grace_loses_nothing(site: Site, proxy: FaultProxy, topic_name: str) -> None:
    produce(site, topic_name)
    with behind(proxy, site).start(topic_name, *SETTINGS) as archiver:
        archiver.wait_for(lambda: archived(site, topic_name) == RECORDS, 60, "the first commits")
        proxy.decide = lambda _: Fault.DENIED
        produce(site, topic_name)
        archiver.wait_for(lambda: archiver.stderr.count(" retry ") >= 5, 60, "waits of seconds")
        archiver.signal(signal.SIGTERM)
        time.sleep(0.5)  # while the flush is refused
        proxy.decide = no_fault
        done = archiver.wait(30)
    assert done.exit_code == 0, done.transcript
    assert len(site.exact(topic_name).records) > RECORDS


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

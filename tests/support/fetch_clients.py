"""The two clients that fetch, for tests that both must pass."""

from typing import Any

import pytest
from confluent_kafka import Consumer

from archiver.ingest import kafka_source
from blockgz.kafka.connection import make_client
from blockgz.kafka.fetching import KERNEL, ConfluentClient, FetchClient, KernelClient

needs_kernel = pytest.mark.skipif(not KERNEL, reason=f"there is no kernel: {KERNEL.why_not}")
CLIENTS = [pytest.param("kernel", marks=needs_kernel), "confluent"]


def fetch_with(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has KafkaSource fetch with one of the two."""
    if kind == "confluent":
        monkeypatch.setattr(kafka_source, "kernel_takes", lambda _: False)


def fetch_client(kind: str, settings: dict[str, Any]) -> FetchClient:
    """One of the two, made as KafkaSource makes it."""
    if kind == "kernel":
        client: FetchClient = make_client(KernelClient, settings)
        return client
    return ConfluentClient(make_client(Consumer, settings))

"""Waiting for a broker: long where it is slow, short where nobody listens."""

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from .kafka_settings import BROKER_DEADLINE_SECONDS, DENIED, UNREACHABLE, kafka_failure

REFUSED_DEADLINE_SECONDS = 2.0
"""How long all brokers may refuse the connection before they are taken to be down."""
ATTEMPT_SECONDS = 0.5


class Troubles:
    """What a client reported about its connections: an `error_cb` that remembers."""

    denied: KafkaError | None
    first: KafkaError | None
    """The first failure to connect, the most telling of them."""
    all_down: bool

    def __init__(self) -> None:
        self.forget()

    def __call__(self, error: KafkaError) -> None:
        """Remembers an error; librdkafka calls this while the client is polled."""
        if error.code() in DENIED:
            self.denied = self.denied or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.first = self.first or error

    def forget(self) -> None:
        """The troubles are over."""
        self.denied = self.first = None
        self.all_down = False


def cluster_metadata(client: Any, troubles: Troubles, address: str) -> Any:
    """The cluster's metadata as soon as a broker answers; `client` reports its errors to `troubles`.

    Raises NotPermitted or BrokerUnreachable.
    """
    what = f"cannot reach a broker at {address}"
    began = time.monotonic()
    while True:
        try:
            metadata = client.list_topics(timeout=ATTEMPT_SECONDS)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            client.poll(0)
        else:
            client.poll(0)
            troubles.forget()
            return metadata
        waited = time.monotonic() - began
        if troubles.denied is not None:
            raise kafka_failure(troubles.denied, what)
        if failure.code() not in UNREACHABLE:
            raise kafka_failure(failure, what)
        if waited >= (REFUSED_DEADLINE_SECONDS if troubles.all_down else BROKER_DEADLINE_SECONDS):
            raise kafka_failure(troubles.first or failure, what)

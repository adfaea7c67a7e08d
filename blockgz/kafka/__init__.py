"""Kafka for both programs: clients, settings, fetching and producing."""

from typing import NamedTuple

# The logger of all clients: librdkafka's lines, and errors that clients report. Silent unless a program listens.
LOGGER = "blockgz.librdkafka"


class LogBounds(NamedTuple):
    """Offsets [low, end) of a partition that can be read; under read_committed the end is the last stable offset."""

    low: int
    end: int

"""Kafka for both programs: clients, settings, fetching and producing."""

LOGGER = "blockgz.librdkafka"
"""The logger of all clients: librdkafka's lines, and errors that clients report. Silent unless a program listens."""

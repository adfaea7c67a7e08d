"""Kafka to chunks: the program `archiver` and all that writes into an archive."""

"""Kafka Connect's single message transforms on archived records, by Connect's own names and settings.

Keys and values are JSON without a schema, as Connect's JsonConverter has them with `schemas.enable=false`. What a chain
does not touch goes through byte for byte. `chain.build_chain` makes a chain of settings.
"""

"""Lifelike records for the demo: shop orders with everything in them that naive backups lose."""

import random
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import orjson

SEED = 20_260
ITEMS = ("espresso beans", "paper filters", "Kännchen", "☕ mug", 'the "big" kettle', "grinder\nmanual", "scale")
CITIES = ("Lyon", "Zürich", "Kraków", "Porto", "東京", "São Paulo")
MEAN_SPACING_MS = 4000
JITTER_MS = 9000
"""More than the spacing, so that timestamps go backwards now and then, as they do with many producers."""


class DemoRecord(NamedTuple):
    """One record to produce; timestamp in ms."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


def demo_records(count: int, num_partitions: int, start_ms: int) -> Iterator[DemoRecord]:
    """`count` records from `start_ms` on; the same arguments give the same records."""
    chance = random.Random(SEED)
    for number in range(count):
        timestamp = start_ms + number * MEAN_SPACING_MS + chance.randrange(JITTER_MS)
        customer = chance.randrange(2000)
        key: bytes | None = b"customer-%d" % customer
        partition = crc32(b"customer-%d" % customer) % num_partitions
        headers: list[tuple[str, str | bytes | None]] = [("trace", b"%016x" % chance.getrandbits(64))]
        value: bytes | None = orjson.dumps(
            {
                "order": number,
                "customer": customer,
                "city": chance.choice(CITIES),
                "items": [
                    {"name": chance.choice(ITEMS), "pieces": chance.randint(1, 5), "cents": chance.randint(199, 89_900)}
                    for _ in range(chance.randint(1, 5))
                ],
                "note": " ".join(chance.choices(ITEMS, k=chance.randint(0, 6))),
                "paid": chance.random() < 0.9,
            }
        )
        match number % 100:
            case 7:
                value = None  # a tombstone
            case 23:
                key = None
            case 41:
                headers = [("hop", b"gateway"), ("hop", b"checkout"), ("hop", None), ("note", "größer".encode())]
            case 59:
                value = chance.randbytes(chance.randint(1, 700))
            case 73:
                value, headers = b"", []
        yield DemoRecord(partition, timestamp, key, value, headers)

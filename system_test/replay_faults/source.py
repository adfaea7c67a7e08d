"""The archive that is replayed, and its records as they were made."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from index_format.records import Record
from system_test.replay_faults.schedule import SOURCES
from tests.support.archives import ArchiveWriter

TOPIC = "orders"
IDENTITY = "made-as"
"""The header that tells a record from all others."""
FIRST_MS = 1_760_000_000_000
CHUNK_RECORDS = 400
BLOCK_BYTES = 40_000

Source = Mapping[int, Sequence[Record]]
"""Records by partition."""


def archive(root: Path, seed: str, records: int, incarnation: int = 1) -> Source:
    """Writes so many records, shared unevenly by the partitions, as an incarnation of the topic."""
    randomly = random.Random(seed)
    weights = [randomly.uniform(0.3, 1.0) for _ in range(SOURCES)]
    writer = ArchiveWriter(root)
    made = {}
    for number, weight in enumerate(weights):
        chosen = _records(randomly, f"{incarnation}/{number}", int(records * weight / sum(weights)))
        partition = writer.partition(TOPIC, number, incarnation=incarnation)
        for start in range(0, len(chosen), CHUNK_RECORDS):
            partition.commit(chosen[start : start + CHUNK_RECORDS], block_bytes=BLOCK_BYTES)
        made[number] = chosen
    return made


def _records(randomly: random.Random, name: str, count: int) -> list[Record]:
    """With holes between offsets, keys and values that are null, and values of many sizes."""
    text = randomly.randbytes(4000).hex().encode()
    offset, made = randomly.randrange(100), []
    for number in range(count):
        offset += 1 if randomly.random() < 0.97 else randomly.randint(2, 9)
        key = None if randomly.random() < 0.2 else b"key %d" % randomly.randrange(500)
        size = randomly.choice((0, 20, 400, 3000))
        value = None if key is not None and randomly.random() < 0.05 else text[:size]
        headers = ((IDENTITY, f"{name}/{number}".encode()),)
        made.append(Record(offset, FIRST_MS + number, 0, key, value, headers))
    return made

"""Single records by offset, many times over, against the bare work that each must do."""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
from isal import isal_zlib

from index_format.addresses import LocalAddress
from replayer.archive import Archive, ArchivedPartition
from replayer.lookup import Found, look_up
from replayer.stores.counting import CountingReader
from replayer.stores.local import LocalReader

SEED = 11
MAX_REQUESTS_COLD = 3


@dataclass(frozen=True)
class LookupFigures:
    """Milliseconds of single look-ups, and what the most expensive one fetched."""

    count: int
    cold_p50_ms: float
    warm_p50_ms: float
    warm_p99_ms: float
    bare_p50_ms: float
    """Reading and inflating one block of the same archive, with nothing around it."""
    most_requests: int
    data_share: float
    """Bytes of data fetched by all look-ups, as a share of their chunks' sizes."""


def measure_lookups(folder: Path, topic: str, partitions: int, records: int, count: int) -> LookupFigures:
    """`count` random offsets, each cold (marker, index and block) and then with the index known.

    Exits where a look-up finds another record than the one asked for, or needs more requests than it may.
    """
    return asyncio.run(_measure(folder, topic, partitions, records, count))


async def _measure(folder: Path, topic: str, partitions: int, records: int, count: int) -> LookupFigures:
    chance = random.Random(SEED)
    places = [(chance.randrange(partitions), chance.randrange(records // partitions)) for _ in range(count)]
    cold, warm, bare, requests = [], [], [], []
    fetched = sizes = 0
    opened: dict[int, ArchivedPartition] = {}
    for partition, offset in places:
        reader = CountingReader(LocalReader(LocalAddress(str(folder))))
        started = time.perf_counter()
        cold_partition = await Archive(reader).open_partition(topic, partition)
        found = await look_up(cold_partition, offset)
        cold.append(time.perf_counter() - started)
        if not isinstance(found, Found) or found.record.offset != offset or reader.requests > MAX_REQUESTS_COLD:
            raise SystemExit(f"{topic}:{partition}:{offset} gave {found} in {reader.requests} requests")
        requests.append(reader.requests)
        fetched, sizes = fetched + reader.data_bytes_fetched, sizes + found.chunk_bytes
        known = opened.setdefault(partition, cold_partition)
        await look_up(known, offset)
        started = time.perf_counter()
        await look_up(known, offset)
        warm.append(time.perf_counter() - started)
        bare.append(_bare(folder, known, offset))
    return LookupFigures(
        count=count,
        cold_p50_ms=statistics.median(cold) * 1000,
        warm_p50_ms=statistics.median(warm) * 1000,
        warm_p99_ms=statistics.quantiles(warm, n=100)[98] * 1000,
        bare_p50_ms=statistics.median(bare) * 1000,
        most_requests=max(requests),
        data_share=fetched / sizes,
    )


def _bare(folder: Path, partition: ArchivedPartition, offset: int) -> float:
    home = folder / f"topic={partition.topic}" / f"partition={partition.partition:05d}"
    index_path = sorted(home.glob("*.index.json"))[0]
    index = orjson.loads(index_path.read_bytes())
    block = next(block for block in index["chunks"] if block["last_record_offset"] >= offset)
    started = time.perf_counter()
    with (home / index["data"]["name"]).open("rb") as file:
        file.seek(block["byte_offset"])
        isal_zlib.decompress(file.read(block["byte_length"]), 31)
    return time.perf_counter() - started

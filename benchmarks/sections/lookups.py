"""Single records by offset: latency and bytes, cold and warm, one at a time and 32 at once, folder and S3.

Cold is marker, index and block; warm is the block alone. Beside each look-up stands the work that it cannot do
without: reading the same block's bytes, over S3 with the client library that we use, and inflating them.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from isal import isal_zlib

from benchmarks.data import TopicShape
from benchmarks.figures import Json, percentile
from benchmarks.site import Site
from benchmarks.tables import Table, percent
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, look_up
from blockgz.archive.partition import ArchivedPartition, Chunk
from blockgz.store.address import S3Settings, parse_address
from blockgz.store.opening import open_reader
from blockgz.store.reader import CountingReader, ObjectReader
from index_format.marker import block_at_or_after

TITLE = "Look one record up by its offset (1 KB records, 4 partitions), milliseconds"
SEED = 11
AT_ONCE = 32
MOST_REQUESTS = 3
LOOKUPS = 200
BLOCKS = {"64 KiB": "64KiB", "1 MiB": "1MiB", "4 MiB": "4MiB"}


@dataclass
class Times:
    """Seconds of every look-up, and what they asked the store for."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    at_once: list[float] = field(default_factory=list)
    """Of whole rounds of `AT_ONCE`."""
    requests: set[int] = field(default_factory=set)
    data_bytes: int = 0
    chunk_bytes: int = 0


Bare = Callable[[Chunk, int, int], Awaitable[float]]
"""Seconds to read bytes [start, end) of a chunk's data and to inflate them."""


def measure(site: Site) -> Json:
    """Folder and S3, blocks of three sizes, and format arrow."""
    shape = site.settings.shape(share=0.5)
    cases: dict[str, tuple[str, ...]] = {f"json, {name}": ("--block-bytes", size) for name, size in BLOCKS.items()}
    cases["arrow, 1 MiB"] = ("--record-format", "arrow")
    rows: Json = {}
    for name, options in cases.items():
        rows[f"folder: {name}"] = in_folder(site, shape, options)
        rows[f"S3: {name}"] = _in_s3(site, shape, options)
        site.say(
            f"{name}: warm p50 {rows[f'folder: {name}']['warm_p50']:.2f}, S3 {rows[f'S3: {name}']['warm_p50']:.2f}"
        )
    return {"rows": rows, "ratios": ratios(rows)}


def ratios(rows: Json) -> dict[str, float]:
    """The bare work as a share of a warm look-up."""
    return {
        f"{name}: bare read and inflate / warm p50": row["bare_p50"] / row["warm_p50"] for name, row in rows.items()
    }


def in_folder(site: Site, shape: TopicShape, options: tuple[str, ...]) -> Json:
    folder = site.archived(shape, *options)

    async def bare(chunk: Chunk, start: int, end: int) -> float:
        started = time.perf_counter()
        with (folder / chunk.data_key).open("rb") as file:
            file.seek(start)
            isal_zlib.decompress(file.read(end - start), 31)
        return time.perf_counter() - started

    async def all_of_it() -> Json:
        async with open_reader(parse_address(str(folder))) as reader:
            return await _looked_up(reader, shape, bare)

    return asyncio.run(all_of_it())


def _in_s3(site: Site, shape: TopicShape, options: tuple[str, ...]) -> Json:
    address = site.store.url(site.new_name("lookups"))
    buffer = site.folder("buffer")
    endpoint = site.store.endpoint_url
    where = ("--endpoint-url", endpoint, "--buffer-dir", buffer)
    site.archive_to(address, shape, *options, *where, env=site.store.env)
    prefix = urlsplit(address).path.lstrip("/") + "/"
    bucket = site.store.bucket

    async def all_of_it() -> Json:
        config = AioConfig(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        async with get_session().create_client("s3", endpoint_url=endpoint, config=config) as client:

            async def bare(chunk: Chunk, start: int, end: int) -> float:
                started = time.perf_counter()
                given = {"Bucket": bucket, "Key": prefix + chunk.data_key, "Range": f"bytes={start}-{end - 1}"}
                answer = await client.get_object(**given)
                async with answer["Body"] as body:
                    isal_zlib.decompress(await body.read(), 31)
                return time.perf_counter() - started

            async with open_reader(parse_address(address), S3Settings(endpoint)) as reader:
                return await _looked_up(reader, shape, bare)

    with mock.patch.dict(os.environ, site.store.env):
        return asyncio.run(all_of_it())


async def _looked_up(reader: ObjectReader, shape: TopicShape, bare: Bare) -> Json:
    chance = random.Random(SEED)
    each = shape.records // shape.partitions
    places = [(chance.randrange(shape.partitions), chance.randrange(each)) for _ in range(LOOKUPS)]
    times = Times()
    opened: dict[int, ArchivedPartition] = {}
    for partition, offset in places:
        counting = CountingReader(reader)
        cold = await _timed(times.cold, _cold(counting, shape.name, partition, offset))
        times.requests.add(counting.requests)
        times.data_bytes += counting.data_bytes_fetched
        times.chunk_bytes += cold[1].chunk_bytes
        known = opened.setdefault(partition, cold[0])
        chunk, start, end = await _block(known, offset)
        await _timed(times.warm, _found(known, offset))
        times.bare.append(await bare(chunk, start, end))
    if max(times.requests) > MOST_REQUESTS:
        raise SystemExit(f"look-ups took {sorted(times.requests)} requests")
    for first in range(0, LOOKUPS - AT_ONCE + 1, AT_ONCE):
        batch = [_found(opened[partition], offset) for partition, offset in places[first : first + AT_ONCE]]
        await _timed(times.at_once, asyncio.gather(*batch))
    return _row(times)


def _row(times: Times) -> Json:
    ms = {name: [value * 1000 for value in getattr(times, name)] for name in ("cold", "warm", "bare")}
    row: Json = {f"{name}_p50": statistics.median(values) for name, values in ms.items()}
    row |= {f"{name}_p99": percentile(values, 99) for name, values in ms.items()}
    return row | {
        "at_once_ms_each": statistics.median(times.at_once) * 1000 / AT_ONCE,
        "requests": max(times.requests),
        "bytes": times.data_bytes / LOOKUPS,
        "share_of_chunk": times.data_bytes / times.chunk_bytes,
    }


async def _cold(
    reader: CountingReader, topic: str, partition: int, offset: int
) -> tuple[ArchivedPartition, FoundRecord]:
    opened = await ArchiveReader(reader).open_partition(topic, partition)
    return opened, await _found(opened, offset)


async def _found(partition: ArchivedPartition, offset: int) -> FoundRecord:
    found = await look_up(partition, offset)
    if not isinstance(found, FoundRecord) or found.record.offset != offset:
        raise SystemExit(f"{partition}:{offset} gave {found}")
    return found


async def _block(partition: ArchivedPartition, offset: int) -> tuple[Chunk, int, int]:
    entry = await partition.chunk_at_or_after(offset)
    assert entry is not None
    chunk = await partition.chunk(entry)
    number = block_at_or_after(chunk.index.blocks, offset)
    assert number is not None
    block = chunk.index.blocks[number]
    return chunk, block.byte_offset, block.byte_end


async def _timed(times: list[float], work: Awaitable[Any]) -> Any:
    started = time.perf_counter()
    result = await work
    times.append(time.perf_counter() - started)
    return result


def tables(result: Json) -> list[Table]:
    times = ("cold p50", "p99", "warm p50", "p99", f"{AT_ONCE} at once, each", "bare p50", "bare / warm")
    head = ("", *times, "requests", "KB", "of the chunk")
    rows = [
        (
            name,
            *(f"{row[key]:.2f}" for key in ("cold_p50", "cold_p99", "warm_p50", "warm_p99")),
            f"{row['at_once_ms_each']:.2f}",
            f"{row['bare_p50']:.2f}",
            percent(row["bare_p50"] / row["warm_p50"]),
            str(row["requests"]),
            f"{row['bytes'] / 1e3:,.0f}",
            f"{row['share_of_chunk']:.2%}",
        )
        for name, row in result["rows"].items()
    ]
    return [Table(TITLE, head, rows)]

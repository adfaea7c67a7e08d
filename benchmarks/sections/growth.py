"""How cost grows with records, chunks and partitions, and what planning a look-up costs in a very long archive.

The slope is that of log time over log size: 1 is linear, 0 flat. What every run costs, start-up above all, is taken
off first: the time of a topic of 64 records.
"""

import asyncio
import random
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.data import TopicShape
from benchmarks.figures import Json, marginal, row, slope
from benchmarks.measure import Action, Cost, interleaved, program
from benchmarks.sections.replay import replayed
from benchmarks.site import Site, clear
from benchmarks.synthetic import RECORDS_IN_CHUNK, TOPIC, BareReader, archive_of, write_bare_chain
from benchmarks.tables import Table
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, look_up
from blockgz.errors import Verdict
from blockgz.store.address import LocalAddress
from blockgz.store.reader import CountingReader
from replayer.verify.report import Depth, PartitionFindings
from replayer.verify.verifying import verify_partition
from tests.support.memory_reader import MemoryReader

SIZES = (1, 4, 16)
TINY = TopicShape(64, 1024)
CHUNKS = (100, 100_000)
VERIFIED_CHUNKS = (3_000, 300_000)
_LOOKUPS = 200
_SEED = 5


def measure(site: Site) -> Json:
    rows: Json = {}
    slopes: dict[str, float] = {}
    rates: dict[str, float] = {}
    for kind, grow in {"records": _records, "chunks": _chunks, "partitions": _partitions}.items():
        found, exponents = grow(site)
        rows |= {f"{kind}: {name}": each for name, each in found.items()}
        if kind == "records":
            rates = _rates(found)
        slopes |= {f"{kind}: {name}": exponent for name, exponent in exponents.items()}
        site.say(f"{kind}: {exponents}")
    few, many = (planning(chunks) for chunks in CHUNKS)
    return {
        "rows": rows,
        "slopes": slopes,
        "rates": rates,
        "verifying": {str(chunks): verifying(site, chunks) for chunks in VERIFIED_CHUNKS},
        "planning": {str(chunks): each for chunks, each in zip(CHUNKS, (few, many), strict=True)},
        "ratios": {"planning in 100 chunks / in 100,000": few["p50_ms"] / many["p50_ms"]},
    }


Growth = tuple[Json, dict[str, float]]


def _records(site: Site) -> Growth:
    """Archive, replay and deep verification of 1x, 4x and 16x as many records."""
    shapes = [TINY, *(site.settings.shape(share=size / SIZES[-1]) for size in SIZES)]
    folders = {shape: site.archived(shape) for shape in shapes}

    def verified(shape: TopicShape) -> Cost:
        return program("replayer", "verify", "--deep", "-a", folders[shape]).cost

    kinds: dict[str, Callable[[TopicShape], Cost]] = {
        "archive": site.archiving,
        "replay": lambda shape: replayed(site=site, shape=shape, folder=folders[shape]),
        "verify --deep": verified,
    }
    found = _grown(site, kinds, {shape.records: shape for shape in shapes})
    for folder in folders.values():
        clear(folder)
    return found


def _chunks(site: Site) -> Growth:
    """The same records in 1x, 4x and 16x as many chunks: archived, and verified deep."""
    shape = site.settings.shape(share=0.25)
    chosen = {4 * size: shape.records // (4 * size) for size in SIZES}
    folders = {count: site.archived(shape, "--chunk-records", each) for count, each in chosen.items()}
    kinds: dict[str, Callable[[int], Cost]] = {
        "archive": lambda count: site.archiving(shape, "--chunk-records", chosen[count]),
        "verify --deep": lambda count: program("replayer", "verify", "--deep", "-a", folders[count]).cost,
    }
    found = _grown(site, kinds, {count: count for count in chosen})
    for folder in folders.values():
        clear(folder)
    return found


def _partitions(site: Site) -> Growth:
    """The same records in 1x, 4x and 16x as many partitions."""
    shapes = {4 * size: site.settings.shape(share=0.25, partitions=4 * size) for size in SIZES}
    return _grown(site, {"archive": site.archiving}, shapes)


def _grown(site: Site, kinds: dict, cases: dict) -> Growth:  # type: ignore[type-arg]
    """Every kind of work for every size, interleaved; of records the first size is the tiny one."""
    actions: dict[str, Action] = {
        f"{kind}, {size:,}": lambda work=work, case=case: work(case)
        for kind, work in kinds.items()
        for size, case in cases.items()
    }
    measured = interleaved(actions, site.settings.runs, site.say)
    rows = {name: row(costs) for name, costs in measured.items()}
    slopes = {}
    for kind in kinds:
        seconds = [(size, rows[f"{kind}, {size:,}"]["seconds"]) for size in cases]
        peaks = [(size, rows[f"{kind}, {size:,}"]["peak_bytes"]) for size in cases]
        is_tiny_first = TINY in cases.values()
        slopes[f"{kind}, time"] = slope(marginal(seconds) if is_tiny_first else seconds)
        slopes[f"{kind}, memory"] = slope(peaks[1:] if is_tiny_first else peaks)
    return rows, slopes


def _rates(rows: Json) -> dict[str, float]:
    """Records a second between the smallest and the largest run of each kind: what start-up costs is in both."""
    ends: dict[str, list[tuple[int, float]]] = {}
    for name, each in rows.items():
        kind, _, size = name.partition(", ")
        ends.setdefault(kind, []).append((int(size.replace(",", "")), each["seconds"]))
    return {
        kind: (points[-1][0] - points[0][0]) / max(1e-9, points[-1][1] - points[0][1]) for kind, points in ends.items()
    }


def planning(chunks: int) -> Json:
    """Cold look-ups at random places of an archive of so many chunks, in memory: the store costs nothing."""
    stored = archive_of(chunks)

    async def looked_up() -> Json:
        chance = random.Random(_SEED)
        times, requests = [], []
        for _ in range(_LOOKUPS):
            offset = chance.randrange(chunks * RECORDS_IN_CHUNK)
            reader = CountingReader(MemoryReader(stored))
            started = time.perf_counter()
            found = await look_up(await ArchiveReader(reader).open_partition(TOPIC, 0), offset)
            times.append(time.perf_counter() - started)
            requests.append(reader.requests)
            if not isinstance(found, FoundRecord) or found.record.offset != offset:
                raise SystemExit(f"offset {offset} of {chunks} chunks gave {found}")
        return {"p50_ms": statistics.median(times) * 1000, "requests": max(requests), "objects": len(stored)}

    return asyncio.run(looked_up())


def verifying(site: Site, chunks: int) -> Json:
    """The check of so many chunks' chain and indexes, by a process of its own; the store makes chunks when asked."""
    folder = site.folder("chain")
    write_bare_chain(folder, chunks)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found: Json = pool.submit(verified, str(folder), chunks).result()
    clear(folder)
    return found


def verified(folder: str, chunks: int) -> Json:
    """Verifies; the peak is what the process had at most, all of Python included."""

    async def report() -> PartitionFindings:
        archive = ArchiveReader(BareReader(LocalAddress(folder), chunks))
        return await verify_partition(archive, TOPIC, 0, Depth.STRUCTURE, lambda *_: None)

    started = time.perf_counter()
    found = asyncio.run(report())
    if (found.verdict, found.checked_chunks) != (Verdict.OK, chunks):
        raise SystemExit(f"{chunks} chunks gave {found.verdict}: {found.damage[:1]}")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - started, "peak_bytes": peak}


def tables(result: Json) -> list[Table]:
    curves = [
        (name, f"{each['seconds']:.2f}", f"{each['cpu_seconds']:.2f}", f"{each['peak_bytes'] / 1e6:,.0f}")
        for name, each in result["rows"].items()
    ]
    slopes = [(name, f"{exponent:.2f}") for name, exponent in result["slopes"].items()]
    rates = [(name, f"{rate:,.0f}") for name, rate in result["rates"].items()]
    plans = [
        (f"{int(chunks):,}", f"{each['p50_ms']:.2f}", str(each["requests"]))
        for chunks, each in result["planning"].items()
    ]
    return [
        Table("Growth", ("", "seconds", "CPU s", "peak MB"), curves),
        Table("Exponents of growth: 1 is linear, 0 flat", ("", "exponent"), slopes),
        Table("Without start-up", ("", "records/s"), rates),
        Table(
            "Verification of chain and indexes by the chunks of a partition; making the chunks is in the time",
            ("chunks", "seconds", "peak MB"),
            [
                (f"{int(chunks):,}", f"{each['seconds']:.1f}", f"{each['peak_bytes'] / 1e6:,.0f}")
                for chunks, each in result.get("verifying", {}).items()
            ],
        ),
        Table("A cold look-up by the chunks of a partition", ("chunks", "p50 ms", "requests"), plans),
    ]

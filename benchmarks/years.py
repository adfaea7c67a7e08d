"""What maintenance does for an archive that lives for years: a year of chunks, maintained every night, in memory.

`python -m benchmarks.years` prints a line a week; `--plot FILE.svg` draws them. One partition is run, for partitions
share nothing: an archive of 50 has 50 times as much. Chunks come every 30 s. Every night `compact`,
`prune --keep 90d` and `gc` run on a clock that is simulated.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import click

from archiver.commit.operations import Driver, UnreadLog
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.compact import Compaction, PlannedCompaction, compact
from archiver.maintain.gc import plan_sweep
from archiver.maintain.planned import one_by_one
from archiver.maintain.prune import Keep, PlannedPruning, prune_partition
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, look_up
from blockgz.store.reader import CountingReader
from index_format.marker import decode_marker
from tests.support.archives import MemoryArchiveWriter, PartitionWriter, records
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import Kept, MemoryStore

DAY = 86_400
FIRST = 1_760_000_000
"""When the first chunk is committed, in seconds since 1970."""
GRACE = 7 * DAY
ROWS = 2
"""Records of a chunk."""
LOOK_UPS = 100
CHUNK_BYTES = 128 << 20
MERGE = Compaction(MergeLimits(CHUNK_BYTES // 2, CHUNK_BYTES))


class Week(NamedTuple):
    """How the archive of one partition stood at the end of a week."""

    number: int
    objects: int
    without: int
    """Objects that there would be if nobody had maintained it."""
    stored_bytes: int
    marker_bytes: int
    chunks: int
    requests: float
    """Of a look-up, the marker's and those of catalogs, index and block, nothing known before."""
    seconds: float
    """Of the week's maintenance."""


@dataclass
class StoreWriter(MemoryArchiveWriter):
    """Writes an archive into a store."""

    store: MemoryStore = field(default_factory=MemoryStore)
    put_objects: int = 0

    def put(self, key: str, body: bytes) -> None:
        self.put_objects += key not in self.store.objects
        self.store.objects[key] = Kept(body, None, self.store.now)


class Year:
    """One partition, written and maintained."""

    def __init__(self, chunks_a_day: int, keep_days: int) -> None:
        self.store = MemoryStore()
        self.store.now = FIRST
        self.writer = StoreWriter(store=self.store)
        self.partition: PartitionWriter = self.writer.partition("orders", 0)
        self._chunks_a_day, self._keep_days = chunks_a_day, keep_days
        self._next_offset = 0

    def write_a_day(self) -> None:
        """The chunks of a day, from the marker as maintainers left it."""
        stored = self.store.get(self.partition.keys.marker)
        assert stored is not None
        self.partition.marker = decode_marker(stored.body)
        # The marker of each commit would be overwritten by the next one.
        self.partition.store_marker = lambda: None  # type: ignore[method-assign]
        for _ in range(self._chunks_a_day):
            self.store.now += DAY / self._chunks_a_day
            offsets = range(self._next_offset, self._next_offset + ROWS)
            self.partition.commit(
                records(offsets, timestamps=[round(self.store.now * 1000)] * ROWS), block_bytes=1 << 20
            )
            self._next_offset += ROWS
        self.partition.records.clear()
        self.partition.indexes.clear()
        PartitionWriter.store_marker(self.partition)

    def maintain(self, buffers: BufferFolder) -> None:
        driver = Driver(self.store, UnreadLog(), _never, lambda: True, clock=self.store.clock)
        tools = RewriteTools(driver, self.store, buffers, CHUNK_BYTES, 1 << 26)
        plan = PlannedCompaction(
            *(self.store, None, MERGE, driver, CHUNK_BYTES),
            lambda plans: (compact(each, MERGE, tools) for each in plans),
        )
        plan.carry_out()
        keep = Keep(since_ms=round((self.store.now - self._keep_days * DAY) * 1000))
        old = PlannedPruning(self.store, None, keep, driver, one_by_one(lambda each: prune_partition(each, tools)))
        old.carry_out()
        garbage = plan_sweep(self.store, (), GRACE, wait=_never)
        garbage.carry_out()
        assert not (plan.problems or old.problems or garbage.problems)
        # What was ever stored is of interest to tests alone, and would be the whole year.
        self.store.versions.clear()

    def week(self, number: int, seconds: float) -> Week:
        """How it stands; LOOK_UPS records by chance are looked up."""
        bodies = self.store.bodies()
        marker = decode_marker(bodies[self.partition.keys.marker])
        floor = marker.pruned_before or 0
        offsets = [random.randrange(floor, self._next_offset) for _ in range(LOOK_UPS)]
        return Week(
            number,
            len(bodies),
            self.writer.put_objects,
            sum(map(len, bodies.values())),
            len(bodies[self.partition.keys.marker]),
            marker.num_chunks,
            asyncio.run(_requests(bodies, offsets)) / LOOK_UPS,
            seconds,
        )


async def _requests(bodies: dict[str, bytes], offsets: Sequence[int]) -> int:
    """Of look-ups of each of the offsets, nothing known before each."""
    requests = 0
    for offset in offsets:
        reader = CountingReader(MemoryReader(bodies))
        assert isinstance(await look_up(await ArchiveReader(reader).open_partition("orders", 0), offset), FoundRecord)
        requests += reader.requests
    return requests


def _never(attempt: int, cause: object) -> None:
    raise AssertionError(f"attempt {attempt}, though nobody else is there: {cause}")


def run(days: int, chunks_a_day: int, keep_days: int, on_week: Callable[[Week], object]) -> None:
    """A partition's life; `on_week` gets how it stands after each week."""
    year, seconds = Year(chunks_a_day, keep_days), 0.0
    with tempfile.TemporaryDirectory() as folder:
        buffers = BufferFolder(Path(folder))
        for day in range(1, days + 1):
            year.write_a_day()
            began = time.process_time()
            year.maintain(buffers)
            seconds += time.process_time() - began
            if day % 7 == 0:
                on_week(year.week(day // 7, seconds))
                seconds = 0.0
        buffers.close()


WIDTH, HEIGHT, LEFT, TOP = 360, 150, 70, 34
PANELS: Sequence[tuple[str, Callable[[Week], float], str]] = (
    ("objects", lambda week: week.objects, "{:,.0f}"),
    ("MiB stored", lambda week: week.stored_bytes / (1 << 20), "{:,.0f}"),
    ("bytes of the marker", lambda week: week.marker_bytes, "{:,.0f}"),
    ("requests of a look-up", lambda week: week.requests, "{:.1f}"),
)


def plot(weeks: Sequence[Week], partitions: int) -> str:
    """An SVG of what there is in each week, for so many partitions; lines are grey enough for light and dark."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (WIDTH + LEFT) + 20} {2 * (HEIGHT + TOP + 26)}" '
        'font-family="sans-serif" font-size="12" fill="#808890" stroke="none">'
    ]
    for number, (title, value, shown) in enumerate(PANELS):
        of_all = partitions if number < 2 else 1
        values = [of_all * value(week) for week in weeks]
        x, y = number % 2 * (WIDTH + LEFT) + LEFT, number // 2 * (HEIGHT + TOP + 26) + TOP
        parts += _panel(x, y, title, values, shown)
    return "\n".join([*parts, "</svg>\n"])


def _panel(x: int, y: int, title: str, values: Sequence[float], shown: str) -> Sequence[str]:
    top = max(values) * 1.1
    points = " ".join(
        f"{x + number * WIDTH / max(1, len(values) - 1):.1f},{y + HEIGHT * (1 - each / top):.1f}"
        for number, each in enumerate(values)
    )
    scale = [
        f'<text x="{x - 6}" y="{y + HEIGHT * (1 - share) + 4:.1f}" text-anchor="end">{shown.format(top * share)}</text>'
        f'<path d="M{x} {y + HEIGHT * (1 - share):.1f}h{WIDTH}" stroke="#808890" stroke-opacity="0.3"/>'
        for share in (0, 0.5, 1)
    ]
    return [
        f'<text x="{x}" y="{y - 12}" font-weight="bold">{title}</text>',
        *scale,
        f'<polyline points="{points}" fill="none" stroke="#2f81f7" stroke-width="2"/>',
        f'<text x="{x + WIDTH}" y="{y + HEIGHT + 18}" text-anchor="end">week {len(values)}</text>',
    ]


@click.command()
@click.option("--days", default=365, show_default=True)
@click.option("--chunks-a-day", default=2880, show_default=True)
@click.option("--keep-days", default=90, show_default=True)
@click.option("--partitions", default=50, show_default=True, help="Of the archive that is drawn.")
@click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False))
def main(days: int, chunks_a_day: int, keep_days: int, partitions: int, picture: Path | None) -> None:
    """Run a year and print a line a week."""
    weeks = list[Week]()
    print(*Week._fields, sep="\t")

    def tell(week: Week) -> None:
        weeks.append(week)
        print(*(f"{each:.1f}" if isinstance(each, float) else each for each in week), sep="\t", flush=True)
        if picture is not None:
            picture.write_text(plot(weeks, partitions))

    run(days, chunks_a_day, keep_days, tell)


if __name__ == "__main__":
    main()

"""Coverage as a picture."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from index_format.marker import ChunkEntry
from index_format.objects import Gap
from replayer.coverage import (
    LEFT,
    WIDTH,
    Axis,
    ChunkColumns,
    PartitionCoverage,
    Scale,
    TimedGap,
    axis_of,
    coverage_document,
    partition_coverage,
    sliced,
    svg,
)
from tests.support.archives import ArchiveWriter, records
from tests.support.format_objects import chunk_entry
from tests.support.opened import Opened
from tests.support.sampling import seeded_random

SPACE = {"s": "http://www.w3.org/2000/svg"}


def coverage(*chunks: tuple[int, int, int, int, int], gaps: tuple[TimedGap, ...] = ()) -> PartitionCoverage:
    """Of chunks as first offset, next offset, first time, last time, records."""
    columns = np.array([(*chunk, 1) for chunk in chunks], np.int64).reshape(-1, 6).T
    start, end = (chunks[0][0], chunks[-1][1]) if chunks else (None, None)
    return PartitionCoverage("orders", 0, start, end, ChunkColumns(*columns), gaps)


@pytest.mark.slow
def test_slices_have_all_records_and_every_gap() -> None:
    rng = seeded_random()
    for _ in range(200):
        chunks, offset, gaps = [], rng.randrange(1000), []
        for _ in range(rng.randrange(1, 30)):
            if chunks and rng.random() < 0.2:
                gaps.append(TimedGap(Gap(offset, offset + 10, "retention"), None, None))
                offset += 10
            size = rng.randrange(1, 200)
            low = rng.randrange(10_000)
            chunks.append((offset, offset + size, low, low + rng.randrange(500), rng.randrange(1, size + 1)))
            offset += size
        found = coverage(*chunks, gaps=tuple(gaps))
        for scale in ("time", "offset"):
            axis = axis_of([found], rng.randrange(1, 200), scale)
            assert axis is not None
            slices = sliced(found, axis)
            assert slices.records.sum() == pytest.approx(found.records)
            assert (slices.records >= 0).all()
            if scale == "offset":
                for gap in gaps:
                    assert slices.has_gap[axis.slice_of(gap.gap.start) : axis.slice_of(gap.gap.end - 1) + 1].all()
                parts = [Axis(axis.start + n, axis.start + n + 50, 1, "offset") for n in range(0, 5000, 50)]
                assert sum(sliced(found, each).records.sum() for each in parts) == pytest.approx(found.records)


def test_nothing_to_place() -> None:
    assert axis_of([], 10) is None
    assert axis_of([coverage()], 10, "offset") is None
    untimed = coverage((0, 5, -1, -1, 5))
    assert axis_of([untimed], 10) is None
    assert (untimed.records, untimed.untimed, untimed.times) == (5, 5, None)


def test_a_picture_by_offset(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(100, 150)))
    partition.commit(records(range(175, 200)), gaps=[Gap(150, 175, "retention")])
    rows = opened.read(_covered)
    axis = axis_of(rows, 4, "offset")
    assert axis is not None
    text = svg(rows, axis, style=False)
    assert "<style" not in text
    picture = ElementTree.fromstring(text)
    assert {name: picture.attrib[f"data-{name}"] for name in ("scale", "start", "end")} == {
        "scale": "offset",
        "start": "100",
        "end": "200",
    }
    (gap,) = picture.findall("s:g/s:rect[@class='g']", SPACE)
    assert gap.findtext("s:title", namespaces=SPACE) == "gap: offsets [150..175) (retention)"
    assert float(gap.attrib["x"]) == pytest.approx(LEFT + WIDTH / 2)
    first, last = picture.findall("s:g/s:rect[@class='r']", SPACE)
    assert first.findtext("s:title", namespaces=SPACE) == "about 50 records, 100 to 150, up to 1 chunks at once"
    assert float(last.attrib["x"]) == pytest.approx(LEFT + WIDTH * 0.75)
    bars = picture.findall("s:rect[@class='r']", SPACE)
    assert len(bars) == 3
    assert "<style" in svg(rows, axis)


async def _covered(archive: object) -> list[PartitionCoverage]:
    return [await partition_coverage(each) for each in await archive.open_topic("orders")]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_damaged_catalog_is_on_the_map(opened: Opened, writer: ArchiveWriter, tmp_path: Path) -> None:
    partition = writer.partition("orders", 0)
    for start in range(130):
        partition.commit(records([start]))
    home = tmp_path / partition.keys.home / "_catalog"
    sorted(path for path in home.rglob("*") if path.is_file())[0].write_bytes(b"torn")
    (found,) = opened.read(_covered)
    assert found.records == 130 - 64
    assert [(each.gap.start, each.gap.end) for each in found.damage] == [(0, 64)]
    assert len(found.errors) == 1
    axis = axis_of([found], 13, "offset")
    assert axis is not None
    assert 'class="d"' in svg([found], axis)


def test_short_times_are_told_to_the_millisecond() -> None:
    found = coverage((0, 10, 1_760_000_000_000, 1_760_000_000_900, 10))
    axis = axis_of([found], 10)
    assert axis is not None
    assert "2025-10-09 08:53:20.900" in svg([found], axis)
    longer = coverage((0, 10, 1_760_000_000_000, 1_760_000_090_000, 10))
    axis = axis_of([longer], 10)
    assert axis is not None
    assert "08:54:50<" in svg([longer], axis)
    assert "9000000000000001<" in svg([found], Axis(9 * 10**15, 9 * 10**15 + 2, 2))


def entry(start: int, low: int, high: int) -> ChunkEntry:
    fields = {"min_timestamp": low, "max_timestamp": high, "last_offset": start + 3, "num_records": 2}
    return chunk_entry(start, start + 5, **fields)


class Chunks:
    """A partition with chunks and gaps as given."""

    topic, partition = "orders", 0

    def __init__(self, entries: list[ChunkEntry], gaps: list[Gap]) -> None:
        self._entries = entries
        self.start_offset = self.began_at = self.floor = 0
        self.marked_gaps = gaps
        self.marker = SimpleNamespace(next_offset=10**9)

    def telling(self, gaps: Iterable[Gap]) -> Iterable[Gap]:
        return gaps

    async def walk(self, start: int, end: int) -> AsyncIterator[ChunkEntry]:
        for each in self._entries:
            yield each


def covered(entries: list[ChunkEntry], gaps: list[Gap]) -> tuple[TimedGap, ...]:
    partition: Any = Chunks(entries, gaps)
    return asyncio.run(partition_coverage(partition)).gaps


def test_the_times_around_each_gap_are_those_of_its_neighbours() -> None:
    rng = random.Random(5)
    for _ in range(200):
        entries, gaps, offset = [], [], 0
        for _ in range(rng.randrange(12)):
            if rng.random() < 0.4:
                gaps.append(Gap(offset, offset + 5, "retention"))
            else:
                high = rng.choice([-1, rng.randrange(100)])
                entries.append(entry(offset, rng.choice([-1, high]), high))
            offset += 5
        expected = []
        for gap in gaps:
            timed = [each for each in entries if each.max_timestamp >= 0]
            before = [each.max_timestamp for each in timed if each.start_offset < gap.start]
            behind = [each.min_timestamp for each in timed if each.start_offset >= gap.end and each.min_timestamp >= 0]
            expected.append(TimedGap(gap, before[-1] if before else None, behind[0] if behind else None))
        assert covered(entries, gaps) == tuple(expected)


@pytest.mark.parametrize("scale", ["time", "offset"])
def test_the_records_of_all_slices_add_up(scale: Scale) -> None:
    """However few records each slice has; those without a timestamp are in no slice of time."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(100):
        entries = []
        for number in range(rng.randrange(1, 40)):
            low = rng.choice([-1, rng.randrange(1000)])
            high = rng.choice([low, low + rng.randrange(1, 500)])
            entries.append(entry(5 * number, low, high))
        partition: Any = Chunks(entries, [])
        partition.marker.next_offset = 5 * len(entries)
        coverage = asyncio.run(partition_coverage(partition))
        axis = axis_of([coverage], rng.randrange(1, 300), scale)
        (found,) = coverage_document([coverage], axis)["partitions"]
        without = found["records_without_timestamp"] if scale == "time" else 0
        assert sum(found["records_by_slice"]) == found["records"] - without, f"seed {seed}"
        assert min(found["records_by_slice"], default=0) >= 0, f"seed {seed}"

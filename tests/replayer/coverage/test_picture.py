"""Coverage as a picture."""

import random
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from index_format.chunk_index import Gap
from replayer.coverage import (
    LEFT,
    WIDTH,
    Axis,
    ChunkColumns,
    CoverageRow,
    PartitionCoverage,
    TimedGap,
    axis_of,
    sliced,
    svg,
    topic_coverage,
)
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened

SPACE = {"s": "http://www.w3.org/2000/svg"}


def coverage(*chunks: tuple[int, int, int, int, int], gaps: tuple[TimedGap, ...] = ()) -> PartitionCoverage:
    """Of chunks as first offset, next offset, first time, last time, records."""
    columns = np.array([(*chunk, 1) for chunk in chunks], np.int64).reshape(-1, 6).T
    start, end = (chunks[0][0], chunks[-1][1]) if chunks else (None, None)
    return PartitionCoverage(0, start, end, ChunkColumns(*columns), gaps)


@pytest.mark.slow
def test_slices_have_all_records_and_every_gap() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
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
    rows = [CoverageRow("orders", each) for each in opened.read(_covered)]
    axis = axis_of([row.coverage for row in rows], 4, "offset")
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
    return await topic_coverage(await archive.open_topic("orders"))  # type: ignore[attr-defined]


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
    assert 'class="d"' in svg([CoverageRow("orders", found)], axis)


def test_short_times_are_told_to_the_millisecond() -> None:
    found = coverage((0, 10, 1_760_000_000_000, 1_760_000_000_900, 10))
    axis = axis_of([found], 10)
    assert axis is not None
    assert "2025-10-09 08:53:20.900" in svg([CoverageRow("orders", found)], axis)
    longer = coverage((0, 10, 1_760_000_000_000, 1_760_000_090_000, 10))
    axis = axis_of([longer], 10)
    assert axis is not None
    assert "08:54:50<" in svg([CoverageRow("orders", longer)], axis)
    assert "9000000000000001<" in svg([CoverageRow("orders", found)], Axis(9 * 10**15, 9 * 10**15 + 2, 2))

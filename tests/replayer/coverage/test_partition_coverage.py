"""The coverage of a partition; tests/replayer/cli/test_cli_look_ups.py has the command."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from index_format.chunk_index import Gap
from index_format.marker import ChunkEntry
from replayer.coverage import CoverageRow, Scale, TimedGap, axis_of, coverage_document, partition_coverage


def entry(start: int, low: int, high: int) -> ChunkEntry:
    return ChunkEntry(
        name=f"{start}",
        start_offset=start,
        next_offset=start + 5,
        first_offset=start,
        last_offset=start + 3,
        num_records=2,
        bytes=1,
        raw_bytes=1,
        min_timestamp=low,
        max_timestamp=high,
        sha256="0" * 64,
    )


class Chunks:
    """A partition with chunks and gaps as given."""

    partition = 0

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
        (found,) = coverage_document([CoverageRow("orders", coverage)], axis)["partitions"]
        without = found["records_without_timestamp"] if scale == "time" else 0
        assert sum(found["records_by_slice"]) == found["records"] - without, f"seed {seed}"
        assert min(found["records_by_slice"], default=0) >= 0, f"seed {seed}"

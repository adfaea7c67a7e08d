from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format import marker
from index_format.objects import BlockEntry, Gap
from tests.support.format_objects import block_at, chunk_entry

probes = st.integers(-5, 150)


class Log(NamedTuple):
    """Records as (offset, timestamp) in runs; timestamps go backwards at will."""

    runs: list[list[tuple[int, int]]]

    @property
    def records(self) -> list[tuple[int, int]]:
        return [row for run in self.runs for row in run]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    offset, runs = draw(st.integers(0, 5)), []
    for _ in range(draw(st.integers(0, 8))):
        run = []
        for _ in range(draw(st.integers(1, 4))):
            run.append((offset, draw(st.one_of(st.just(-1), st.integers(0, 120)))))
            offset += draw(st.sampled_from([1, 1, 3]))
        runs.append(run)
        offset += draw(st.sampled_from([0, 0, 4]))
    return Log(runs)


def entries(log: Log) -> list[marker.ChunkEntry]:
    return [
        chunk_entry(
            run[0][0],
            run[-1][0] + 1,
            num_records=len(run),
            min_timestamp=min(stamp for _, stamp in run),
            max_timestamp=max(stamp for _, stamp in run),
        )
        for run in log.runs
    ]


def blocks(log: Log) -> list[BlockEntry]:
    return [
        block_at(
            number,
            num_records=len(run),
            first_record_offset=run[0][0],
            last_record_offset=run[-1][0],
            min_timestamp=min(stamp for _, stamp in run),
            max_timestamp=max(stamp for _, stamp in run),
        )
        for number, run in enumerate(log.runs)
    ]


def run_with(log: Log, record: tuple[int, int] | None) -> int | None:
    return next((number for number, run in enumerate(log.runs) if record in run), None)


@given(logs(), probes)
def test_by_offset(log: Log, offset: int) -> None:
    wanted = run_with(log, next((row for row in log.records if row[0] >= offset), None))
    assert marker.block_at_or_after(blocks(log), offset) == wanted
    spans = entries(log)
    assert marker.span_at_or_after(spans, offset) == (None if wanted is None else spans[wanted])


@pytest.mark.slow
@given(logs(), probes)
def test_by_time(log: Log, timestamp: int) -> None:
    wanted = run_with(log, next((row for row in log.records if row[1] >= timestamp), None))
    assert marker.block_for_time(blocks(log), timestamp) == wanted


@given(logs(), probes, probes)
def test_between(log: Log, start: int, end: int) -> None:
    numbers = marker.blocks_between(blocks(log), start, end)
    needed = {number for number, run in enumerate(log.runs) if any(start <= offset < end for offset, _ in run)}
    assert needed <= set(numbers)
    for number in numbers:
        first, last = log.runs[number][0][0], log.runs[number][-1][0]
        assert first < end and last >= start


def test_a_span_that_went_on_without_records_still_holds_its_offsets() -> None:
    spans = [chunk_entry(0, 5), chunk_entry(5, 20, last_offset=9, num_records=5), chunk_entry(30, 40)]
    assert [marker.span_at_or_after(spans, offset) for offset in (4, 5, 15, 20, 30, 40)] == [
        spans[0],
        spans[1],
        spans[1],
        spans[2],
        spans[2],
        None,
    ]


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 120), st.sets(st.integers(0, 11)))
def test_merged_ranges(lengths: list[int], max_bytes: int, left_out: set[int]) -> None:
    position, chosen = 0, []
    for number, length in enumerate(lengths):
        if number not in left_out:
            chosen.append(block_at(number, byte_offset=position, byte_length=length))
        position += length
    groups = marker.merged_ranges(chosen, max_bytes)
    assert [number for group in groups for number in group] == list(range(len(chosen)))
    for group in groups:
        start, end = chosen[group[0]].byte_offset, chosen[group[-1]].byte_end
        assert end - start == sum(chosen[number].byte_length for number in group), "no bytes between are read"
        assert end - start <= max_bytes or len(group) == 1
    for before, after in pairwise(groups):
        start, next_block = chosen[before[0]].byte_offset, chosen[after[0]]
        contiguous = next_block.byte_offset == chosen[before[-1]].byte_end
        assert not contiguous or next_block.byte_end - start > max_bytes, "the two could have been one"


@given(st.integers(0, 20))
def test_gaps(offset: int) -> None:
    gaps = [Gap(3, 5, "retention"), Gap(5, 6, "skipped"), Gap(10, 12, "skipped")]
    expected = {3: gaps[0], 4: gaps[0], 5: gaps[1], 10: gaps[2], 11: gaps[2]}
    assert marker.gap_at(gaps, offset) == expected.get(offset)

"""Which blocks may hold rows that pass a query's filters; Spark applies the filters to each row once more."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from blockgz.archive.partition import ArchivedPartition
from index_format.chunk_index import BlockEntry
from index_format.marker import ChunkEntry
from index_format.records import NO_TIMESTAMP
from index_format.seek import TimeBounded
from replayer.spark.source.logs import Stretch, each_of

Bounds = Mapping[str, tuple[Any, Any]]
"""Of columns: the least and the greatest value that rows have; times in microseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WITHOUT_TIMES = "text"
"""The record format whose rows have no timestamps, though their index has."""
_NO_TIMES: Bounds = {"timestamp": (NO_TIMESTAMP * 1000, NO_TIMESTAMP * 1000)}


_TESTS: Mapping[type[Filter], Callable[[Any, Any, Any], bool]] = {
    EqualTo: lambda low, high, value: low <= value <= high,
    EqualNullSafe: lambda low, high, value: low <= value <= high,
    In: lambda low, high, values: any(low <= value <= high for value in values),
    GreaterThan: lambda _, high, value: high > value,
    GreaterThanOrEqual: lambda _, high, value: high >= value,
    LessThan: lambda low, _, value: low < value,
    LessThanOrEqual: lambda low, _, value: low <= value,
}
"""Whether some value between `low` and `high` passes; every other filter may let any value through."""


def may_pass(filters: Sequence[Filter], bounds: Bounds) -> bool:
    """Whether a row with values in these bounds may pass all filters, as far as they are of these columns."""
    return all(_may_pass(each, bounds) for each in filters)


def _may_pass(condition: Any, bounds: Bounds) -> bool:
    test = _TESTS.get(type(condition))
    if test is None or len(condition.attribute) > 1 or condition.attribute[0] not in bounds:
        return True
    low, high = bounds[condition.attribute[0]]
    value = _comparable(condition.value)
    values = value if isinstance(value, tuple) else (value,)
    return not all(isinstance(each, type(low)) for each in values) or test(low, high, value)


def _comparable(value: Any) -> Any:
    """Times as microseconds since 1970, also in a tuple; the rest as it is."""
    if isinstance(value, list | tuple):
        return tuple(_comparable(each) for each in value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value


def narrowed(start: int, end: int, filters: Sequence[Filter]) -> tuple[int, int]:
    """Offsets [start, end) without those before and behind which no row passes: their catalogs are not read."""
    for each in filters:
        match each:
            case EqualTo(("offset",), int(value)):
                start, end = max(start, value), min(end, value + 1)
            case GreaterThan(("offset",), int(value)):
                start = max(start, value + 1)
            case GreaterThanOrEqual(("offset",), int(value)):
                start = max(start, value)
            case LessThan(("offset",), int(value)):
                end = min(end, value)
            case LessThanOrEqual(("offset",), int(value)):
                end = min(end, value + 1)
    return start, end


async def passing(partition: ArchivedPartition, start: int, end: int, filters: Sequence[Filter]) -> list[Stretch]:
    """The parts of offsets [start, end) that may hold rows which pass: series of neighbouring chunks.

    A series begins and ends with a block that may hold one; every chunk in between may hold one. So there are never
    more parts than chunks that are left out. Two indexes are read for each part, and those of chunks whose times do not
    pass where rows without a time would.
    """
    place = {"topic": (partition.topic,) * 2, "partition": (partition.partition,) * 2}
    start, end = narrowed(start, end, filters)
    if start >= end or not may_pass(filters, place):
        return []

    def wanted(span: TimeBounded) -> bool:
        return may_pass(filters, _times(span)) or may_pass(filters, _NO_TIMES)

    async def passes(chunk: ChunkEntry) -> bool:
        return may_pass(filters, _times(chunk)) or not await _has_times(partition, chunk)

    chunks = [entry async for entry in partition.entries(start, end, wanted) if may_pass(filters, _offsets(entry))]
    passed = await each_of(chunks, passes)
    chunks = [chunk for chunk, is_wanted in zip(chunks, passed, strict=True) if is_wanted]
    gaps = [at for at, (one, after) in enumerate(pairwise(chunks), 1) if one.next_offset != after.start_offset]
    series = [chunks[first:last] for first, last in pairwise([0, *gaps, len(chunks)])]
    found = []
    for each in filter(None, series):
        first, last = await _blocks(partition, each[0], filters), await _blocks(partition, each[-1], filters)
        begin = first[0].first_record_offset if first else each[0].next_offset
        stop = last[-1].last_record_offset + 1 if last else each[-1].start_offset
        found.append(Stretch(max(start, begin), min(end, stop), each))
    return [each for each in found if each.start < each.end]


def _offsets(span: ChunkEntry | BlockEntry) -> Bounds:
    if isinstance(span, ChunkEntry):
        return {"offset": (span.first_offset, span.last_offset)}
    return {"offset": (span.first_record_offset, span.last_record_offset)}


def _times(span: TimeBounded) -> Bounds:
    return {"timestamp": (span.min_timestamp * 1000, span.max_timestamp * 1000)}


async def _blocks(partition: ArchivedPartition, entry: ChunkEntry, filters: Sequence[Filter]) -> list[BlockEntry]:
    """Those of a chunk that may hold rows which pass."""
    has_times = await _has_times(partition, entry)
    return [
        block
        for block in (await partition.chunk(entry)).index.blocks
        if may_pass(filters, _offsets(block)) and may_pass(filters, _times(block) if has_times else _NO_TIMES)
    ]


async def _has_times(partition: ArchivedPartition, entry: ChunkEntry) -> bool:
    return (await partition.chunk(entry)).index.record_format != WITHOUT_TIMES

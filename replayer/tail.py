"""The newest records of a partition, read from its end backwards."""

from collections import deque
from contextlib import aclosing

import pyarrow as pa

from .positions import OffsetRange
from .record_filter import RecordFilter
from .selection import Selection, selected


async def last_records(selection: Selection, record_filter: RecordFilter, count: int) -> list[pa.RecordBatch]:
    """The last `count` records that are meant, fewer where there are no more, as batches in offset order.

    Without conditions one run of blocks is read; with them, runs twice as long each until there are enough. Raises as
    `selected` does.
    """
    start, stop = selection.offsets
    found: deque[pa.RecordBatch] = deque()
    missing = records = count
    while missing and stop > start:
        middle = await _start_of_last(selection._replace(offsets=OffsetRange(start, stop)), record_filter, records)
        part = await _last_of(selection._replace(offsets=OffsetRange(middle, stop)), record_filter, missing)
        found.extendleft(reversed(part))
        missing -= sum(batch.num_rows for batch in part)
        stop, records = middle, 2 * records
    return list(found)


async def _last_of(selection: Selection, record_filter: RecordFilter, count: int) -> list[pa.RecordBatch]:
    """The last `count` of a selection; all of it is read, no more than those and a batch are held."""
    batches: deque[pa.RecordBatch] = deque()
    held = 0
    async with aclosing(selected(selection, record_filter)) as parts:
        async for batch in parts:
            batches.append(batch)
            held += batch.num_rows
            while held - batches[0].num_rows >= count:
                held -= batches.popleft().num_rows
    if held > count:
        batches[0] = batches[0].slice(held - count)
    return list(batches)


async def _start_of_last(selection: Selection, record_filter: RecordFilter, records: int) -> int:
    """The offset where the blocks begin that hold the last `records` of a selection, conditions aside."""
    partition, (start, stop) = selection
    entry = await partition.chunk_before(stop)
    while entry is not None and entry.next_offset > start:
        if record_filter.may_match(entry):
            for block in reversed((await partition.chunk(entry)).index.blocks):
                if block.first_record_offset < stop and record_filter.may_match(block):
                    # A block that reaches beyond the range may hold but one record inside.
                    records -= block.num_records if block.last_record_offset < stop else 1
                    if records <= 0:
                        return max(start, block.first_record_offset)
        entry = await partition.chunk_before(entry.start_offset)
    return start

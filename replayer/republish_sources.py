"""What a plan needs to know of the archive: sums over blocks, and records that a target would refuse."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pyarrow.compute as pc

from index_format.chunk_index import BlockEntry
from index_format.marker import ChunkEntry
from index_format.seek import blocks_between

from .archive import Chunk
from .prefetch import prefetched
from .republish_plan import Findings, RecordPlace, SoloBlock, SourcePartition, TimeBounds
from .scan import scan
from .selection import Selection
from .topic_facts import TopicConfig

INDEXES_AT_ONCE = 8


async def describe_source(selection: Selection) -> SourcePartition:
    """Sums over the blocks of a selection; reads an index only where the selection cuts through a chunk, and one more.

    Raises a FormatError or ObjectMissing where the archive is damaged.
    """
    partition, (start, end) = selection
    spans: list[ChunkEntry | BlockEntry] = []
    formats: set[str] = set()
    num_bytes = 0
    async for entry in partition.entries(start, end):
        whole = start <= entry.first_offset and entry.last_offset < end
        if not whole or not formats:
            chunk = await partition.chunk(entry)
            formats.add(chunk.index.record_format)
            if not whole:
                blocks = _selected(chunk, start, end)
                spans += blocks
                num_bytes += sum(block.byte_length_uncompressed for block in blocks)
                continue
        spans.append(entry)
        num_bytes += entry.raw_bytes
    return SourcePartition(
        partition=partition.partition,
        start=start,
        end=end,
        records=sum(span.num_records for span in spans),
        bytes=num_bytes,
        timestamps=TimeBounds(min(s.min_timestamp for s in spans), max(s.max_timestamp for s in spans))
        if spans
        else None,
        gaps=tuple(gap for gap in await partition.gaps() if gap.start < end and gap.end > start),
        record_formats=frozenset(formats),
    )


async def find_refusable(selections: Sequence[Selection], config: TopicConfig | None) -> Findings:
    """What the target's configuration asks of single records: keys where it is compacted, sizes where it limits them.

    Reads all indexes for the one, records up to the first without a key for the other; nothing where neither is asked.
    """
    if config is None:
        return Findings()
    without_key = await _first_without_key(selections) if config.compacts else None
    largest = await _largest_solo(selections) if config.max_message_bytes is not None else None
    return Findings(without_key, largest)


async def _first_without_key(selections: Sequence[Selection]) -> RecordPlace | None:
    for partition, (start, end) in selections:
        async with aclosing(scan(partition, start, end)) as batches:
            async for batch in batches:
                keys = batch.column("key")
                if keys.null_count:
                    row = pc.index(pc.is_null(keys), True).as_py()
                    return RecordPlace(partition.partition, batch.column("offset")[row].as_py())
    return None


async def _largest_solo(selections: Sequence[Selection]) -> SoloBlock | None:
    """The largest block that holds one record: nothing that a producer can choose compresses it much better."""
    largest: SoloBlock | None = None
    for partition, (start, end) in selections:
        entries: AsyncIterator[ChunkEntry] = partition.entries(start, end)
        async for chunk in prefetched(entries, partition.chunk, cost=lambda _: 1, budget=INDEXES_AT_ONCE):
            for block in _selected(chunk, start, end):
                if block.num_records == 1 and (largest is None or block.byte_length > largest.bytes):
                    place = RecordPlace(partition.partition, block.first_record_offset)
                    largest = SoloBlock(place, block.byte_length)
    return largest


def _selected(chunk: Chunk, start: int, end: int) -> Sequence[BlockEntry]:
    numbers = blocks_between(chunk.index.blocks, start, end)
    return chunk.index.blocks[numbers.start : numbers.stop]

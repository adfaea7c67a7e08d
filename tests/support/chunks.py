"""Finished chunks of given records, and the whole work of one archiver as one protocol."""

from collections.abc import Callable
from functools import lru_cache

from archiver.commit.commit import FinishedChunk, Held, PartitionIdentity, commit_chunk, commit_progress
from archiver.commit.operations import Protocol
from archiver.commit.recovery import TakeoverPolicy, take_over
from archiver.errors import OwnedByAnother
from index_format.blocks import ZlibCompressor
from index_format.keys import LAYOUTS, ChunkStart, TopicFolder
from index_format.objects import BlockEntry
from index_format.records import TIMESTAMP_TYPES, Record, record_hash
from tests.support.format_objects import cut
from tests.support.memory_store import MemoryBody, MemoryLog

ARCHIVE_ID = "archive-1"
GROUP = "blockgz-archiver"
BLOCK_BYTES = 300
POLICY = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)
COMPRESSOR = ZlibCompressor(1)


def identity_of(
    layout: str = "topic",
    *,
    topic: str = "orders",
    partition: int = 3,
    group_id: str = GROUP,
    topic_id: str | None = "id-1",
    archive_id: str = ARCHIVE_ID,
    key_prefix: str = "",
) -> PartitionIdentity:
    """An identity as the service makes it; layout `seed` holds text."""
    return PartitionIdentity(
        keys=LAYOUTS[layout](TopicFolder(topic), partition),
        archive_id=archive_id,
        topic_id=topic_id,
        group_id=group_id,
        record_format="text" if layout == "seed" else "json",
        codec="gzip",
        isolation_level="read_committed",
        key_prefix=key_prefix,
    )


@lru_cache(maxsize=10_000)
def finished_chunk(format_name: str, records: tuple[Record, ...], start: int, next_offset: int) -> FinishedChunk:
    """The chunk of those records, its bytes in memory."""
    blocks: list[BlockEntry] = []
    data = b""
    for block in cut(records, format_name, BLOCK_BYTES):
        member = COMPRESSOR.compress(block.raw)
        blocks.append(block.entry(len(data), len(member)))
        data += member
    return FinishedChunk(
        body=MemoryBody.of(data),
        start=ChunkStart(start, records[0].offset, records[0].timestamp),
        next_offset=next_offset,
        blocks=tuple(blocks),
        gaps=(),
        timestamp_type=TIMESTAMP_TYPES[records[0].timestamp_type],
        leader_epoch=0,
        tail_hash=record_hash(records[-1]),
    )


def archive_all(
    identity: PartitionIdentity,
    log: MemoryLog,
    writer: str,
    next_size: Callable[[], int],
    *,
    takeovers: int = 1,
    policy: TakeoverPolicy = POLICY,
) -> Protocol[Held | None]:
    """Take the partition over and archive the log to its end, `next_size()` records a chunk.

    A chunk ends right behind its last record, or, where the size is even, before the next record. A writer that was
    fenced takes over again, `takeovers` times in all; None where it gave up.
    """
    for _ in range(takeovers):
        try:
            claimed = yield from take_over(identity, writer, policy)
            held, position = claimed.held, claimed.position
            while position < log.high or held.marker.next_offset is None:
                size = next_size()
                following = [record for record in log.records if record.offset >= position]
                here = following[:size]
                if not here:
                    held = yield from commit_progress(identity, held, log.high)
                    return held
                before_next = following[size].offset if len(following) > size else log.high
                end = before_next if size % 2 == 0 else here[-1].offset + 1
                chain_end = held.marker.chain_end
                start = position if chain_end is None else chain_end
                chunk = finished_chunk(identity.record_format, tuple(here), start, end)
                held = yield from commit_chunk(identity, held, chunk)
                position = end
            return held
        except OwnedByAnother:
            continue
    return None

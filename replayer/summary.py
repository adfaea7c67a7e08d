"""What a marker alone tells of its partition."""

from dataclasses import dataclass

from .archived_partition import ArchivedPartition


@dataclass(frozen=True)
class PartitionSummary:
    """Sums over the committed chunks; bytes as stored.

    Timestamps are in ms and those of the records that have one; None where nothing is archived yet, or without any.
    """

    partition: int
    records: int
    chunks: int
    bytes: int
    start_offset: int | None
    next_offset: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None


def summarize(partition: ArchivedPartition) -> PartitionSummary:
    """The summary of a partition; no request."""
    timed = [span for span in partition.marker.spans if span.max_timestamp >= 0]
    return PartitionSummary(
        partition=partition.partition,
        records=partition.num_records,
        chunks=partition.num_chunks,
        bytes=partition.num_bytes,
        start_offset=partition.marker.start_offset,
        next_offset=partition.marker.next_offset,
        min_timestamp_ms=min((max(span.min_timestamp, 0) for span in timed), default=None),
        max_timestamp_ms=max((span.max_timestamp for span in timed), default=None),
    )

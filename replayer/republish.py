"""Executing a plan: the selected records, partition after partition, in order, into the sink."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from index_format.errors import BlockgzError

from .pipeline import Pipeline, ScannedBatch
from .scan import payload_bytes, scan
from .selection import Selection


class Delivered(NamedTuple):
    """What a target partition took: offsets of its first and newest record, None before the first.

    `zero_timestamps` counts records whose timestamp 0 had to be sent as 1.
    """

    records: int
    first_offset: int | None
    last_offset: int | None
    zero_timestamps: int


class RecordSink(Protocol):
    """Where the records go. `send` and `flush` block and are called by one thread at a time."""

    def send(self, partition: int, batch: pa.RecordBatch) -> None:
        """Takes the batch, in order; raises a BlockgzError once it is known that a record was not taken."""

    def flush(self) -> Mapping[int, Delivered]:
        """Waits until everything is taken; by partition, what was written. Raises as `send` does."""

    def delivered(self) -> Mapping[int, Delivered]:
        """What is known to be written by now."""

    def stop(self) -> None:
        """Gives up: a `send` or `flush` under way ends soon. May be called from any thread."""


Progress = Callable[[int, int], None]
"""Told how many records, and bytes of keys and values, each batch added."""


@dataclass(frozen=True)
class LaneResult:
    """One partition: how many records went where; offsets are inclusive, None where there were no records."""

    partition: int
    target_partition: int
    records: int
    first_offset: int | None
    last_offset: int | None
    target_first_offset: int | None
    target_last_offset: int | None


@dataclass(frozen=True)
class RepublishResult:
    """What a replay did; `bytes` are those of keys and values."""

    partitions: tuple[LaneResult, ...]
    bytes: int
    seconds: float
    zero_timestamps: int

    @property
    def records(self) -> int:
        """Records of all partitions."""
        return sum(lane.records for lane in self.partitions)


@dataclass
class _Sent:
    """What was handed over for one partition."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


async def republish(
    selections: Sequence[Selection], pipeline: Pipeline, sink: RecordSink, progress: Progress
) -> RepublishResult:
    """Sends the selected records and waits until the cluster has them all.

    Reading and decoding go on while the sink works; memory holds what `scan` reads ahead. An error, of archive or
    sink, says in its reason what was written before; everything that was handed over before damage in the archive is
    written first.
    """
    began = time.perf_counter()
    sent = {selection.partition.partition: _Sent() for selection in selections}
    num_bytes = 0
    try:
        for partition, (start, end) in selections:
            lane = sent[partition.partition]
            async with aclosing(scan(partition, start, end)) as batches:
                async for batch in batches:
                    for piece in pipeline(ScannedBatch(partition.partition, batch)):
                        await asyncio.to_thread(sink.send, piece.target, piece.records)
                    offsets = batch.column("offset")
                    lane.records += batch.num_rows
                    lane.last_offset = offsets[-1].as_py()
                    if lane.first_offset is None:
                        lane.first_offset = offsets[0].as_py()
                    payload = payload_bytes(batch)
                    num_bytes += payload
                    progress(batch.num_rows, payload)
        delivered = await asyncio.to_thread(sink.flush)
    except BlockgzError as error:
        await _settle(sink)
        error.why = "; ".join(part for part in (error.why, written_text(sink.delivered())) if part)
        raise
    except BaseException:
        sink.stop()
        raise
    lanes = tuple(_lane_result(partition, lane, delivered.get(partition)) for partition, lane in sent.items())
    zeros = sum(each.zero_timestamps for each in delivered.values())
    return RepublishResult(lanes, num_bytes, time.perf_counter() - began, zeros)


def written_text(delivered: Mapping[int, Delivered]) -> str:
    """What was written before an error, for its reason."""
    parts = [
        f"partition {partition} offsets {lane.first_offset} to {lane.last_offset}"
        for partition, lane in sorted(delivered.items())
        if lane.last_offset is not None
    ]
    return f"written to the target: {', '.join(parts)}" if parts else "nothing was written to the target"


async def _settle(sink: RecordSink) -> None:
    """Waits for what was handed over, unless that is what failed."""
    try:
        await asyncio.to_thread(sink.flush)
    except BlockgzError:
        sink.stop()


def _lane_result(partition: int, sent: _Sent, delivered: Delivered | None) -> LaneResult:
    return LaneResult(
        partition,
        partition,
        sent.records,
        sent.first_offset,
        sent.last_offset,
        delivered.first_offset if delivered else None,
        delivered.last_offset if delivered else None,
    )

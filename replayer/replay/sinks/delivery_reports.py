"""Where the records of one target partition stand, as the delivery reports say it.

An idempotent producer whose answer was lost sends again; the broker, which has the records already, acknowledges them
without their offsets. Where the offsets on both sides do not tell these either, they are read back from the log.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from index_format.records import iter_records
from replayer.errors import DeliveryFailed
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader

NONE: Any = np.zeros(0, np.int64)
ReadBack = Callable[[int, int, pa.Table], list[int]]
"""The offsets of records of a partition, from an offset on: as many as the table has rows."""


class LaneReports:
    """The offsets that one partition's records got, as they become known."""

    def __init__(self, partition: int, end: int | None) -> None:
        """`end` is the log's end before the first record, where it is known."""
        self._partition = partition
        self._last = None if end is None else end - 1
        self._sent: deque[pa.RecordBatch] = deque()
        """What is not settled, for it may have to be found in the log."""
        self._told: Any = NONE
        self._settled: list[Any] = []

    def sent(self, batch: pa.RecordBatch) -> None:
        """These records are handed over next."""
        self._sent.append(batch)

    def told(self, offsets: Any) -> None:
        """These records were acknowledged next: an int64 array, NO_OFFSET where the offset was not told."""
        self._told = np.concatenate([self._told, offsets])
        if self._told.min() >= 0:
            self._settle(self._told)

    def take(self, look: ReadBack, *, drained: bool) -> Any:
        """The offsets of what was acknowledged since the last call, in order, as an int64 array.

        Records without an offset wait for one behind them, unless all that was sent is acknowledged. Raises what
        `look` raises.
        """
        if len(self._told):
            self._settle(self._completed(self._told, look, drained=drained))
        settled, self._settled = self._settled, []
        return np.concatenate([NONE, *settled])

    def _settle(self, offsets: Any) -> None:
        """These are the offsets of what was told first; what was sent for them is not kept any longer."""
        if len(offsets):
            self._told = self._told[len(offsets) :]
            self._last = int(offsets[-1])
            self._settled.append(offsets)
            _drop(self._sent, len(offsets))

    def _completed(self, told: Any, look: ReadBack, *, drained: bool) -> Any:
        known = np.flatnonzero(told >= 0)
        if not drained:
            told = told[: known[-1] + 1 if len(known) else 0]
        told = inferred(told, self._last)
        missing = np.flatnonzero(told < 0)
        if len(missing):
            first = int(missing[0])
            before = self._last if first == 0 else int(told[first - 1])
            rows = pa.Table.from_batches(self._sent).slice(first, len(told) - first)
            told[first:] = look(self._partition, 0 if before is None else before + 1, rows)
        return told


def inferred(told: Any, before: int | None) -> Any:
    """Offsets with those filled in that can only be what they are: as many are missing as there are between two.

    `before` is the offset in front of the first one.
    """
    filled = told.copy()
    known = [(-1, before), *((int(at), int(told[at])) for at in np.flatnonzero(told >= 0))]
    for (left, low), (right, high) in pairwise(known):
        if low is not None and high is not None and right - left == high - low:
            filled[left + 1 : right] = np.arange(low + 1, high)
    return filled


def read_back(properties: Mapping[str, str], topic: str, partition: int, start: int, rows: pa.Table) -> list[int]:
    """The offsets, from `start` on, at which `rows` stand in a topic's partition.

    Raises DeliveryFailed where they do not, or what KafkaReader raises.
    """
    end = KafkaAdmin(properties).watermarks(topic, [partition], "read_uncommitted")[partition].end
    with closing(KafkaReader(properties, "read_uncommitted")) as reader:
        offsets = found(rows, reader.read(topic, partition, start, end))
    if len(offsets) < rows.num_rows:
        raise DeliveryFailed(
            f"{rows.num_rows - len(offsets)} acknowledged records are not in {topic}:{partition}",
            why=f"the cluster accepted them without reporting their offsets, and they are not at [{start}..{end})",
            remedy="fix the cause and continue with --resume",
        )
    return offsets


def found(rows: pa.Table, log: Iterable[pa.RecordBatch]) -> list[int]:
    """The offsets at which `rows` stand in a log: in their order, with other records between them passed over."""
    wanted = [(each.key, each.value) for batch in rows.to_batches() for each in iter_records(batch)]
    offsets: list[int] = []
    for record in (record for batch in log for record in iter_records(batch)):
        if len(offsets) == len(wanted):
            break
        if (record.key, record.value) == wanted[len(offsets)]:
            offsets.append(record.offset)
    return offsets


def _drop(batches: deque[pa.RecordBatch], rows: int) -> None:
    """Takes away the first rows."""
    while rows:
        batch = batches.popleft()
        if batch.num_rows > rows:
            batches.appendleft(batch.slice(rows))
            return
        rows -= batch.num_rows

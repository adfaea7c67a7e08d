"""Records of a task by rising offset: Spark promises no order, so they are held and sorted as far as memory goes."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from index_format.records import SCHEMA


class Place(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Run(NamedTuple):
    """Records of one partition by rising offset; equal ones stand side by side."""

    place: Place
    records: pa.RecordBatch
    is_last: bool
    """Whether the task holds no more of this partition."""


def sorted_runs(batches: Iterable[pa.RecordBatch], budget: int) -> Iterator[Run]:
    """The records of `columns.ROWS` batches as runs; each time `budget` bytes have gathered, sorted anew.

    Whoever takes the runs finds out whether a later one lies below an earlier one of its partition.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= budget:
            yield from _sorted(waiting, is_last=False)
            waiting, size = [], 0
    if waiting:
        yield from _sorted(waiting, is_last=True)


def _sorted(batches: list[pa.RecordBatch], *, is_last: bool) -> Iterator[Run]:
    table = pa.Table.from_batches(batches)
    topics = table.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy().astype(np.int64)
    partitions = table.column("partition").to_numpy()
    places = (codes << 32) | partitions
    offsets = table.column("offset").to_numpy()
    order = np.lexsort((offsets, places))
    if not np.array_equal(order, np.arange(len(order))):
        table = table.take(pa.array(order))
        places = places[order]
    starts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    for start, end in pairwise(starts):
        place = Place(names[places[start] >> 32], int(places[start] & 0xFFFFFFFF))
        yield Run(place, _records(table.slice(start, end - start)), is_last)


def _records(rows: Any) -> pa.RecordBatch:
    (batch,) = rows.select(SCHEMA.names).combine_chunks().to_batches()
    return batch.cast(SCHEMA) if batch.schema != SCHEMA else batch

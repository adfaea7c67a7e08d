"""Rows of Spark's Kafka source as records of the archive's schema, and these by rising offset."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import BlockgzError, UsageError
from blockgz.spark.formats import KAFKA_COLUMNS
from index_format.keys import TopicPartition
from index_format.records import SCHEMA, TIMESTAMP_TYPES, header_column_of_lists

NULLABLE = ("key", "value", "headers")

# Remedies for a missing or different column that say more than its name and type.
REMEDIES = {
    "headers": 'read the topic with .option("includeHeaders", "true")',
    "key": "cast it: CAST(key AS BINARY); a null key stays null",
    "value": "cast it: CAST(value AS BINARY); a null value stays null",
}

# The schema of converted batches: each record with its partition.
ROWS = pa.schema([pa.field("topic", pa.string()), pa.field("partition", pa.int32()), *SCHEMA])


class BatchRefused(BlockgzError):
    """Records that cannot become part of an archive as they are; nothing of their batch is committed."""


def check_columns(found: Mapping[str, str]) -> None:
    """Raise UsageError unless these, by name with Spark's simple string of the type, are its Kafka source's."""
    for name, wanted in KAFKA_COLUMNS.items():
        if name not in found:
            raise UsageError(
                f"the data has no column {name}",
                why="an archive holds complete records; a missing column would be lost silently",
                remedy=REMEDIES.get(name, f"keep {name} of Spark's Kafka source, of type {wanted}"),
            )
        if found[name] != wanted:
            raise UsageError(
                f"column {name} is of type {found[name]}",
                why=f"Spark's Kafka source gives {wanted}",
                remedy=REMEDIES.get(name, f"cast it to {wanted}"),
            )
    if extra := sorted(found.keys() - KAFKA_COLUMNS.keys()):
        raise UsageError(
            f"an archive has no place for column {extra[0]}",
            why=f"it holds {', '.join(KAFKA_COLUMNS)}",
            remedy=f'drop it: .drop("{extra[0]}")',
        )


def to_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of Spark's columns as one of `ROWS`; raises BatchRefused for what no record of Kafka's can be."""
    for name in KAFKA_COLUMNS.keys() - set(NULLABLE):
        if batch.column(name).null_count:
            raise _no_record(f"column {name} holds a null", "every Kafka record has one")
    for name in ("partition", "offset"):
        lowest = pc.min(batch.column(name)).as_py()
        if lowest is not None and lowest < 0:
            raise _no_record(f"column {name} holds {lowest}", "Kafka's are 0 or higher")
    types = batch.column("timestampType").to_numpy()
    unknown = types[~np.isin(types, list(TIMESTAMP_TYPES))]
    if len(unknown):
        known = ", ".join(f"{number} is {name}" for number, name in TIMESTAMP_TYPES.items())
        raise _no_record(f"column timestampType holds {int(unknown[0])}", known)
    columns = [
        batch.column("topic").cast(pa.string()),
        batch.column("partition"),
        batch.column("offset"),
        _milliseconds(batch.column("timestamp")),
        batch.column("timestampType").cast(pa.int8()),
        batch.column("key").cast(pa.binary()),
        batch.column("value").cast(pa.binary()),
        _headers(batch.column("headers")),
    ]
    return pa.record_batch(columns, schema=ROWS)


def _no_record(what: str, why: str) -> BatchRefused:
    return BatchRefused(what, why=why, remedy="supply records as Spark's Kafka source reads them")


def _milliseconds(column: Any) -> Any:
    """Spark counts microseconds, Kafka milliseconds; -1, none, is the millisecond before 1970."""
    milliseconds, rest = np.divmod(column.cast(pa.int64()).to_numpy(), 1000)
    if rest.any():
        raise BatchRefused(
            "column timestamp holds fractions of a millisecond",
            why="Kafka's timestamps have none, and the archive keeps timestamps unchanged",
            remedy='truncate them: date_trunc("millisecond", timestamp)',
        )
    return pa.array(milliseconds, pa.int64())


def _headers(column: Any) -> Any:
    try:
        return header_column_of_lists(column)
    except ValueError as error:
        why = "Kafka requires a key; only the value may be null"
        raise _no_record("column headers holds a header without a key", why) from error


# The records of one partition by rising offset, equal ones side by side; True if the task has no more of the partition.
SortedRun = tuple[TopicPartition, pa.RecordBatch, bool]


def sorted_runs(batches: Iterable[pa.RecordBatch], budget: int) -> Iterator[SortedRun]:
    """Sort the records of `ROWS` batches as far as memory goes, `budget` bytes at a time: Spark promises no order."""
    # A later run may lie below an earlier one of its partition.
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


def _sorted(batches: list[pa.RecordBatch], *, is_last: bool) -> Iterator[SortedRun]:
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
        place = TopicPartition(names[places[start] >> 32], int(places[start] & 0xFFFFFFFF))
        yield place, _records(table.slice(start, end - start)), is_last


def _records(rows: Any) -> pa.RecordBatch:
    (batch,) = rows.select(SCHEMA.names).combine_chunks().to_batches()
    return batch.cast(SCHEMA) if batch.schema != SCHEMA else batch

"""Rows that a write is given, as records by where they come from."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blockgz.errors import UsageError
from index_format.records import SCHEMA, header_column, header_column_of_lists
from replayer.errors import ReplayRefused
from replayer.replay.stages import Clock, wall_clock

_TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "offset": ("bigint", "int"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "incarnation": ("int", "bigint"),
}
"""The columns that mean something and the types that they may have, in Spark's words; others are left out."""


class Part(NamedTuple):
    """Records of one source partition in the rows' order; None for what there is no column for.

    They are of one incarnation of the topic. `records` is a batch of `SCHEMA`. Without an offset column its offsets
    count the task's rows.
    """

    topic: str | None
    partition: int | None
    records: pa.RecordBatch
    incarnation: int | None = None


Columns = frozenset[str]
"""The columns of a DataFrame that a write looks at."""


def check_columns(types: Mapping[str, str]) -> Columns:
    """The columns by name and type, as Spark calls them; raises UsageError for what cannot be written."""
    if "value" not in types:
        raise UsageError(
            "there is no column named value",
            why=f"there are {', '.join(types) or 'none'}",
            remedy='choose it: df.selectExpr("key", "body AS value")',
        )
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise UsageError(
                f"column {name} is of type {types[name]}",
                why=f"it must be {' or '.join(allowed)}",
                remedy=f'cast it: df.withColumn("{name}", expr("CAST({name} AS {allowed[0]})"))',
            )
    return Columns(types.keys() & _TYPES.keys())


class RowReader:
    """Makes records of one task's batches of rows."""

    def __init__(self, columns: Columns, *, headers: bool, clock: Clock = wall_clock) -> None:
        self._columns = columns
        self._headers = headers and "headers" in columns
        self._clock = clock
        self._rows = 0

    def parts(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """The batch by topic, incarnation and partition, each in the rows' order.

        Raises ReplayRefused for what no record can be.
        """
        if not batch.num_rows:
            return
        records = self._records(batch)
        self._rows += batch.num_rows
        topics = batch.column("topic") if "topic" in self._columns else None
        if topics is not None and topics.null_count:
            raise _missing("topic")
        partitions = self._numbers(batch, "partition")
        incarnations = self._numbers(batch, "incarnation")
        for rows in _groups(topics, incarnations, partitions, batch.num_rows):
            first = int(rows[0])
            topic = topics[first].as_py() if topics is not None else None
            partition = int(partitions[first]) if partitions is not None else None
            incarnation = int(incarnations[first]) if incarnations is not None else None
            yield Part(topic, partition, _taken(records, rows), incarnation)

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        offsets = self._numbers(batch, "offset")
        columns = [
            pa.array(np.arange(self._rows, self._rows + count) if offsets is None else offsets),
            pa.array(self._timestamps(batch)),
            pa.array(np.zeros(count, np.int8)),
            batch.column("key").cast(pa.binary()) if "key" in self._columns else pa.nulls(count, pa.binary()),
            batch.column("value").cast(pa.binary()),
            _headers(batch.column("headers")) if self._headers else header_column([None] * count),
        ]
        return pa.record_batch(columns, schema=SCHEMA)

    def _timestamps(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """In ms; a row without one has the time of sending, as Kafka's own producer would give it."""
        if "timestamp" not in self._columns:
            return np.full(batch.num_rows, self._clock(), np.int64)
        column = batch.column("timestamp")
        micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        times = micros.fill_null(self._clock() * 1000).to_numpy() // 1000
        if len(times) and times.min() < -1:
            row = int(np.argmin(times))
            raise ReplayRefused(
                f"a row has the timestamp {times[row]} ms, before 1970",
                why="Kafka accepts none below 0, except -1 for a record without one",
                remedy="choose other rows, or other timestamps",
            )
        return np.asarray(times, np.int64)

    def _numbers(self, batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64] | None:
        if name not in self._columns:
            return None
        column = batch.column(name)
        if column.null_count:
            raise _missing(name)
        numbers = np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
        if numbers.min() < 0:
            raise ReplayRefused(
                f"a row has the {name} {numbers.min()}", why="Kafka has none below 0", remedy="choose other rows"
            )
        return numbers


def _missing(name: str) -> ReplayRefused:
    return ReplayRefused(
        f"a row has no {name}",
        why="the column exists, so every row needs a value",
        remedy=f'df.drop("{name}"), or fill it',
    )


def _groups(
    topics: pa.Array | None,
    incarnations: npt.NDArray[np.int64] | None,
    partitions: npt.NDArray[np.int64] | None,
    count: int,
) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of each topic, incarnation and partition, rising, in the order of their first rows."""
    codes = np.zeros(count, np.int64)
    if topics is not None:
        codes += topics.dictionary_encode().indices.to_numpy().astype(np.int64) << 48
    if incarnations is not None:
        codes += pa.array(incarnations).dictionary_encode().indices.to_numpy().astype(np.int64) << 32
    if partitions is not None:
        codes += partitions
    if (codes == codes[0]).all():
        yield np.arange(count)
        return
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    yield from sorted(groups, key=lambda rows: int(rows[0]))


def _taken(records: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return records.slice(first, len(rows))
    return records.take(pa.array(rows))


def _headers(column: pa.ListArray) -> pa.Array:
    """Null means none, as Spark's own source has it."""
    try:
        return header_column_of_lists(column)
    except ValueError as error:
        raise ReplayRefused(
            "a row has a header without a name", why="Kafka's headers have one", remedy="remove such headers"
        ) from error

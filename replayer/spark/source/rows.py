"""The columns of format `blockgz`, and batches of rows of a size that Spark likes."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from blockgz.errors import UsageError

BATCH_BYTES = 4 * 1024 * 1024
"""What is handed to Spark at once: smaller ones cost more each, larger ones leave the processor's caches."""


def check_columns(types: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raises UsageError for a schema that a user gave and that has other columns or types than `known`."""
    for name, found in types.items():
        if name not in known:
            raise UsageError(
                f"format blockgz has no column {name!r}",
                why=f"the columns are {', '.join(known)}",
                remedy="remove it from the schema: .schema(…) selects from these",
            )
        if found != known[name]:
            raise UsageError(
                f"the schema has column {name} as {found}",
                why=f"the archive holds it as {known[name]}",
                remedy=f"use this type, and convert after the read: .withColumn({name!r}, col({name!r}).cast(…))",
            )


def batched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `BATCH_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.get_total_buffer_size()
        if size >= BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)

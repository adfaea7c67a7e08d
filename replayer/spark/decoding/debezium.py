"""Changes of a database as Debezium writes them: the envelope's fields as columns.

Source: the events of Debezium's connectors, `before`, `after`, `op` and `ts_ms`.
"""

import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import UsageError
from replayer.spark.decoding.rows import UndecodableRecord, place_of

_TIME = pa.timestamp("us", tz="UTC")


def envelope_type(row: pa.DataType) -> pa.DataType:
    """The type of an envelope around rows of a table."""
    return pa.struct([("before", row), ("after", row), ("op", pa.string()), ("ts_ms", pa.int64())])


def check_envelope(value: pa.DataType) -> None:
    """Raises UsageError for values that are no envelopes."""
    fields = {field.name: field.type for field in value} if pa.types.is_struct(value) else {}
    missing = [name for name in ("before", "after", "op", "ts_ms") if name not in fields]
    if missing:
        raise UsageError(
            "the values are no envelopes of Debezium",
            why=f"their schema has no field {missing[0]}",
            remedy="remove the option envelope, or name the subject of the topic's values with valueSubject",
        )


def unwrapped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with `op`, `before`, `after` and `changed_at` in place of `value`; all are null for a tombstone.

    Raises UndecodableRecord for a time that microseconds cannot hold.
    """
    place = rows.schema.get_field_index("value")
    value = rows.column(place)
    columns = {name: pc.struct_field(value, name) for name in ("op", "before", "after")}
    columns["changed_at"] = _instants(pc.struct_field(value, "ts_ms").cast(pa.int64()), rows)
    rows = rows.drop_columns(["value"])
    for number, (name, column) in enumerate(columns.items()):
        rows = rows.add_column(place + number, pa.field(name, column.type), column)
    return rows


def _instants(times: pa.Array, rows: pa.RecordBatch) -> pa.Array:
    try:
        return pc.multiply_checked(times, 1000).cast(_TIME)
    except pa.ArrowInvalid as error:
        distances = pc.abs(times)
        row = pc.index(distances, pc.max(distances)).as_py()
        raise UndecodableRecord(
            f"the time of the change in {place_of(rows, row)} does not fit into a column of times",
            why=f"it is {times[row].as_py()} ms since 1970, and such columns hold microseconds in 64 bits",
            remedy="leave the record out by its offset, or read it without envelope",
        ) from error

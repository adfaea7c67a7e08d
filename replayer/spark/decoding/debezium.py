"""Changes of a database as Debezium writes them: the envelope's fields as columns.

Source: the events of Debezium's connectors, `before`, `after`, `op` and `ts_ms`.
"""

import pyarrow as pa
import pyarrow.compute as pc

from blockgz_runtime.errors import UsageError

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
    """The rows with `op`, `before`, `after` and `changed_at` in place of `value`; all are null for a tombstone."""
    place = rows.schema.get_field_index("value")
    value = rows.column(place)
    columns = {name: pc.struct_field(value, name) for name in ("op", "before", "after")}
    columns["changed_at"] = pc.multiply(pc.struct_field(value, "ts_ms").cast(pa.int64()), 1000).cast(_TIME)
    rows = rows.drop_columns(["value"])
    for number, (name, column) in enumerate(columns.items()):
        rows = rows.add_column(place + number, pa.field(name, column.type), column)
    return rows

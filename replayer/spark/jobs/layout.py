"""How rows are laid out where they are written: columns to partition by, and what a format of files can hold."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from blockgz_runtime.errors import UsageError

PARTS = ("topic", "date", "hour")
"""What there is to partition by besides fields of values; date and hour of the timestamp are UTC's."""

FIELD = "value."


def check_parts(parts: Sequence[str], *, decodes: bool) -> None:
    """Raises UsageError for what is nothing to partition by."""
    for part in parts:
        if part in PARTS:
            continue
        if not part.startswith(FIELD) or part == FIELD:
            raise UsageError(
                f"--partition-by {part[:80]!r} is nothing to partition by",
                why=f"there are {', '.join(PARTS)} and {FIELD}FIELD",
                remedy="write topic,date or topic,value.country",
            )
        if not decodes:
            raise UsageError(
                f"--partition-by {part[:80]} needs values with fields", remedy="add --value json or --value avro"
            )
    if len(set(map(column_of, parts))) < len(parts):
        raise UsageError("--partition-by names a column twice", why=", ".join(map(column_of, parts)))


def column_of(part: str) -> str:
    """The column, and so the folder, of a part."""
    return part.rpartition(".")[2]


def parted(rows: DataFrame, parts: Sequence[str]) -> DataFrame:
    """The rows with the columns to partition by, and each task's rows in order of them and of offsets."""
    if not parts:
        return rows
    taken = set(rows.columns)
    for part in parts:
        name = column_of(part)
        if part == "topic":
            continue
        if name in taken:
            raise UsageError(
                f"--partition-by {part} would be a second column {name}", remedy="partition by another field"
            )
        if part == "date":
            column = fn.to_date("timestamp")
        elif part == "hour":
            column = fn.hour("timestamp")
        else:
            _check_field(rows.schema["value"].dataType, part)
            column = fn.col(part)
        rows = rows.withColumn(name, column)
    return rows.sortWithinPartitions(*map(column_of, parts), "topic", "partition", "offset")


def fitted(rows: DataFrame, file_format: str) -> DataFrame:
    """The rows as that format of files can hold them: of `csv`, no bytes and nothing inside of a column."""
    if file_format != "csv":
        return rows
    columns = []
    for field in rows.schema.fields:
        if field.name == "value" and isinstance(field.dataType, StructType):
            inner = field.dataType.fields
            columns += [_flat(f"value.`{each.name}`", f"value.{each.name}", each.dataType) for each in inner]
        else:
            columns.append(_flat(field.name, field.name, field.dataType))
    return rows.select(*columns)


def _flat(path: str, name: str, kind: DataType) -> Column:
    column = fn.col(path)
    if isinstance(kind, BinaryType):
        column = fn.base64(column)
    elif isinstance(kind, ArrayType | MapType | StructType):
        column = fn.to_json(column)
    return column.alias(name)


def _check_field(kind: DataType, part: str) -> None:
    for name in part.split(".")[1:]:
        if not isinstance(kind, StructType) or name not in kind.fieldNames():
            fields = ", ".join(kind.fieldNames()) if isinstance(kind, StructType) else "no fields"
            raise UsageError(f"--partition-by {part} is no field of the values", why=f"there is {fields[:300]}")
        kind = kind[name].dataType
    if isinstance(kind, ArrayType | MapType | StructType | BinaryType):
        raise UsageError(f"--partition-by {part} is no single value", why=f"it is a {kind.simpleString()[:100]}")

"""Archived records as one file of a common format: Parquet, CSV, JSON lines or Arrow, with the columns of Spark's.

Rows are written in groups as they come, so memory holds one group, however large the selection is.
"""

import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.archive.rows import HEADERS, to_rows
from blockgz.archive.selection import SelectedBatch
from blockgz.atomic_file import PRIVATE_FILE, scratch_file, sync_file, sync_folder
from blockgz.errors import UsageError
from index_format.records import SCHEMA
from replayer.errors import ExportFailed

FORMATS = ("parquet", "csv", "jsonl", "arrow")
# Formats that a pipe can take; `arrow` is then Arrow's stream format.
STREAMED = ("csv", "jsonl", "arrow")
ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".arrow": "arrow",
}  # fmt: skip
BINARY, TEXT = "binary", "text"
# Rows that are written at once: a row group of Parquet, a record batch of Arrow.
GROUP_BYTES = 32 * 1024 * 1024
STDOUT = "-"

Write = Callable[[pa.RecordBatch], object]


@dataclass(frozen=True)
class ExportForm:
    """The form of a file; keys and values are BINARY or TEXT, which in CSV and JSON lines means Base64 or UTF-8."""

    file_format: str
    key: str = BINARY
    value: str = BINARY
    times: str = "rfc3339"
    """Or `ms`: integers in CSV and JSON lines; Parquet and Arrow hold instants in any case."""

    @property
    def is_text(self) -> bool:
        """Return whether the format has no types of its own for bytes and times."""
        return self.file_format in ("csv", "jsonl")

    def rows(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Return records as rows, not yet as the format holds them."""
        return to_rows(batch, topic, partition, headers=True, times="ms" if self.is_text else "instants")


class Exported(NamedTuple):
    """The size of a file."""

    records: int
    bytes: int


def format_of(destination: str, named: str | None) -> str:
    """Return the named format, or that of the file's ending; raises UsageError."""
    found = named or ENDINGS.get(Path(destination).suffix.lower())
    if found is None:
        raise UsageError(
            f"the format of {destination} is not known",
            why=f"it ends with none of {', '.join(ENDINGS)}",
            remedy=f"name it: --format {'|'.join(FORMATS)}",
        )
    if destination == STDOUT and found not in STREAMED:
        raise UsageError(
            f"{found} cannot be written to a pipe",
            why="readers begin at its end",
            remedy=f"name a file, or choose --format {'|'.join(STREAMED)}",
        )
    return found


async def export(
    batches: AsyncIterator[SelectedBatch],
    destination: str,
    form: ExportForm,
    *,
    overwrites: bool = False,
    advance: Callable[[int, int], object] = lambda *_: None,
) -> Exported:
    """Write all batches to a file, which appears whole or not at all, or to standard output.

    `advance` is called with the records and bytes of rows that were written since. Raises ExportFailed, and what
    reading raises.
    """
    schema = _plain(form.rows(pa.RecordBatch.from_pylist([], SCHEMA), "", 0), form).schema
    records = 0
    with _opened(destination, overwrites=overwrites) as sink:
        is_stream = destination == STDOUT
        with _writer(form.file_format, sink, schema, is_stream=is_stream) as write:
            async for group in _groups(batches, form):
                rows = _plain(group, form)
                await asyncio.to_thread(write, rows)
                records += rows.num_rows
                advance(rows.num_rows, group.nbytes)
        sink.flush()
        size = 0 if is_stream else sink.tell()
    return Exported(records, size)


@contextmanager
def _opened(destination: str, *, overwrites: bool) -> Iterator[BinaryIO]:
    if destination == STDOUT:
        yield sys.stdout.buffer
        return
    path = Path(destination)
    if path.exists() and not (overwrites and path.is_file()):
        raise _exists(path)
    try:
        with scratch_file(path) as scratch:
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as file:
                yield file
            sync_file(scratch)
            _place(scratch, path, overwrites=overwrites)
        sync_folder(path.parent)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        is_missing = not path.parent.is_dir()
        raise ExportFailed(
            f"{destination} cannot be written",
            why=f"there is no folder {path.parent}" if is_missing else error.strerror or str(error),
            remedy="make the folder first" if is_missing else "free space there or name another file; none was left",
        ) from error


def _place(scratch: Path, path: Path, *, overwrites: bool) -> None:
    if not overwrites:
        try:
            # A link fails if the name is taken; a rename would replace the file.
            path.hardlink_to(scratch)
        except FileExistsError:
            raise
        except OSError:
            overwrites = True
    if overwrites:
        scratch.replace(path)


def _exists(path: Path) -> UsageError:
    is_file = path.is_file()
    return UsageError(
        f"{path} exists already",
        why="it would be replaced" if is_file else "it is a folder, a pipe or a device",
        remedy="name another file" + (", or add --overwrite" if is_file else f", or {STDOUT} and a pipe"),
    )


def _writer(file_format: str, sink: BinaryIO, schema: pa.Schema, *, is_stream: bool) -> AbstractContextManager[Write]:
    if file_format == "jsonl":
        return _json_lines(sink)
    return _arrow_writer(file_format, sink, schema, is_stream=is_stream)


@contextmanager
def _json_lines(sink: BinaryIO) -> Iterator[Write]:
    yield lambda rows: sink.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows.to_pylist())


@contextmanager
def _arrow_writer(file_format: str, sink: BinaryIO, schema: pa.Schema, *, is_stream: bool) -> Iterator[Write]:
    match file_format:
        case "parquet":
            import pyarrow.parquet  # noqa: PLC0415

            made = pyarrow.parquet.ParquetWriter(sink, schema)
        case "csv":
            import pyarrow.csv  # noqa: PLC0415

            made = pyarrow.csv.CSVWriter(sink, schema)
        case _:
            made = (pa.ipc.new_stream if is_stream else pa.ipc.new_file)(sink, schema)
    with made:
        yield made.write_batch


async def _groups(batches: AsyncIterator[SelectedBatch], form: ExportForm) -> AsyncIterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    async for partition, batch in batches:
        waiting.append(form.rows(batch, partition.topic, partition.partition))
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _plain(rows: pa.RecordBatch, form: ExportForm) -> pa.RecordBatch:
    for name, wanted in (("key", form.key), ("value", form.value)):
        if wanted == TEXT:
            rows = _with(rows, name, _as_text(rows, name))
        elif form.is_text:
            rows = _with(rows, name, pa.array(map(_base64, rows.column(name).to_pylist()), pa.string()))
    if not form.is_text:
        return rows
    times = rows.column("timestamp") if form.times == "ms" else _dates(rows.column("timestamp"))
    headers: list[Any] = [
        pairs and [{"key": each["key"], "value": _base64(each["value"])} for each in pairs]
        for pairs in rows.column(HEADERS).to_pylist()
    ]
    if form.file_format == "csv":
        headers = [None if each is None else orjson.dumps(each).decode() for each in headers]
        column = pa.array(headers, pa.string())
    else:
        pair = pa.struct([("key", pa.string()), ("value", pa.string())])
        column = pa.array(headers, pa.list_(pair))
    return _with(_with(rows, "timestamp", times), HEADERS, column)


def _dates(times: pa.Array) -> pa.Array:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    has_date = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
    dates = pc.if_else(has_date, times, 0).cast(pa.timestamp("ms", "UTC"))
    return pc.if_else(has_date, pc.strftime(dates, "%Y-%m-%dT%H:%M:%SZ"), times.cast(pa.string()))


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _as_text(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Raise ExportFailed, which names the first record that is none."""
    column = rows.column(name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        row = next(row for row, content in enumerate(column.to_pylist()) if not _is_text(content))
        topic, partition, offset = (rows.column(each)[row].as_py() for each in ("topic", "partition", "offset"))
        raise ExportFailed(
            f"the {name} of {topic}:{partition}:{offset} is not text",
            why="it is not UTF-8",
            remedy=f"export it as bytes: --{name}-as binary",
        ) from error


def _is_text(content: bytes | None) -> bool:
    try:
        return content is None or content.decode() is not None
    except UnicodeDecodeError:
        return False

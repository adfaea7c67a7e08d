"""The records' canonical bytes in C."""

import ctypes
from typing import Any

import pytest

from index_format import records
from index_format.kernel_choice import KERNEL, Kernel
from index_format.records import Record, RecordsDigest, batch_from_records, canonical_bytes, canonical_stream
from tests.index_format.builders import MAX_INT64, MIN_INT64, record

pytestmark = pytest.mark.skipif(not KERNEL, reason=KERNEL.why_not)

ROWS = [
    record(0, None, None),
    record(MAX_INT64, b"", b"", timestamp=MIN_INT64, timestamp_type=-1),
    record(5, b"v" * 300, b"\xff", [("h", b"\xff"), ("é", None), ("", b"")], timestamp_type=1),
    *(record(offset, b"v" * offset) for offset in range(20)),
]


def test_the_stream_is_that_of_single_records() -> None:
    batch = batch_from_records(ROWS)
    for start in range(len(ROWS)):
        for count in (0, 1, 2, len(ROWS) - start):
            part: list[Record] = ROWS[start : start + count]
            assert bytes(canonical_stream(batch.slice(start, count))) == b"".join(map(canonical_bytes, part))


def test_the_digest_is_the_same_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_from_records([*ROWS, record(99, b"v" * 2_000_000)])
    in_c, in_python = RecordsDigest(), RecordsDigest()
    in_c.update(batch)
    monkeypatch.setattr(records, "KERNEL", Kernel(None, "for this test"))
    in_python.update(batch)
    assert (in_c.content, in_c.positions) == (in_python.content, in_python.positions)


class Shortened:
    """Twenty rows that are exported with a column that is shorter than the batch."""

    def __init__(self, *path: int) -> None:
        """`path` leads to the column, as from the batch to its sixth column to the only child of that."""
        self._path = path

    def __arrow_c_array__(self, _: object = None) -> Any:
        batch = batch_from_records([record(offset, b"v", headers=[("h", b"1")]) for offset in range(20)])
        schema, array = batch.__arrow_c_array__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        place = pointer(array, b"arrow_array")
        for child in self._path:
            children = ctypes.c_void_p.from_address(place + 6 * 8).value
            place = ctypes.c_void_p.from_address(children + 8 * child).value
        ctypes.c_int64.from_address(place).value = 10
        return schema, array


@pytest.mark.parametrize("path", [*((column,) for column in range(6)), (5, 0), (5, 0, 0), (5, 0, 1)])
def test_columns_that_are_shorter_than_the_batch_are_refused(path: tuple[int, ...]) -> None:
    calls = (
        KERNEL.module.canonical_stream,
        KERNEL.module.digest_streams,
        lambda batch: KERNEL.module.encode_json_lines(batch, 0),
    )
    for call in calls:
        with pytest.raises(ValueError, match="not as long as the batch"):
            call(Shortened(*path))

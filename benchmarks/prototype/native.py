"""`records.c`, compiled when it is needed and called without the interpreter's lock."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("records.c")
MOST_SCANNED = 1024
REFUSALS = {
    -1: "it is cut short",
    -2: "its message format is not version 2",
    -3: "its CRC-32C is wrong",
    -4: "it does not hold the records that it says",
    -5: "a column would be larger than 2 GiB",
    -6: "it is not an lz4 frame",
}


class BadBatch(ValueError):
    """A record batch that cannot be read; the message says why."""


class Batch(ctypes.Structure):
    """A batch as `scan_batches` describes it; `start` and `length` are those of its records in what was scanned."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("base_offset", "first_timestamp", "max_timestamp", "producer_id")),
        *((name, ctypes.c_int64) for name in ("start", "length")),
        *((name, ctypes.c_int32) for name in ("leader_epoch", "last_offset_delta", "records", "attributes")),
    ]


class Totals(ctypes.Structure):
    """What records need in the buffers of their columns."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("records", "key_bytes", "value_bytes", "null_keys", "null_values"),
            *("headers", "header_key_bytes", "header_value_bytes", "null_header_values"),
        )
    ]


class Column(ctypes.Structure):
    """The buffers of a column of variable length, and how far they are filled."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ends", "bytes", "valid")),
        *((name, ctypes.c_int64) for name in ("rows", "filled")),
    ]


class Columns(ctypes.Structure):
    """The buffers of all columns."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("offsets", "timestamps", "timestamp_types", "header_ends")),
        ("rows", ctypes.c_int64),
        *((name, Column) for name in ("keys", "values", "header_keys", "header_values")),
    ]


def compiled(folder: Path) -> Path:
    """The library, built into `folder`; ends the program where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("the prototype needs a C compiler: no `cc` on PATH")
    library = folder / "records.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


class Native:
    """The functions of the library. Addresses are plain integers; the caller keeps what they point to alive."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        address, size = ctypes.c_void_p, ctypes.c_int64
        self._scan = _function(loaded.scan_batches, address, size, address, size)
        self._bound = _function(loaded.lz4_bound, address, size)
        self._measure = _function(loaded.measure_records, address, size, size, size, ctypes.POINTER(Totals))
        self._fill = _function(loaded.fill_records, address, size, ctypes.POINTER(Batch), size, ctypes.POINTER(Columns))
        self._crc32c = _function(loaded.crc32c, address, address, result=ctypes.c_uint32)

    def scan(self, address: int, size: int) -> list[Batch]:
        """The whole batches at the beginning, their checksums checked; what is cut short at the end is left."""
        batches: list[Batch] = []
        at = 0
        while True:
            some = (Batch * MOST_SCANNED)()
            count = _checked(self._scan(address + at, size - at, ctypes.addressof(some), MOST_SCANNED))
            for batch in some[:count]:
                batch.start += at
                batches.append(batch)
            if count < MOST_SCANNED:
                return batches
            at = batches[-1].start + batches[-1].length

    def lz4_bound(self, address: int, size: int) -> int:
        """What the frame inflates to at most."""
        return _checked(self._bound(address, size))

    def measure(self, address: int, size: int, records: int, least: int, totals: Totals) -> None:
        """Add what the records from offset delta `least` on need."""
        _checked(self._measure(address, size, records, least, totals))

    def fill(self, address: int, size: int, batch: Batch, least: int, columns: Columns) -> None:
        """Append the same records, which are those of `batch`."""
        _checked(self._fill(address, size, batch, least, columns))

    def crc32c(self, data: bytes) -> int:
        """CRC-32C of `data`."""
        start = ctypes.cast(data, ctypes.c_void_p).value or 0
        return int(self._crc32c(start, start + len(data)))


def _function(found: Any, *arguments: Any, result: Any = ctypes.c_int64) -> Any:
    found.argtypes, found.restype = arguments, result
    return found


def _checked(result: int) -> int:
    if result < 0:
        raise BadBatch(f"a record batch cannot be read: {REFUSALS[result]}")
    return result

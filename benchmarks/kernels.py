"""`python -m benchmarks.kernels`: what a record costs in C and in Python, on one core.

Prints a markdown table: nanoseconds of processor time a record, the least of several rounds, both ways in turn over the
same batches of JSON objects with keys, as a poll brings them.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from benchmarks.data import batches
from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from index_format import record_formats as line_formats
from index_format import records
from index_format.kernel_choice import KERNEL

SIZES = {"200 B": 200, "1 KB": 1024}
RECORDS = 4000
CREATE_TIME = 0

Work = Callable[[], object]


def works(batch: pa.RecordBatch) -> dict[str, tuple[Work, Work]]:
    """What is done to the records of one batch, in C and in Python; both give the same bytes and columns."""
    json = line_formats.JsonLines()
    raw = json.piece(*json.encode_in_python(batch, CREATE_TIME), 0, batch.num_rows)
    lines = json.join([raw])
    return {
        "encode as JSON lines": (
            lambda: json.encode(batch, CREATE_TIME),
            lambda: json.encode_in_python(batch, CREATE_TIME),
        ),
        "decode JSON lines": (
            lambda: json.decode(lines, 0, CREATE_TIME),
            lambda: line_formats.decode_in_python(lines, CREATE_TIME),
        ),
        "bytes of the digest": (lambda: records.digest_streams(batch), lambda: records.digest_streams_in_python(batch)),
    }


def cheapest(ways: tuple[Work, ...], rounds: int) -> list[float]:
    """Nanoseconds a record of each way, the least of the rounds."""
    found = [float("inf")] * len(ways)
    for _ in range(rounds):
        for at, work in enumerate(ways):
            begun = time.thread_time_ns()
            work()
            found[at] = min(found[at], (time.thread_time_ns() - begun) / RECORDS)
    return found


def rows(rounds: int) -> list[tuple[str, ...]]:
    """A row for each work: both ways and their ratio, for each size."""
    found: dict[str, list[str]] = {}
    for size in SIZES.values():
        ways: Mapping[str, tuple[Work, Work]] = works(next(batches(1, RECORDS, size)))
        for name, each in ways.items():
            in_c, in_python = cheapest(each, rounds)
            found.setdefault(name, []).extend((f"{in_c:,.0f}", f"{in_python:,.0f}", f"{in_python / in_c:.1f}x"))
    return [(name, *cells) for name, cells in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="rounds; the least counts")
    given = parser.parse_args()
    if not KERNEL:
        raise SystemExit(f"the C extension is not in use: {KERNEL.why_not}")
    print(f"{measured_on()}, one core\n")
    head = ("", *(f"{size}, {what}" for size in SIZES for what in ("in C", "in Python", "ratio")))
    print(as_markdown(Table("Nanoseconds of processor time a record", head, rows(given.rounds))))


if __name__ == "__main__":
    main()

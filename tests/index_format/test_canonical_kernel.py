"""The records' canonical bytes in C."""

import pytest

from index_format import canonical
from index_format.canonical import RecordsDigest, canonical_stream
from index_format.kernel_choice import KERNEL, Kernel
from index_format.records import Record, batch_from_records, canonical_bytes
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
    monkeypatch.setattr(canonical, "KERNEL", Kernel(None, "for this test"))
    in_python.update(batch)
    assert (in_c.content, in_c.positions) == (in_python.content, in_python.positions)

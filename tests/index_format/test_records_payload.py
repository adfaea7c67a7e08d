import pyarrow as pa
import pytest

from index_format.records import Record, batch_from_records, payload_bytes

PLAIN = [Record(n, 0, 0, b"k" * n, b"v" * (10 * n), ()) for n in range(6)]
NULLS = [Record(n, 0, 0, b"k" if n % 2 else None, None if n % 3 else b"value", ()) for n in range(6)]


@pytest.mark.parametrize("rows", [PLAIN, NULLS, [PLAIN[0], *NULLS], []], ids=["plain", "nulls", "mixed", "none"])
def test_bytes_of_keys_and_values_of_any_part_of_a_batch(rows: list[Record]) -> None:
    batch = batch_from_records(rows)
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            expected = sum(len(row.key or b"") + len(row.value or b"") for row in rows[start:stop])
            assert payload_bytes(batch.slice(start, stop - start)) == expected


def test_content_under_a_null_does_not_count() -> None:
    batch = batch_from_records(PLAIN)
    masked = batch.set_column(4, "value", pa.array([row.value for row in PLAIN], mask=batch["offset"].to_numpy() > 2))
    assert payload_bytes(masked) == sum(range(6)) + 10 * (1 + 2)

"""The bytes of whole batches are those of their records."""

from hypothesis import given
from hypothesis import strategies as st

from index_format.records import Record, batch_from_records, canonical_bytes, canonical_stream

headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
whole = st.integers(-(2**63), 2**63 - 1)
contents = st.none() | st.binary(max_size=5)
some_records = st.builds(Record, whole, whole, st.integers(-1, 1), contents, contents, headers)


@given(st.lists(some_records, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_a_stream_is_its_records_one_after_the_other(made: list[Record], start: int, length: int) -> None:
    batch = batch_from_records(made).slice(start, length)
    wanted = b"".join(map(canonical_bytes, made[start : start + length]))
    assert bytes(canonical_stream(batch)) == wanted

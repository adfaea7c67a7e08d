"""Headers of other libraries' making as the archive's column."""

import pyarrow as pa
import pytest

from index_format.records import header_column, header_column_of_lists

LISTS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def header(key: str | None, value: bytes | None) -> dict[str, object]:
    return {"key": key, "value": value}


def test_null_is_none_and_order_and_repeats_stay() -> None:
    lists = pa.array([None, [], [header("a", b"1"), header("a", None)], [header("", b"")]], LISTS)
    expected = header_column([None, None, [("a", b"1"), ("a", None)], [("", b"")]])
    assert header_column_of_lists(lists).equals(expected)
    assert header_column_of_lists(lists.slice(2)).equals(expected.slice(2))


@pytest.mark.parametrize("bad", [[header(None, b"1")], [None]])
def test_a_header_has_a_key(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="without a key"):
        header_column_of_lists(pa.array([[header("a", b"1")], bad], LISTS))

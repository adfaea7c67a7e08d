"""Filters over Arrow columns, judged by the same question asked of each record in Python."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockgz.errors import UsageError
from blockgz.record_filter import (
    Condition,
    HasHeader,
    HeaderIs,
    KeyIn,
    Not,
    Pattern,
    RecordFilter,
    ValueMatches,
    header_condition,
)
from index_format.records import Record, batch_from_records, iter_records
from tests.index_format.builders import block_at

RECORDS = [
    Record(0, 5, 0, None, "café".encode(), (("a", None),)),
    Record(1, 6, 0, b"", b"\xff\xfe x", ()),
    Record(2, 7, 0, b"k", None, (("a", b"1"), ("b", b""))),
    Record(3, -1, -1, b"\xff", b"line\nbreak", (("a", b"1"), ("a", b"2"))),
]


def kept(*conditions: Condition, since: int | None = None, until: int | None = None) -> list[int]:
    batch = RecordFilter(since, until, conditions).apply(batch_from_records(RECORDS))
    return [record.offset for record in iter_records(batch)]


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        (KeyIn([None]), [0]),
        (KeyIn([b""]), [1]),
        (KeyIn([b"k", b"\xff", None]), [0, 2, 3]),
        (HasHeader("a"), [0, 2, 3]),
        (HasHeader(""), []),
        (HeaderIs("a", b"2"), [3]),
        (HeaderIs("a", b""), []),
        (HeaderIs("b", b""), [2]),
        (Not(HasHeader("a")), [1]),
        (ValueMatches(Pattern("é")), [0]),
        (ValueMatches(Pattern("CAFÉ", ignore_case=True)), [0]),
        (ValueMatches(Pattern("^caf.$")), [0]),
        (ValueMatches(Pattern(r"\xfe x$")), [1]),
        (ValueMatches(Pattern("x")), [1]),
        (ValueMatches(Pattern(r"e\nb")), [3]),
        (Not(ValueMatches(Pattern("x"))), [0, 2, 3]),
        (ValueMatches(Pattern("")), [0, 1, 3]),
    ],
)
def test_each_condition(condition: Condition, offsets: list[int]) -> None:
    assert kept(condition) == offsets


@pytest.mark.parametrize(
    ("since", "until", "offsets"),
    [(None, None, [0, 1, 2, 3]), (6, None, [1, 2]), (None, 6, [0, 3]), (5, 7, [0, 1]), (7, 7, []), (-1, 0, [3])],
)
def test_times_are_half_open_and_conditions_all_hold(since: int | None, until: int | None, offsets: list[int]) -> None:
    assert kept(since=since, until=until) == offsets
    assert kept(HasHeader("a"), since=since, until=until) == [offset for offset in offsets if offset != 1]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["", "a", "ab", "\x00", ".", "é", "[", "\\", "A"]).map(str.encode), max_size=8),
    st.text("a.é[\\A\x00", max_size=3),
)
def test_a_literal_finds_itself_and_nothing_else(values: list[bytes], text: str) -> None:
    batch = batch_from_records([Record(n, 0, 0, None, value, ()) for n, value in enumerate(values)])
    found = Pattern.literal(text).found_in(batch.column("value")).to_pylist()
    assert found == [re.search(re.escape(text), value.decode()) is not None for value in values]


@pytest.mark.parametrize("text", ["€", "☕ é", "٣", "e€\u0301"])
@pytest.mark.parametrize("ignore_case", [False, True])
def test_text_that_no_single_byte_is_can_be_searched_for_beside_bytes(text: str, ignore_case: bool) -> None:
    values = [b"\xff" + text.encode(), text.encode(), b"\xff", None]
    batch = batch_from_records([Record(n, 0, 0, None, value, ()) for n, value in enumerate(values)])
    for pattern in (Pattern.literal(text, ignore_case=ignore_case), Pattern(text, ignore_case)):
        assert pattern.found_in(batch.column("value")).to_pylist() == [True, True, False, False]


def test_part_of_a_batch_is_filtered_by_its_own_headers() -> None:
    part = batch_from_records(RECORDS).slice(1, 2)
    assert [r.offset for r in iter_records(RecordFilter(conditions=(HasHeader("b"),)).apply(part))] == [2]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_no_block_is_skipped_that_holds_a_wanted_record(first: int, second: int, since: int, until: int) -> None:
    low, high = sorted((first, second))
    wanted = RecordFilter(since, until).may_match(block_at(0, min_timestamp=low, max_timestamp=high))
    holds_some = any(since <= timestamp < until for timestamp in range(low, high + 1))
    assert wanted == holds_some if since < until else not holds_some


@pytest.mark.parametrize("expression", ["(", "a{2000}", "(?=x)", "x" * 10_001, "\udcff", r"\x{20ac}"])
def test_what_is_not_a_pattern_is_refused(expression: str) -> None:
    with pytest.raises(UsageError):
        Pattern(expression)


def test_header_conditions() -> None:
    assert header_condition("a") == HasHeader("a")
    assert header_condition("a=") == HeaderIs("a", b"")
    assert header_condition("a=b=\udcff") == HeaderIs("a", b"b=\xff")
    with pytest.raises(UsageError):
        header_condition("\udcff=1")

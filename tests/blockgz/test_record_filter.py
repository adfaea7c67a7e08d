"""Filters over Arrow columns, formats of records, patterns of topics, units."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockgz.archive import formatting
from blockgz.archive.formatting import Printer, envelope, envelope_printer, json_printer, template_printer
from blockgz.errors import NotInArchive, UsageError
from blockgz.record_filter import Condition, HeaderIs, KeyIn, Not, Pattern, RecordFilter, ValueMatches, header_condition
from blockgz.topic_patterns import TopicRules, is_pattern, matching
from blockgz.units import format_duration, format_size, parse_duration, parse_size
from index_format.records import Record, batch_from_records, iter_records
from tests.support.format_objects import block_at
from tests.support.sampling import seeded_random

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
        (HeaderIs("a"), [0, 2, 3]),
        (HeaderIs(""), []),
        (HeaderIs("a", b"2"), [3]),
        (HeaderIs("a", b""), []),
        (HeaderIs("b", b""), [2]),
        (Not(HeaderIs("a")), [1]),
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
    assert kept(HeaderIs("a"), since=since, until=until) == [offset for offset in offsets if offset != 1]


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
    assert [r.offset for r in iter_records(RecordFilter(conditions=(HeaderIs("b"),)).apply(part))] == [2]


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
    assert header_condition("a") == HeaderIs("a")
    assert header_condition("a=") == HeaderIs("a", b"")
    assert header_condition("a=b=\udcff") == HeaderIs("a", b"b=\xff")
    with pytest.raises(UsageError):
        header_condition("\udcff=1")


RECORD = Record(17, 1000, 0, b"k", b"v\x00\xff", (("a", b"1"), ("b", None), ("c", b"")))
NULLS = Record(18, -1, -1, None, None, ())


def printed(template: str, record: Record = RECORD) -> bytes:
    return b"".join(template_printer(template)("orders", 3, batch_from_records([record])))


@pytest.mark.parametrize(
    ("template", "output"),
    [
        ("%t %p %o %T", b"orders 3 17 1000"),
        ("%k=%s", b"k=v\x00\xff"),
        ("%K %S", b"1 3"),
        ("%R", b"\x00\x00\x00\x03"),
        ("%h", b"a=1,b=NULL,c="),
        ("100%%\\n", b"100%\n"),
        ("\\t\\r\\\\\\x41\\0102\\102\\0x41\\xaé", b"\t\r\\ABfAa" + "é".encode()),
        ("\\x341|\\q\\0|\\", b"A|q\0|\\"),
        ("", b""),
        ("%%o", b"%o"),
    ],
)
def test_kcats_tokens(template: str, output: bytes) -> None:
    assert printed(template) == output


def test_nulls_print_as_nothing_with_length_minus_one() -> None:
    assert printed("[%k][%s][%h] %K %S %T", NULLS) == b"[][][] -1 -1 -1"
    assert printed("%R", NULLS) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("printer", [template_printer("%k %K,%h,%s %S %R\\n"), envelope_printer(), json_printer(b";")])
@pytest.mark.parametrize(
    "content", [b"", b"x" * 9, '"ü\\😀\n'.encode() * 5, b"\xff" * 10, b"\xf0\x9f", b"a\0" * 7, None], ids=repr
)
def test_a_large_record_is_printed_as_a_small_one(
    printer: Printer, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Record(1, 2, 0, key, content, (("h", content), ("ü", b"v"))) for key in (None, b"k" * 7, content)]
    batches = [batch_from_records([records[0], record]).slice(1) for record in records]
    small = [b"".join(printer("orders", 3, batch)) for batch in batches]
    monkeypatch.setattr(formatting, "is_large", lambda _: True)
    monkeypatch.setattr(formatting, "STEP_BYTES", 3)
    assert [b"".join(printer("orders", 3, batch)) for batch in batches] == small


@pytest.mark.parametrize("template", ["%", "%x", "a%"])
def test_unknown_tokens_are_refused(template: str) -> None:
    with pytest.raises(UsageError, match="is not a format token"):
        template_printer(template)


def test_the_envelope_of_a_record_without_timestamp() -> None:
    assert json.loads(envelope("orders", 3, NULLS)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 18,
        "broker": -1,
        "key": None,
        "payload": None,
    }


def test_the_envelope_is_yajls_to_the_byte() -> None:
    everything = bytes(range(256))
    record = Record(5, 7, 1, b"", everything, (("/\x1b", None), ("h", b"\n")))
    escaped = (
        b"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000B\\f\\r\\u000E\\u000F"
        b"\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001A\\u001B\\u001C\\u001D\\u001E\\u001F"
        + everything[0x20:].replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    )
    assert envelope("t", 0, record) == (
        b'{"topic":"t","partition":0,"offset":5,"tstype":"logappend","ts":7,"broker":-1,'
        b'"headers":["/\\u001B",null,"h","\\n"],"key":"","payload":"' + escaped + b'"}'
    )


def test_headers_are_cut_at_nul_as_kcat_does() -> None:
    assert printed("%h", RECORD._replace(headers=(("a", b"1\x002"), ("b", b"\0")))) == b"a=1,b="


TOPICS = ["bills", "orders", "orders-eu", "__consumer_offsets"]


@pytest.mark.parametrize(("text", "pattern"), [("orders", False), ("orders~2", False), ("or*", True), ("~o.*", True)])
def test_what_is_a_pattern(text: str, pattern: bool) -> None:
    assert is_pattern(text) is pattern


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders*", ["orders", "orders-eu"]),
        ("~orders", ["orders"]),
        ("~.*s", ["bills", "orders"]),
        ("[bo]*", TOPICS[:3]),
    ],
)
def test_whole_names_and_none_of_kafkas_own(pattern: str, topics: list[str]) -> None:
    assert matching(pattern, TOPICS) == topics


def test_what_fits_nothing_and_what_is_not_an_expression() -> None:
    with pytest.raises(NotInArchive, match="no archived topic matches 'x\\*'") as caught:
        matching("x*", TOPICS)
    assert "bills, orders" in caught.value.why
    with pytest.raises(UsageError, match="is not a regular expression"):
        matching("~(", TOPICS)


def test_the_first_rule_that_matches_a_topic_counts() -> None:
    rules = TopicRules(["orders-eu=1", "~or(?=d).*=2", "bil*=3"], int)
    assert [rules(topic) for topic in TOPICS] == [3, 2, 1, None]
    assert [TopicRules(["bills=1", "2", "orders=3"], int)(topic) for topic in TOPICS] == [1, 2, 2, 2]
    assert TopicRules(["*=1"], int)("__consumer_offsets") is None
    with pytest.raises(ValueError, match="invalid literal"):
        TopicRules(["orders=x"], int)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64kB", 64_000), ("1.5KiB", 1536), ("128 MiB", 128 * 1024**2), ("0.1GB", 100_000_000), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1 mib", "1KB", "-1B", "1e6", "١MiB", "1 MiB MiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("250ms", 0.25), ("1.5h", 5400), ("7d", 604800), ("30", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-1s", "nan", "1M"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_what_is_written_reads_back() -> None:
    numbers = seeded_random()
    for _ in range(300):
        size = numbers.randrange(1, 2**20) * numbers.choice([1, 1024, 1024**2])
        assert parse_size(format_size(size)) == size
        milliseconds = numbers.randrange(1, 10**6) * numbers.choice([1, 1000, 60_000])
        assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000

"""Small valid values of the format, each with one field changed at will."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from index_format.groups import ConsumerGroups, Group, GroupPosition
from index_format.records import TIMESTAMP_TYPES, Headers, Record

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


def record(
    offset: int,
    value: bytes | None = b"v",
    key: bytes | None = None,
    headers: Headers = (),
    timestamp: int = 1_000,
    timestamp_type: int = 0,
) -> Record:
    return Record(offset, timestamp, timestamp_type, key, value, headers)


NASTY = [
    *(b"", b"\x00", b"\n", b"\r\n", b'"\\/', b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbb\xbfbom"),
    *("é😀\u2028".encode(),),
]
contents = st.one_of(st.none(), st.sampled_from(NASTY), st.binary(max_size=24), st.text(max_size=12).map(str.encode))
timestamps = st.one_of(
    st.sampled_from([-1, 0, MIN_INT64, MAX_INT64]), st.integers(0, 2_000_000_000_000), st.integers(MIN_INT64, MAX_INT64)
)
header_lists = st.lists(st.tuples(st.sampled_from(["a", "a", "", "é", "\x00"]), contents), max_size=4)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 20) -> list[Record]:
    """Records at strictly rising offsets, with holes, of every class of content."""
    count = draw(st.integers(min_size, max_size))
    offset = draw(st.sampled_from([0, 1, 2**40, MAX_INT64 - 1_000]))
    rows = []
    for _ in range(count):
        rows.append(
            record(
                offset,
                draw(contents),
                draw(contents),
                draw(header_lists),
                draw(timestamps),
                draw(st.sampled_from(sorted(TIMESTAMP_TYPES))),
            )
        )
        offset += draw(st.sampled_from([1, 1, 1, 2, 7]))
    return rows


@st.composite
def text_record_lists(draw: st.DrawFn, max_size: int = 30) -> list[Record]:
    """Records that the format `text` can hold."""
    offset, rows = draw(st.integers(0, 50)), []
    for value in draw(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=max_size)):
        rows.append(record(offset, value, timestamp=-1, timestamp_type=-1))
        offset += draw(st.sampled_from([1, 1, 1, 3]))
    return rows


def normal(rows: Sequence[Record]) -> list[Record]:
    """Records with their headers as lists of pairs, so that equal ones compare equal."""
    return [row._replace(headers=[(key, value) for key, value in row.headers]) for row in rows]


def group(group_id: str, *partitions: int, asked_at: int = 39_300, offset: int = 41) -> Group:
    return Group(group_id, asked_at, tuple(GroupPosition(number, offset + number, "") for number in partitions))


def groups_of(*groups: Group, **changes: Any) -> ConsumerGroups:
    fields = {"archive_id": "archive-1", "topic": "orders", "topic_id": None, "interval": 60_000, "groups": groups}
    return ConsumerGroups(**fields | changes)

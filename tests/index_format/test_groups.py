import gzip
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format import objects
from index_format.errors import FormatError, MalformedObject, TooLarge, UnsupportedVersion
from index_format.groups import (
    MAX_METADATA_BYTES,
    GoneGroup,
    Group,
    GroupPosition,
    LogEnd,
    LogEnds,
    decode,
    encode,
    slot_of,
)
from tests.index_format.builders import MAX_INT64, group, groups_of

KEY = "topic=orders/_groups/00000000000000060000.json"
SLOT = 60_000
BOMB = gzip.compress(bytes(objects.MAX_OBJECT_BYTES + 1), 1)
TABLE = groups_of(group("", 0), group("billing", 0, 3), group("suche\n", 3))

texts = st.text(max_size=8) | st.sampled_from(["é" * 128, "\x00", "😀" * 64])
rows = st.dictionaries(
    st.integers(0, 2**31 - 1), st.tuples(st.integers(0, MAX_INT64), st.none() | texts), min_size=1, max_size=4
)


@st.composite
def group_lists(draw: st.DrawFn) -> Sequence[Group]:
    found = draw(st.dictionaries(texts, st.tuples(st.integers(0, SLOT), rows), max_size=4))
    return [
        Group(name, asked_at, tuple(GroupPosition(number, *positions[number]) for number in sorted(positions)))
        for name, (asked_at, positions) in sorted(found.items())
    ]


@given(group_lists())
def test_tables_come_back(groups: Sequence[Group]) -> None:
    table = groups_of(*groups)
    assert decode(encode(table), KEY, SLOT) == table


def test_a_table_is_gzip_of_sealed_json() -> None:
    plain = json.loads(gzip.decompress(encode(TABLE)))
    assert [*plain] == ["format", "version", "archive_id", "topic", "topic_id", "interval", "groups", "crc32"]
    assert plain["groups"][1]["positions"] == [
        {"partition": 0, "offset": 41, "metadata": ""},
        {"partition": 3, "offset": 44, "metadata": ""},
    ]


ENDS = LogEnds(50_000, 50_007, (LogEnd(0, 42), LogEnd(3, 48)))


@pytest.mark.parametrize(
    "more",
    [{"gone": (GoneGroup("audit", 5),), "ends": ENDS}, {"ends": ENDS, "groups_asked": False, "groups_slot": 59_999}],
)
def test_ends_and_groups_that_left_come_back(more: dict[str, object]) -> None:
    table = groups_of(**more)
    assert decode(encode(table), KEY, SLOT) == table
    assert table.has_groups == ("gone" in more)


def test_the_time_of_the_ends_counts_as_an_answer() -> None:
    table = groups_of(group("a", 0), ends=ENDS)
    assert table.last_answer == 50_007
    with pytest.raises(MalformedObject, match="is damaged"):
        decode(encode(table), KEY, 50_006)


def test_the_last_table_with_groups_is_an_older_one() -> None:
    with pytest.raises(MalformedObject, match="is damaged"):
        decode(encode(groups_of(ends=ENDS, groups_asked=False, groups_slot=SLOT)), KEY, SLOT)


def changed(change: Callable[[dict[str, object]], object]) -> bytes:
    plain = json.loads(objects.encode(TABLE))
    del plain["crc32"]
    change(plain)
    return gzip.compress(json.dumps(plain).encode())


def test_unknown_fields_are_ignored() -> None:
    assert decode(changed(lambda plain: plain.update(new=1)), KEY, SLOT) == TABLE


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedVersion, match="has version 2"):
        decode(changed(lambda plain: plain.update(version=2)), KEY, SLOT)


def test_every_truncation_and_flipped_bit_is_refused_by_name() -> None:
    """But for bits of the gzip header, and one that pads the content, which say nothing."""
    body = encode(TABLE)
    for length in range(len(body)):
        with pytest.raises(FormatError, match=KEY):
            decode(body[:length], KEY, SLOT)
    for position, bit in product(range(len(body)), range(8)):
        flipped = bytearray(body)
        flipped[position] ^= 1 << bit
        with suppress(FormatError):
            assert decode(bytes(flipped), KEY, SLOT) == TABLE


@pytest.mark.parametrize("more", [b"x", gzip.compress(b"{}")], ids=["bytes", "another member"])
def test_what_follows_the_member_is_refused(more: bytes) -> None:
    with pytest.raises(FormatError, match=KEY):
        decode(encode(TABLE) + more, KEY, SLOT)


def test_a_bomb_is_not_inflated_beyond_the_bound() -> None:
    with pytest.raises(TooLarge, match=KEY):
        decode(BOMB, KEY, SLOT)
    lying = BOMB[:-4] + (100).to_bytes(4, "little")
    with pytest.raises(MalformedObject, match="is damaged"):
        decode(lying, KEY, SLOT)


def test_an_answer_after_the_slot_is_refused() -> None:
    assert decode(encode(TABLE), KEY, 39_300) == TABLE
    with pytest.raises(MalformedObject) as caught:
        decode(encode(TABLE), KEY, 39_299)
    assert caught.value.why == "it holds an answer of 39300, after the time in its name"


@pytest.mark.parametrize(
    "make",
    [
        lambda: groups_of(group("b", 0), group("a", 0)),
        lambda: groups_of(group("a", 0), group("a", 1)),
        lambda: groups_of(group("a")),
        lambda: groups_of(group("a", 3, 0)),
        lambda: groups_of(group("a", 3, 3)),
        lambda: GroupPosition(0, 0, "é" * (MAX_METADATA_BYTES // 2) + "x"),
        lambda: groups_of(gone=(GoneGroup("b", 0), GoneGroup("a", 0))),
        lambda: groups_of(group("a", 0), groups_asked=False),
        lambda: LogEnds(5, 6, ()),
        lambda: LogEnds(6, 5, (LogEnd(0, 0),)),
        lambda: LogEnds(5, 6, (LogEnd(1, 0), LogEnd(0, 0))),
    ],
)
def test_rules_are_checked(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"order|no position|metadata|no partition|not asked|before the request"):
        make()


@given(st.integers(0, 2**50), st.integers(1, 2**40))
def test_a_slot_is_the_first_point_of_the_grid_that_is_not_before(at_ms: int, interval: int) -> None:
    slot = slot_of(at_ms, interval)
    assert slot % interval == 0
    assert at_ms <= slot < at_ms + interval

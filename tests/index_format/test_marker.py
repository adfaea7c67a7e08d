import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from index_format import objects
from index_format.errors import MalformedObject
from index_format.marker import (
    FAN_OUT,
    Marker,
    advanced,
    appended,
    claimed,
    decode_index,
    decode_marker,
    encode,
    entry_of,
    inserted,
    replaceable_gap,
)
from index_format.objects import Gap
from tests.index_format.builders import MAX_INT64
from tests.support.format_objects import SHA256, block_at, chunk_entry, index_of, marker_of


def append(marker: Marker, start: int, end: int, gaps: tuple[Gap, ...] = (), **fields: Any) -> Marker:
    entry = chunk_entry(start, end, **fields)
    return appended(marker, entry, gaps, nonce=f"nonce-{end}", leader_epoch=4, tail_hash=SHA256)


def advance(marker: Marker, next_offset: int, gaps: tuple[Gap, ...] = ()) -> Marker:
    return advanced(marker, next_offset, nonce=f"advance-{next_offset}", leader_epoch=5, gaps=gaps)


def claim(marker: Marker, gap: Gap | None = None) -> Marker:
    return claimed(
        marker, writer="writer-2", nonce="claim", group_id="group-2", isolation_level="read_committed", gap=gap
    )


def reread(marker: Marker) -> Marker:
    """What a reader makes of a marker; it must be the same."""
    again = decode_marker(encode(marker))
    assert again == marker
    return again


def test_a_first_claim_knows_no_offsets() -> None:
    marker = reread(marker_of())
    assert marker.chain_end is None
    assert marker.spans == ()
    body = json.loads(encode(marker))
    fields = ("start_offset", "next_offset", "leader_epoch", "tail_hash", "last_chunk_index", "successor")
    assert [body[field] for field in fields] == [None] * 6


def test_a_claim_raises_the_epoch_and_names_the_writer() -> None:
    before = append(marker_of(), 5, 10)
    after = reread(claim(before))
    assert (after.epoch, after.writer, after.nonce, after.group_id) == (2, "writer-2", "claim", "group-2")
    assert after.isolation_level == "read_committed"
    assert (
        replace(after, epoch=1, writer="writer-1", nonce="nonce-10", group_id="blockgz", isolation_level=None) == before
    )


def test_a_claim_over_a_gap_moves_on_after_it() -> None:
    gap = Gap(10, 50, "retention")
    marker = reread(claim(append(marker_of(), 5, 10), gap))
    assert (marker.next_offset, marker.gaps, marker.chain_end) == (50, (gap,), 50)
    marker = reread(append(marker, 50, 60))
    assert [span.start_offset for span in marker.spans] == [5, 50]


def test_a_first_chunk_sets_all() -> None:
    marker = reread(append(marker_of(), 7, 12))
    assert (marker.start_offset, marker.next_offset, marker.chain_end) == (7, 12, 12)
    assert (marker.last_chunk_index, marker.tail_hash, marker.leader_epoch) == (marker.tail[0].name, SHA256, 4)


def test_progress_before_the_first_chunk_raises_the_start() -> None:
    marker = reread(advance(marker_of(), 5))
    assert (marker.start_offset, marker.next_offset, marker.chain_end) == (5, 5, 5)
    assert marker.leader_epoch == 5
    marker = reread(advance(marker, 9))
    assert (marker.start_offset, marker.next_offset, marker.chain_end) == (9, 9, 9)
    assert reread(append(marker, 9, 12)).start_offset == 9


def test_progress_before_the_first_chunk_over_skipped_records() -> None:
    gap = Gap(6, 7, "skipped")
    marker = reread(advance(marker_of(), 9, (gap,)))
    assert (marker.start_offset, marker.next_offset, marker.chain_end, marker.gaps) == (6, 9, 7, (gap,))
    marker = reread(advance(marker, 12))
    assert (marker.start_offset, marker.next_offset, marker.chain_end) == (6, 12, 7)
    marker = reread(append(marker, 7, 20, first_offset=12, num_records=3))
    assert (marker.start_offset, marker.next_offset, marker.chain_end) == (6, 20, 20)


def test_progress_after_a_chunk_raises_its_end() -> None:
    marker = reread(advance(append(marker_of(), 0, 10), 14))
    assert (marker.next_offset, marker.tail[-1].next_offset, marker.chain_end) == (14, 14, 14)
    assert marker.tail[-1].last_offset == 9
    assert reread(append(marker, 14, 20)).spans[-1].start_offset == 14


def test_progress_after_a_gap_raises_nothing_but_the_position() -> None:
    marker = claim(append(marker_of(), 0, 10), Gap(10, 50, "retention"))
    marker = reread(advance(marker, 60))
    assert (marker.next_offset, marker.tail[-1].next_offset, marker.chain_end) == (60, 10, 50)
    assert reread(append(marker, 50, 70, first_offset=60, num_records=5)).chain_end == 70


def test_progress_over_skipped_records_raises_the_chunk_up_to_them() -> None:
    gaps = (Gap(12, 13, "skipped"), Gap(15, 17, "skipped"))
    marker = reread(advance(append(marker_of(), 0, 10), 20, gaps))
    assert (marker.tail[-1].next_offset, marker.next_offset, marker.chain_end, marker.gaps) == (12, 20, 17, gaps)


@pytest.mark.parametrize("next_offset", [9, 10])
def test_progress_only_moves_forward(next_offset: int) -> None:
    with pytest.raises(ValueError, match="may not move"):
        advance(append(marker_of(), 0, 10), next_offset)


def test_gaps_may_not_lie_in_what_was_passed() -> None:
    with pytest.raises(ValueError, match="below next_offset"):
        advance(append(marker_of(), 0, 10), 20, (Gap(9, 12, "skipped"),))
    with pytest.raises(ValueError, match="above next_offset"):
        advance(append(marker_of(), 0, 10), 20, (Gap(12, 21, "skipped"),))


@pytest.mark.parametrize("start", [9, 11])
def test_a_chunk_starts_where_the_chain_ends(start: int) -> None:
    with pytest.raises(ValueError, match="not at 10"):
        append(append(marker_of(), 0, 10), start, 20)


def test_a_chunk_may_not_hold_what_was_passed() -> None:
    marker = advance(claim(append(marker_of(), 0, 10), Gap(10, 50, "retention")), 60)
    with pytest.raises(ValueError, match="below next_offset 60"):
        append(marker, 50, 70, first_offset=59, num_records=5)


def test_a_full_tail_takes_no_chunk() -> None:
    marker = marker_of()
    for number in range(FAN_OUT):
        marker = append(marker, 10 * number, 10 * number + 10)
    reread(marker)
    with pytest.raises(ValueError, match="fold it first"):
        append(marker, 640, 650)


def test_gaps_inside_a_chunk_are_kept() -> None:
    gap = Gap(3, 5, "skipped")
    marker = reread(append(marker_of(), 0, 10, (gap,), num_records=8))
    assert (marker.gaps, marker.chain_end) == ((gap,), 10)
    with pytest.raises(ValueError, match="above next_offset"):
        append(marker_of(), 0, 10, (Gap(9, 11, "skipped"),))


steps = st.lists(
    st.tuples(st.sampled_from(["append", "advance", "skip", "lose", "claim"]), st.integers(1, 9)), max_size=30
)


@given(steps, st.sampled_from([0, 17]))
def test_any_history_is_a_chain_without_overlap(history: list[tuple[str, int]], low: int) -> None:
    marker, position = marker_of(), low
    archived: list[tuple[int, int]] = []
    for step, count in history:
        start = marker.chain_end if marker.chain_end is not None else position
        end = position + count
        if step == "append":
            marker = append(marker, start, end, first_offset=position, num_records=1)
            archived.append((position, end))
        elif step == "advance":
            marker = advance(marker, end)
        elif step == "skip":
            marker = advance(marker, end, (Gap(end - 1, end, "skipped"),))
        elif step == "lose" and marker.next_offset is not None:
            marker = claim(marker, Gap(position, end, "retention"))
        else:
            marker, end = claim(marker), position
        position = end
        marker = reread(marker)
        assert marker.next_offset is None or marker.next_offset == position
        assert [(span.first_offset, span.last_offset + 1) for span in marker.tail] == archived
        for gap in marker.gaps:
            assert all(gap.end <= first or gap.start >= end for first, end in archived)


GOOD = json.loads(encode(append(claim(append(append(marker_of(), 0, 10), 10, 20), Gap(20, 30, "retention")), 30, 40)))
del GOOD["crc32"]


@pytest.mark.parametrize(
    "fields",
    [
        {"start_offset": None},
        {"next_offset": None},
        {"start_offset": None, "next_offset": None},
        {"next_offset": 39},
        {"next_offset": -1},
        {"next_offset": MAX_INT64 + 1},
        {"start_offset": 1},
        {"start_offset": 41},
        {"epoch": 0},
        {"epoch": MAX_INT64 + 1},
        {"leader_epoch": 2**31},
        {"leader_epoch": 1.0},
        {"tail_hash": "x" * 64},
        {"tail_hash": "0" * 64 + "\n"},
        {"last_chunk_index": None},
        {"last_chunk_index": "other.index.json"},
        {"tail": GOOD["tail"][::-1]},
        {"tail": [GOOD["tail"][0], *GOOD["tail"]]},
        {"tail": GOOD["tail"] * 30},
        {"tail": [GOOD["tail"][0] | {"next_offset": 11}, *GOOD["tail"][1:]]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"num_records": 11}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"num_records": 0}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"first_offset": 29}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"last_offset": 40}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"last_offset": 29}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"sha256": "no"}]},
        {"tail": [*GOOD["tail"][:2], GOOD["tail"][2] | {"name": "a\nb"}]},
        {"tail": None},
        {"catalogs": [[]] * 17},
        {"catalogs": [[GOOD["tail"][0]] * 65]},
        {"gaps": [{"from": 20, "to": 41, "reason": "retention"}]},
        {"gaps": [{"from": 20, "to": 30, "reason": "retention"}, {"from": 29, "to": 31, "reason": "skipped"}]},
        {"gaps": [{"from": 20, "to": 30, "reason": "retention"}, {"from": 5, "to": 6, "reason": "skipped"}]},
        {"gaps": [{"from": 20, "to": 20, "reason": "retention"}]},
        {"gaps": [{"from": -1, "to": 20, "reason": "retention"}]},
        {"successor": ""},
        {"topic": "a\x00b"},
        {"writer": None},
        {"version": 2},
        {"maintenance": {}},
        {"tail_key": {"id": "k", "wrapped": "AAAA"}},
        {"version": 2, "tail_key": {"id": "k"}},
        {"version": 2, "tail_key": {"id": "", "wrapped": "AAAA"}},
        {"version": 2, "maintenance": {"pruned_before": 41}},
        {"version": 2, "maintenance": {"pruned_before": 1}},
        {"version": 2, "maintenance": {"retired": [{"references": [], "token": "x"}]}},
        {"version": 2, "maintenance": {"rewriting": {"token": "x"}}},
    ],
    ids=lambda fields: str(fields)[:50],
)
def test_each_broken_rule_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedObject) as caught:
        decode_marker(json.dumps(GOOD | fields).encode(), "the marker")
    assert caught.value.why and "\n" not in caught.value.why


def test_the_good_one_is_good() -> None:
    assert decode_marker(json.dumps(GOOD | {"new": 1}).encode()).chain_end == 40


INDEX = index_of([block_at(0), block_at(1, num_records=5)], bytes(200), next_offset=25)
INDEX_BODY = objects.encode(INDEX)
ENTRY = entry_of(INDEX, "00000000000000000000.index.json", INDEX_BODY)


def test_an_index_is_read_by_its_entry() -> None:
    assert decode_index(INDEX_BODY, ENTRY, "orders", 3) == INDEX
    assert decode_index(INDEX_BODY, replace(ENTRY, next_offset=30), "orders", 3) == INDEX, "the log went on"


@pytest.mark.parametrize(
    "fields",
    [
        *({"next_offset": 24}, {"start_offset": 0, "first_offset": 1}, {"last_offset": 18}, {"num_records": 14}),
        *({"bytes": 201}, {"raw_bytes": 999}, {"min_timestamp": 1}, {"max_timestamp": 1}, {"sha256": SHA256}),
    ],
    ids=str,
)
def test_an_entry_that_lies_about_its_index(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedObject, match="index 0"):
        decode_index(INDEX_BODY, replace(ENTRY, **fields), "orders", 3)


def test_an_index_of_another_partition_or_of_other_bytes() -> None:
    for topic, partition in (("other", 3), ("orders", 4)):
        with pytest.raises(MalformedObject, match="not what its entry says"):
            decode_index(INDEX_BODY, ENTRY, topic, partition)
    with pytest.raises(MalformedObject, match="damaged"):
        decode_index(INDEX_BODY + b" ", ENTRY, "orders", 3)


def test_a_chunk_that_takes_the_place_of_a_gap_ends_where_the_chain_continues() -> None:
    marker = advance(claim(append(marker_of(), 0, 10), Gap(10, 20, "retention")), 25)
    entry = chunk_entry(10, 20)
    assert inserted(marker, entry, (), nonce="i", tail_hash=None)[0].tail[-1].next_offset == 25
    marker = advance(marker, 40, (Gap(30, 40, "skipped"),))
    longer = inserted(marker, entry, (), nonce="i", tail_hash=None)[0]
    assert longer.tail[-1].next_offset == 30 and longer.chain_end == 40
    part = inserted(marker, chunk_entry(10, 15), (), nonce="i", tail_hash=None)[0]
    assert part.tail[-1].next_offset == 15


def test_a_chunk_cannot_start_with_a_gap_after_a_hole() -> None:
    marker = claim(append(marker_of(), 0, 10), Gap(10, 20, "retention"))
    marker = advance(marker, 40, (Gap(30, 40, "skipped"),))
    assert replaceable_gap(marker, 30, 35) is None
    assert replaceable_gap(marker, 31, 35) == Gap(30, 40, "skipped")

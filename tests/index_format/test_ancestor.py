"""Members found without an index, names, payloads and choices of old archives."""

import gzip
import random
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from index_format.errors import FormatError, TooLarge
from index_format.keys import TopicPartition
from index_format.old_files import OldFile, choose
from index_format.old_members import DamagedBytes, Member, MemberScanner, Scanned, ends_as_member
from index_format.old_objects import (
    MAX_RECORDS,
    OldBlock,
    OldFormat,
    decode_old_index,
    encode_old_index,
    group_by_partition,
    marker_offset,
)
from index_format.rebuild import scan_frames

CONTENTS = [b"", b"a\n", b"bc\n" * 1000, random.Random(1).randbytes(3000), b"d" * 9]
MEMBERS = [gzip.compress(content, mtime=0) for content in CONTENTS]


def scan(data: bytes, piece: int = 1000, max_bytes: int = 10_000) -> list[Scanned]:
    scanner, found = MemberScanner(max_bytes), list[Scanned]()
    for start in range(0, len(data), piece):
        found += scanner.feed(data[start : start + piece])
    return [*found, *scanner.finish()]


def check_cover(found: list[Scanned], data: bytes) -> None:
    """Every byte is in a member or in damage, once and in order."""
    position = 0
    for each in found:
        start, end = (each.start, each.end) if isinstance(each, DamagedBytes) else (each.byte_offset, each.byte_end)
        assert start == position < end
        position = end
    assert position == len(data)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000, 1_000_000])
@pytest.mark.parametrize("header", [b"", b"x", b"\x1f\x8b", b"\x1f\x8b\x08 no member"])
def test_members_whatever_the_pieces(piece: int, header: bytes) -> None:
    data = header + b"".join(MEMBERS)
    found = scan(data, piece)
    check_cover(found, data)
    assert [each.raw for each in found if isinstance(each, Member)] == CONTENTS
    assert len(found) == len(CONTENTS) + bool(header)


@pytest.mark.parametrize("victim", range(len(MEMBERS)))
def test_damage_costs_one_member_wherever_it_is(victim: int) -> None:
    start = sum(map(len, MEMBERS[:victim]))
    others = CONTENTS[:victim] + CONTENTS[victim + 1 :]
    step = max(1, len(MEMBERS[victim]) // 40)
    for position in range(start, start + len(MEMBERS[victim]), step):
        data = bytearray(b"".join(MEMBERS))
        data[position] ^= 0xFF
        found = scan(bytes(data))
        check_cover(found, bytes(data))
        whole = [each.raw for each in found if isinstance(each, Member)]
        # The header's time and system, and its file name, are bytes that no checksum is over.
        assert whole in (others, CONTENTS), (victim, position - start)


def test_a_cut_costs_what_was_cut() -> None:
    data = b"".join(MEMBERS)
    for end in range(0, len(data), 37):
        found = scan(data[:end])
        check_cover(found, data[:end])
        whole = sum(end >= sum(map(len, MEMBERS[: number + 1])) for number in range(len(MEMBERS)))
        assert [each.raw for each in found if isinstance(each, Member)] == CONTENTS[:whole]


def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    with pytest.raises(TooLarge):
        scan(gzip.compress(bytes(10_000_000)), 100)


def test_frames() -> None:
    frames = [zstandard.ZstdCompressor(3, write_checksum=True).compress(content) for content in CONTENTS[1:]]
    data = b"".join(frames)
    assert [each.raw for each in scan_frames(data, 10_000) if isinstance(each, Member)] == CONTENTS[1:]
    check_cover(list(scan_frames(data, 10_000)), data)
    cut = list(scan_frames(data[:-2], 10_000))
    assert isinstance(cut[-1], DamagedBytes) and len(cut) == len(frames)
    assert isinstance(next(scan_frames(data, 1)), DamagedBytes)


@given(st.lists(st.one_of(st.binary(max_size=300), st.integers(1, 300_000).map(bytes)), max_size=4), st.booleans())
def test_where_a_frame_ends(contents: list[bytes], checked: bool) -> None:
    frames = [zstandard.ZstdCompressor(1, write_checksum=checked).compress(content) for content in contents]
    data = b"".join(frames)
    found = [each for each in scan_frames(data, 300_000) if isinstance(each, Member)]
    assert [(each.stored, each.raw) for each in found] == list(zip(frames, contents, strict=True))


class Counted(bytes):
    """Counts what is copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.copied += len(part) if isinstance(key, slice) else 0
        return part


def test_a_chunk_of_many_frames_is_not_copied_for_each_of_them() -> None:
    data = Counted(zstandard.ZstdCompressor(1).compress(b"x" * 100) * 500)
    assert sum(isinstance(each, Member) for each in scan_frames(data, 1000)) == 500
    assert data.copied < 5 * len(data)


def test_names() -> None:
    names = [
        "2016-02-24/a-b-00001-00002-000000000003.gz",
        "2016-02-25/a-b-00001-00002-000000000003.index.json",
        "2016-02-24/x-00000-9999999999999999999.gz",
        "2016-02-24/..-00000-000000000003.gz",
        "a/2016-02-24/x-00000-000000000003.gz",
        "last_chunk_index.a-b-00001-00002.txt",
    ]
    ((place, found),) = group_by_partition(names).items()
    assert place == TopicPartition("a-b-00001", 2) and found.marker_key == names[-1]
    assert [(each.key, each.first_offset, each.index_keys) for each in found.data] == [(names[0], 3, (names[1],))]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"pfx/2016-02-24/bar-00000-000000000100.index.json", 100),
        (b" \n2016-02-24/bar-00000-000000000100.index.json\r\n", 100),
        (b"100", 100),
        (b"", None),
        (b"99999999999999999999", None),
        (b"bar", None),
    ],
)
def test_markers(body: bytes, offset: int | None) -> None:
    assert marker_offset(body) == offset


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"chunks":[{}]}',
        b'{"chunks":[{"num_records":-1,"byte_length":1,"byte_offset":0,"first_record_offset":0}]}',
        b'{"chunks":[{"num_records":1,"byte_length":0,"byte_offset":0,"first_record_offset":0}]}',
        b'{"chunks":[{"num_records":9223372036854775807,"byte_length":1,"byte_offset":0,"first_record_offset":0},'
        b'{"num_records":1,"byte_length":1,"byte_offset":1,"first_record_offset":1}]}',
        b"[" * 100_000,
    ],
)
def test_indexes_that_are_none(body: bytes) -> None:
    with pytest.raises(FormatError):
        decode_old_index(body, "x", 0)


def test_an_index_there_and_back() -> None:
    blocks = (OldBlock(0, 275, 0, 100, 2890), OldBlock(275, 20, 100, 0, 0))
    assert decode_old_index(encode_old_index(blocks), "x", 0) == tuple(each._replace(raw_bytes=None) for each in blocks)


@pytest.mark.parametrize(
    ("text", "delimiter"), [(r"\t", b"\t"), (r"\x1f", b"\x1f"), (r"\\", b"\\"), ("é", "é".encode()), ("::", b"::")]
)
def test_delimiters(text: str, delimiter: bytes) -> None:
    assert OldFormat.of_options("delimited", text).delimiter == delimiter


@pytest.mark.parametrize("raw", [b"\x00", b"\x00\x00\x00\x05abc", b"\xff\xff\xff\xfe"])
def test_lengths_that_lead_nowhere(raw: bytes) -> None:
    with pytest.raises(FormatError):
        OldFormat("binary").parse(raw, 1)


def test_a_bomb_of_empty_lines_is_refused_before_it_is_decoded() -> None:
    count = MAX_RECORDS + 1
    assert OldFormat().count(b"\n" * count) == count
    with pytest.raises(TooLarge):
        OldFormat().parse(b"\n" * count, count)


def test_every_offset_is_taken_once_from_the_best_file() -> None:
    rng = random.Random(seed := random.randrange(2**32))
    print("seed", seed)
    for _ in range(300):
        files = []
        for number in range(rng.randrange(1, 8)):
            start, count = rng.randrange(30), rng.randrange(12)
            block = OldBlock(0, 1, start, count)
            files.append(OldFile(str(number), 1, start, (block,), is_indexed=rng.random() < 0.5))
        pieces, gaps = choose(files)
        held = {offset for file in files for offset in range(file.first_offset, file.next_offset)}
        taken = [offset for piece in pieces for offset in range(piece.start, piece.end)]
        assert taken == sorted(held)
        lost = {offset for gap in gaps for offset in range(gap.start, gap.end)}
        assert lost == set(range(min(held, default=0), max(held, default=-1) + 1)) - held
        for piece in pieces:
            for offset in range(piece.start, piece.end):
                begun = [f for f in files if f.is_indexed and f.first_offset <= offset < f.next_offset]
                assert piece.file.is_indexed or not begun, "a doubtful file before one whose index fits"


@pytest.mark.parametrize("position", range(10))
def test_a_member_whose_header_is_damaged_is_told_from_something_else(position: int) -> None:
    """Its records cannot be counted; something else before the first block costs nothing."""
    member = gzip.compress(b"one\ntwo\n" * 50)
    flipped = bytes([*member[:position], member[position] ^ 0x10, *member[position + 1 :]])
    grown = member[:position] + bytes(range(40)) + member[position:]
    assert ends_as_member(flipped, 1000) and ends_as_member(grown, 1000)
    assert not ends_as_member(flipped, 100)
    assert not ends_as_member(flipped[:-1], 1000)
    assert not ends_as_member(b"a header of a fork, version 1\n" * 10, 1000)
    assert not ends_as_member(b"", 1000)

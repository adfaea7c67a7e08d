import random
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from index_format.errors import FormatError, MalformedObject
from index_format.keys import Conflict, catalog_name
from index_format.marker import (
    FAN_OUT,
    MAX_GAPS_IN_MARKER,
    Catalog,
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Maintenance,
    Marker,
    PendingCatalog,
    ReferenceCatalog,
    Span,
    advanced,
    appended,
    claimed,
    decode_catalog,
    decode_marker,
    encode,
    folded,
    reference_to,
    span_at_or_after,
    with_catalog_name,
)
from index_format.objects import Gap
from tests.support.format_objects import SHA256, chunk_entry, marker_of

SPAN = 10


def append(marker: Marker, number: int, gaps: Sequence[Gap] = ()) -> Marker:
    entry = chunk_entry(SPAN * number, SPAN * number + SPAN, num_records=SPAN - 1)
    return appended(marker, entry, gaps, nonce=f"{number}", leader_epoch=None, tail_hash=SHA256)


def archive_of(chunks: int, gaps_each: int = 0, conflict: Conflict | None = None) -> tuple[Marker, dict[str, bytes]]:
    """The marker after so many commits, and the catalogs stored on the way."""
    marker, stored = marker_of(), dict[str, bytes]()
    for number in range(chunks):
        marker, pending = folded(marker)
        for catalog in pending:
            marker = store(marker, catalog, stored, conflict)
        gaps = [Gap(SPAN * number + each, SPAN * number + each + 1, "skipped") for each in range(gaps_each)]
        marker = append(marker, number, gaps)
    return decode_marker(encode(marker)), stored


def store(marker: Marker, pending: PendingCatalog, stored: dict[str, bytes], conflict: Conflict | None) -> Marker:
    name = catalog_name(pending.level, pending.position, conflict)
    assert name not in stored, "catalogs are write-once"
    stored[name] = pending.body
    return with_catalog_name(marker, pending, name)


def chunks_below(spans: Sequence[Span], level: int, stored: dict[str, bytes]) -> list[ChunkEntry]:
    """All chunks in order, through every catalog."""
    found: list[ChunkEntry] = []
    for span in spans:
        if isinstance(span, CatalogReference):
            catalog = decode_catalog(stored[span.name], span, level)
            assert sum(entry.num_records for entry in catalog.entries) == span.num_records
            below = chunks_below(catalog.entries, level - 1, stored)
            assert len(below) == span.num_chunks
            found += below
        else:
            assert isinstance(span, ChunkEntry)
            found.append(span)
    return found


def everything(marker: Marker, stored: dict[str, bytes]) -> list[ChunkEntry]:
    found: list[ChunkEntry] = []
    for level in range(len(marker.catalogs), 0, -1):
        found += chunks_below(marker.catalogs[level - 1], level, stored)
    return [*found, *marker.tail]


@pytest.mark.parametrize("chunks", [0, 1, FAN_OUT, FAN_OUT + 1, 2 * FAN_OUT + 1, 3 * FAN_OUT])
@pytest.mark.parametrize("conflict", [None, Conflict(3, "ab12cd34")])
def test_every_chunk_is_found_after_few_appends(chunks: int, conflict: Conflict | None) -> None:
    marker, stored = archive_of(chunks, conflict=conflict)
    assert [entry.start_offset for entry in everything(marker, stored)] == list(range(0, SPAN * chunks, SPAN))
    assert 1 <= len(marker.tail) <= FAN_OUT or chunks == 0


@pytest.fixture(scope="module")
def large() -> tuple[Marker, dict[str, bytes]]:
    """Three level-2 catalogs' worth of chunks and some: 64 * 64 * 3 + 70."""
    return archive_of(FAN_OUT * FAN_OUT * 3 + 70)


@pytest.mark.slow
def test_thousands_of_appends_make_a_tree(large: tuple[Marker, dict[str, bytes]]) -> None:
    marker, stored = large
    chunks = FAN_OUT * FAN_OUT * 3 + 70
    assert [entry.start_offset for entry in everything(marker, stored)] == list(range(0, SPAN * chunks, SPAN))
    assert len(marker.tail) == 6
    assert [len(level) for level in marker.catalogs] == [1, 3]
    assert len(encode(marker)) < 64 * 1024


@pytest.mark.slow
def test_every_offset_and_time_is_found_in_few_reads(large: tuple[Marker, dict[str, bytes]]) -> None:
    marker, stored = large
    levels = {reference.name: level for level, refs in enumerate(marker.catalogs, 1) for reference in refs}
    chunks = FAN_OUT * FAN_OUT * 3 + 70
    seed = 20_261_121
    print(f"seed {seed}")
    for number in [0, chunks - 1, *random.Random(seed).sample(range(chunks), 300)]:
        at = SPAN * number + 3
        for pick in (
            partial(span_at_or_after, offset=at),
            lambda spans, at=at: next(span for span in spans if span.max_timestamp >= at),
        ):
            span = pick(marker.spans)
            level = levels.get(span.name, 0) if span else 0
            reads = 1
            while isinstance(span, CatalogReference):
                span = pick(decode_catalog(stored[span.name], span, level).entries)
                level, reads = level - 1, reads + 1
            assert span is not None and span.start_offset == SPAN * number
            assert reads + 1 <= 4, "the marker, the catalogs and the index"


def test_a_quarter_of_a_million_chunks_need_two_levels() -> None:
    """Marker, two catalogs and the index: what two levels hold without a third."""
    tail, level_1, level_2 = FAN_OUT, FAN_OUT * FAN_OUT, FAN_OUT * FAN_OUT * FAN_OUT
    assert tail + level_1 + level_2 >= 250_000


def full_marker(levels: int) -> Marker:
    """A marker whose tail and first levels are all full, made directly: the next fold goes through all of them."""
    catalogs: list[tuple[CatalogReference, ...]] = []
    start = 0
    for level in range(levels, 0, -1):
        width = SPAN * FAN_OUT**level
        catalogs.insert(0, tuple(reference(level, start + width * number, width) for number in range(FAN_OUT)))
        start += width * FAN_OUT
    tail = tuple(chunk_entry(start + SPAN * number, start + SPAN * (number + 1)) for number in range(FAN_OUT))
    end = tail[-1].next_offset
    return marker_of(
        start_offset=0, next_offset=end, tail=tail, catalogs=tuple(catalogs), last_chunk_index=tail[-1].name
    )


def reference(level: int, start: int, width: int) -> CatalogReference:
    return CatalogReference(
        name=catalog_name(level, start),
        start_offset=start,
        next_offset=start + width,
        min_timestamp=start,
        max_timestamp=start + width,
        num_records=width,
        num_chunks=width // SPAN,
        bytes=width,
        sha256=SHA256,
    )


def test_a_third_level_comes_only_beyond_a_quarter_of_a_million() -> None:
    marker = full_marker(2)
    chunks = sum(ref.num_chunks for level in marker.catalogs for ref in level) + len(marker.tail)
    assert chunks == 266_304
    after, pending = folded(marker)
    assert [catalog.level for catalog in pending] == [1, 2, 3]
    assert [len(level) for level in after.catalogs] == [1, 1, 1]
    assert after.tail == ()
    assert [span.start_offset for span in after.spans] == [
        0,
        marker.catalogs[0][0].start_offset,
        marker.tail[0].start_offset,
    ]
    for catalog in pending:
        decode_catalog(catalog.body, catalog.reference, catalog.level)
    assert sum(ref.num_chunks for level in after.catalogs for ref in level) == chunks
    decode_marker(encode(append_at_end(after)))


def append_at_end(marker: Marker) -> Marker:
    assert marker.chain_end is not None
    return append(marker, marker.chain_end // SPAN)


def test_there_is_nothing_to_fold_until_the_tail_is_full() -> None:
    marker, _ = archive_of(FAN_OUT - 1)
    assert folded(marker) == (marker, ())
    _, pending = folded(append_at_end(marker))
    assert [(catalog.level, catalog.position) for catalog in pending] == [(1, 0)]


def test_a_renamed_catalog_changes_its_reference_only() -> None:
    marker, pending = folded(full_marker(2))
    names = [f"_catalog/{catalog.level}-{catalog.position:020d}~e2-00000000.json" for catalog in pending]
    renamed = marker
    for catalog, name in zip(pending, names, strict=True):
        renamed = with_catalog_name(renamed, catalog, name)
    assert [ref.name for level in renamed.catalogs for ref in level] == names
    back = tuple(
        tuple(replace(ref, name=ref.name.replace("~e2-00000000", "")) for ref in level) for level in renamed.catalogs
    )
    assert replace(renamed, catalogs=back) == marker


def test_few_gaps_stay_in_the_marker() -> None:
    marker, stored = archive_of(FAN_OUT * 2 + 1, gaps_each=2)
    assert len(marker.gaps) == 2 * (FAN_OUT * 2 + 1)
    assert all(b'"gaps":[]' in body for body in stored.values())


def test_many_gaps_fold_with_the_chunks_that_they_lie_in() -> None:
    chunks = FAN_OUT * 3 + 2
    marker, stored = archive_of(chunks, gaps_each=5)
    catalogs: list[Catalog] = [
        decode_catalog(stored[ref.name], ref, level) for level, refs in enumerate(marker.catalogs, 1) for ref in refs
    ]
    everywhere = [gap for catalog in catalogs for gap in catalog.gaps] + list(marker.gaps)
    assert [gap.start for gap in everywhere] == [SPAN * number + each for number in range(chunks) for each in range(5)]
    assert len(marker.gaps) <= MAX_GAPS_IN_MARKER
    for catalog in catalogs:
        assert all(gap.end <= catalog.entries[-1].next_offset for gap in catalog.gaps)


def test_a_tail_with_too_many_gaps_folds_before_it_is_full() -> None:
    marker, _ = archive_of(3, gaps_each=5)
    assert folded(marker) == (marker, ())
    newest = marker.tail[-1]
    end = newest.next_offset
    many = tuple(Gap(end + 2 * number, end + 2 * number + 1, "skipped") for number in range(MAX_GAPS_IN_MARKER + 1))
    behind = replace(marker, next_offset=many[-1].end, gaps=many)
    assert folded(behind) == (behind, ()), "what lies behind the tail is no catalog's"
    longer = replace(newest, next_offset=many[-1].end)
    after, (catalog,) = folded(replace(behind, tail=(*marker.tail[:-1], longer)))
    assert (after.tail, after.gaps) == ((), ())
    assert decode_catalog(catalog.body, catalog.reference, 1).gaps == many


def test_gaps_without_a_chunk_between_become_one() -> None:
    marker, _ = archive_of(1)
    end = marker.tail[-1].next_offset
    for at in range(end, end + 300, 3):
        marker = advanced(marker, at + 3, nonce=str(at), leader_epoch=0, gaps=[Gap(at, at + 1, "skipped")])
    assert (marker.gaps, marker.next_offset, marker.chain_end) == (
        (Gap(end, end + 298, "skipped"),),
        end + 300,
        end + 298,
    )
    claim = partial(claimed, writer="w", nonce="n", group_id="g", isolation_level=None)
    lost = claim(marker, gap=Gap(end + 300, end + 310, "retention"))
    assert [gap.reason for gap in lost.gaps] == ["skipped", "retention"], "of two reasons"
    again = claim(lost, gap=Gap(end + 310, end + 320, "retention"))
    assert again.gaps[1:] == (Gap(end + 300, end + 320, "retention"),)
    maintained = replace(marker, version=2, maintenance=Maintenance(revision=1))
    explained = claim(maintained, gap=Gap(end + 300, end + 310, "retention", at=5))
    assert explained.gaps[1:] == (
        Gap(end + 298, end + 300, "empty", at=5),
        Gap(end + 300, end + 310, "retention", at=5),
    ), "version 2 leaves no offset without an answer"


def test_a_gap_after_the_tail_does_not_fold() -> None:
    marker = full_marker(1)
    end = marker.tail[-1].next_offset
    old = tuple(Gap(2 * number, 2 * number + 1, "skipped") for number in range(MAX_GAPS_IN_MARKER))
    behind = Gap(end, end + 5, "retention")
    marker = replace(marker, next_offset=end + 5, gaps=(*old, behind))
    after, pending = folded(marker)
    assert after.gaps == (behind,)
    assert after.chain_end == end + 5
    catalog = decode_catalog(pending[0].body, pending[0].reference, 1)
    assert catalog.gaps == old


LEVEL_1 = ChunkCatalog(level=1, entries=(chunk_entry(0, 10), chunk_entry(10, 25)))
BODY_1 = encode(LEVEL_1)
REFERENCE_1 = reference_to(LEVEL_1, catalog_name(1, 0), BODY_1)
LEVEL_2 = ReferenceCatalog(level=2, entries=(REFERENCE_1, reference(1, 30, 100)))
BODY_2 = encode(LEVEL_2)
REFERENCE_2 = reference_to(LEVEL_2, catalog_name(2, 0), BODY_2)


def test_a_reference_sums_what_lies_below() -> None:
    assert (REFERENCE_1.num_chunks, REFERENCE_1.num_records, REFERENCE_1.bytes) == (2, 25, 200)
    assert (REFERENCE_2.num_chunks, REFERENCE_2.num_records, REFERENCE_2.bytes) == (12, 125, 300)
    assert (REFERENCE_2.min_timestamp, REFERENCE_2.max_timestamp) == (0, 130)
    assert decode_catalog(BODY_1, REFERENCE_1, 1) == LEVEL_1
    assert decode_catalog(BODY_2, REFERENCE_2, 2) == LEVEL_2


@pytest.mark.parametrize(
    "field", ["start_offset", "next_offset", "min_timestamp", "max_timestamp", "num_records", "num_chunks", "bytes"]
)
def test_a_reference_that_lies(field: str) -> None:
    for body, truth, level in ((BODY_1, REFERENCE_1, 1), (BODY_2, REFERENCE_2, 2)):
        lie = replace(truth, **{field: getattr(truth, field) + 1})
        with pytest.raises(MalformedObject, match="not what its reference says"):
            decode_catalog(body, lie, level)


@pytest.mark.parametrize(
    ("body", "truth", "level"), [(BODY_1, REFERENCE_1, 2), (BODY_2, REFERENCE_2, 1), (BODY_2, REFERENCE_2, 3)]
)
def test_a_catalog_of_another_level(body: bytes, truth: CatalogReference, level: int) -> None:
    with pytest.raises(MalformedObject):
        decode_catalog(body, truth, level)


def test_a_catalog_of_other_bytes() -> None:
    with pytest.raises(MalformedObject, match="damaged"):
        decode_catalog(BODY_1 + b" ", REFERENCE_1, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"entries":[', b'"entries":[],"x":['),
        (b'"level":1', b'"level":0'),
        (b'"version":1', b'"version":2'),
        (b'"start_offset":10,"next_offset":25', b'"start_offset":9,"next_offset":25'),
        (b'"start_offset":10,"next_offset":25', b'"start_offset":25,"next_offset":10'),
    ],
)
def test_a_broken_catalog_under_a_true_hash(old: bytes, new: bytes) -> None:
    body = BODY_1.replace(old, new)
    assert body != BODY_1
    with pytest.raises(FormatError):
        decode_catalog(body, reference_to(LEVEL_1, REFERENCE_1.name, body), 1)


def test_a_reference_spans_offsets() -> None:
    with pytest.raises(ValueError, match="spans no offset"):
        replace(REFERENCE_1, next_offset=0)


def test_gaps_may_reach_beyond_the_chunks_of_a_catalog() -> None:
    catalog = ChunkCatalog(level=1, entries=(chunk_entry(10, 20),), gaps=(Gap(5, 10, "erased"), Gap(20, 30, "erased")))
    body = encode(catalog)
    wide = reference_to(catalog, catalog_name(1, 5), body, (5, 30))
    assert decode_catalog(body, wide, 1) == catalog
    with pytest.raises(MalformedObject, match="not what its reference says"):
        decode_catalog(body, replace(wide, start_offset=11), 1)


def test_a_catalog_may_be_erased_whole() -> None:
    catalog = ChunkCatalog(level=1, entries=(), gaps=(Gap(5, 30, "erased"),))
    body = encode(catalog)
    erased = reference_to(catalog, catalog_name(1, 5), body, (5, 30))
    assert decode_catalog(body, erased, 1) == catalog
    assert (erased.num_records, erased.num_chunks, erased.min_timestamp, erased.max_timestamp) == (0, 0, -1, -1)
    above = ReferenceCatalog(level=2, entries=(erased, reference(1, 30, 100)))
    assert reference_to(above, catalog_name(2, 5), encode(above)).min_timestamp == reference(1, 30, 100).min_timestamp
    with pytest.raises(ValueError, match="neither chunks nor gaps"):
        ChunkCatalog(level=1, entries=())

"""The catalogs of a rewrite: the same offsets as before, never more of them, each as its reference says."""

import random
from itertools import pairwise

import pytest

from archiver.maintain.rewrite.chunks import ErasedRun
from archiver.maintain.rewrite.replace import NewCatalog, OldCatalog, new_catalogs
from index_format import marker as markers
from index_format.chunk_index import ERASED, Gap
from index_format.marker import ChunkCatalog, ChunkEntry, decode_catalog, encode, reference_to

SEEDS = range(300)
WIDTH = 3


def entry(start: int, end: int, *, name: str = "old") -> ChunkEntry:
    return ChunkEntry(
        name=f"{start:020d}-{name}.index.json",
        start_offset=start,
        next_offset=end,
        first_offset=start,
        last_offset=start,
        num_records=1,
        bytes=10,
        raw_bytes=10,
        min_timestamp=start,
        max_timestamp=end,
        sha256="0" * 64,
    )


def catalogs(rng: random.Random) -> list[OldCatalog]:
    """Neighbours as folds make them; some with gaps in front of entries, some without entries."""
    made, start = list[OldCatalog](), rng.randrange(5)
    for _ in range(rng.randint(1, 4)):
        entries, gaps, at = list[ChunkEntry](), list[Gap](), start
        for _ in range(rng.randint(1, WIDTH)):
            if rng.random() < 0.3:
                gaps.append(Gap(at, at := at + rng.randint(1, 3), "retention"))
            if rng.random() < 0.2:
                gaps.append(Gap(at, at := at + rng.randint(1, 3), ERASED))
            else:
                entries.append(entry(at, at := at + rng.randint(1, 4)))
        catalog = ChunkCatalog(level=1, entries=tuple(entries), gaps=tuple(gaps))
        made.append(OldCatalog(reference_to(catalog, "name", encode(catalog), (start, at)), catalog))
        start = at
    return made


def rewritten(rng: random.Random, old: list[OldCatalog]) -> list[ChunkEntry | ErasedRun]:
    """Some entries as they are, some new, some joined, some erased."""
    items = list[ChunkEntry | ErasedRun]()
    for each in (each for one in old for each in one.catalog.entries):
        last, what = items[-1] if items else None, rng.random()
        if what < 0.3 and isinstance(last, ChunkEntry) and last.next_offset == each.start_offset:
            items[-1] = entry(last.start_offset, each.next_offset, name="new")
        elif what < 0.5:
            items.append(ErasedRun(each.start_offset, each.next_offset))
        else:
            items.append(each if what < 0.8 else entry(each.start_offset, each.next_offset, name="new"))
    return items


@pytest.mark.parametrize("is_repacked", [False, True])
def test_new_catalogs_stand_for_the_same_offsets(*, is_repacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", WIDTH)
    for seed in SEEDS:
        rng = random.Random(seed)
        old = catalogs(rng)
        items = rewritten(rng, old)
        new = new_catalogs(old, items, at=7, is_repacked=is_repacked)
        bodies = [each.catalog for each in new]
        assert len(new) <= len(old), seed
        spans = [(e.start, e.end) if isinstance(e, NewCatalog) else span_of(e) for e in new]
        assert (spans[0][0], spans[-1][1]) == (span_of(old[0])[0], span_of(old[-1])[1]), seed
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), seed
        assert [e for body in bodies for e in body.entries] == [i for i in items if isinstance(i, ChunkEntry)], seed
        gaps = [gap for one in old for gap in one.catalog.gaps]
        gaps += [Gap(i.start_offset, i.next_offset, ERASED, at=7) for i in items if isinstance(i, ErasedRun)]
        assert sorted((g for b in bodies for g in b.gaps), key=lambda g: g.start) == sorted(gaps, key=lambda g: g.start)
        for each in new:
            if isinstance(each, NewCatalog):
                body = encode(each.catalog)
                reference = reference_to(each.catalog, "name", body, (each.start, each.end))
                assert decode_catalog(body, reference, 1) == each.catalog, seed


def span_of(old: OldCatalog) -> tuple[int, int]:
    return old.reference.start_offset, old.reference.next_offset


def test_what_does_not_change_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", WIDTH)
    for seed in SEEDS:
        old = catalogs(random.Random(seed))
        same = [each for one in old for each in one.catalog.entries]
        assert new_catalogs(old, same, at=7, is_repacked=False) == old

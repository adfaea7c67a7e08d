"""What a rewrite's chunks become in catalogs: pure, over entries and gaps."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from archiver.maintain.contents.chunks import ChangedItem, ErasedRun, NewChunk, OldChunk, Replacement, RewrappedChunk
from index_format import marker as markers
from index_format.chunk_index import ERASED, Gap
from index_format.marker import CatalogReference, ChunkCatalog, ChunkEntry


class OldCatalog(NamedTuple):
    """A catalog of level 1 of the run."""

    reference: CatalogReference
    catalog: ChunkCatalog


class NewCatalog(NamedTuple):
    """A catalog of level 1 that has no name yet, and the offsets that it stands for."""

    catalog: ChunkCatalog
    start: int
    end: int


def check_replacement(old: Sequence[OldChunk], replacement: Replacement) -> None:
    """Raises ValueError unless the replacement stands for exactly the old chunks, in order, and over no gap."""
    todo = list(old)
    for item in replacement:
        if isinstance(item, OldChunk):
            if not todo or todo.pop(0).entry != item.entry:
                raise ValueError(f"{item.entry.name} is not the next chunk of the run")
            continue
        replaced = taken(todo, item)
        del todo[: len(replaced)]
        if not replaced or (replaced[0].entry.start_offset, replaced[-1].entry.next_offset) != item_span(item):
            raise ValueError(f"{item_span(item)} are not the offsets of whole chunks of the run")
        if any(a.entry.next_offset != b.entry.start_offset for a, b in pairwise(replaced)):
            raise ValueError(f"{item_span(item)} has a gap between chunks")
    if todo:
        raise ValueError(f"nothing stands for {todo[0].entry.name}")


def item_span(item: NewChunk | ErasedRun) -> tuple[int, int]:
    """The offsets [start, end) that it stands for."""
    return item.start_offset, item.next_offset


def taken(old: Sequence[OldChunk], item: ChangedItem) -> list[OldChunk]:
    """The old chunks that the item stands for."""
    if isinstance(item, RewrappedChunk):
        return [each for each in old if each.entry == item.entry]
    return [each for each in old if item.start_offset <= each.entry.start_offset < item.next_offset]


def apart_from_gaps(item: ErasedRun, old: Sequence[OldChunk]) -> list[ErasedRun]:
    """The run without the gaps inside its old chunks, which marker or catalogs list already: gaps lie apart."""
    pieces, start = list[ErasedRun](), item.start_offset
    for gap in (gap for each in old for gap in each.index.gaps if gap.end > each.entry.start_offset):
        if start < gap.start:
            pieces.append(ErasedRun(start, gap.start))
        start = max(start, gap.end)
    return [*pieces, ErasedRun(start, item.next_offset)] if start < item.next_offset else pieces


def new_catalogs(
    old: Sequence[OldCatalog], items: Sequence[ChunkEntry | ErasedRun], *, at: int, is_repacked: bool
) -> list[OldCatalog | NewCatalog]:
    """The catalogs of level 1 for what stands in the place of old ones: same offsets, never more of them.

    A catalog of which nothing changes stays. Others keep their bounds unless a new chunk lies over them, or all are
    `is_repacked`, so that there are as few as possible. `at`: the time, for gaps that are recorded now.
    """
    result: list[OldCatalog | NewCatalog] = []
    for group in [list(old)] if is_repacked else list(_groups(old, items)):
        start, end = group[0].reference.start_offset, group[-1].reference.next_offset
        inside = [item for item in items if start <= item.start_offset < end]
        is_unchanged = inside == [entry for each in group for entry in each.catalog.entries]
        if is_unchanged and (not is_repacked or num_catalogs(len(inside)) >= len(group)):
            result += group
            continue
        gaps = [gap for each in group for gap in each.catalog.gaps]
        gaps += [Gap(item.start_offset, item.next_offset, ERASED, at=at) for item in _erased(inside)]
        entries = [item for item in inside if isinstance(item, ChunkEntry)]
        result += _packed(entries, sorted(gaps, key=lambda gap: gap.start), start, end)
    return result


def num_catalogs(num_entries: int) -> int:
    """How many catalogs that many entries take."""
    return max(1, -(-num_entries // markers.FAN_OUT))


def _erased(items: Sequence[ChunkEntry | ErasedRun]) -> list[ErasedRun]:
    return [item for item in items if isinstance(item, ErasedRun)]


def _groups(old: Sequence[OldCatalog], items: Sequence[ChunkEntry | ErasedRun]) -> Iterator[list[OldCatalog]]:
    """The old catalogs, those together over whose bounds an item lies."""
    group: list[OldCatalog] = []
    for each in old:
        if group and not any(item.start_offset < each.reference.start_offset < item.next_offset for item in items):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _packed(entries: Sequence[ChunkEntry], gaps: Sequence[Gap], start: int, end: int) -> Iterator[NewCatalog]:
    """Catalogs of as many entries as fit; a gap goes with the entries behind it, or with the last ones."""
    if not entries:
        yield NewCatalog(ChunkCatalog(level=1, entries=(), gaps=tuple(gaps)), start, end)
    rest = list(gaps)
    for first in range(0, len(entries), markers.FAN_OUT):
        inside = tuple(entries[first : first + markers.FAN_OUT])
        is_last = first + markers.FAN_OUT >= len(entries)
        upto = end if is_last else inside[-1].next_offset
        own = tuple(gap for gap in rest if is_last or gap.start < upto)
        rest = rest[len(own) :]
        bounds = (start, upto) if own else (inside[0].start_offset, inside[-1].next_offset)
        yield NewCatalog(ChunkCatalog(level=1, entries=inside, gaps=own), *bounds)
        start = upto

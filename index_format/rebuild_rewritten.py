"""The chain of a partition whose chunks were rewritten, made again from what lies about.

What was replaced and what was abandoned lies beside what counts, and no listing tells which is which. So it goes offset
by offset: below the floor there is nothing, what any object calls erased is erased, and of the rest as much as fits.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from index_format.chunk_index import ERASED, UNVERIFIED, Gap
from index_format.keys import is_rewritten
from index_format.rebuild import Link, RebuiltChain, StoredIndex, rebuilt_chain


class Ranges:
    """Offsets as ranges, in order and apart."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(ranges):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)
        self._below = [0, *accumulate(end - start for start, end in zip(self.starts, self.ends, strict=True))]

    def below(self, offset: int) -> int:
        """How many of them lie below an offset."""
        number = bisect_right(self.starts, offset)
        beyond = max(0, self.ends[number - 1] - offset) if number else 0
        return self._below[number] - beyond

    def within(self, start: int, end: int) -> int:
        """How many of them lie in [start, end)."""
        return self.below(end) - self.below(start)


class Rewritten(NamedTuple):
    """What is found of a partition that was maintained, beside its indexes."""

    floor: int
    gaps: tuple[Gap, ...]
    """Of all catalogs."""


def rebuilt_rewritten(found: Sequence[StoredIndex], rewritten: Rewritten) -> RebuiltChain:
    """The chain above the floor, without a record that was erased; everything else is left out.

    Of writers' chunks, those that `rebuilt_chain` takes can be part of it, and all that maintainers stored. An erase
    that was begun and given up may come true by this.
    """
    floor = rewritten.floor
    gaps = [*rewritten.gaps, *(gap for each in found for gap in each.index.gaps)]
    erased = [gap for gap in gaps if gap.reason == ERASED] + [e for each in found for e in each.index.erased or ()]
    gone = Ranges((each.start, each.end) for each in erased)
    writers = rebuilt_chain([each for each in found if not is_rewritten(each.name)])
    candidates = [link.chunk for link in writers.links] + [each for each in found if is_rewritten(each.name)]
    kept = [each for each in candidates if each.index.start_offset >= floor and not _holds(each, gone)]
    explained = Ranges((gap.start, gap.end) for gap in (*gaps, *erased) if gap.end > floor)
    chain = _tiled(kept, explained, floor)
    told = sorted([*(Gap(each.start, each.end, ERASED) for each in erased), *gaps], key=_order)
    links, before = [], None
    for each in chain:
        links.append(Link(each, tuple(_between(before, each, told, floor))))
        before = each
    names = {each.name for each in chain}
    left_out = sorted(each.name for each in found if each.name not in names and each.index.next_offset > floor)
    lost = [each.name for each in candidates if each.index.start_offset >= floor and _holds(each, gone)]
    return RebuiltChain(tuple(links), tuple(left_out), tuple(_notes(lost, links)), _behind(chain, told))


def _order(gap: Gap) -> tuple[int, bool, int]:
    """Of gaps that begin together, erased records first."""
    return gap.start, gap.reason != ERASED, gap.end


def _holds(chunk: StoredIndex, gone: Ranges) -> bool:
    """Whether a chunk may still hold a record that was erased."""
    own = Ranges((each.start, each.end) for each in chunk.index.erased or ())
    spans = [(block.first_record_offset, block.last_record_offset + 1) for block in chunk.index.blocks]
    return any(gone.within(*span) > own.within(*span) for span in spans)


def _tiled(candidates: Sequence[StoredIndex], explained: Ranges, floor: int) -> list[StoredIndex]:
    """Chunks apart from each other that leave the fewest offsets unexplained.

    Of equal choices the one with the most records, and of these the one with the fewest chunks.
    """

    def unexplained(offset: int) -> int:
        return offset - explained.below(offset)

    ordered = sorted(candidates, key=lambda each: (each.index.start_offset, each.index.next_offset, each.name))
    before: list[int | None] = []
    costs: list[tuple[int, int, int]] = []
    ended: list[tuple[int, int]] = []
    low = floor or min((each.index.start_offset for each in ordered), default=0)
    best: tuple[int, int, int] = (-unexplained(low), 0, 0)
    chosen: int | None = None
    for number, each in enumerate(ordered):
        start, end = each.index.start_offset, each.index.next_offset
        while ended and ended[0][0] <= start:
            behind, other = heapq.heappop(ended)
            cost = (costs[other][0] - unexplained(behind), *costs[other][1:])
            if cost < best:
                best, chosen = cost, other
        before.append(chosen)
        costs.append((best[0] + unexplained(start), best[1] - each.index.num_records, best[2] + 1))
        heapq.heappush(ended, (end, number))
    last: int | None = min(
        range(len(ordered)),
        key=lambda number: (costs[number][0] - unexplained(ordered[number].index.next_offset), *costs[number][1:]),
        default=None,
    )
    chain: list[StoredIndex] = []
    while last is not None:
        chain.append(ordered[last])
        last = before[last]
    return chain[::-1]


def _between(before: StoredIndex | None, chunk: StoredIndex, told: Sequence[Gap], floor: int) -> Iterable[Gap]:
    """What lies between two chunks: what is told of it, and gaps that say that nobody knows."""
    end = chunk.index.start_offset
    is_next = before is not None and chunk.index.previous == before.name
    # Where nothing was pruned, the archive begins with what is told right before its first chunk.
    first_told = [gap.start for gap in told if gap.end <= end and (gap.reason == ERASED or gap in chunk.index.gaps)]
    lowest = min(first_told, default=end)
    start = before.index.next_offset if before is not None else floor or lowest
    for gap in told:
        first, last = max(gap.start, start), min(gap.end, end)
        if first >= last:
            continue
        if start < first and not is_next:
            yield Gap(start, first, UNVERIFIED)
        yield Gap(first, last, gap.reason)
        start = last
    if start < end and not is_next:
        yield Gap(start, end, UNVERIFIED)


def _behind(chain: Sequence[StoredIndex], told: Sequence[Gap]) -> tuple[Gap, ...]:
    """The erased records behind the last chunk, and the gaps between them."""
    found, end = list[Gap](), chain[-1].index.next_offset if chain else 0
    for erased in (gap for gap in told if chain and gap.reason == ERASED):
        for gap in (gap for gap in told if gap.reason != ERASED):
            start, stop = max(gap.start, end), min(gap.end, erased.start)
            if start < stop:
                found.append(Gap(start, stop, gap.reason))
                end = stop
        if erased.end > end:
            found.append(Gap(max(erased.start, end), erased.end, ERASED))
            end = erased.end
    return tuple(found)


def _notes(lost: Sequence[str], links: Sequence[Link]) -> Iterable[str]:
    unknown = [gap for link in links for gap in link.gaps_before if gap.reason == UNVERIFIED]
    for name in lost if unknown else ():
        yield f"{name} holds records that were erased, and is omitted"

"""Rebuilding what was lost: a chunk's index from its data, and a partition's chain from its indexes.

After maintenance, replaced and abandoned chunks are among those that count, and no listing tells them apart. Then the
chain is rebuilt offset by offset: nothing below the floor, erased records stay erased, and as much of the rest as fits.
"""

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import NamedTuple

import zstandard
from msgspec.structs import replace

from index_format import objects, zstd_frames
from index_format.blocks import RawBlock, raw_block
from index_format.errors import CorruptBlock
from index_format.key_filter import column_hashes, key_filter
from index_format.keys import is_rewritten
from index_format.marker import ChunkEntry
from index_format.objects import ERASED, UNVERIFIED, BlockEntry, ChunkIndex, Gap
from index_format.old_members import DamagedBytes, Member, Scanned
from index_format.old_objects import OldBlock
from index_format.record_formats import record_format

# The epoch of an index that was rebuilt without a hint at its writer's; writers begin at 1.
FROM_DATA_ALONE = 0


def scan_frames(data: bytes, max_bytes: int) -> Iterator[Scanned]:
    """Yield the zstd frames of a chunk's data, up to the first damage."""
    position = 0
    while position < len(data):
        try:
            end = zstd_frames.frame_end(data, position)
            frame = data[position:end]
            size = zstandard.get_frame_parameters(frame).content_size
            if size > max_bytes:
                raise zstandard.ZstdError(f"it claims to decompress to {size} bytes")
            if end > len(data):
                yield DamagedBytes(position, len(data), began_as_member=True, why="the bytes end inside it")
                return
            raw = zstd_frames.decompress(frame, size)
        except (zstandard.ZstdError, CorruptBlock) as error:
            why = error.why if isinstance(error, CorruptBlock) else str(error)
            yield DamagedBytes(position, len(data), began_as_member=False, why=why)
            return
        yield Member(position, frame, raw)
        position = end


def blocks_of(
    scanned: Iterable[Scanned], format_name: str, key_filter_bits: int | None = None
) -> tuple[BlockEntry, ...]:
    """Return the blocks of records that hold their offsets, with filters if asked; raises CorruptBlock."""
    encoding = record_format(format_name)
    blocks = []
    for found in _whole(scanned):
        batch = encoding.decode(found.raw, 0, 0)
        offsets, timestamps = batch.column("offset").to_numpy(), batch.column("timestamp").to_numpy()
        if not len(offsets):
            raise CorruptBlock(f"the member at byte {found.byte_offset} holds no record")
        block = raw_block(found.raw, offsets, timestamps).entry(found.byte_offset, len(found.stored))
        if key_filter_bits is not None:
            block = replace(block, key_filter=key_filter(column_hashes(batch.column("key")), key_filter_bits))
        blocks.append(block)
    return tuple(blocks)


def text_blocks_of(
    scanned: Iterable[Scanned], counted: Sequence[OldBlock], timestamps: tuple[int, int]
) -> tuple[BlockEntry, ...]:
    """Return the blocks of a `text` chunk, which the ancestor's index `counted`; raises CorruptBlock."""
    blocks = []
    members = list(_whole(scanned))
    if [(each.byte_offset, each.byte_end) for each in members] != [(b.byte_offset, b.byte_end) for b in counted]:
        raise CorruptBlock("the data is not what the ancestor's index says", why="its blocks lie elsewhere")
    for found, block in zip(members, counted, strict=True):
        if record_format("text").count(found.raw) != block.num_records:
            raise CorruptBlock(f"the block at byte {found.byte_offset} does not hold {block.num_records} records")
        # The timestamps are bounds of all blocks: exact if there is one.
        raw = RawBlock(found.raw, block.num_records, block.first_offset, block.next_offset - 1, *timestamps)
        blocks.append(raw.entry(found.byte_offset, len(found.stored)))
    return tuple(blocks)


def _whole(scanned: Iterable[Scanned]) -> Iterator[Member]:
    for found in scanned:
        if isinstance(found, DamagedBytes):
            raise CorruptBlock(f"bytes {found.start} to {found.end} are damaged", why=found.why)
        yield found


# The chunk before and the gaps that a chunk's writer found below it, as its index says.
Past = tuple[str | None, tuple[Gap, ...]]


def committed_index(
    entry: ChunkEntry,
    like: ChunkIndex,
    *,
    pasts: Sequence[Past],
    epochs: Sequence[int],
    topic_ids: Sequence[str | None],
    isolation_levels: Sequence[str],
    timestamp_types: Sequence[str],
    next_offsets: Sequence[int],
) -> bytes | None:
    """Return the bytes that were committed: an index like `like` whose sha256 is the entry's; None if none is found.

    The other arguments are the values that each field of the index may have had, the likeliest first.
    """
    for (previous, gaps), next_offset, level, kind, topic_id, epoch in product(
        pasts, next_offsets, isolation_levels, timestamp_types, topic_ids, epochs
    ):
        index = replace(
            like,
            epoch=epoch,
            topic_id=topic_id,
            isolation_level=level,
            timestamp_type=kind,
            next_offset=next_offset,
            previous=previous,
            gaps=tuple(gap for gap in gaps if gap.end <= next_offset),
        )
        body = objects.encode(index)
        if hashlib.sha256(body).hexdigest() == entry.sha256:
            return body
    return None


@dataclass(frozen=True)
class StoredIndex:
    """A chunk index and the name under which it lies."""

    name: str
    body: bytes
    index: ChunkIndex


class Link(NamedTuple):
    """One chunk of a chain, and the gaps between the chunk before and itself."""

    chunk: StoredIndex
    gaps_before: tuple[Gap, ...]


class RebuiltChain(NamedTuple):
    """The chunks of a partition in order, as far as indexes tell them; every other index is left out."""

    links: tuple[Link, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    gaps_behind: tuple[Gap, ...] = ()
    """The ranges erased behind the last chunk."""


def rebuilt_chain(found: Sequence[StoredIndex]) -> RebuiltChain:
    """Return the chain that a lost marker led to; every other index is left out."""
    # Chunks that filled a gap later are in no chain of `previous`: they are put in at the end.
    fillers = _fillers(found)
    found = [each for each in found if each not in fillers]
    if not found:
        return RebuiltChain((), (), ())
    by_name = {each.name: each for each in found}
    # A writer names the chunk before in `previous` only once that is committed: so every chunk that an index names
    # was committed, and what branches off below it was not.
    named = {each.index.previous for each in found} & by_name.keys()
    before = _predecessors(found, by_name, named)
    # Whether the last chunk was committed is unknown, and does not matter: it holds the log's records from exactly
    # where the chain before it ends.
    chain = [_last_chunk(found, before, named)]
    while (name := before[chain[-1].name]) is not None:
        chain.append(by_name[name])
    chain.reverse()
    before_each = [None, *chain[:-1]]
    links = tuple(Link(each, _gaps_between(last, each)) for last, each in zip(before_each, chain, strict=True))
    notes = [
        f"{each.name} follows {each.index.previous}, which does not exist"
        for each in chain
        if each.index.previous is not None and each.index.previous not in by_name
    ]
    links = _filled(links, fillers)
    left_out = sorted({*by_name, *(each.name for each in fillers)} - {each.chunk.name for each in links})
    end = chain[-1].name
    siblings = [name for name in left_out if name in before and before[name] == before[end]]
    if siblings:
        notes.append(f"{end} is taken as the last chunk, not {', '.join(siblings)}")
    return RebuiltChain(links, tuple(left_out), tuple(notes))


def _fillers(found: Sequence[StoredIndex]) -> list[StoredIndex]:
    gaps = [
        (gap, each.index.topic_id) for each in found for gap in each.index.gaps if gap.end <= each.index.start_offset
    ]
    return [
        each
        for each in found
        if any(
            gap.start <= each.index.start_offset
            and each.index.next_offset <= gap.end
            and each.index.topic_id == topic_id
            for gap, topic_id in gaps
        )
    ]


def _filled(links: Sequence[Link], fillers: Sequence[StoredIndex]) -> tuple[Link, ...]:
    filled = list(links)
    for chunk in sorted(fillers, key=lambda each: (-each.index.epoch, each.index.start_offset)):
        start, end = chunk.index.start_offset, chunk.index.next_offset
        for position, (follower, gaps) in enumerate(filled):
            gap = next((gap for gap in gaps if gap.start <= start and end <= gap.end), None)
            if gap is None:
                continue
            below = [each for each in gaps if each.end <= gap.start]
            above = [each for each in gaps if each.start >= gap.end]
            below += [Gap(gap.start, start, gap.reason)] if gap.start < start else []
            above = ([Gap(end, gap.end, gap.reason)] if end < gap.end else []) + above
            filled[position : position + 1] = [Link(chunk, tuple(below)), Link(follower, tuple(above))]
            break
    return tuple(filled)


def _last_chunk(
    found: Sequence[StoredIndex], before: Mapping[str, str | None], named: Container[str | None]
) -> StoredIndex:
    # Of several that none names, the highest epoch counts: a writer that claimed later began at what was committed.
    proofs: dict[str | None, int] = {None: 0}
    for each in sorted(found, key=lambda each: each.index.start_offset):
        proofs[each.name] = proofs[before[each.name]] + (each.name in named)
    last = max(found, key=lambda each: (proofs[each.name], each.index.epoch, each.index.next_offset, each.name))
    from_data = [each for each in found if each.index.epoch == FROM_DATA_ALONE]
    while behind := [each for each in from_data if before[each.name] == last.name]:
        last = max(behind, key=lambda each: (each.index.next_offset, each.name))
    return last


def _predecessors(
    found: Sequence[StoredIndex], by_name: Mapping[str, StoredIndex], named: Container[str | None]
) -> dict[str, str | None]:
    # Of several that end together the likeliest is the last one.
    by_end = sorted(found, key=lambda each: (each.index.next_offset, each.name in named, each.index.epoch, each.name))
    before: dict[str, str | None] = {}
    for chunk in found:
        previous, start = chunk.index.previous, chunk.index.start_offset
        if previous is not None and previous in by_name and by_name[previous].index.next_offset <= start:
            before[chunk.name] = previous
            continue
        position = bisect_right(by_end, start, key=lambda each: each.index.next_offset)
        best = by_end[position - 1] if position else None
        is_first = previous is None and chunk.index.epoch != FROM_DATA_ALONE
        if best is not None and is_first and best.index.next_offset != start:
            best = None
        before[chunk.name] = best.name if best else None
    return before


def _gaps_between(previous: StoredIndex | None, chunk: StoredIndex) -> tuple[Gap, ...]:
    end = previous.index.next_offset if previous else 0
    recorded = tuple(gap for gap in chunk.index.gaps if gap.start >= end and gap.end <= chunk.index.start_offset)
    if previous is None or chunk.index.previous == previous.name or end == chunk.index.start_offset:
        return recorded
    reach = recorded[0].start if recorded else chunk.index.start_offset
    return (*((Gap(end, reach, UNVERIFIED),) if end < reach else ()), *recorded)


class Ranges:
    """Offsets as ranges, in order and apart."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        joined = objects.disjoint(ranges)
        self.starts, self.ends = [start for start, _ in joined], [end for _, end in joined]
        self._below = [0, *accumulate(end - start for start, end in zip(self.starts, self.ends, strict=True))]

    def below(self, offset: int) -> int:
        """Return how many of the offsets are below one."""
        number = bisect_right(self.starts, offset)
        beyond = max(0, self.ends[number - 1] - offset) if number else 0
        return self._below[number] - beyond

    def within(self, start: int, end: int) -> int:
        """Return how many of the offsets are in [start, end)."""
        return self.below(end) - self.below(start)


def rebuilt_rewritten(found: Sequence[StoredIndex], floor: int, catalog_gaps: Sequence[Gap]) -> RebuiltChain:
    """Return the chain above the floor, without a record that was erased; everything else is left out."""
    gaps = [*catalog_gaps, *(gap for each in found for gap in each.index.gaps)]
    erased = [gap for gap in gaps if gap.reason == ERASED] + [e for each in found for e in each.index.erased or ()]
    gone = Ranges((each.start, each.end) for each in erased)
    writers = rebuilt_chain([each for each in found if not is_rewritten(each.name)])
    # An erase that was begun and given up may come true by this.
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
    return gap.start, gap.reason != ERASED, gap.end


def _holds(chunk: StoredIndex, gone: Ranges) -> bool:
    own = Ranges((each.start, each.end) for each in chunk.index.erased or ())
    spans = [(block.first_record_offset, block.last_record_offset + 1) for block in chunk.index.blocks]
    return any(gone.within(*span) > own.within(*span) for span in spans)


def _tiled(candidates: Sequence[StoredIndex], explained: Ranges, floor: int) -> list[StoredIndex]:
    """Return chunks apart that leave the fewest offsets unexplained; then the most records, the fewest chunks."""

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
    end = chunk.index.start_offset
    is_next = before is not None and chunk.index.previous == before.name
    # If nothing was pruned, the archive begins with the gaps right before its first chunk.
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

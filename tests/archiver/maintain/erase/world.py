"""A partition with catalogs and a tail, and what is archived of it by a plain model: offset -> record, or erased."""

import dataclasses
import random
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from archiver.commit.commit import commit_chunk
from archiver.commit.operations import Driver, UnreadLog
from archiver.errors import Fenced
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.erase import ErasedPartition, RecordChoice, erase_in, find_records, read_chunks
from archiver.maintain.rewrite.chunks import NO_KEYS, OffsetRanges, RewriteKeys, data_in, opened_blocks
from archiver.maintain.rewrite.contents import RewriteTools, erased_in
from archiver.maintain.rewrite.tree import read_chain
from index_format import marker as markers
from index_format.blocks import decode_block
from index_format.objects import ERASED, Gap
from index_format.records import Record, iter_records
from tests.archiver.maintain.repair.world import MAX, MortalStore, World
from tests.index_format.builders import record
from tests.support.archives import ARCHIVE_ID
from tests.support.chunks import finished_chunk, identity_of
from tests.support.encryption import key_line, sealed_chunk
from tests.support.memory_store import MemoryLog

KEYS = [b"k%d" % number for number in range(12)]


def log_of(rng: random.Random, count: int) -> MemoryLog:
    """Records with few different keys, at offsets with holes."""
    rows, offset = list[Record](), 0
    for _ in range(count):
        rows.append(record(offset, b"v%d" % offset, rng.choice([None, *KEYS]), timestamp=1000 + offset))
        offset += rng.choice([1, 1, 1, 2, 6])
    return MemoryLog(rows)


@dataclasses.dataclass
class EraseWorld(World):
    """The same, and what erasing it means."""

    erased: set[int] = dataclasses.field(default_factory=set)
    """Offsets whose records were erased."""
    stored: set[int] = dataclasses.field(default_factory=set)
    """Offsets whose records were ever archived."""
    rewrite_keys: RewriteKeys = NO_KEYS
    """What maintainers open and encrypt chunks with; the writer's are those of its identity."""
    hours: float = 0.0
    """By which the maintainers' clock is ahead."""

    def archive(self, rng: random.Random, chunks: int) -> None:
        """So many chunks more, of a few records each, as a writer that was fenced takes over and goes on."""
        for _ in range(chunks):
            start = self.marker.next_offset or 0 if self.held else 0
            rows = [each.offset for each in self.log.records if each.offset >= start][: rng.choice([1, 2, 5])]
            if not rows:
                return
            if rng.random() < 0.1 and len(rows) > 1:  # retention was quicker
                self.lose(rows[1])
                continue
            try:
                self._append(rows)
            except Fenced:
                self.claim()
                self._append(rows)

    def _append(self, rows: list[int]) -> None:
        held = self.held or self.claim()
        start = held.marker.chain_end
        chunk = self.chunk(rows, start=rows[0] if start is None else start, end=rows[-1] + 1)
        self.held = self.run(commit_chunk(self.identity, held, chunk))
        self.stored |= set(rows)

    def copy(self) -> "EraseWorld":
        """Another one that is the same so far."""
        log = MemoryLog(self.log.records, low=self.log.low)
        own = {"store": MortalStore(), "log": log, "erased": set(self.erased), "stored": set(self.stored)}
        twin = dataclasses.replace(self, **own)
        twin.store.objects, twin.store.requests = dict(self.store.objects), 0
        twin.store.versions = {key: list(bodies) for key, bodies in self.store.versions.items()}
        return twin

    def maintainer(self) -> Driver:
        """A driver that knows no log, an hour or more after the one before."""
        self.hours += 1.1
        clock = self.hours * 3600
        return Driver(self.store, UnreadLog(), lambda attempt, cause: None, lambda: True, clock=lambda: clock)

    def found(self, wanted: RecordChoice) -> ErasedPartition:
        """What there is to erase."""
        chain = read_chain(self.store, self.keys)
        assert chain is not None
        return find_records(self.store, chain, wanted, MAX, self.rewrite_keys.keyring)

    def erase(self, offsets: OffsetRanges, folder: Path, *, buffer_bytes: int = 1 << 20) -> None:
        """Erase what lies there."""
        buffers = BufferFolder(folder)
        try:
            tools = RewriteTools(self.maintainer(), self.store, buffers, buffer_bytes, MAX)
            erase_in(self.keys, offsets, tools, self.rewrite_keys)
            assert buffers.used_bytes == 0
        finally:
            buffers.close()
        self.erased |= self.held_offsets() & {offset for each in offsets for offset in each}

    def chunk(self, rows: Sequence[int], start: int | None = None, end: int | None = None) -> Any:
        """See World; quicker, for many chunks."""
        chosen = tuple(self.by_offset[row] for row in rows)
        first = rows[0] if start is None else start
        chunk = finished_chunk(self.identity.record_format, chosen, first, end or rows[-1] + 1)
        skipped = [Gap(a + 1, b, "skipped") for a, b in pairwise(rows) if b - a > 2]
        chunk = chunk._replace(gaps=tuple(skipped))
        sealing = self.identity.sealing
        return chunk if sealing is None else sealed_chunk(chunk, chosen[-1], sealing)

    @property
    def lost(self) -> set[int]:
        """Offsets in gaps that the writer recorded, but for what was pruned."""
        bodies, floor = self.store.versions[self.keys.marker], self.marker.pruned_before
        gaps = [gap for body in bodies for gap in markers.decode_marker(body).gaps]
        return {offset for gap in gaps for offset in range(gap.start, gap.end) if offset >= floor}

    @cached_property
    def by_offset(self) -> dict[int, Record]:
        """The log's records."""
        return {each.offset: each for each in self.log.records}

    def held_offsets(self) -> set[int]:
        """Offsets that were ever archived."""
        return set(self.stored)

    def check(self) -> None:
        """What is archived is what was, but for what was erased; and that is called erased."""
        archived, called = self.archived()
        left = self.held_offsets() - self.erased
        expected = {each.offset: each for each in self.log.records if each.offset in left}
        assert archived == {offset: each._replace(headers=()) for offset, each in expected.items()}
        # Where a chunk or a catalog is gone as a whole, its holes are called erased with it.
        assert self.erased <= called
        assert not called & set(archived)

    def archived(self) -> tuple[dict[int, Record], set[int]]:
        """Records by offset, and the offsets that are called erased."""
        chain = read_chain(self.store, self.keys)
        assert chain is not None
        data_of = data_in(self.store, self.keys, self.rewrite_keys.keyring)
        records, called = dict[int, Record](), set[int]()
        for chunk in read_chunks(self.store, self.keys, chain.entries):
            for member, entry in opened_blocks(data_of(chunk.index), chunk.index.blocks):
                for each in iter_records(decode_block(member, entry, chunk.index, MAX)):
                    assert each.offset not in records
                    records[each.offset] = each._replace(headers=())
            called |= {offset for each in erased_in(chunk.index) for offset in range(each.start, each.end)}
        assert all(a.end <= b.start for a, b in pairwise(sorted(chain.gaps, key=lambda gap: gap.start)))
        gaps = [gap for gap in chain.gaps if gap.reason != ERASED]
        floor = self.marker.pruned_before
        assert {offset for gap in gaps for offset in range(max(gap.start, floor), gap.end)} == self.lost
        called |= {offset for gap in chain.gaps if gap.reason == ERASED for offset in range(gap.start, gap.end)}
        return records, called


def encrypted_world(rng: random.Random, chunks: int, keys: str) -> EraseWorld:
    """A partition whose chunks are encrypted, with the keys that a setting names."""
    identity = dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), encrypt=keys)
    world = EraseWorld(identity, log=log_of(rng, 700), rewrite_keys=RewriteKeys.of(keys, None))
    world.archive(rng, chunks)
    return world


def keys_in(folder: Path, *numbers: int) -> str:
    """A setting that names a new file with these keys."""
    file = folder / f"keys-{'-'.join(map(str, numbers))}"
    file.write_text("".join(map(key_line, numbers)))
    file.chmod(0o600)
    return f"file:{file}"


def ranges(*offsets: int) -> OffsetRanges:
    return OffsetRanges(range(offset, offset + 1) for offset in offsets)


def some(rng: random.Random, world: EraseWorld) -> OffsetRanges:
    """Offsets of any kind: single ones, a run, most of all."""
    held = sorted(world.held_offsets())
    match rng.randrange(4):
        case 0:
            return ranges(*rng.sample(held, min(len(held), rng.choice([1, 3, 20]))))
        case 1:
            start = rng.choice(held)
            return OffsetRanges([range(start, start + rng.choice([5, 100, 400]))])
        case 2:
            return ranges(*(offset for offset in held if rng.random() < 0.1))
        case _:
            return ranges(*(offset for offset in held[: len(held) // 2] if rng.random() < 0.9))

"""Random maintained archives against a plain model of what each offset holds.

BLOCKGZ_MAINTAINED_CASES makes it more, BLOCKGZ_SEED repeats one.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from blockgz_runtime.record_filter import RecordFilter
from index_format.chunk_index import Gap
from index_format.records import iter_records
from replayer.read.archive import Archive
from replayer.read.follow import last_records
from replayer.read.lookup import Found, Outcome, look_up_all, look_up_position
from replayer.read.paging import Missing, page_before, page_from
from replayer.read.partition import ArchivedPartition
from replayer.read.positions import AtTime, Earliest, OffsetRange, resolve_position
from replayer.read.selection import Selection, scan
from replayer.verify.chunk_checks import Depth
from replayer.verify.partition import verify_partition
from tests.support.archives import MemoryArchiveWriter, records
from tests.support.maintained import Maintainer
from tests.support.memory_reader import MemoryReader

CASES = int(os.environ.get("BLOCKGZ_MAINTAINED_CASES", "300"))
SEED = int(os.environ.get("BLOCKGZ_SEED", str(random.randrange(10**9))))
BATCHES = 10


@dataclass
class Case:
    """An archive under random work, and what each offset must answer: a record's own offset, or words that may be."""

    rng: random.Random
    archive: MemoryArchiveWriter = field(default_factory=MemoryArchiveWriter)
    gaps: list[Gap] = field(default_factory=list)
    floor: int = 0

    def __post_init__(self) -> None:
        self.writer = self.archive.partition("orders", 0)
        self.maintainer = Maintainer(self.writer)
        self.began: int | None = None
        self.lost_last = False
        """Two gaps of one reason become one where no chunk lies between."""

    @property
    def end(self) -> int:
        return self.writer.marker.next_offset or 0

    def expected(self, offset: int) -> set[int | str]:
        held = {each.offset for each in self.writer.records}
        assert self.began is not None
        cases: list[tuple[bool, set[int | str]]] = [
            (offset < self.began, {"beforefirst"}),
            (offset >= self.end, {"notyet"}),
            (offset < self.floor, {"pruned"}),
            (offset in self.maintainer.erased, {"erased"}),
            (offset in held, {offset}),
            (any(offset in gap for gap in self.gaps), {"ingap"}),
            # Of a chunk without a record left, holes are not told from erased ones.
            (bool(self.maintainer.erased), {"hole", "erased"}),
        ]
        return next((told for applies, told in cases if applies), {"hole"})

    @property
    def left(self) -> list[int]:
        """The offsets of the records that are there."""
        gone = self.maintainer.erased
        return [each.offset for each in self.writer.records if each.offset >= self.floor and each.offset not in gone]

    def write(self) -> None:
        rng, writer = self.rng, self.writer
        for _ in range(rng.randint(1, 6)):
            position = self.end if writer.marker.next_offset is not None else rng.choice([0, 7])
            what = rng.random()
            if what < 0.12 and writer.marker.spans and not self.lost_last:
                self.lost_last = True
                self.gaps.append(Gap(position, position + rng.randint(1, 4), "retention"))
                writer.lose(self.gaps[-1].end)
                continue
            if what < 0.24 and writer.marker.spans:
                writer.advance(position + rng.randint(1, 4))
                continue
            self.lost_last = False
            offsets = [at for at in range(position, position + rng.randint(1, 8)) if rng.random() < 0.8] or [position]
            inside = []
            if rng.random() < 0.15:
                inside = [Gap(offsets[-1] + 1, offsets[-1] + 3, "skipped")]
                offsets.append(offsets[-1] + 3)
            self.gaps += inside
            end = offsets[-1] + 1 + rng.choice([0, 0, 2])
            writer.commit(records(offsets), next_offset=end, gaps=inside, block_bytes=rng.choice([1, 200, 400]))
            self.began = writer.marker.start_offset

    def maintain(self) -> None:
        rng, maintainer = self.rng, self.maintainer
        lower = len(maintainer.marker.catalogs[0]) if maintainer.marker.catalogs else 0
        what = rng.choice(["fold", "fold", "deepen", "merge", "erase", "erase", "prune"])
        if what == "fold" and maintainer.marker.tail:
            maintainer.fold()
        elif what == "deepen" and lower > 1 and not maintainer.marker.catalogs[1:]:
            maintainer.deepen(rng.randint(1, lower - 1))
        elif what == "merge" and maintainer.marker.catalogs:
            maintainer.rewrite([rng.randint(1, 4) for _ in range(3)])
        elif what == "erase" and (folded := [each for each in self.left if each < (maintainer.marker.cover(1) or 0)]):
            share = rng.choice([0.1, 0.5, 0.95])
            gone = [each for each in folded if rng.random() < share]
            maintainer.rewrite([rng.randint(1, 3)], gone)
        elif what == "prune" and lower:
            self.floor = maintainer.prune(rng.randint(1, lower))


async def opened(case: Case) -> ArchivedPartition:
    return await Archive(MemoryReader(case.archive.objects)).open_partition("orders", 0)


def told(outcome: Outcome) -> int | str:
    return outcome.record.offset if isinstance(outcome, Found) else type(outcome).__name__.lower()


async def look_ups_are_right(case: Case, partition: ArchivedPartition) -> None:
    assert case.began is not None
    offsets = range(max(0, case.began - 2), case.end + 2)
    for offset, outcome in (await look_up_all(partition, offsets)).items():
        assert told(outcome) in case.expected(offset), (offset, outcome)


async def scans_are_right(case: Case, partition: ArchivedPartition) -> None:
    start = case.rng.randint(min(case.floor, case.end), case.end)
    end = case.rng.randint(start, case.end)
    found: list[int] = []
    async with aclosing(scan(partition, start, end)) as batches:
        async for batch in batches:
            found += [record.offset for record in iter_records(batch)]
    assert found == [offset for offset in case.left if start <= offset < end]


async def pages_are_right(case: Case, partition: ArchivedPartition) -> None:
    """Pages upwards and downwards put together tell of every offset once."""
    count = case.rng.randint(5, 25)
    up, at = list[object](), 0
    while True:
        page = await page_from(partition, at, count)
        up += page.items
        at = page.end
        if not page.has_after:
            break
    down, at = list[object](), case.end
    while True:
        page = await page_before(partition, at, count)
        down = [*page.items, *down]
        at = page.start
        if not page.has_before:
            break
    for items in (up, down):
        here = case.began
        assert here is not None
        for item in items:
            if isinstance(item, Missing):
                assert item.start == here
                word = {"gap": "ingap"}.get(item.kind, item.kind)
                assert all(word in case.expected(offset) for offset in range(item.start, item.end)), item
                here = item.end
            else:
                assert case.expected(here) == {item.offset}  # type: ignore[attr-defined]
                here += 1
        assert here == case.end


async def positions_are_right(case: Case, partition: ArchivedPartition) -> None:
    left = case.left
    assert case.began is not None
    assert await resolve_position(Earliest(), partition) == max(case.floor, case.began)
    first = await look_up_position(partition, Earliest())
    assert told(first) == (left[0] if left else "afterlast")
    time = 1_760_000_000_000 + case.rng.randint(0, case.end)
    later = [offset for offset in left if 1_760_000_000_000 + offset >= time]
    assert told(await look_up_position(partition, AtTime(time))) == (later[0] if later else "afterlast")
    everything = Selection(partition, OffsetRange(partition.start_offset, partition.next_offset))
    last = await last_records(everything, RecordFilter(), 3)
    assert [record.offset for batch in last for record in iter_records(batch)] == left[-3:]
    inside = [gap for gap in case.gaps if gap.end > case.floor]
    listed = [(gap.start, gap.end) for gap in await partition.gaps() if gap.reason != "erased"]
    assert listed == [(gap.start, gap.end) for gap in inside]


async def verify_is_content(case: Case, partition: ArchivedPartition) -> None:
    archive = Archive(MemoryReader(case.archive.objects))
    report = await verify_partition(archive, "orders", 0, Depth.RECORDS, lambda _: None)
    assert (report.lost, report.damage) == ([], [])
    assert report.records == len(case.left)
    left = set(case.left)
    assert not any(start <= offset < end for start, end in report.erased for offset in left)
    assert partition.next_offset == report.next_offset


CHECKS: tuple[Callable[[Case, ArchivedPartition], Awaitable[None]], ...] = (
    scans_are_right,
    pages_are_right,
    positions_are_right,
    verify_is_content,
)


async def run(number: int) -> None:
    case = Case(random.Random(f"{SEED}:{number}"))
    while case.began is None:
        case.write()
    stale = await opened(case)
    for _ in range(case.rng.randint(1, 8)):
        case.write() if case.rng.random() < 0.4 else case.maintain()
    partition = await opened(case)
    # All of them for each case would take too long.
    for check in (look_ups_are_right, *case.rng.sample(CHECKS, 2)):
        await check(case, partition)
    # Who read the marker long ago goes on with what it leads to now, wherever an object is gone.
    if stale.next_offset > case.floor:
        outcomes = await look_up_all(stale, range(case.floor, stale.next_offset))
        for offset, outcome in outcomes.items():
            right = case.expected(offset) | ({offset} if offset in case.maintainer.erased else set())
            assert told(outcome) in right or told(outcome) == "hole", (offset, outcome)


async def at_once(work: Callable[..., Any], *args: Any) -> Any:
    """In place of a thread, which costs more than all that is done in it here."""
    return work(*args)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_readers_agree_with_a_plain_model(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    print(f"BLOCKGZ_SEED={SEED}")

    async def all_of_them() -> None:
        for number in range(batch, CASES, BATCHES):
            print(f"case {number}")
            await run(number)

    asyncio.run(all_of_them())

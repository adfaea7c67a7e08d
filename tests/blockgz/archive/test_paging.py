"""Pages of records, by chance and against what was written."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from blockgz.archive import paging
from blockgz.archive.archive import ArchivePlace, opened
from blockgz.archive.paging import Missing, Page, missing_between, page_at, page_before, page_from
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import AT_END, AtTime, BeforeEnd
from blockgz.store.address import LocalAddress
from index_format.chunk_index import Gap
from index_format.records import Record
from tests.support.archives import ArchiveWriter, PartitionWriter, records


def with_partition(root: Path, work: Callable[[ArchivedPartition], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(ArchivePlace(LocalAddress(str(root)))) as archive:
            await work(await archive.open_partition("orders", 0))

    asyncio.run(run())


def made_by_chance(writer: ArchiveWriter, rng: random.Random) -> tuple[PartitionWriter, list[Gap]]:
    """A partition whose chunks have holes, and gaps between them; more chunks than a marker lists."""
    partition = writer.partition("orders", 0, record_format=rng.choice(["json", "arrow"]))
    gaps: list[Gap] = []
    offset = rng.randrange(30)
    for _ in range(rng.choice([1, 5, 80])):
        told = []
        if rng.random() < 0.3 and partition.records:
            told = [Gap(offset, offset + rng.randrange(1, 9), "retention")]
            offset = told[0].end
        start = offset + rng.choice([0, 0, 3])
        offsets = [each for each in range(start, start + rng.randrange(1, 20)) if rng.random() < 0.8] or [start]
        offset = offsets[-1] + 1 + rng.choice([0, 2])
        partition.commit(records(offsets), next_offset=offset, gaps=told, block_bytes=rng.choice([100, 600]))
        gaps += told
    return partition, gaps


def check(page: Page, partition: PartitionWriter, gaps: list[Gap]) -> None:
    """The page is gapless and right."""
    at = page.start
    for item in page.items:
        if isinstance(item, Record):
            assert item.offset == at
            at += 1
        else:
            assert item.start == at
            assert item.start < item.end
            kinds = {"gap" if any(each in gap for gap in gaps) else "hole" for each in range(item.start, item.end)}
            assert kinds == {item.kind}
            at = item.end
    assert at == page.end
    assert page.records == [each for each in partition.records if page.start <= each.offset < page.end]


@pytest.mark.slow
def test_pages_both_ways_tell_of_every_offset(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(4):
        root = tmp_path / str(number)
        partition, gaps = made_by_chance(ArchiveWriter(root), rng)

        async def walk(
            archived: ArchivedPartition, partition: PartitionWriter = partition, gaps: list[Gap] = gaps
        ) -> None:
            count = rng.randrange(1, 60)
            page = await page_from(archived, 0, count)
            assert page.start == archived.start_offset
            assert not page.has_before
            seen = []
            while True:
                check(page, partition, gaps)
                seen += page.records
                assert page.has_after == (page.end < archived.next_offset)
                if not page.has_after:
                    break
                page = await page_from(archived, page.end, count)
            assert seen == partition.records
            page, below = await page_at(archived, AT_END, count), []
            assert page.end == archived.next_offset
            while True:
                check(page, partition, gaps)
                below = page.records + below
                if not page.has_before:
                    break
                page = await page_before(archived, page.start, count)
            assert below == partition.records
            for _ in range(10):
                place = rng.randrange(archived.next_offset + 5)
                check(await page_from(archived, place, count), partition, gaps)
                check(await page_before(archived, place, count), partition, gaps)

        with_partition(root, walk)


def test_pages_cross_folders_of_a_truncated_log(tmp_path: Path) -> None:
    first = ArchiveWriter(tmp_path).partition("orders", 0)
    first.commit(records(range(10)))
    first.commit(records(range(10, 20)))
    second = first.truncated(10)
    second.commit(records(range(10, 40), value_bytes=30))
    expected = first.records[:10] + second.records

    async def look(archived: ArchivedPartition) -> None:
        for count in (3, 7, 100):
            page, seen = await page_from(archived, 0, count), []
            seen += page.records
            while page.has_after:
                page = await page_from(archived, page.end, count)
                seen += page.records
            assert seen == expected
            page = await page_before(archived, 40, count)
            below = page.records
            while page.has_before:
                page = await page_before(archived, page.start, count)
                below = page.records + below
            assert below == expected

    with_partition(tmp_path, look)


def test_damage_stands_in_its_place(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    partition = writer.partition("orders", 0)
    for start in (0, 20, 40):
        partition.commit(records(range(start, start + 20)))
    (tmp_path / partition.keys.chunks / "00000000000000000020.index.json").unlink()
    data = tmp_path / partition.keys.chunks / "00000000000000000040.gz"
    body = bytearray(data.read_bytes())
    body[len(body) // 2 :] = bytes(len(body) - len(body) // 2)
    data.write_bytes(body)

    async def look(archived: ArchivedPartition) -> None:
        for page in (await page_from(archived, 0, 100), await page_before(archived, 60, 100)):
            damaged = [item for item in page.items if isinstance(item, Missing)]
            assert {item.kind for item in damaged} == {"damage"}
            assert (damaged[0].start, damaged[0].end) == (20, 40)
            assert all(40 < item.start < item.end <= 60 for item in damaged[1:])
            assert damaged[1:]
            lost = {each for item in damaged for each in range(item.start, item.end)}
            assert [each.offset for each in page.records] == [each for each in range(60) if each not in lost]

    with_partition(tmp_path, look)


@pytest.mark.slow
def test_a_damaged_catalog_costs_its_own_chunks_only(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    partition = writer.partition("orders", 0)
    for start in range(200):
        partition.commit(records([start]))
    catalogs = sorted(path for path in (tmp_path / partition.keys.home / "_catalog").rglob("*") if path.is_file())
    catalogs[0].write_bytes(b"torn")

    async def look(archived: ArchivedPartition) -> None:
        forward, backward = await page_from(archived, 0, 500), await page_before(archived, 200, 500)
        assert forward.items == backward.items
        (damage,) = (item for item in forward.items if isinstance(item, Missing))
        assert damage.kind == "damage"
        assert damage.end - damage.start == 64
        assert len(forward.records) == 200 - 64

    with_partition(tmp_path, look)


def test_a_page_is_bounded_by_bytes_and_tells_what_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 3_000)
    writer = ArchiveWriter(tmp_path)
    index = writer.partition("orders", 0).commit(records(range(100), value_bytes=1_000), block_bytes=500)

    async def look(archived: ArchivedPartition) -> None:
        page = await page_from(archived, 10, 50)
        assert 1 <= len(page.records) <= 5
        assert page.opened_bytes == index.data.bytes
        assert page.records[0].offset == 10

    with_partition(tmp_path, look)


def test_seeking(tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit(records(range(50)), next_offset=60)

    async def look(archived: ArchivedPartition) -> None:
        first = await page_at(archived, AtTime(partition.records[30].timestamp), 5)
        assert [each.offset for each in first.records] == [30, 31, 32, 33, 34]
        newest = await page_at(archived, BeforeEnd(3), 5)
        assert [each.offset for each in newest.records] == [45, 46, 47, 48, 49]
        assert newest.items[-1] == Missing(50, 60, "hole", paging.HOLE)

    with_partition(tmp_path, look)


def test_overlapping_reasons_are_told_once() -> None:
    known = [Missing(2, 6, "gap", "a"), Missing(4, 8, "damage", "b")]
    found = list(missing_between(0, 10, known))
    assert [(each.start, each.end, each.kind) for each in found] == [
        (0, 2, "hole"),
        (2, 6, "gap"),
        (6, 8, "damage"),
        (8, 10, "hole"),
    ]

"""Reading archives that are maintained or damaged."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from blockgz.archive import lookup
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.follow import Follower, last_records
from blockgz.archive.inventory import partition_document
from blockgz.archive.paging import Missing, page_from
from blockgz.archive.partition import ArchivedPartition, LostRange, SkipDamage
from blockgz.archive.positions import AtOffset, AtTime, OffsetRange, seek_time
from blockgz.archive.selection import Positions, Selection, erased_ranges, scan, select
from blockgz.errors import NotInArchive, ObjectMissing
from blockgz.record_filter import RecordFilter
from index_format.errors import BlockgzError
from index_format.records import Record, iter_records
from replayer.cli import main
from replayer.coverage import partition_coverage
from replayer.replay.plan import describe_source, pruned_text
from tests.support.archives import ArchiveWriter, MemoryArchiveWriter, PartitionWriter, records
from tests.support.commands import exited
from tests.support.maintained import Maintainer, three_catalogs
from tests.support.memory_reader import MemoryReader
from tests.support.opened import Opened


@pytest.fixture
def archive() -> MemoryArchiveWriter:
    return MemoryArchiveWriter()


@pytest.fixture
def maintainer(archive: MemoryArchiveWriter) -> Maintainer:
    return three_catalogs(archive.partition("orders", 0))


def reader_of(archive: MemoryArchiveWriter) -> ArchiveReader:
    return ArchiveReader(MemoryReader(archive.objects))


async def open_orders(archive: MemoryArchiveWriter) -> ArchivedPartition:
    return await reader_of(archive).open_partition("orders", 0)


async def offsets(partition: ArchivedPartition, start: int, end: int) -> list[int]:
    async with aclosing(scan(partition, start, end)) as batches:
        return [record.offset async for batch in batches for record in iter_records(batch)]


async def test_below_the_floor_is_pruned(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    assert maintainer.prune(1) == 20
    partition = await open_orders(archive)
    outcomes = await lookup.look_up_all(partition, [19, 20])
    assert outcomes[19] == lookup.pruned(20)
    assert isinstance(outcomes[20], lookup.FoundRecord)
    assert (partition.start_offset, partition.began_at, partition.floor) == (20, 0, 20)
    assert (await partition_document(partition))["pruned_before"] == 20
    (selection,) = await select(reader_of(archive), "orders", None, Positions(AtOffset(5), AtOffset(25)))
    assert selection.offsets == OffsetRange(20, 25)


def test_no_record_for_a_reason_of_its_own_is_not_in_the_archive() -> None:
    query = lookup.RecordQuery("orders", 0, AtOffset(5), "orders:0:5")
    for outcome, why in (
        (lookup.pruned(20), "it was pruned: the archive keeps nothing of this partition below offset 20"),
        (lookup.erased(5, 7), "it was erased from the archive, as offsets [5..7) were"),
    ):
        error = lookup.failure(query, outcome)
        assert (error.exit_code, error.why) == (4, why)


async def test_erased_records_answer_so_and_neither_do_their_neighbours(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    maintainer.rewrite([2], [3, 4, 15, *range(20, 40)])
    partition = await open_orders(archive)
    outcomes = await lookup.look_up_all(partition, range(70))
    assert outcomes[3] == outcomes[4] == lookup.erased(3, 5)
    assert outcomes[15] == lookup.erased(15, 16)
    assert outcomes[20] == outcomes[39] == lookup.erased(20, 40)
    assert sum(isinstance(each, lookup.FoundRecord) for each in outcomes.values()) == 70 - 23
    found = await lookup.look_up_position(partition, AtOffset(20))
    assert isinstance(found, lookup.FoundRecord)
    assert found.record.offset == 40
    found = await lookup.look_up_position(partition, AtTime(1_760_000_000_000 + 3))
    assert isinstance(found, lookup.FoundRecord)
    assert found.record.offset == 5
    assert await erased_ranges(partition, 4, 30) == [(4, 5), (15, 16), (20, 30)]
    assert await offsets(partition, 0, 70) == [each for each in range(70) if each not in maintainer.erased]


async def test_an_empty_gap_reads_as_holes(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.fold()
    maintainer.writer.advance(75)
    maintainer.writer.commit(records(range(75, 80)))
    partition = await open_orders(archive)
    assert partition.marker.gaps[0].reason == "empty"
    assert (await lookup.look_up_all(partition, [72]))[72] == lookup.hole(69, 75)
    assert await partition.gaps() == ()


async def test_a_page_tells_what_is_pruned_and_erased(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(1)
    maintainer.rewrite([1], [21, *range(30, 40)])
    page = await page_from(await open_orders(archive), 0, 30)
    missing = [(item.start, item.end, item.kind) for item in page.items if isinstance(item, Missing)]
    assert missing == [(0, 20, "pruned"), (21, 22, "erased"), (30, 40, "erased")]
    assert page.items[0].reason == "nothing below offset 20 is kept"  # type: ignore[union-attr]
    assert (page.start, page.has_before) == (0, False)


async def items(partition: ArchivedPartition) -> object:
    return (await page_from(partition, 12, 9)).items


async def covered(partition: ArchivedPartition) -> object:
    coverage = await partition_coverage(partition)
    return coverage.records, coverage.errors


async def planned(partition: ArchivedPartition) -> object:
    source = await describe_source(Selection(partition, OffsetRange(3, 70)))
    return source.records, source.timestamps


async def last_offsets(partition: ArchivedPartition) -> object:
    found = await last_records(Selection(partition, OffsetRange(0, 60)), RecordFilter(), 35)
    return [record.offset for batch in found for record in iter_records(batch)]


USES: dict[str, Callable[[ArchivedPartition], Awaitable[object]]] = {
    "scan": lambda partition: offsets(partition, 0, 70),
    "time": lambda partition: seek_time(partition, 1_760_000_000_015),
    "page": items,
    "coverage": covered,
    "plan": planned,
    "last": last_offsets,
    "gaps": lambda partition: partition.gaps(),
}


@pytest.mark.parametrize("use", USES)
async def test_what_was_rewritten_since_is_read_through_the_marker_of_now(
    archive: MemoryArchiveWriter, maintainer: Maintainer, use: str
) -> None:
    stale = await open_orders(archive)
    before = await USES[use](await open_orders(archive))
    maintainer.rewrite([2])
    assert await USES[use](stale) == before
    outcome = (await lookup.look_up_all(stale, [5]))[5]
    assert isinstance(outcome, lookup.FoundRecord)


def test_a_scan_under_way_goes_on_at_the_same_offset(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    async def use() -> list[int]:
        found = []
        async with aclosing(scan(await open_orders(archive), 0, 70)) as batches:
            async for batch in batches:
                found += [record.offset for record in iter_records(batch)]
                if found[-1] < 10:
                    maintainer.rewrite([3])
        return found

    assert asyncio.run(use()) == list(range(70))


async def test_a_name_with_other_bytes_than_the_marker_knew_is_no_damage_either(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    stale = await open_orders(archive)
    name = maintainer.chunks[0].name
    maintainer.rewrite([2])
    archive.put(maintainer.keys.chunks + name, b"a dead writer's late upload")
    assert await offsets(stale, 0, 70) == list(range(70))


async def test_what_the_marker_of_now_leads_to_as_well_is_damaged(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    lost = maintainer.keys.chunks + maintainer.chunks[2].name
    archive.remove(lost)
    partition = await open_orders(archive)
    with pytest.raises(ObjectMissing):
        await offsets(partition, 0, 70)
    assert isinstance((await lookup.look_up_all(partition, [25]))[25], lookup.Lost)
    policy = SkipDamage()
    async with aclosing(scan(partition, 0, 70, on_damage=policy)) as batches:
        found = [record.offset async for batch in batches for record in iter_records(batch)]
    assert found == [each for each in range(70) if not 20 <= each < 30]
    assert [(each.start, each.end) for each in policy.skipped] == [(20, 30)]


async def test_records_that_were_pruned_while_they_were_read_are_named(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    stale = await open_orders(archive)
    maintainer.rewrite([1])
    maintainer.prune(1)
    with pytest.raises(NotInArchive, match=r"offsets \[5..20\) of orders:0 were pruned") as caught:
        await offsets(stale, 5, 70)
    assert caught.value.remedy == "begin at offset 20, or at earliest"
    outcome = (await lookup.look_up_all(stale, [5]))[5]
    assert outcome == lookup.pruned(20)


async def test_a_command_tells_that_a_record_was_pruned(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(3)
    query = lookup.RecordQuery("orders", 0, AtOffset(5), "orders:0:5")
    assert (await lookup.look_up_together(reader_of(archive), [query]))[query] == lookup.pruned(60)


async def test_a_plan_begins_at_the_floor_and_says_how_much_is_pruned(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    maintainer.prune(1)
    (selection,) = await select(reader_of(archive), "orders", None, Positions(AtOffset(5)))
    source = await describe_source(selection)
    assert (source.start, source.records, source.pruned) == (20, 50, OffsetRange(0, 20))
    assert pruned_text(0, OffsetRange(0, 20)) == ("partition 0 was pruned: up to 20 records, offsets [0..20), are gone")
    (selection,) = await select(reader_of(archive), "orders", None, Positions(AtOffset(30)))
    assert (await describe_source(selection)).pruned is None


async def test_a_partition_in_several_folders_has_the_highest_floor(archive: MemoryArchiveWriter) -> None:
    """As after a log was truncated: each folder is pruned for itself."""
    older = archive.partition("orders", 0)
    maintainer = Maintainer(older)
    for start in range(0, 40, 10):
        older.commit(records(range(start, start + 10)))
        maintainer.fold()
    newer = older.truncated(30)
    newer.commit(records(range(30, 50)))
    assert maintainer.prune(2) == 20
    partition = await open_orders(archive)
    assert (partition.floor, partition.start_offset, partition.is_maintained) == (20, 20, True)
    assert (await lookup.look_up_all(partition, [19]))[19] == lookup.pruned(20)


async def test_who_follows_is_told_what_was_pruned_unread(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    told: list[str] = []
    followed = [(await open_orders(archive), 5)]
    follower = Follower(reader_of(archive), "orders", followed, told.append, watch_for_partitions=False)
    maintainer.prune(1)
    (selection,) = await follower.poll()
    assert selection.offsets == OffsetRange(20, 70)
    assert told == ["partition orders:0 was pruned: offsets [5..20) are gone unread"]


@pytest.fixture
def partition(writer: ArchiveWriter) -> PartitionWriter:
    """66 chunks of one record, 64 of them in a catalog, then one of several blocks with holes between its records."""
    partition = writer.partition("orders", 0)
    for number in range(66):
        partition.commit(records([2 * number]), next_offset=2 * number + 2)
    partition.commit(records(range(132, 232, 2)), block_bytes=300)
    return partition


def skipping(opened: Opened, start: int = 0, end: int = 2**62) -> tuple[list[Record], list[LostRange]]:
    policy = SkipDamage()

    async def use(archive: object) -> list[Record]:
        partition = await archive.open_partition("orders", 0)  # type: ignore[attr-defined]
        async with aclosing(scan(partition, start, end, on_damage=policy)) as batches:
            return [record async for batch in batches for record in iter_records(batch)]

    return opened.read(use), policy.skipped


def flip(path: Path, position: int) -> None:
    body = bytearray(path.read_bytes())
    body[position] ^= 0x10
    path.write_bytes(bytes(body))


def expected(partition: PartitionWriter, lost: list[tuple[int, int]]) -> list[Record]:
    return [each for each in partition.records if not any(start <= each.offset < end for start, end in lost)]


def test_damaged_blocks_are_skipped_and_their_neighbours_are_not(opened: Opened, partition: PartitionWriter) -> None:
    blocks = partition.indexes[-1].blocks
    data = opened.root / partition.keys.home / f"{132:020d}.gz"
    for number in (1, 2, 4):
        flip(data, blocks[number].byte_offset + 20)
    found, skipped = skipping(opened)
    lost = [(blocks[n].first_record_offset, blocks[n].last_record_offset + 1) for n in (1, 2, 4)]
    assert [(each.start, each.end) for each in skipped] == lost
    assert all("is damaged" in each.reason for each in skipped)
    assert found == expected(partition, lost)


def test_a_part_names_what_is_lost_of_that_part(opened: Opened, partition: PartitionWriter) -> None:
    (opened.root / partition.keys.home / f"{132:020d}.gz").unlink()
    found, skipped = skipping(opened, 130, 140)
    assert found == [partition.records[65]]
    assert [(each.start, each.end) for each in skipped] == [(132, 140)]


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        (f"_catalog/1-{0:020d}.json", (0, 128)),
        (f"{128:020d}.index.json", (128, 129)),
        (f"{64:020d}.index.json", (64, 65)),
        (f"{130:020d}.gz", (130, 131)),
    ],
)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_what_a_damaged_object_costs(
    opened: Opened, partition: PartitionWriter, name: str, lost: tuple[int, int], damage: Callable[[Path], None]
) -> None:
    damage(opened.root / partition.keys.home / name)
    found, skipped = skipping(opened)
    assert [(each.start, each.end) for each in skipped] == [lost]
    assert found == expected(partition, [lost])


def test_a_chunk_cut_short_keeps_the_blocks_before_the_cut(opened: Opened, partition: PartitionWriter) -> None:
    blocks = partition.indexes[-1].blocks
    data = opened.root / partition.keys.home / f"{132:020d}.gz"
    data.write_bytes(data.read_bytes()[: blocks[3].byte_offset + 1])
    found, skipped = skipping(opened)
    lost = [(blocks[3].first_record_offset, blocks[-1].last_record_offset + 1)]
    assert [(each.start, each.end) for each in skipped] == lost
    assert found == expected(partition, lost)


def test_without_the_policy_the_scan_ends_at_the_damage(opened: Opened, partition: PartitionWriter) -> None:
    flip(opened.root / partition.keys.home / f"{132:020d}.gz", 20)
    found: list[Record] = []

    async def use(archive: object) -> None:
        async with aclosing(scan(await archive.open_partition("orders", 0), 0, 2**62)) as batches:  # type: ignore[attr-defined]
            async for batch in batches:
                found.extend(iter_records(batch))

    with pytest.raises(BlockgzError, match=r"block 0 of .* is damaged: offsets \[132\.\."):
        opened.read(use)
    assert found == partition.records[:66]


def test_cat_prints_the_rest_and_names_the_lost_offsets(opened: Opened, partition: PartitionWriter) -> None:
    (opened.root / partition.keys.home / f"{128:020d}.gz").unlink()
    arguments = ["cat", "orders", "-a", str(opened.root), "-f", "%o\\n"]
    stopped = exited(CliRunner().invoke(main, arguments), 3)
    assert stopped.stdout.split() == [str(each.offset) for each in partition.records[:64]]
    skipped = exited(CliRunner().invoke(main, [*arguments, "--on-damage", "skip"]), 3)
    assert skipped.stdout.split() == [str(each.offset) for each in expected(partition, [(128, 129)])]
    assert "FAILURE orders:0 skipped offsets [128..129): the object" in skipped.stderr
    (opened.root / partition.keys.home / f"{128:020d}.gz").write_bytes(b"")
    unharmed = CliRunner().invoke(main, [*arguments, "--on-damage", "skip", "--from", "130"])
    assert (unharmed.exit_code, unharmed.stderr) == (0, "")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_choosing_by_time_reads_on_after_a_damaged_newest_index(
    opened: Opened, partition: PartitionWriter, damage: Callable[[Path], None]
) -> None:
    damage(opened.root / partition.keys.home / f"{132:020d}.index.json")
    arguments = ["cat", "orders", "-a", str(opened.root), "-f", "%o\\n", "--since", "@1760000000"]
    for policy in ("skip", "stop"):
        found = exited(CliRunner().invoke(main, [*arguments, "--on-damage", policy]), 3)
        assert found.stdout.split() == [str(each.offset) for each in partition.records[:66]]


def test_a_block_beyond_the_bound_names_the_object_and_the_option(opened: Opened, partition: PartitionWriter) -> None:
    run = exited(CliRunner().invoke(main, ["cat", "orders", "-a", str(opened.root), "--max-block-bytes", "200"]), 3)
    assert f"{partition.keys.home}{132:020d}.gz" in run.stderr and "--max-block-bytes" in run.stderr

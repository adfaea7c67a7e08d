"""Reading on behind damage: exactly the damaged blocks are skipped and named, all else is right."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from blockgz.archive.damage import LostRange, SkipDamage
from blockgz.archive.selection import scan
from index_format.errors import BlockgzError
from index_format.records import Record, iter_records
from replayer.cli import main
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.opened import Opened


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
    stopped = CliRunner().invoke(main, arguments)
    assert stopped.exit_code == 3
    assert stopped.stdout.split() == [str(each.offset) for each in partition.records[:64]]
    skipped = CliRunner().invoke(main, [*arguments, "--on-damage", "skip"])
    assert skipped.exit_code == 3
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
        found = CliRunner().invoke(main, [*arguments, "--on-damage", policy])
        assert found.exit_code == 3
        assert found.stdout.split() == [str(each.offset) for each in partition.records[:66]]


def test_a_block_beyond_the_bound_names_the_object_and_the_option(opened: Opened, partition: PartitionWriter) -> None:
    run = CliRunner().invoke(main, ["cat", "orders", "-a", str(opened.root), "--max-block-bytes", "200"])
    assert run.exit_code == 3
    assert f"{partition.keys.home}{132:020d}.gz" in run.stderr and "--max-block-bytes" in run.stderr

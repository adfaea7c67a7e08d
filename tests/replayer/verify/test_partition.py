"""Verifying a partition; test_verify_corruption.py and its campaign try every kind of damage."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.partition import LostRange
from blockgz.archive.positions import OffsetRange
from blockgz.errors import Verdict
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import objects
from index_format.key_filter import hashes_of, key_filter
from index_format.keys import INDEX_SUFFIXES
from index_format.marker import encode, entry_of, inserted
from index_format.objects import Gap
from index_format.records import Record
from replayer.verify.chunk_checks import EVERY_CHUNK, ChunkChain, ChunkChoice, ChunkFindings
from replayer.verify.report import ArchiveReport, Depth, PartitionFindings
from replayer.verify.verifying import (
    VerifyWork,
    assembled,
    chosen_chunks,
    read_chain,
    read_identity,
    verify_archive,
    verify_partition,
)
from tests.index_format.builders import record
from tests.support import chain
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.opened import Opened


def verified(root: Path, depth: Depth = Depth.RECORDS) -> PartitionFindings:
    archive = ArchiveReader(LocalReader(LocalAddress(str(root))))
    return asyncio.run(verify_partition(archive, "orders", 0, depth, lambda *_: None))


def offsets(lost: list[LostRange], of: list[Record]) -> set[int]:
    """The offsets of those records that lie in what is lost."""
    return {record.offset for record in of for run in lost if run.start <= record.offset < run.end}


@pytest.fixture
def partition(writer: ArchiveWriter) -> PartitionWriter:
    """Chunks of one record, a gap, a chunk of several blocks."""
    partition = writer.partition("orders", 0)
    for number in range(3):
        partition.commit(records([2 * number]), next_offset=2 * number + 2)
    partition.lose(140)
    partition.commit(records(range(140, 180)), block_bytes=300)
    return partition


@pytest.mark.parametrize("depth", Depth)
def test_a_whole_archive_is_ok_and_recorded_gaps_are_a_warning(
    opened: Opened, writer: ArchiveWriter, depth: Depth
) -> None:
    partition = writer.partition("orders", 0)
    assert verified(opened.root, depth).verdict is Verdict.OK
    partition.commit(records(range(50)), next_offset=60)
    partition.advance(65)
    partition.commit(records(range(65, 70)))
    report = verified(opened.root, depth)
    assert (report.verdict, report.records, report.chunks) == (Verdict.OK, 55, 2)
    assert (report.first_offset, report.next_offset) == (0, 70)
    partition.lose(100)
    partition.commit(records([110, 115]), gaps=[Gap(111, 113, "skipped")])
    report = verified(opened.root, depth)
    assert report.verdict is Verdict.WARNING
    assert report.gaps == [Gap(70, 100, "retention"), Gap(111, 113, "skipped")]


def test_text_chunks_are_whole(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0, record_format="text")
    partition.commit([Record(n, 5, 0, None, b"%d" % n, ()) for n in (1, 2, 5)])
    assert verified(opened.root).verdict is Verdict.OK


def test_a_missing_marker_loses_what_the_indexes_beside_it_hold(opened: Opened, partition: PartitionWriter) -> None:
    (opened.root / partition.keys.marker).unlink()
    report = verified(opened.root)
    assert report.verdict is Verdict.FAILURE
    assert offsets(report.lost, partition.records) == {record.offset for record in partition.records}
    ends = [(each.start, each.end) for each in report.lost]
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ends)), "chunks that touch are one range"
    assert all("archiver repair marker orders:0" in each.reason for each in report.lost)


def test_a_chunk_that_fell_out_of_the_chain_is_lost(opened: Opened, partition: PartitionWriter) -> None:
    marker = partition.marker
    opened.root.joinpath(partition.keys.marker).write_bytes(encode(replace(marker, tail=marker.tail[1:])))
    report = verified(opened.root, Depth.STRUCTURE)
    assert report.verdict is Verdict.FAILURE
    assert [(lost.start, lost.end) for lost in report.lost] == [
        (marker.tail[0].start_offset, marker.tail[1].start_offset)
    ]


def test_a_marker_of_another_last_record_is_damage(opened: Opened, partition: PartitionWriter) -> None:
    opened.root.joinpath(partition.keys.marker).write_bytes(encode(replace(partition.marker, tail_hash="0" * 64)))
    assert verified(opened.root, Depth.BLOCKS).verdict is Verdict.WARNING
    report = verified(opened.root, Depth.RECORDS)
    assert report.verdict is Verdict.FAILURE
    assert report.lost == []


def test_bytes_after_the_data_are_damage_without_loss(opened: Opened, partition: PartitionWriter) -> None:
    path = opened.root / partition.keys.home / f"{140:020d}.gz"
    path.write_bytes(path.read_bytes() + b"more")
    for depth in Depth:
        report = verified(opened.root, depth)
        assert (report.verdict, report.lost) == (Verdict.FAILURE, [])


def test_a_changed_bit_needs_a_deep_look(opened: Opened, partition: PartitionWriter) -> None:
    path = opened.root / partition.keys.home / f"{140:020d}.gz"
    body = bytearray(path.read_bytes())
    body[40] ^= 1
    path.write_bytes(bytes(body))
    assert verified(opened.root, Depth.STRUCTURE).verdict is Verdict.WARNING
    block = partition.indexes[-1].blocks[0]
    for depth in (Depth.BLOCKS, Depth.RECORDS):
        (lost,) = verified(opened.root, depth).lost
        assert (lost.start, lost.end) == (block.first_record_offset, block.last_record_offset + 1)


@pytest.mark.parametrize("keys", [[], [b"other"], [b"key-1"]])
def test_a_key_filter_that_lacks_a_key_needs_a_deep_look(
    opened: Opened, writer: ArchiveWriter, keys: list[bytes]
) -> None:
    partition = writer.partition("orders", 0)
    partition.key_filter_bits = 16
    rows = [record(offset, key=b"key-1" if offset else None) for offset in range(5)]
    index = partition.commit(rows, block_bytes=1000)
    assert verified(opened.root).verdict is Verdict.OK
    (block,) = index.blocks
    wrong = replace(index, blocks=(replace(block, key_filter=key_filter(hashes_of(keys), 16)),))
    body, (entry,) = objects.encode(wrong), partition.marker.tail
    writer.put(partition.keys.chunks + entry.name, body)
    put_marker(opened, partition, tail=(entry_of(wrong, entry.name, body),))
    assert verified(opened.root, Depth.BLOCKS).verdict is Verdict.OK
    report = verified(opened.root)
    assert report.verdict is (Verdict.OK if keys == [b"key-1"] else Verdict.FAILURE)
    assert all("filter" in lost.reason for lost in report.lost)


@pytest.mark.parametrize("name", ["_archive.json", "topic=orders/_topic.json"])
def test_identity_objects_are_checked(opened: Opened, partition: PartitionWriter, name: str) -> None:
    assert opened.read(lambda archive: read_identity(archive, ["orders"])).damage == ()
    (opened.root / name).write_bytes(b"{}")
    (damage,) = opened.read(lambda archive: read_identity(archive, ["orders"])).damage
    assert damage.key == name


def chain_of(opened: Opened) -> ChunkChain:
    async def read(archive: ArchiveReader) -> ChunkChain:
        return await read_chain(await archive.open_partition("orders", 0))

    return opened.read(read)


def put_marker(opened: Opened, partition: PartitionWriter, **fields: Any) -> None:
    opened.root.joinpath(partition.keys.marker).write_bytes(encode(replace(partition.marker, **fields)))


def test_a_gap_excuses_only_what_lies_in_it(opened: Opened, writer: ArchiveWriter) -> None:
    """The chunk that ended where the gap begins fell out of the chain: the next one starts at the gap's end still."""
    partition = writer.partition("orders", 0)
    for start in (0, 10):
        partition.commit(records(range(start, start + 10)))
    partition.lose(30)
    partition.commit(records(range(30, 40)))
    assert not chain_of(opened).damage
    first, _, last = partition.marker.tail
    put_marker(opened, partition, tail=(first, last))
    chain = chain_of(opened)
    assert [(lost.start, lost.end) for lost in chain.lost] == [(10, 20)] and len(chain.damage) == 1
    put_marker(opened, partition, gaps=(Gap(20, 25, "retention"),))
    assert [(lost.start, lost.end) for lost in chain_of(opened).lost] == [(25, 30)]


@pytest.mark.parametrize("gap", [(10, 30), (15, 30), (20, 25), (25, 30), (20, 35)])
def test_gaps_begin_where_a_chunk_stopped_and_end_where_the_next_one_starts(
    opened: Opened, writer: ArchiveWriter, gap: tuple[int, int]
) -> None:
    """The checker of the simulations, which stands on its own, holds writers to the same."""
    partition = writer.partition("orders", 0)
    partition.commit(records(range(20)))
    partition.lose(30)
    partition.commit(records(range(30, 40)))

    def simulated() -> None:
        paths = [path for path in opened.root.rglob("*") if path.is_file()]
        bodies = {path.relative_to(opened.root).as_posix(): path.read_bytes() for path in paths}
        assert chain.read_chain(bodies, partition.keys.home, partition.keys.chunks)

    simulated()
    assert not chain_of(opened).damage
    put_marker(opened, partition, gaps=(Gap(*gap, "retention"),))
    assert [damage.key for damage in chain_of(opened).damage] == [partition.keys.home + partition.marker.tail[1].name]
    with pytest.raises(AssertionError):
        simulated()


def test_between_gaps_the_log_may_have_gone_on_without_records(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.advance(5)
    partition.lose(8)
    partition.commit(records(range(8, 10)), next_offset=12)
    partition.advance(14)
    partition.lose(20)
    partition.advance(25)
    partition.lose(30, "skipped")
    partition.advance(35)
    assert not chain_of(opened).damage
    partition.commit(records(range(40, 45)))
    assert not chain_of(opened).damage


@pytest.mark.slow
def test_gaps_may_stand_in_a_later_catalog_than_the_chunks_around_them(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    for number in range(330):
        partition.commit(records([2 * number]))
        partition.lose(2 * number + 2)
    assert partition.marker.catalogs and len(partition.marker.gaps) < 330
    chain = chain_of(opened)
    assert (chain.chunks, len(chain.gaps), chain.damage, chain.lost) == (330, 330, [], [])


def test_the_end_of_the_chain_is_the_end_of_the_archive(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    for start in (0, 10):
        partition.commit(records(range(start, start + 10)))
    first, _ = partition.marker.tail
    put_marker(opened, partition, tail=(first,), last_chunk_index=first.name)
    assert [(lost.start, lost.end) for lost in chain_of(opened).lost] == [(10, 20)]
    put_marker(opened, partition, tail=(), last_chunk_index=None)
    assert [(lost.start, lost.end) for lost in chain_of(opened).lost] == [(0, 20)]


@pytest.mark.parametrize("place", [(20, 30), (20, 25), (24, 27), (27, 30)])
@pytest.mark.parametrize("hole", [0, 5])
def test_a_chunk_in_the_place_of_a_gap_is_a_part_of_the_chain(
    opened: Opened, writer: ArchiveWriter, place: tuple[int, int], hole: int
) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(20)))
    partition.lose(30)
    if hole:
        partition.advance(30 + hole)
        partition.lose(40, "skipped")
    partition.commit(records(range(40, 50) if hole else range(30, 40)))
    start, end = place
    name = f"{start:020d}~e9-0123abcd.index.json"
    entry = replace(
        partition.marker.tail[0],
        name=name,
        **{"start_offset": start, "next_offset": end, "first_offset": start, "last_offset": start, "num_records": 1},
    )
    longer, _ = inserted(partition.marker, entry, (), nonce="inserted", tail_hash=None)
    opened.root.joinpath(partition.keys.marker).write_bytes(encode(longer))
    chain = chain_of(opened)
    assert (chain.chunks, chain.damage, chain.lost) == (3, [], [])
    assert not any(start in gap for gap in chain.gaps)


def test_the_chosen_chunks_are_those_of_the_chain(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.pretend(range(200))

    async def chosen(archive: ArchiveReader, choice: ChunkChoice) -> tuple[list[int], list[int]]:
        opened = await archive.open_partition("orders", 0)
        chain, skipped = await read_chain(opened, choice), list[int]()
        found = [
            entry.start_offset async for entry in chosen_chunks(opened, chain, lambda _, passed: skipped.append(passed))
        ]
        assert len(found) == len(chain.chosen)
        return found, skipped

    for share in (0.01, 0.3, 1.0):
        for since in (None, 150, 500):
            choice = ChunkChoice(since, share)
            found, skipped = opened.read(lambda archive, choice=choice: chosen(archive, choice))
            allowed = range(since or 0, 200)
            assert len(found) == (max(1, round(share * len(allowed))) if allowed else 0)
            assert found == sorted(found) and set(found) <= set(allowed)
            assert skipped == [100] * (200 - len(found))


def test_a_catalog_that_cannot_be_read_any_more_is_reported(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.pretend(range(200))
    second = partition.marker.catalogs[0][1]
    path = opened.root / (partition.keys.home + second.name)

    async def checked(archive: ArchiveReader) -> PartitionFindings:
        chain = await read_chain(await archive.open_partition("orders", 0))
        path.write_bytes(b"{}")
        # As where a partition has more catalogs than are remembered.
        again = await archive.open_partition("orders", 0)
        async for _ in chosen_chunks(again, chain):
            pass
        return assembled(again, "orders", chain, [ChunkFindings()], None)

    report = opened.read(checked)
    assert [each.key for each in report.damage] == [partition.keys.home + second.name]
    assert [(each.start, each.end) for each in report.lost] == [(second.start_offset, second.next_offset)]
    assert report.records == report.checked_chunks == 200 - second.num_chunks
    assert report.verdict is not Verdict.OK


def test_a_catalog_is_not_remembered_forever(
    opened: Opened, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockgz.archive.partition.REMEMBERED_CATALOGS", 3)
    writer.partition("orders", 0).pretend(range(1000))

    async def walked(archive: ArchiveReader) -> tuple[int, int]:
        partition = await archive.open_partition("orders", 0)
        return (await read_chain(partition)).chunks, len(partition._catalogs)

    assert opened.read(walked) == (1000, 3)


def share_verified(root: Path, choice: ChunkChoice, depth: Depth = Depth.BLOCKS) -> ArchiveReport:
    archive = ArchiveReader(LocalReader(LocalAddress(str(root))))
    return asyncio.run(verify_archive(archive, [], depth, choice=choice))


@pytest.fixture(params=["topic", "seed"])
def twenty(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, PartitionWriter]:
    """A partition of 20 chunks with ten records each."""
    partition = ArchiveWriter(tmp_path / "archive", request.param).partition("orders", 0)
    for start in range(0, 200, 10):
        partition.commit(records(range(start, start + 10)))
    return tmp_path / "archive", partition


@pytest.mark.slow
def test_a_sample_is_not_ok_and_names_the_chunks_that_it_checked(twenty: tuple[Path, PartitionWriter]) -> None:
    root, partition = twenty
    assert share_verified(root, EVERY_CHUNK).verdict is Verdict.OK
    assert share_verified(root, EVERY_CHUNK).partitions[0].checked == [OffsetRange(0, 200)]
    since = ChunkChoice(partition.records[185].timestamp)
    (found,) = share_verified(root, since).partitions
    assert (found.verdict, found.checked_chunks, found.checked) == (Verdict.SAMPLED, 2, [OffsetRange(180, 200)])
    assert share_verified(root, since, Depth.STRUCTURE).verdict is Verdict.SAMPLED
    for seed in range(20):
        (found,) = share_verified(root, ChunkChoice(None, 0.1, seed)).partitions
        offsets = sum(end - start for start, end in found.checked)
        assert (found.verdict, found.checked_chunks, offsets) == (Verdict.SAMPLED, 2, 20)


@pytest.mark.slow
def test_a_sample_finds_every_missing_object(twenty: tuple[Path, PartitionWriter]) -> None:
    root, partition = twenty
    keys = [f"{partition.keys.chunks}{each.name}" for each in partition.marker.tail]
    kinds = [(key, key.removesuffix(INDEX_SUFFIXES[partition.keys.layout]) + ".gz") for key in keys]
    for number, key in enumerate(key for pair in kinds for key in pair):
        offset = 10 * (number // 2)
        body = (root / key).read_bytes()
        (root / key).unlink()
        report = share_verified(root, ChunkChoice(None, 0.05, number), Depth.STRUCTURE)
        (root / key).write_bytes(body)
        (found,) = report.partitions
        assert (report.verdict, found.records) == (Verdict.FAILURE, 190), key
        assert [(lost.start, lost.end) for lost in found.lost] == [(offset, offset + 10)], key
    assert number == 39


def test_the_bytes_of_a_sample_are_those_of_its_chunks(twenty: tuple[Path, PartitionWriter]) -> None:
    root, _ = twenty
    seen: list[tuple[int, int]] = []

    @contextmanager
    def watched(work: VerifyWork) -> Iterator[Callable[[], None]]:
        seen.append((work.done, work.bytes))
        yield lambda: seen.append((work.done, work.bytes))

    archive = ArchiveReader(LocalReader(LocalAddress(str(root))))
    choice = ChunkChoice(None, 0.1, 3)
    asyncio.run(verify_archive(archive, [], Depth.BLOCKS, choice=choice, watched=watched))
    whole = sum(path.stat().st_size for path in root.rglob("*.gz"))
    assert seen[0] == (0, round(whole * 0.1))
    assert seen[-1][0] == seen[-1][1] and 0 < seen[-1][0] < whole / 5
    assert all(done <= of for done, of in seen)

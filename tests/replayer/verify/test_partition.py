"""Verifying a partition; test_verify_corruption.py and its campaign try every kind of damage."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz_runtime.store.address import LocalAddress
from blockgz_runtime.store.local import LocalReader
from index_format.chunk_index import Gap
from index_format.marker import encode
from index_format.records import Record
from replayer.read.archive import Archive
from replayer.read.damage import LostRange
from replayer.verify.chunk_checks import Depth
from replayer.verify.findings import PartitionReport, Verdict
from replayer.verify.partition import verify_partition
from replayer.verify.survey import read_identity
from tests.replayer.conftest import Opened
from tests.support.archives import ArchiveWriter, PartitionWriter, records


def verified(root: Path, depth: Depth = Depth.RECORDS) -> PartitionReport:
    archive = Archive(LocalReader(LocalAddress(str(root))))
    return asyncio.run(verify_partition(archive, "orders", 0, depth, lambda count: None))


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


def test_bytes_behind_the_data_are_damage_without_loss(opened: Opened, partition: PartitionWriter) -> None:
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


@pytest.mark.parametrize("name", ["_archive.json", "topic=orders/_topic.json"])
def test_identity_objects_are_checked(opened: Opened, partition: PartitionWriter, name: str) -> None:
    assert opened.read(lambda archive: read_identity(archive, ["orders"])).damage == ()
    (opened.root / name).write_bytes(b"{}")
    (damage,) = opened.read(lambda archive: read_identity(archive, ["orders"])).damage
    assert damage.key == name

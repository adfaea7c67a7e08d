"""When an erase is complete: not before the last object that may hold one of the records is gone."""

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from archiver.maintain.erase import AtOffsets, ErasedPartition, EraseReport, Matching
from archiver.maintain.erase_status import read_report, remains_of
from archiver.maintain.gc import plan_sweep
from archiver.maintain.rewrite.chunks import OffsetRanges
from blockgz.errors import NotInArchive, UsageError
from blockgz.record_filter import KeyIn
from blockgz.store.writer import Leftover
from index_format import marker as markers
from index_format.chunk_index import Gap
from tests.archiver.maintain.erase.world import KEYS, EraseWorld, log_of, ranges

GRACE = 3600.0


def erased_world(seed: int, folder: Path, chunks: int = 70) -> tuple[EraseWorld, ErasedPartition]:
    """A partition of which the records with one key were erased."""
    rng = random.Random(seed)
    world = EraseWorld(log=log_of(rng, 400))
    world.archive(rng, chunks)
    found = world.found(Matching.all_of(KeyIn(KEYS[:1])))
    assert found.records > 2
    world.erase(found.ranges, folder)
    return world, found


@pytest.mark.slow
def test_it_is_complete_once_garbage_collection_left_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, erased = erased_world(1, tmp_path)
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    old = {key for key, kept in world.store.objects.items() if key.endswith(".gz") and "~r" not in key}
    remains = remains_of(world.store, erased, [])
    assert remains.retired and not remains.is_rewriting and not len(remains.not_erased)
    assert remains.unreached and not remains.is_complete
    for _ in range(4):
        world.store.now += 2 * GRACE
        now[0] += 2 * GRACE
        before = remains_of(world.store, erased, [])
        plan = plan_sweep(world.store, [], GRACE, wait=lambda attempt, cause: None)
        assert not plan.problems
        plan.carry_out()
        if remains_of(world.store, erased, []).is_complete:
            break
        assert not before.is_complete
    assert remains_of(world.store, erased, []).is_complete
    data = {key: kept.body for key, kept in world.store.objects.items() if key.endswith(".gz")}
    assert set(data) & old < old
    assert not [key for key, body in data.items() if b'"k0"' in gzip.decompress(body)]
    world.check()


def test_records_that_are_still_there_are_counted(tmp_path: Path) -> None:
    world, erased = erased_world(2, tmp_path)
    more = world.found(AtOffsets(OffsetRanges([range(0, 30)])))
    offsets = (*more.offsets, *erased.offsets)
    both = replace(erased, offsets=offsets, records=sum(end - start for start, end in offsets))
    remains = remains_of(world.store, both, [])
    assert remains.not_erased == more.ranges
    assert not remains.is_complete


def test_offsets_that_hold_no_record_are_not_held(tmp_path: Path) -> None:
    """As after an index was rebuilt from data in which records were erased."""
    world, erased = erased_world(2, tmp_path)
    end = world.marker.next_offset or 0
    hole = next(offset for offset in range(end) if offset not in world.held_offsets() | set(world.erased))
    holes = replace(erased, offsets=((hole, hole + 1),), records=1)
    assert not len(remains_of(world.store, holes, []).not_erased)


@pytest.mark.slow
def test_what_lies_below_the_floor_is_gone(tmp_path: Path) -> None:
    world, erased = erased_world(3, tmp_path)
    maintenance = world.marker.maintenance
    assert maintenance
    first = world.marker.catalogs[0][0]
    pruned = replace(
        world.marker,
        catalogs=(world.marker.catalogs[0][1:],),
        gaps=(),
        maintenance=replace(maintenance, pruned_before=first.next_offset, retired=()),
    )
    world.store.compare_and_swap(world.keys.marker, markers.encode(pruned), world.store.get(world.keys.marker).etag)
    all_below = replace(erased, offsets=((0, first.next_offset),), records=first.next_offset)
    assert remains_of(world.store, all_below, []).not_erased == ranges()


def test_a_partition_that_was_dropped_holds_nothing(tmp_path: Path) -> None:
    world, erased = erased_world(3, tmp_path)
    for key in world.store.bodies():
        world.store.delete(key)
    assert remains_of(world.store, erased, []).is_complete
    world.store.put_if_absent(world.keys.home + "left", b"?", "-")
    with pytest.raises(NotInArchive):
        remains_of(world.store, erased, [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"partitions": []}, "it names no partition"),
        ({"offsets": [[9, 3]]}, "is empty"),
        ({"offsets": [[3, 4]]}, "has 10 records and other offsets"),
    ],
)
def test_a_report_that_was_cut_is_none(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    _, erased = erased_world(3, tmp_path)
    report = EraseReport(archive="a", archive_id="b", at=1, dry_run=False, partitions=(erased,))
    value = msgspec.json.decode(msgspec.json.encode(report))
    if "offsets" in change:
        value["partitions"][0] |= change
    else:
        value |= change
    file = tmp_path / "report.json"
    file.write_bytes(msgspec.json.encode(value))
    with pytest.raises(UsageError, match="is not the report of an erase") as caught:
        read_report(file)
    assert why in caught.value.why


@pytest.mark.parametrize("kind", ["data", "index", "catalog", "upload", "upload above", "rewritten"])
def test_any_object_that_nothing_leads_to_may_hold_them(kind: str, tmp_path: Path) -> None:
    world, erased = erased_world(4, tmp_path)
    _clear(world)
    assert remains_of(world.store, erased, []).is_complete
    home, end = world.keys.home, world.marker.chain_end or 0
    token = "~r" + "ab" * 16 + "-0"
    key = {
        "data": f"{home}{0:020d}~e1-00112233.gz",
        "index": f"{home}{3:020d}.index.json",
        "catalog": f"{home}_catalog/1-{0:020d}{token}.json",
        "upload": f"{home}{0:020d}.gz",
        "upload above": f"{home}{end:020d}.gz",
        "rewritten": f"{home}{5:020d}{token}.gz",
    }[kind]
    uploads = [Leftover("unfinished upload", key, None, 0.0, "id")] if kind.startswith("upload") else []
    if not uploads:
        world.store.put_if_absent(key, b"?", "-")
    remains = remains_of(world.store, erased, uploads)
    assert remains.unreached == (() if kind == "upload above" else (key,))
    assert remains.is_complete == (kind == "upload above")


@pytest.mark.slow
def test_what_a_writer_is_about_to_commit_does_not_count(tmp_path: Path) -> None:
    world, erased = erased_world(5, tmp_path)
    _clear(world)
    end = world.marker.next_offset or 0
    rows = [each.offset for each in world.log.records if each.offset >= end][:3]
    world.die_committing(rows, start=world.marker.chain_end)
    assert remains_of(world.store, erased, []).is_complete


@pytest.mark.slow
def test_a_rewrite_under_way_may_have_read_them(tmp_path: Path) -> None:
    world, erased = erased_world(6, tmp_path)
    _clear(world)
    maintenance = world.marker.maintenance
    assert maintenance
    intent = markers.Rewriting(token="ab" * 16, kind="merge", level=1, start=0, end=10, since=0)
    marker = replace(world.marker, maintenance=replace(maintenance, rewriting=intent))
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), world.store.get(world.keys.marker).etag)
    remains = remains_of(world.store, erased, [])
    assert remains.is_rewriting
    assert not remains.is_complete


def _clear(world: EraseWorld) -> None:
    """As garbage collection leaves it: nothing retired, nothing but what the marker leads to."""
    maintenance = world.marker.maintenance
    assert maintenance
    marker = replace(world.marker, maintenance=replace(maintenance, retired=()))
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), world.store.get(world.keys.marker).etag)
    found = world.found(AtOffsets(ranges()))
    for key in remains_of(world.store, found, []).unreached:
        world.store.delete(key)
    world.check()


def test_a_partition_that_is_gone_is_an_error(tmp_path: Path) -> None:
    world, erased = erased_world(7, tmp_path)
    world.store.delete(world.keys.marker)
    with pytest.raises(NotInArchive):
        remains_of(world.store, erased, [])


def test_a_report_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    _, erased = erased_world(8, tmp_path / "buffer")
    report = EraseReport(archive="a", archive_id="b", at=1, dry_run=False, partitions=(erased,))
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(report))
    assert read_report(path) == (path.read_bytes(), report)
    for body in (b"{}", b"no", msgspec.json.encode(Gap(0, 1, "x"))):
        path.write_bytes(body)
        with pytest.raises(UsageError, match="is not the report of an erase"):
            read_report(path)

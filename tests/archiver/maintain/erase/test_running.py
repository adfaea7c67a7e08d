"""Erasing: what is searched, in which places, what is done, and what the report says."""

import dataclasses
import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer, Fenced, RewriteRefused
from archiver.maintain import erase
from archiver.maintain.erase_status import read_report, remains_of
from archiver.maintain.gc import plan_sweep
from archiver.maintain.rewrite.chunks import OffsetRanges
from archiver.maintain.rewrite.intent import fold_tail
from archiver.maintain.rewrite.tree import read_chain
from blockgz.errors import CorruptBlock, NotInArchive, UsageError
from blockgz.record_filter import KeyIn
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
from blockgz.store.writer import Leftover
from index_format import marker as markers
from index_format.marker import MAX_RETIRED, CatalogReference, Maintenance, Retired
from index_format.objects import Gap
from index_format.records import Record, RecordsDigest, batch_from_records
from tests.archiver.maintain.erase.world import KEYS, EraseWorld, log_of, ranges, some
from tests.archiver.maintain.repair.world import Died
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.format_objects import SHA256
from tests.support.sampling import seeded_random


def world_of(rng: random.Random, chunks: int, **fields: Any) -> EraseWorld:
    world = EraseWorld(log=log_of(rng, 700), **fields)
    world.archive(rng, chunks)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("run", range(2))
def test_random_erases_beside_a_writer(run: int, tmp_path: Path) -> None:
    rng = seeded_random()
    world = world_of(rng, rng.choice([3, 70, 140]))
    if rng.random() < 0.3:
        world.identity = dataclasses.replace(world.identity, record_format="arrow")
    for _ in range(3):
        world.archive(rng, rng.randrange(30))
        world.erase(some(rng, world), tmp_path, buffer_bytes=rng.choice([4000, 1 << 20]))
        world.check()
    world.archive(rng, 10)
    world.check()


@pytest.mark.slow
def test_all_records_of_many_catalogs_can_be_erased(tmp_path: Path) -> None:
    rng = random.Random(1)
    world = world_of(rng, 200)
    world.erase(OffsetRanges([range(0, 10_000)]), tmp_path)
    assert world.archived()[0] == {}
    world.check()
    world.archive(rng, 5)
    world.check()
    assert world.archived()[0]


@pytest.mark.slow
def test_records_deep_in_the_tree_are_erased(tmp_path: Path) -> None:
    rng = random.Random(11)
    world = world_of(rng, 1)
    for _ in range(70):  # a catalog of level 1 for each chunk, so that 64 of them fold into one of level 2
        world.archive(rng, 1)
        world.run(fold_tail(world.keys, OffsetRanges([range(0, 10_000)]), "folder"))
    assert len(world.marker.catalogs) == 2
    held = sorted(world.held_offsets())
    world.erase(ranges(held[0], held[len(held) // 2], held[-1]), tmp_path)
    world.check()
    assert len(world.marker.catalogs) == 2
    world.archive(rng, 3)
    world.erase(OffsetRanges([range(held[5], held[len(held) // 2])]), tmp_path)
    world.check()


def test_a_writer_at_work_claims_again_and_loses_nothing(tmp_path: Path) -> None:
    world = world_of(random.Random(2), 5)
    held = world.held
    assert held is not None and held.marker.tail
    offset = held.marker.tail[-1].first_offset
    world.erase(ranges(offset), tmp_path)
    next_rows = [each.offset for each in world.log.records if each.offset >= (world.marker.next_offset or 0)][:3]
    with pytest.raises(Fenced):
        world._append(next_rows)
    world.claim()
    world._append(next_rows)
    world.check()
    assert world.erased == {offset}


def test_who_writes_to_a_tail_that_is_not_meant_is_left_alone(tmp_path: Path) -> None:
    world = world_of(random.Random(3), 70)
    before = world.held
    world.erase(ranges(0), tmp_path)
    assert before is not None and world.marker.epoch == before.marker.epoch
    world.archive(random.Random(4), 3)  # rebased, not fenced
    assert world.marker.epoch == before.marker.epoch
    world.check()


def test_what_is_erased_already_or_never_was_there_changes_nothing(tmp_path: Path) -> None:
    world = world_of(random.Random(5), 70)
    world.erase(ranges(0), tmp_path)
    marker = world.marker
    world.erase(ranges(0), tmp_path)
    assert world.marker.catalogs == marker.catalogs
    holes = set(range(world.marker.next_offset or 0)) - world.held_offsets()
    world.erase(ranges(*sorted(holes)[:5]), tmp_path)
    assert not (set(holes) & world.archived()[1])
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.0, 0.5])
def test_an_erase_that_dies_at_any_request_can_be_run_again(half: float, tmp_path: Path) -> None:
    start = world_of(random.Random(6), 5)
    start.erase(ranges(0), tmp_path)  # a catalog of few chunks
    start.archive(random.Random(7), 4)
    held = sorted(start.held_offsets())
    offsets = ranges(held[1], held[2], held[-6], start.marker.tail[-2].first_offset)
    first = random.randrange(1, 4)
    print(f"first {first}")
    for died in range(first, 200, 3):
        world = start.copy()
        world.store.dies_at = died + half
        try:
            world.erase(offsets, tmp_path)
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        world.archive(random.Random(died), 1)
        archived = world.archived()[0]
        assert world.held_offsets() - set(archived) <= {0, *(offset for each in offsets for offset in each)}
        world.erase(offsets, tmp_path)
        world.check()
    else:
        raise AssertionError("it never came to its end")
    assert died > 30


def test_no_second_maintainer_works_on_the_partition(tmp_path: Path) -> None:
    world = world_of(random.Random(8), 70)
    world.store.requests, world.store.dies_at = 0, 8
    with pytest.raises(Died):
        world.erase(ranges(0), tmp_path)
    world.store.dies_at = None
    assert world.marker.maintenance and world.marker.maintenance.rewriting
    world.hours -= 1.1
    with pytest.raises(RewriteRefused) as caught:
        world.erase(ranges(0), tmp_path)
    assert "another maintainer" in caught.value.why
    world.erase(ranges(0), tmp_path)
    world.check()


def reference(start: int, *, records: int = 10, chunks: int = 64) -> CatalogReference:
    return CatalogReference(
        name=f"_catalog/1-{start:020d}.json",
        start_offset=start,
        next_offset=start + 10,
        min_timestamp=0,
        max_timestamp=0,
        num_records=records,
        num_chunks=chunks,
        bytes=10,
        sha256=SHA256,
    )


def test_a_marker_that_retires_as_much_as_it_may_refuses_with_the_remedy(tmp_path: Path) -> None:
    world = world_of(random.Random(9), 70)
    full = Maintenance(retired=tuple(Retired(references=(reference(0),), token=str(n)) for n in range(MAX_RETIRED)))
    marker = replace(world.marker, version=2, maintenance=full)
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), world.store.get(world.keys.marker).etag)
    with pytest.raises(RewriteRefused) as caught:
        world.erase(ranges(0), tmp_path)
    assert "archiver gc" in caught.value.remedy


def test_a_run_takes_neighbours_from_the_first_to_the_last_that_is_meant() -> None:
    references = tuple(reference(10 * n) for n in range(30))
    assert erase.run_of(references, ranges(25, 61)) == references[2:7]
    assert erase.run_of(references, ranges(1000)) == ()
    assert erase.run_of(references, ranges(0, 299)) == references[:1]  # a run has 16 catalogs of 64 chunks at most
    assert erase.run_of(references, ranges(0, 155)) == references[:16]
    large = tuple(reference(10 * n, records=150_000_000) for n in range(3))
    assert erase.run_of(large, ranges(5, 15)) == large[:1]


def test_a_chunk_that_lost_another_record_is_never_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(random.Random(10), 70)
    before = world.marker.catalogs
    whole = erase.without

    def careless(chunk: Any, drop: OffsetRanges, *args: Any) -> Any:
        return whole(chunk, drop | ranges(chunk.entry.first_offset), *args)

    monkeypatch.setattr(erase, "without", careless)
    last = next(each.last_offset for each in _entries(world) if each.num_records > 2)
    with pytest.raises(ContentsDiffer):
        world.erase(ranges(last), tmp_path)
    assert world.marker.catalogs == before
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None
    world.erased.clear()
    world.check()


def _entries(world: EraseWorld) -> list[markers.ChunkEntry]:
    chain = read_chain(world.store, world.keys)
    assert chain is not None
    return [entry for entry in chain.entries if entry not in world.marker.tail]


MAX = 1 << 22


def archive_of(folder: Path, record_format: str, key_filter_bits: int | None) -> PartitionWriter:
    """66 chunks of ten records, every key in one of them, but for `often`, which is in each."""
    writer = ArchiveWriter(folder).partition("orders", 0, record_format=record_format)
    writer.key_filter_bits = key_filter_bits
    for chunk in range(66):
        keys = [b"often", None, b"", *(b"%d-%d" % (chunk, n) for n in range(7))]
        if record_format == "text":
            keys = [None] * 10
        rows = [Record(20 * chunk + 2 * n, 1000 + n, 0, key, b"v" * 10, ()) for n, key in enumerate(keys)]
        writer.commit(rows, block_bytes=300)
    return writer


def found_in(writer: PartitionWriter, wanted: erase.RecordChoice) -> erase.ErasedPartition:
    store = open_existing_store(str(writer.archive.root), S3Settings())
    chain = read_chain(store, writer.keys)
    assert chain is not None
    return erase.find_records(store, chain, wanted, MAX)


@pytest.mark.slow
@pytest.mark.parametrize("record_format", ["json", "arrow"])
@pytest.mark.parametrize("bits", [None, 10])
def test_every_record_with_one_of_the_keys_is_found(record_format: str, bits: int | None, tmp_path: Path) -> None:
    writer = archive_of(tmp_path, record_format, bits)
    for keys in ({b"3-2"}, {b"often"}, {b""}, {b"60-1", b"often", b"unknown"}, {b"unknown"}):
        found = found_in(writer, erase.Matching.all_of(KeyIn([*keys])))
        expected = [record for record in writer.records if record.key in keys]
        assert [offset for each in found.ranges for offset in each] == [record.offset for record in expected]
        digest = RecordsDigest()
        if expected:
            digest.update(batch_from_records(expected))
        assert (found.content, found.positions) == (digest.content, digest.positions)
        assert found.records == len(expected)


@pytest.mark.slow
def test_filters_leave_few_blocks_to_read(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", 10)
    found = found_in(writer, erase.Matching.all_of(KeyIn([b"3-2"])))
    assert found.chunks == 1
    assert found.blocks > 190
    assert found.blocks_read < found.blocks / 20
    whole = found_in(archive_of(tmp_path / "without", "json", None), erase.Matching.all_of(KeyIn([b"3-2"])))
    assert whole.blocks_read == whole.blocks


@pytest.mark.slow
def test_offsets_without_a_record_are_not_found(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", None)
    found = found_in(writer, erase.AtOffsets(OffsetRanges([range(1, 2), range(20, 23), range(5000, 6000)])))
    assert list(found.ranges) == [range(20, 21), range(22, 23)]
    assert found.blocks_read <= 2


@pytest.mark.slow
def test_text_holds_no_keys_so_only_offsets_find_its_records(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "text", None)
    assert found_in(writer, erase.Matching.all_of(KeyIn([b"often"]))).blocks_read == 0
    assert found_in(writer, erase.AtOffsets(OffsetRanges([range(20, 23)]))).records == 2


@pytest.mark.slow
def test_a_damaged_block_is_an_error_and_not_a_record_less(tmp_path: Path) -> None:
    writer = archive_of(tmp_path, "json", None)
    data = tmp_path / writer.keys.chunks / writer.indexes[5].data.name
    body = bytearray(data.read_bytes())
    body[40] ^= 1
    data.write_bytes(body)
    with pytest.raises(CorruptBlock):
        found_in(writer, erase.Matching.all_of(KeyIn([b"unknown"])))


@pytest.mark.slow
def test_random_keys_are_found_in_random_archives(tmp_path: Path) -> None:
    rng = seeded_random()
    for number in range(5):
        writer = ArchiveWriter(tmp_path / str(number)).partition(
            "orders", 0, record_format=rng.choice(["json", "arrow"])
        )
        writer.key_filter_bits = rng.choice([None, 1, 8])
        offset, pool = 0, [None, *(rng.randbytes(rng.randrange(4)) for _ in range(30))]
        for _ in range(rng.choice([2, 70])):
            rows = []
            for _ in range(rng.choice([1, 15])):
                rows.append(Record(offset, 1000, 0, rng.choice(pool), b"v", ()))
                offset += rng.choice([1, 2])
            writer.commit(rows, block_bytes=rng.choice([60, 500]))
        keys = {key for key in rng.sample(pool, 3) if key is not None} or {b"x"}
        found = found_in(writer, erase.Matching.all_of(KeyIn([*keys])))
        expected = [record.offset for record in writer.records if record.key in keys]
        assert [offset for each in found.ranges for offset in each] == expected


def found(root: Path, text: str, *, by_offset: bool = False) -> list[str]:
    store = open_existing_store(str(root), S3Settings())
    return [f"{keys.folder}:{keys.partition}" for keys in erase.places_of(store, text, by_offset=by_offset)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for topic, partition, incarnation in [("orders", 0, 1), ("orders", 3, 1), ("orders", 0, 2), ("other", 0, 1)]:
        archive.partition(topic, partition, incarnation=incarnation).commit(records(range(5)))
    return tmp_path


def test_a_topic_means_all_its_incarnations_unless_one_is_named(root: Path) -> None:
    assert found(root, "orders") == ["orders:0", "orders:3", "orders~2:0"]
    assert found(root, "orders:0") == ["orders:0", "orders~2:0"]
    assert found(root, "orders~1") == ["orders:0", "orders:3"]
    assert found(root, "orders~2:0") == ["orders~2:0"]
    assert found(root, "orders~1:0,2-3".replace("2-3", "3-3")) == ["orders:0", "orders:3"]


def test_offsets_are_those_of_one_incarnation(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        found(root, "orders", by_offset=True)
    assert "orders~1, orders~2" in caught.value.remedy
    assert found(root, "orders~2", by_offset=True) == ["orders~2:0"]
    assert found(root, "other", by_offset=True) == ["other:0"]


@pytest.mark.parametrize("text", ["nothing", "orders:7", "orders:0,7", "orders~3"])
def test_what_is_not_in_the_archive_is_an_error(text: str, root: Path) -> None:
    with pytest.raises(NotInArchive):
        found(root, text)


@pytest.mark.parametrize("text", ["orders:", "orders:x", "orders:1-", "orders:1,,2", "orders:٣"])
def test_other_texts_name_no_partitions(text: str, root: Path) -> None:
    with pytest.raises(UsageError):
        found(root, text)


def test_layout_seed_cannot_be_rewritten(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, "seed").partition("orders", 0, record_format="text")
    with pytest.raises(UsageError, match="layout seed"):
        found(tmp_path, "orders")


def test_offsets_are_single_ones_and_ranges() -> None:
    assert erase.parse_offsets(["17", "20..30, 5"]) == OffsetRanges([range(5, 6), range(17, 18), range(20, 30)])


@pytest.mark.parametrize("text", ["", "x", "-1", "5..5", "7..3", "1..x", "1,", "9223372036854775808", "1..2..3"])
def test_other_texts_are_no_offsets(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an offset|is empty"):
        erase.parse_offsets([text])


GRACE = 3600.0


def erased_world(seed: int, folder: Path, chunks: int = 70) -> tuple[EraseWorld, erase.ErasedPartition]:
    """A partition of which the records with one key were erased."""
    rng = random.Random(seed)
    world = EraseWorld(log=log_of(rng, 400))
    world.archive(rng, chunks)
    found = world.found(erase.Matching.all_of(KeyIn(KEYS[:1])))
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
    more = world.found(erase.AtOffsets(OffsetRanges([range(0, 30)])))
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
    report = erase.EraseReport(archive="a", archive_id="b", at=1, dry_run=False, partitions=(erased,))
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
    found = world.found(erase.AtOffsets(ranges()))
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
    report = erase.EraseReport(archive="a", archive_id="b", at=1, dry_run=False, partitions=(erased,))
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(report))
    assert read_report(path) == (path.read_bytes(), report)
    for body in (b"{}", b"no", msgspec.json.encode(Gap(0, 1, "x"))):
        path.write_bytes(body)
        with pytest.raises(UsageError, match="is not the report of an erase"):
            read_report(path)

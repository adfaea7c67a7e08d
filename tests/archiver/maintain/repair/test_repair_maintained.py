"""Repairing archives that are maintained or encrypted."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from archiver.commit.commit import commit_chunk
from archiver.commit.operations import Driver
from archiver.commit.recovery import take_over
from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from archiver.maintain.gc import plan_sweep
from archiver.maintain.repair.catalogs import plan_catalogs
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.diverged import LogSource, plan_diverged
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairPlan, RepairTarget
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.lookup import FoundRecord, look_up_all
from blockgz.archive.selection import scan
from blockgz.encryption.keyring import Sealing, load_keyring
from blockgz.errors import KeyMissing, exit_code
from index_format.keys import CATALOGS_FOLDER, ENCRYPTED_SUFFIX
from index_format.marker import ChunkCatalog, Marker, decode_marker
from index_format.objects import ChunkIndex, Gap, decode
from replayer.verify.report import Depth
from replayer.verify.verifying import verify_partition
from tests.archiver.maintain.repair.test_diverged import Cluster, rewritten
from tests.archiver.maintain.repair.world import MAX, World
from tests.support.archives import ARCHIVE_ID, MemoryArchiveWriter, records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.encryption import key_line, sealed_chunk
from tests.support.maintained import Maintainer, three_catalogs
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import Kept, MemoryLog, MemoryStore
from tests.support.repairs import carry_out

MAX_OFFSETS = 1 << 20


def stored(archive: MemoryArchiveWriter) -> MemoryStore:
    store = MemoryStore()
    for key, body in archive.objects.items():
        store.put_if_absent(key, body, "")
    return store


def repaired(archive: MemoryArchiveWriter, maintainer: Maintainer) -> Marker:
    """The marker that is made again after it was lost."""
    archive.remove(maintainer.keys.marker)
    store = stored(archive)
    plan = plan_marker(RepairTarget(store, maintainer.keys, MAX_OFFSETS), "blockgz")
    assert not plan.problems, [problem.error.why for problem in plan.problems]
    assert not carry_out(plan)
    archive.objects.update(store.bodies())
    return decode_marker(archive.objects[maintainer.keys.marker])


def of_three_catalogs() -> tuple[MemoryArchiveWriter, Maintainer]:
    archive = MemoryArchiveWriter()
    return archive, three_catalogs(archive.partition("orders", 0))


def newest_catalog(archive: MemoryArchiveWriter, maintainer: Maintainer, marker: Marker) -> ChunkCatalog:
    """The last one of level 1."""
    return decode(archive.objects[maintainer.keys.home + marker.catalogs[0][-1].name], ChunkCatalog, "")


def collect(archive: MemoryArchiveWriter, maintainer: Maintainer, marker: Marker) -> None:
    """Deletes the chunks and catalogs that the marker, whose catalogs are all of level 1, does not lead to."""
    keys, entries = maintainer.keys, list(marker.tail)
    (references,) = marker.catalogs
    for reference in references:
        entries += decode(archive.objects[keys.home + reference.name], ChunkCatalog, "").entries
    indexes = {keys.chunks + each.name for each in entries}
    kept = {keys.marker, *indexes, *(keys.home + each.name for each in references)}
    kept |= {keys.chunks + decode(archive.objects[index], ChunkIndex, "").data.name for index in indexes}
    for key in [key for key in archive.objects if key.startswith((keys.chunks, keys.home + CATALOGS_FOLDER))]:
        if key not in kept:
            archive.remove(key)


def offsets(archive: MemoryArchiveWriter) -> list[int]:
    async def found() -> list[int]:
        partition = await ArchiveReader(MemoryReader(archive.objects)).open_partition("orders", 0)
        outcomes = await look_up_all(partition, range(partition.next_offset))
        return sorted(offset for offset, outcome in outcomes.items() if isinstance(outcome, FoundRecord))

    return asyncio.run(found())


def test_pruned_records_do_not_rise() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.prune(1)
    marker = repaired(archive, maintainer)
    assert (marker.version, marker.pruned_before, marker.next_offset) == (2, 20, 70)
    assert offsets(archive) == list(range(20, 70))


@pytest.mark.parametrize("deletes", [True, False])
def test_merged_chunks_are_taken_once(*, deletes: bool) -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = deletes
    maintainer.rewrite([2])
    marker = repaired(archive, maintainer)
    assert [entry.num_records for entry in marker.tail] == [20, 20, 20, 10]
    assert offsets(archive) == list(range(70))


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("erase", [[], [3, 45]])
def test_catalogs_of_rewritten_chunks_are_rebuilt(erase: list[int], *, deletes: bool) -> None:
    """Whether or not the chunks that were replaced are still there."""
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = deletes
    maintainer.rewrite([2], erase)
    maintainer.rewrite([1], erase)
    whole = dict(archive.objects)
    for reference in maintainer.marker.catalogs[0]:
        archive.remove(maintainer.keys.home + reference.name)
    store = stored(archive)
    plan = plan_catalogs(RepairTarget(store, maintainer.keys, MAX_OFFSETS))
    assert len(plan.steps) == 3 and not plan.problems and not carry_out(plan)
    assert store.bodies() == whole


def test_a_catalog_with_what_was_erased_is_not_guessed() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = False
    maintainer.rewrite([2], range(20, 40))
    before = archive.objects[maintainer.keys.marker]
    for reference in maintainer.marker.catalogs[0]:
        archive.remove(maintainer.keys.home + reference.name)
    store = stored(archive)
    target = RepairTarget(store, maintainer.keys, MAX_OFFSETS)
    plan = plan_catalogs(target)
    assert (len(plan.steps), len(plan.problems)) == (2, 1)
    (problem,) = plan_marker(target, "blockgz").problems
    assert "erased ones may return" in problem.error.why
    assert store.bodies()[maintainer.keys.marker] == before


@pytest.mark.parametrize("deletes", [True, False])
def test_erased_records_do_not_rise(*, deletes: bool) -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = deletes
    maintainer.rewrite([2], [3, *range(20, 40)])
    maintainer.rewrite([1], [45])
    marker = repaired(archive, maintainer)
    assert [(gap.start, gap.end, gap.reason) for gap in marker.gaps] == [(20, 40, "erased")]
    assert offsets(archive) == [each for each in range(70) if each not in maintainer.erased]


def test_the_chunk_that_one_without_its_index_replaced_is_not_taken_instead() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = False
    maintainer.rewrite([2], [3])
    index = min(key for key in archive.objects if "~r" in key and key.endswith(".index.json"))
    archive.remove(index)
    with pytest.raises(AssertionError, match="bring back what may have been erased"):
        repaired(archive, maintainer)


def test_what_was_erased_at_the_end_is_covered() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.rewrite([1], range(50, 70))
    for _ in range(2):  # The second time without a trace of the chunks that were replaced.
        marker = repaired(archive, maintainer)
        assert marker.next_offset == 70
        assert offsets(archive) == list(range(50))
        collect(archive, maintainer, marker)


def test_gaps_among_what_was_erased_at_the_end_stay_gaps() -> None:
    archive, maintainer = of_three_catalogs()
    writer = maintainer.writer
    writer.commit(records([70, 75]), gaps=[Gap(71, 75, "skipped")])
    maintainer.fold()
    maintainer.rewrite([1], [*range(60, 71), 75])
    marker = repaired(archive, maintainer)
    assert (marker.tail, marker.gaps) == ((), ())
    assert [(gap.start, gap.end, gap.reason) for gap in newest_catalog(archive, maintainer, marker).gaps] == [
        *((60, 70, "erased"), (70, 71, "erased"), (71, 75, "skipped"), (75, 76, "erased"))
    ]


def test_a_writer_goes_on_where_the_newest_record_was_erased() -> None:
    """Only its chunk's index tells that: the marker that is made again names the record before."""
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.rewrite([1], [69])
    marker = repaired(archive, maintainer)
    assert marker.newest_offset == 68
    store, log = MemoryStore(), MemoryLog(records(range(80)))
    store.objects = {key: Kept(body, None) for key, body in archive.objects.items()}
    identity = identity_of(archive_id=ARCHIVE_ID, partition=0, group_id=marker.group_id)
    driver = Driver(store, log, lambda *_: None, lambda: True)
    assert driver.run(take_over(identity, "writer", POLICY)).position == 70


def test_erased_records_are_not_salvaged() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.deletes = False
    maintainer.fold()
    maintainer.rewrite([1], range(40, 70))
    repaired(archive, maintainer)
    store = MemoryStore()
    store.objects = {key: Kept(body, None) for key, body in archive.objects.items()}
    plan = plan_salvage(RepairTarget(store, maintainer.keys, MAX_OFFSETS))
    assert (plan.steps, plan.problems) == ([], [])


def test_after_a_prune_of_everything_a_writer_goes_on_at_the_floor() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.prune(4)
    archive.remove(maintainer.keys.marker)
    store = stored(archive)
    plan = plan_marker(RepairTarget(store, maintainer.keys, MAX_OFFSETS), "blockgz")
    assert "nothing is lost below offset 70, only the marker" in plan.notes[-1]
    assert "no chunk, nothing below offset 70" in plan.steps[0].detail and not carry_out(plan)
    marker = decode_marker(store.bodies()[maintainer.keys.marker])
    assert (marker.pruned_before, marker.next_offset, marker.tail, marker.topic) == (70, 70, (), "orders")
    identity = identity_of(partition=0, group_id="blockgz", archive_id=ARCHIVE_ID)
    driver = Driver(store, MemoryLog(records(range(60, 90))), wait, lambda: True)
    held = driver.run(take_over(identity, "w", POLICY)).held
    driver.run(commit_chunk(identity, held, finished_chunk("json", tuple(records(range(70, 80))), 70, 80)))
    archive.objects.update(store.bodies())
    assert offsets(archive) == list(range(70, 80))


def test_of_what_was_erased_above_the_floor_no_empty_marker_is_made() -> None:
    """Records that Kafka still has would be archived again."""
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    floor = maintainer.prune(2)
    maintainer.rewrite([1], range(floor, 70))
    archive.remove(maintainer.keys.marker)
    plan = plan_marker(RepairTarget(stored(archive), maintainer.keys, MAX_OFFSETS), "blockgz")
    assert not plan.steps
    assert plan.problems[0].error.why == f"only the indexes describe the chain, and none is above the floor, {floor}"


def test_a_partition_of_which_nothing_is_left_names_the_way_out() -> None:
    archive = MemoryArchiveWriter()
    writer = archive.partition("orders", 0)
    writer.commit(records(range(10)))
    for key in [key for key in archive.objects if "partition=" in key]:
        archive.remove(key)
    (problem,) = plan_marker(RepairTarget(stored(archive), writer.keys, MAX_OFFSETS), "blockgz").problems
    assert problem.error.remedy.endswith("delete topic=orders/partition=00000/ and run: archiver forget orders:0")


def test_an_archive_that_nobody_maintained_stays_of_version_1() -> None:
    archive = MemoryArchiveWriter()
    writer = archive.partition("orders", 0)
    writer.commit(records(range(10)))
    assert repaired(archive, Maintainer(writer)).version == 1


class Encrypting(World):
    """Chunks are encrypted."""

    def chunk(self, rows: Any, start: int | None = None, end: int | None = None) -> Any:
        plain = super().chunk(rows, start, end)
        sealing = self.identity.sealing
        assert sealing is not None
        return sealed_chunk(plain, self.log.record_at(plain.blocks[-1].last_record_offset), sealing)


class Vault(Encrypting):
    """A partition whose chunks are encrypted."""


class Truncated(Encrypting, Cluster):
    """The same, and its log was truncated and written again."""

    def plan(self) -> RepairPlan:
        source = LogSource(lambda topic, partition, level: self.log, lambda topic: self.topic_id)
        return plan_diverged(RepairTarget(self.store, self.keys, MAX, self.identity.encrypt), source)


def wait(attempt: int, cause: Any) -> None:
    raise AssertionError(cause)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    return f"file:{file}"


@pytest.fixture
def vault(keys: str) -> Vault:
    load_keyring.cache_clear()
    return Vault(dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), encrypt=keys))


def read(vault: Vault, keys: str) -> list[int]:
    """The offsets of all records, found by readers, who find nothing wrong."""

    async def found() -> list[int]:
        archive = ArchiveReader(MemoryReader(vault.store.bodies()), keyring=load_keyring(keys))
        report = await verify_partition(archive, "orders", 3, Depth.RECORDS, lambda *_: None)
        assert not report.damage and not report.lost, (report.damage, report.lost)
        partition = await archive.open_partition("orders", 3)
        return [offset async for batch in scan(partition, 0, 2**62) for offset in batch.column("offset").to_pylist()]

    return asyncio.run(found())


def test_a_marker_is_made_again_with_the_keys_and_not_without(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    vault.commit(range(10, 20))
    before = vault.marker
    vault.store.delete(vault.keys.marker)
    refused = plan_marker(RepairTarget(vault.store, vault.keys, MAX), vault.identity.group_id)
    (problem,) = refused.problems
    assert isinstance(problem.error, KeyMissing) and exit_code(problem.error) == 12
    plan = plan_marker(RepairTarget(vault.store, vault.keys, MAX, keys), vault.identity.group_id)
    assert not carry_out(plan)
    assert (vault.marker.tail_hash, vault.marker.tail, vault.marker.version) == (before.tail_hash, before.tail, 2)
    vault.held = None
    vault.commit(range(20, 30))
    assert read(vault, keys) == list(range(30))


def test_a_lost_index_is_lost_with_its_key(vault: Vault) -> None:
    vault.commit(range(10))
    (index,) = (key for key in vault.store.bodies() if key.endswith("0.index.json"))
    vault.store.delete(index)
    for found in (True, False):
        if not found:
            vault.store.delete(vault.keys.marker)
        (problem,) = plan_indexes(RepairTarget(vault.store, vault.keys, MAX)).problems
        assert isinstance(problem.error, KeyMissing)
        assert "only its index had its key" in problem.error.why


@pytest.mark.parametrize("low", [10, 13])
def test_an_orphan_fills_a_gap_with_the_keys(vault: Vault, keys: str, low: int) -> None:
    vault.commit(range(10))
    vault.die_committing(range(10, 30))
    vault.held = None
    vault.log.low = 40 if low == 10 else 25
    vault.claim()
    vault.commit(range(vault.log.low, 50))
    refused = plan_salvage(RepairTarget(vault.store, vault.keys, MAX))
    assert not refused.steps and any(isinstance(each.error, KeyMissing) for each in refused.problems)
    plan = plan_salvage(RepairTarget(vault.store, vault.keys, MAX, keys))
    assert len(plan.steps) == 1 and not carry_out(plan)
    expected = [*range(30), *range(40, 50)] if low == 10 else range(50)
    assert read(vault, keys) == list(expected)
    data = [key for key in vault.store.bodies() if ".gz" in key]
    assert len(data) == 4 and all(key.endswith(ENCRYPTED_SUFFIX) for key in data)


def test_a_writer_without_keys_claims_nothing(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    before = vault.store.bodies()[vault.keys.marker]
    vault.identity = dataclasses.replace(vault.identity, encrypt=None)
    with pytest.raises(KeyMissing, match="orders:3 is encrypted"):
        vault.claim()
    assert vault.store.bodies()[vault.keys.marker] == before
    assert isinstance(dataclasses.replace(vault.identity, encrypt=keys).sealing, Sealing)


def test_garbage_is_told_from_what_is_committed(vault: Vault, keys: str) -> None:
    vault.commit(range(10))
    vault.die_committing(range(10, 20))
    vault.held = None
    vault.commit(range(10, 30))
    before = set(vault.store.bodies())
    vault.store.now += 10 * SHORTEST_GRACE_SECONDS
    plan = plan_sweep(vault.store, (), SHORTEST_GRACE_SECONDS)
    assert not plan.problems
    plan.carry_out()
    gone = before - set(vault.store.bodies())
    assert sorted(key.rpartition("/")[2] for key in gone) == [
        "00000000000000000010.gz.enc",
        "00000000000000000010.index.json",
    ]
    assert read(vault, keys) == list(range(30))


@pytest.mark.parametrize(("low", "start", "copied"), [(0, 25, 0), (30, 35, 1)])
def test_a_truncated_log_goes_on_with_the_keys(keys: str, low: int, start: int, copied: int) -> None:
    load_keyring.cache_clear()
    cluster = Truncated(dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), encrypt=keys))
    cluster.commit(range(20))
    cluster.commit(range(20, 40))
    cluster.log = rewritten(start, 60, low=low)
    with_keys, cluster.identity = cluster.identity, dataclasses.replace(cluster.identity, encrypt=None)
    (problem,) = cluster.plan().problems
    assert isinstance(problem.error, KeyMissing)
    cluster.identity = with_keys
    continues = cluster.repaired()
    assert len(cluster.marker_at(cluster.last()).tail) == copied
    cluster.go_on(range(continues.offset if not copied else 30, 60))
    newer = {key for key in cluster.store.bodies() if "orders~2" in key and ".gz" in key}
    assert len(newer) == 1 + copied and all(key.endswith(ENCRYPTED_SUFFIX) for key in newer)

    async def found() -> list[int]:
        archive = ArchiveReader(MemoryReader(cluster.store.bodies()), keyring=load_keyring(keys))
        report = await verify_partition(archive, "orders", 3, Depth.RECORDS, lambda *_: None)
        assert not report.damage and not report.lost, (report.damage, report.lost)
        partition = await archive.open_partition("orders", 3)
        return [offset async for batch in scan(partition, 0, 2**62) for offset in batch.column("offset").to_pylist()]

    assert asyncio.run(found()) == list(range(60))

"""Lost markers of partitions that were maintained: nothing rises, nothing is lost, whatever lies about.

system_test/test_simulations.py loses them at random.
"""

import asyncio

import pytest

from archiver.commit.driver import Driver
from archiver.commit.recovery import take_over
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget, carry_out
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.archive.archive import Archive
from blockgz.archive.lookup import FoundRecord, look_up_all
from index_format.chunk_index import ChunkIndex, Gap
from index_format.keys import CATALOGS_FOLDER
from index_format.marker import ChunkCatalog, Marker, decode_marker
from index_format.objects import decode
from tests.support.archives import ARCHIVE_ID, MemoryArchiveWriter, records
from tests.support.chunks import POLICY, identity_of
from tests.support.maintained import Maintainer
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import Kept, MemoryLog, MemoryStore

MAX = 1 << 20


def repaired(archive: MemoryArchiveWriter, maintainer: Maintainer) -> Marker:
    """The marker that is made again after it was lost."""
    archive.remove(maintainer.keys.marker)
    store = MemoryStore()
    for key, body in archive.objects.items():
        store.put_if_absent(key, body, "")

    def wait(attempt: int, cause: str) -> None:
        raise AssertionError(cause)

    plan = plan_marker(store, RepairTarget(maintainer.keys), "blockgz", MAX, wait)
    assert not plan.problems, [problem.error.why for problem in plan.problems]
    assert not carry_out(plan)
    archive.objects.update(store.bodies())
    return decode_marker(archive.objects[maintainer.keys.marker])


def of_three_catalogs() -> tuple[MemoryArchiveWriter, Maintainer]:
    archive = MemoryArchiveWriter()
    writer = archive.partition("orders", 0)
    maintainer = Maintainer(writer)
    for start in range(0, 60, 20):
        writer.commit(records(range(start, start + 10)))
        writer.commit(records(range(start + 10, start + 20)))
        maintainer.fold()
    writer.commit(records(range(60, 70)))
    return archive, maintainer


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
        partition = await Archive(MemoryReader(archive.objects)).open_partition("orders", 0)
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
        *((60, 70, "erased"), (70, 71, "erased"), (71, 75, "skipped"), (75, 76, "erased")),
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
    plan = plan_salvage(store, RepairTarget(maintainer.keys), MAX, lambda *_: None)
    assert (plan.steps, plan.problems) == ((), ())


def test_nothing_above_the_floor_is_refused() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.prune(4)
    archive.remove(maintainer.keys.marker)
    store = MemoryStore()
    for key, body in archive.objects.items():
        store.put_if_absent(key, body, "")
    (problem,) = plan_marker(store, RepairTarget(maintainer.keys), "blockgz", MAX, lambda *_: None).problems
    assert problem.error.why == "only the indexes describe the chain, and none is above the floor, 70"


def test_an_archive_that_nobody_maintained_stays_of_version_1() -> None:
    archive = MemoryArchiveWriter()
    writer = archive.partition("orders", 0)
    writer.commit(records(range(10)))
    assert repaired(archive, Maintainer(writer)).version == 1

"""Lost markers of partitions that were maintained: nothing rises, nothing is lost, whatever lies about.

BLOCKGZ_REPAIR_CASES makes it more, BLOCKGZ_SEED repeats one.
"""

import asyncio
import os
import random

import pytest

from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget, carry_out
from index_format.marker import Marker, decode_marker
from replayer.read.archive import Archive
from replayer.read.lookup import Found, look_up_all
from tests.replayer.read.test_read_maintained_random import Case, told
from tests.support.archives import MemoryArchiveWriter, records
from tests.support.maintained import Maintainer
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryStore

CASES = int(os.environ.get("BLOCKGZ_REPAIR_CASES", "100"))
SEED = int(os.environ.get("BLOCKGZ_SEED", str(random.randrange(10**9))))
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


def offsets(archive: MemoryArchiveWriter) -> list[int]:
    async def found() -> list[int]:
        partition = await Archive(MemoryReader(archive.objects)).open_partition("orders", 0)
        outcomes = await look_up_all(partition, range(partition.next_offset))
        return sorted(offset for offset, outcome in outcomes.items() if isinstance(outcome, Found))

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


def test_what_was_erased_at_the_end_is_covered() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.rewrite([1], range(50, 70))
    marker = repaired(archive, maintainer)
    assert marker.next_offset == 70
    assert offsets(archive) == list(range(50))


def test_nothing_above_the_floor_is_refused() -> None:
    archive, maintainer = of_three_catalogs()
    maintainer.fold()
    maintainer.prune(4)
    archive.remove(maintainer.keys.marker)
    store = MemoryStore()
    for key, body in archive.objects.items():
        store.put_if_absent(key, body, "")
    (problem,) = plan_marker(store, RepairTarget(maintainer.keys), "blockgz", MAX, lambda *_: None).problems
    assert problem.error.why == "only the indexes describe the chain, and none lies above the floor, 70"


def test_an_archive_that_nobody_maintained_stays_of_version_1() -> None:
    archive = MemoryArchiveWriter()
    writer = archive.partition("orders", 0)
    writer.commit(records(range(10)))
    assert repaired(archive, Maintainer(writer)).version == 1


def test_random_archives_are_rebuilt_offset_by_offset() -> None:
    print(f"BLOCKGZ_SEED={SEED}")
    for number in range(CASES):
        print(f"case {number}")
        case = Case(random.Random(f"{SEED}:{number}"))
        case.maintainer.deletes = case.rng.random() < 0.4
        while case.began is None:
            case.write()
        for _ in range(case.rng.randint(1, 8)):
            case.write() if case.rng.random() < 0.4 else case.maintain()
        marker = case.writer.marker
        if not case.left or not marker.maintenance:
            continue
        repaired(case.archive, case.maintainer)
        asyncio.run(judge(case))


async def judge(case: Case) -> None:
    partition = await Archive(MemoryReader(case.archive.objects)).open_partition("orders", 0)
    for offset, outcome in (await look_up_all(partition, range(case.end))).items():
        expected = case.expected(offset)
        if offset in case.left:
            assert told(outcome) in expected, (offset, outcome)
        else:
            assert not isinstance(outcome, Found), (offset, outcome)
        if "erased" in expected and "hole" not in expected:
            assert told(outcome) == "erased", (offset, outcome)

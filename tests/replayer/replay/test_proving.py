"""A lane against its run map: what a proof finds of every kind of fault, on an archive in memory of the target."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, erased_ranges
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.records import Record, batch_from_records
from replayer.replay.jobs.folder import LaneBegin, Segment
from replayer.replay.proof import LaneProof, LaneTask, prove_lane
from replayer.replay.recorded_job import LaneMap, lane_maps
from replayer.replay.run_map import Run
from tests.support.archives import ArchiveWriter, records
from tests.support.maintained import Maintainer

ARCHIVED = records(range(40))
Runs = Sequence[tuple[int, int, int, int, int, int]]


def proof_of(
    root: Path,
    lane_map: LaneMap,
    target: Sequence[Record],
    *,
    required: int = 40,
    rolls_back: bool = True,
    open_end: bool = False,
) -> LaneProof:
    async def found(*_: int) -> AsyncGenerator[pa.RecordBatch]:
        for start in range(0, len(target), 7):
            yield batch_from_records(list(target[start : start + 7]))

    async def prove() -> LaneProof:
        archive = Archive(LocalReader(LocalAddress(str(root))))
        (partition,) = await archive.open_topic("orders")
        selection = Selection(partition, OffsetRange(0, 40))
        task = LaneTask(0, lane_map, OffsetRange(0, 0), found, {0: selection}, {0: required}, rolls_back, open_end)
        pruned = [OffsetRange(0, partition.floor)] if partition.floor else []
        task.gone = {0: [*pruned, *await erased_ranges(partition, 0, 40)]}
        return await prove_lane(task, lambda _: None)

    return asyncio.run(prove())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path).partition("orders", 0)
    writer.commit(ARCHIVED[:25])
    writer.commit(ARCHIVED[25:])
    return tmp_path


def standing(sources: Sequence[int], first: int = 5) -> list[Record]:
    """The archived records of these offsets, side by side from a target offset on."""
    return [ARCHIVED[source]._replace(offset=first + row) for row, source in enumerate(sources)]


def mapped(runs: Runs, began: int = 5) -> LaneMap:
    return lane_maps(
        [Segment(attempt="a", lanes={0: LaneBegin(0, began)}), Segment(attempt="a", runs=tuple(runs))], {}
    )[0]


WHOLE = ((0, 0, 20, 0, 5, 20), (0, 20, 40, 0, 25, 20))


def test_a_copy_that_is_right(root: Path) -> None:
    proof = proof_of(root, mapped(WHOLE), standing(range(40)))
    assert (proof.faulty, proof.records, proof.runs) == (False, 40, 2)


@pytest.mark.parametrize("run", range(2))
@pytest.mark.parametrize("field", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("by", [1, -1])
def test_a_wrong_run_is_a_fault_whatever_is_wrong(root: Path, run: int, field: int, by: int) -> None:
    runs = [list(each) for each in WHOLE]
    runs[run][field] += by
    if runs[run][field] < 0:
        pytest.skip("no such run can be stored")
    lane_map = LaneMap(5)
    for each in runs:
        lane_map.add(Run(*each))
    assert proof_of(root, lane_map, standing(range(40))).faulty


@pytest.mark.parametrize(
    ("change", "differing", "missing", "foreign"),
    [
        (lambda rows: [*rows[:3], rows[3]._replace(value=b"tampered"), *rows[4:]], 1, 0, 0),
        (lambda rows: [*rows[:3], rows[3]._replace(timestamp=1), *rows[4:]], 1, 0, 0),
        (lambda rows: [*rows[:3], rows[3]._replace(headers=(("h", b"v"),)), *rows[4:]], 1, 0, 0),
        (lambda rows: rows[:3] + rows[4:], 0, 1, 0),
        (lambda rows: [*rows, rows[0]._replace(offset=100)], 0, 0, 1),
    ],
    ids=["value", "timestamp", "headers", "missing", "foreign"],
)
def test_what_is_wrong_in_the_target(
    root: Path, change: Callable[[list[Record]], list[Record]], differing: int, missing: int, foreign: int
) -> None:
    proof = proof_of(root, mapped(WHOLE), change(standing(range(40))))
    assert (proof.faulty, proof.differing, proof.missing, proof.foreign) == (True, differing, missing, foreign)


def test_a_run_that_is_left_out_is_missing_and_what_stands_there_is_foreign(root: Path) -> None:
    proof = proof_of(root, mapped(WHOLE[:1]), standing(range(40)))
    assert (proof.missing, proof.foreign) == (20, 20)


def broken_off(unnoted: int) -> tuple[LaneMap, list[Record]]:
    """20 records count, five more of a void run and `unnoted` ones are in the lane, then all from 20 on."""
    end = 30 + unnoted
    segments = [
        Segment(attempt="a", lanes={0: LaneBegin(0, 5)}),
        Segment(attempt="a", runs=((0, 0, 20, 0, 5, 20), (0, 20, 25, 0, 25, 5))),
        Segment(attempt="b", lanes={0: LaneBegin(20, end)}),
        Segment(attempt="b", runs=((0, 20, 40, 0, end, 20),)),
    ]
    return lane_maps(segments, {0: 40})[0], standing([*range(25 + unnoted), *range(20, 40)])


def test_what_was_sent_again_is_counted(root: Path) -> None:
    proof = proof_of(root, *broken_off(3), rolls_back=False)
    assert (proof.faulty, proof.records, proof.sent_twice) == (False, 40, 8)


def test_with_transactions_nothing_is_sent_again(root: Path) -> None:
    assert proof_of(root, *broken_off(3)).foreign == 8


def test_what_is_not_sent_again_is_foreign_also_after_a_crash(root: Path) -> None:
    lane_map, target = broken_off(3)
    target[21] = target[21]._replace(value=b"foreign")
    proof = proof_of(root, lane_map, target, rolls_back=False)
    assert (proof.sent_twice, proof.foreign) == (7, 1)


def test_what_a_job_that_is_not_complete_sent_and_did_not_commit(root: Path) -> None:
    segments = [Segment(attempt="a", lanes={0: LaneBegin(0, 5)}), Segment(attempt="a", runs=WHOLE)]
    lane_map = lane_maps(segments, {0: 20})[0]
    target = standing(range(33))
    proof = proof_of(root, lane_map, target, required=20, rolls_back=False, open_end=True)
    assert (proof.faulty, proof.records, proof.sent_twice) == (False, 20, 13)


@pytest.mark.parametrize("written", [10, 45])
def test_a_map_that_does_not_end_where_the_job_is_committed(root: Path, written: int) -> None:
    segments = [Segment(attempt="a", lanes={0: LaneBegin(0, 5)}), Segment(attempt="a", runs=WHOLE)]
    assert proof_of(root, lane_maps(segments, {0: written})[0], standing(range(40))).faulty


def test_what_was_pruned_or_erased_since_is_told_and_the_rest_is_proved(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("orders", 0)
    maintainer = Maintainer(writer)
    for start in range(0, 40, 10):
        writer.commit(ARCHIVED[start : start + 10])
        maintainer.fold()
    maintainer.prune(1)
    maintainer.rewrite([1], [15, 30])
    proof = proof_of(tmp_path, mapped(WHOLE), standing(range(40)))
    assert (proof.faulty, proof.records, proof.gone, proof.differing, proof.missing) == (False, 28, 12, 0, 0)

    swapped = standing([*range(20), 22, 21, 20, *range(23, 40)])
    proof = proof_of(tmp_path, mapped(WHOLE), swapped)
    assert proof.faulty
    assert "that the archive still has" in proof.faults[0]

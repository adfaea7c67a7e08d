"""A lane against its run map: what a proof finds of every kind of fault, on an archive in memory of the target."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, erased_ranges
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.records import Record, batch_from_records
from replayer.replay import proof
from replayer.replay.job import Outstanding, Run, joined
from replayer.replay.jobs.folder import LaneEnd, Segment
from replayer.replay.proof import LaneProof, LaneTask, Sample, pieces, prove_lane
from replayer.replay.recorded_job import LaneMap, lane_maps
from tests.support.archives import ArchiveWriter, records
from tests.support.maintained import Maintainer
from tests.support.sampling import seeded_random

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
        archive = ArchiveReader(LocalReader(LocalAddress(str(root))))
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
    return lane_maps([Segment(attempt="a", lanes={0: LaneEnd(0, began)}), Segment(attempt="a", runs=tuple(runs))], {})[
        0
    ]


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
        Segment(attempt="a", lanes={0: LaneEnd(0, 5)}),
        Segment(attempt="a", runs=((0, 0, 20, 0, 5, 20), (0, 20, 25, 0, 25, 5))),
        Segment(attempt="b", lanes={0: LaneEnd(20, end)}),
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
    segments = [Segment(attempt="a", lanes={0: LaneEnd(0, 5)}), Segment(attempt="a", runs=WHOLE)]
    lane_map = lane_maps(segments, {0: 20})[0]
    target = standing(range(33))
    proof = proof_of(root, lane_map, target, required=20, rolls_back=False, open_end=True)
    assert (proof.faulty, proof.records, proof.sent_twice) == (False, 20, 13)


@pytest.mark.parametrize("written", [10, 45])
def test_a_map_that_does_not_end_where_the_job_is_committed(root: Path, written: int) -> None:
    segments = [Segment(attempt="a", lanes={0: LaneEnd(0, 5)}), Segment(attempt="a", runs=WHOLE)]
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


COUNT, PIECE, FIRST = 200, 10, 5
SAMPLED = records(range(COUNT))


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PIECE_RECORDS", PIECE)


@pytest.fixture(scope="module")
def written_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("archive")
    writer = ArchiveWriter(made).partition("orders", 0)
    for start in range(0, COUNT, 25):
        writer.commit(SAMPLED[start : start + 25])
    return made


@pytest.fixture
def sampled_root(written_root: Path, short_pieces: None) -> Path:
    return written_root


def copied(sources: Sequence[int] = range(COUNT)) -> list[Record]:
    return [SAMPLED[source]._replace(offset=FIRST + row) for row, source in enumerate(sources)]


def sample_map(*runs: Run) -> LaneMap:
    made = LaneMap(FIRST)
    for run in runs or (Run(0, 0, 120, 0, FIRST, 120), Run(0, 120, COUNT, 0, FIRST + 120, 80)):
        made.add(run)
    return made


def proof_of_sample(
    sampled_root: Path,
    target: Sequence[Record],
    sample: Sample,
    lane_map: LaneMap | None = None,
    *,
    rolls_back: bool = True,
) -> LaneProof:
    async def read(start: int, end: int) -> AsyncGenerator[pa.RecordBatch]:
        inside = [each for each in target if start <= each.offset < end]
        for first in range(0, len(inside), 7):
            yield batch_from_records(inside[first : first + 7])

    async def prove() -> LaneProof:
        (partition,) = await ArchiveReader(LocalReader(LocalAddress(str(sampled_root)))).open_topic("orders")
        lane = OffsetRange(FIRST, max(FIRST + COUNT, target[-1].offset + 1))
        selection = Selection(partition, OffsetRange(0, COUNT))
        task = LaneTask(
            0, lane_map or sample_map(), lane, read, {0: selection}, {0: COUNT}, rolls_back=rolls_back, open_end=False
        )
        return await prove_lane(task, lambda _: None, sample)

    return asyncio.run(prove())


def test_a_share_and_both_ends_are_compared(sampled_root: Path) -> None:
    for seed in range(5):
        proof = proof_of_sample(sampled_root, copied(), Sample(0.1, seed))
        assert not proof.faulty
        assert proof.records + proof.not_compared == COUNT
        assert 2 * PIECE <= proof.records <= 4 * PIECE
    assert proof_of_sample(sampled_root, copied(), Sample(1, 0)) == LaneProof(0, records=COUNT, runs=2), (
        "all of it, run by run"
    )


@pytest.mark.slow
def test_a_wrong_record_is_found_where_it_is_looked_at_and_only_there(sampled_root: Path) -> None:
    randomly = seeded_random()
    for _ in range(30):
        sample, row = Sample(0.2, randomly.randrange(2**32)), randomly.randrange(COUNT)
        target = copied()
        target[row] = target[row]._replace(value=b"tampered")
        looked_at = row // PIECE in sample.chosen(0, COUNT // PIECE)
        proof = proof_of_sample(sampled_root, target, sample)
        assert (proof.faulty, proof.differing) == (looked_at, int(looked_at))


@pytest.mark.parametrize("row", [0, COUNT - 1])
def test_a_missing_record_at_an_end_is_always_found(sampled_root: Path, row: int) -> None:
    target = copied()
    del target[row]
    assert proof_of_sample(sampled_root, target, Sample(0.01, 1)).missing == 1


def test_a_foreign_record_behind_the_end_is_always_found(sampled_root: Path) -> None:
    assert (
        proof_of_sample(
            sampled_root, [*copied(), SAMPLED[0]._replace(offset=FIRST + COUNT + 3)], Sample(0.01, 1)
        ).foreign
        == 1
    )


def test_a_map_with_other_numbers_than_the_archive_is_proved_in_whole(sampled_root: Path) -> None:
    sources = [*range(120), *range(121, COUNT)]
    runs = Run(0, 0, 120, 0, FIRST, 120), Run(0, 121, COUNT, 0, FIRST + 120, 79)
    proof = proof_of_sample(sampled_root, copied(sources), Sample(0.01, 1), sample_map(*runs))
    assert (proof.missing, proof.records, proof.not_compared) == (1, COUNT - 1, 0)


def test_where_records_were_sent_again_all_of_it_is_proved(sampled_root: Path) -> None:
    target = copied([*range(122), *range(120, COUNT)])
    lane_map = sample_map(Run(0, 0, 120, 0, FIRST, 120), Run(0, 120, COUNT, 0, FIRST + 122, 80))
    lane_map.repeats.append(OffsetRange(FIRST + 120, FIRST + 122))
    proof = proof_of_sample(sampled_root, target, Sample(0.01, 1), lane_map, rolls_back=False)
    assert (proof.faulty, proof.sent_twice, proof.not_compared) == (False, 2, 0)


@pytest.mark.usefixtures("short_pieces")
def test_pieces_are_all_of_a_map() -> None:
    dense, sparse = Run(0, 0, 25, 0, 5, 25), Run(1, 40, 90, 0, 31, 30)
    assert list(pieces(sample_map(dense, sparse))) == [
        Run(0, 0, 10, 0, 5, 10),
        Run(0, 10, 20, 0, 15, 10),
        Run(0, 20, 25, 0, 25, 5),
        sparse,
    ]


@pytest.mark.usefixtures("short_pieces")
def test_a_seed_chooses_the_same_pieces_and_lanes_have_their_own() -> None:
    sample = Sample(0.1, 7)
    assert sample.chosen(0, 1000) == sample.chosen(0, 1000) != sample.chosen(1, 1000)
    assert {0, 999} <= sample.chosen(0, 1000)
    assert 100 <= len(sample.chosen(0, 1000)) <= 102
    assert sample.chosen(0, 1) == {0}


def offsets(*numbers: int) -> object:
    return np.array(numbers, np.int64)


def test_a_run_ends_where_source_or_target_do() -> None:
    known = Outstanding[str]()
    known.sent(3, 0, offsets(5, 6, 9))
    known.sent(3, 0, offsets(10, 11))
    known.sent(3, 1, offsets(7))
    known.sent(3, 0, offsets(12))
    known.mark("all")
    known.took({3: offsets(100, 101, 102, 104, 105, 106, 107)})
    assert known.due() == (
        [Run(0, 5, 10, 3, 100, 3), Run(0, 10, 12, 3, 104, 2), Run(1, 7, 8, 3, 106, 1), Run(0, 12, 13, 3, 107, 1)],
        "all",
    )
    assert known.due() == ([], None)


def test_a_mark_is_due_once_all_before_it_is_taken() -> None:
    known = Outstanding[int]()
    known.mark(0)
    known.sent(0, 0, offsets(0, 1, 2, 3))
    known.mark(1)
    known.sent(1, 0, offsets(4))
    known.sent(0, 0, offsets(5))
    known.mark(2)
    assert known.due() == ([], 0)
    known.took({0: offsets(10, 11, 12)})
    assert known.due() == ([], None)
    known.took({0: offsets(13, 14)})
    assert known.due() == ([Run(0, 0, 4, 0, 10, 4)], 1), "what is behind the mark waits for its own"
    assert known.rest() == [Run(0, 5, 6, 0, 14, 1)]
    known.took({1: offsets(0)})
    assert known.due() == ([Run(0, 4, 5, 1, 0, 1)], 2)


def test_a_sink_that_tells_no_offsets_has_marks_and_no_runs() -> None:
    known = Outstanding[int]()
    known.sent(0, 0, offsets(0, 1))
    known.mark(1)
    known.took(None)
    assert known.due() == ([], 1)
    assert known.rest() == []


def test_runs_are_exactly_what_was_sent() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for number in range(20):
        send_and_take(random.Random(seed + number))


def send_and_take(randomly: random.Random) -> None:
    """Sends and takes at random, and compares the runs with what went where."""
    known = Outstanding[int]()
    sent: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    taken: dict[int, list[int]] = {0: [], 1: []}
    ends = {0: 0, 1: 0}
    nexts = [0, 0, 0]
    runs: list[Run] = []
    for step in range(60):
        lane, source = randomly.randrange(2), randomly.randrange(3)
        made = []
        for _ in range(randomly.randrange(1, 6)):
            nexts[source] += randomly.choice([1, 1, 1, 3])
            made.append(nexts[source])
        known.sent(lane, source, offsets(*made))
        sent[lane] += [(source, each) for each in made]
        if randomly.random() < 0.5:
            known.mark(step)
        for number in (0, 1):
            count = randomly.randrange(len(sent[number]) - len(taken[number]) + 1)
            told = []
            for _ in range(count):
                ends[number] += randomly.choice([1, 1, 1, 2])
                told.append(ends[number])
            taken[number] += told
            known.took({number: offsets(*told)})
        runs += known.due()[0]
    runs += known.rest()
    for lane in (0, 1):
        wanted = dict(zip(taken[lane], sent[lane], strict=False))
        found = {}
        for run in (run for run in runs if run.lane == lane):
            inside = range(run.target_start, run.target_end)
            assert len(inside) == run.records
            spans = [wanted[at] for at in inside]
            assert {source for source, _ in spans} == {run.source}
            assert (spans[0][1], spans[-1][1] + 1) == (run.start, run.end)
            found.update(dict.fromkeys(inside))
        assert found.keys() == wanted.keys()


def test_neighbours_are_joined() -> None:
    runs = [Run(0, 0, 5, 1, 10, 5), Run(0, 7, 9, 1, 15, 2), Run(0, 9, 10, 1, 18, 1), Run(1, 0, 1, 1, 19, 1)]
    assert list(joined(runs)) == [Run(0, 0, 9, 1, 10, 7), *runs[2:]]

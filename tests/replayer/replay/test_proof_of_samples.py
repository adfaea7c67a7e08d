"""A share of a lane: what is looked at is proved, what is not is counted, and the ends are always looked at."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.records import Record, batch_from_records
from replayer.replay import proof
from replayer.replay.proof import LaneProof, LaneTask, Sample, pieces, prove_lane
from replayer.replay.recorded_job import LaneMap
from replayer.replay.run_map import Run
from tests.support.archives import ArchiveWriter, records

COUNT, PIECE, FIRST = 200, 10, 5
ARCHIVED = records(range(COUNT))


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "PIECE_RECORDS", PIECE)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("archive")
    writer = ArchiveWriter(made).partition("orders", 0)
    for start in range(0, COUNT, 25):
        writer.commit(ARCHIVED[start : start + 25])
    return made


def copied(sources: Sequence[int] = range(COUNT)) -> list[Record]:
    return [ARCHIVED[source]._replace(offset=FIRST + row) for row, source in enumerate(sources)]


def mapped(*runs: Run) -> LaneMap:
    made = LaneMap(FIRST)
    for run in runs or (Run(0, 0, 120, 0, FIRST, 120), Run(0, 120, COUNT, 0, FIRST + 120, 80)):
        made.add(run)
    return made


def proof_of(
    root: Path, target: Sequence[Record], sample: Sample, lane_map: LaneMap | None = None, *, rolls_back: bool = True
) -> LaneProof:
    async def read(start: int, end: int) -> AsyncGenerator[pa.RecordBatch]:
        inside = [each for each in target if start <= each.offset < end]
        for first in range(0, len(inside), 7):
            yield batch_from_records(inside[first : first + 7])

    async def prove() -> LaneProof:
        (partition,) = await Archive(LocalReader(LocalAddress(str(root)))).open_topic("orders")
        lane = OffsetRange(FIRST, max(FIRST + COUNT, target[-1].offset + 1))
        selection = Selection(partition, OffsetRange(0, COUNT))
        task = LaneTask(
            0, lane_map or mapped(), lane, read, {0: selection}, {0: COUNT}, rolls_back=rolls_back, open_end=False
        )
        return await prove_lane(task, lambda _: None, sample)

    return asyncio.run(prove())


def test_a_share_and_both_ends_are_compared(root: Path) -> None:
    for seed in range(5):
        proof = proof_of(root, copied(), Sample(0.1, seed))
        assert not proof.faulty
        assert proof.records + proof.not_compared == COUNT
        assert 2 * PIECE <= proof.records <= 4 * PIECE
    assert proof_of(root, copied(), Sample(1, 0)) == LaneProof(0, records=COUNT, runs=2), "all of it, run by run"


@pytest.mark.slow
def test_a_wrong_record_is_found_where_it_is_looked_at_and_only_there(root: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    for _ in range(30):
        sample, row = Sample(0.2, randomly.randrange(2**32)), randomly.randrange(COUNT)
        target = copied()
        target[row] = target[row]._replace(value=b"tampered")
        looked_at = row // PIECE in sample.chosen(0, COUNT // PIECE)
        proof = proof_of(root, target, sample)
        assert (proof.faulty, proof.differing) == (looked_at, int(looked_at))


@pytest.mark.parametrize("row", [0, COUNT - 1])
def test_a_missing_record_at_an_end_is_always_found(root: Path, row: int) -> None:
    target = copied()
    del target[row]
    assert proof_of(root, target, Sample(0.01, 1)).missing == 1


def test_a_foreign_record_behind_the_end_is_always_found(root: Path) -> None:
    assert proof_of(root, [*copied(), ARCHIVED[0]._replace(offset=FIRST + COUNT + 3)], Sample(0.01, 1)).foreign == 1


def test_a_map_with_other_numbers_than_the_archive_is_proved_in_whole(root: Path) -> None:
    sources = [*range(120), *range(121, COUNT)]
    runs = Run(0, 0, 120, 0, FIRST, 120), Run(0, 121, COUNT, 0, FIRST + 120, 79)
    proof = proof_of(root, copied(sources), Sample(0.01, 1), mapped(*runs))
    assert (proof.missing, proof.records, proof.not_compared) == (1, COUNT - 1, 0)


def test_where_records_were_sent_again_all_of_it_is_proved(root: Path) -> None:
    target = copied([*range(122), *range(120, COUNT)])
    lane_map = mapped(Run(0, 0, 120, 0, FIRST, 120), Run(0, 120, COUNT, 0, FIRST + 122, 80))
    lane_map.repeats.append(OffsetRange(FIRST + 120, FIRST + 122))
    proof = proof_of(root, target, Sample(0.01, 1), lane_map, rolls_back=False)
    assert (proof.faulty, proof.sent_twice, proof.not_compared) == (False, 2, 0)


def test_pieces_are_all_of_a_map() -> None:
    dense, sparse = Run(0, 0, 25, 0, 5, 25), Run(1, 40, 90, 0, 31, 30)
    assert list(pieces(mapped(dense, sparse))) == [
        Run(0, 0, 10, 0, 5, 10),
        Run(0, 10, 20, 0, 15, 10),
        Run(0, 20, 25, 0, 25, 5),
        sparse,
    ]


def test_a_seed_chooses_the_same_pieces_and_lanes_have_their_own() -> None:
    sample = Sample(0.1, 7)
    assert sample.chosen(0, 1000) == sample.chosen(0, 1000) != sample.chosen(1, 1000)
    assert {0, 999} <= sample.chosen(0, 1000)
    assert 100 <= len(sample.chosen(0, 1000)) <= 102
    assert sample.chosen(0, 1) == {0}

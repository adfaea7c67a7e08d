import random
from dataclasses import replace

import numpy as np
import pytest

from blockgz.archive.positions import OffsetRange
from replayer.errors import ReplayRefused
from replayer.replay.job import MAX_METADATA_BYTES
from replayer.spark.row_position import MAX_RANGES, RowLedger, RowPosition, TaskRun, decode_row_position

POSITION = RowPosition(
    "orders", TaskRun("run:3", 2), 17, (OffsetRange(0, 5), OffsetRange(9, 12)), OffsetRange(20, 40), 11
)


class Lane:
    """A lane's committed position, and what stands in the target; every run is another one."""

    def __init__(self) -> None:
        self.position: RowPosition | None = None
        self.target: list[int] = []
        self.runs = 0

    def run(self, *batches: list[int], task: int = 0, dies: bool = False, same_run: bool = False) -> None:
        """One task, which commits after every batch; one that dies comes no further than them."""
        self.runs += not same_run
        ledger = RowLedger(self.position, "orders", 0, TaskRun(f"run-{self.runs}", task))
        for batch in batches:
            self._commit(ledger, batch[ledger.accept(np.array(batch, np.int64)) :])
        if not dies:
            ledger.finish()
            self._commit(ledger, [])

    def _commit(self, ledger: RowLedger, fresh: list[int]) -> None:
        position = ledger.position()
        if position is not None:
            self.target += fresh
            self.position = decode_row_position(position.written, position.encoded())
            ledger.committed(position)


@pytest.fixture
def lane() -> Lane:
    return Lane()


def test_encoded_and_back() -> None:
    assert decode_row_position(17, POSITION.encoded()) == POSITION
    named = replace(POSITION, incarnation=3)
    assert decode_row_position(17, named.encoded()) == named


def test_a_position_of_an_earlier_version_names_no_incarnation() -> None:
    earlier = POSITION.encoded().replace(',"incarnation":null', "")
    assert "incarnation" not in earlier
    assert decode_row_position(17, earlier) == POSITION


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", POSITION.encoded().replace('"v":1', '"v":2'), POSITION.encoded().replace("[20,40]", "[20]")],
)
def test_what_this_program_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(ReplayRefused, match="cannot be read"):
        decode_row_position(1, text)


def test_the_longest_position_fits_into_what_kafka_stores() -> None:
    large = 2**63 - 1
    ranges = tuple(OffsetRange(large - 1, large) for _ in range(MAX_RANGES))
    writer = TaskRun("f" * 32 + ":99999999", 10**6)
    longest = RowPosition("t" * 249, writer, large, ranges, OffsetRange(large - 1, large), large)
    assert len(longest.encoded()) < MAX_METADATA_BYTES


def test_a_repeated_run_writes_nothing(lane: Lane) -> None:
    lane.run([3, 4, 7], [8])
    lane.run([3], [4, 7, 8])
    assert lane.target == [3, 4, 7, 8]
    assert lane.position is not None
    assert lane.position.writer == TaskRun("run-2", 0), "the second run has claimed the lane"


def test_a_task_that_died_is_gone_on_with(lane: Lane) -> None:
    lane.run([3, 4, 7], dies=True)
    lane.run([3, 4], [7, 8, 11], same_run=True)
    assert lane.target == [3, 4, 7, 8, 11]
    lane.run([3, 4, 7, 8, 11])
    assert lane.target == [3, 4, 7, 8, 11]


def test_batches_of_a_stream_with_kafkas_holes_between_them(lane: Lane) -> None:
    """And all of them again, from a lost checkpoint, in batches that end elsewhere."""
    lane.run([0, 1, 2])
    lane.run([4, 5])
    lane.run([6, 9])
    lane.run([0, 1])
    lane.run([2, 4, 5, 6])
    lane.run([9, 10])
    assert lane.target == [0, 1, 2, 4, 5, 6, 9, 10]


def test_holes_that_are_too_many_are_forgotten_from_the_oldest(lane: Lane) -> None:
    for number in range(0, 4 * MAX_RANGES, 2):
        lane.run([number])
    assert lane.position is not None
    assert len(lane.position.done) == MAX_RANGES
    lane.run(list(range(0, 4 * MAX_RANGES, 2)))
    assert lane.target == list(range(0, 4 * MAX_RANGES, 2))


def test_rows_that_were_skipped_are_refused_not_dropped(lane: Lane) -> None:
    """A later part of a partition came first, and the earlier one's task never ran."""
    lane.run([0, 1, 2])
    lane.run([50, 51], task=1)
    with pytest.raises(ReplayRefused, match="offset 3 of partition 0 of orders was not written"):
        lane.run([0, 1, 2, 3, 4, 50, 51])
    with pytest.raises(ReplayRefused, match="offset 4 "):
        lane.run([4])
    lane.run([0, 1, 2, 50, 51, 52])
    assert lane.target == [0, 1, 2, 50, 51, 52]


@pytest.mark.parametrize("even_first", [True, False])
def test_a_partition_dealt_out_to_two_tasks(lane: Lane, even_first: bool) -> None:
    """One of them is refused, and so is the whole once it comes in order: nothing is taken for written that was not."""
    parts = [list(range(0, 20, 2)), list(range(1, 20, 2))]
    first, second = parts if even_first else parts[::-1]
    lane.run(first, task=0)
    with pytest.raises(ReplayRefused, match="two tasks write partition 0 of orders"):
        lane.run(second, task=1, same_run=True)
    with pytest.raises(ReplayRefused, match=r"has other rows than were written|offset 0 .* was not written"):
        lane.run(list(range(20)))
    assert lane.target == first


def test_the_same_mistake_again_after_a_crash(lane: Lane) -> None:
    lane.run(list(range(0, 20, 2)), task=0)
    lane.run(list(range(0, 20, 2)), task=0)
    with pytest.raises(ReplayRefused, match="two tasks"):
        lane.run(list(range(1, 20, 2)), task=1, same_run=True)


def test_fewer_rows_than_were_written(lane: Lane) -> None:
    lane.run([0, 1, 2, 3])
    with pytest.raises(ReplayRefused, match="other rows") as caught:
        lane.run([0, 2, 3])
    assert caught.value.why == "4 were written at offsets [0..4), and these are 3"
    with pytest.raises(ReplayRefused, match="other rows"):
        lane.run([0, 2, 5])
    assert lane.target == [0, 1, 2, 3]


@pytest.mark.parametrize("batches", [([5, 4],), ([4, 4],), ([4], [4]), ([4, 9], [7])])
def test_rows_out_of_order(lane: Lane, batches: tuple[list[int], ...]) -> None:
    with pytest.raises(ReplayRefused, match="is not in order") as caught:
        lane.run(*batches)
    assert "sortWithinPartitions" in caught.value.remedy


def test_rows_of_another_topic() -> None:
    with pytest.raises(ReplayRefused, match="records of orders, not of payments"):
        RowLedger(POSITION, "payments", 0, TaskRun("new", 0))


def test_nothing_to_write_is_nothing_to_commit() -> None:
    ledger = RowLedger(None, "orders", 0, TaskRun("run", 0))
    assert ledger.accept(np.array([], np.int64)) == 0
    ledger.finish()
    assert ledger.position() is None
    again = RowLedger(POSITION, "orders", 0, POSITION.writer)
    assert again.position() is None
    assert RowLedger(POSITION, "orders", 0, TaskRun("new", 7)).position() == replace(POSITION, writer=TaskRun("new", 7))


@pytest.mark.slow
def test_any_deaths_and_batches_leave_every_row_once_and_in_order() -> None:
    seed = random.randrange(2**32)
    source = random.Random(seed)
    for _ in range(300):
        lane = Lane()
        rows = sorted(source.sample(range(200), source.randrange(1, 120)))
        ends = sorted({*source.sample(range(1, len(rows) + 1), min(len(rows), 4)), len(rows)})
        begun = 0
        for end in ends:
            # A batch of a stream, or a whole write again from the start or the middle, dies now and then.
            for attempt in range(3):
                start = source.choice([0, begun, source.randrange(begun + 1)])
                upto = source.randrange(start, end) if attempt < 2 and source.random() < 0.5 else end
                part = rows[start:upto]
                cut = source.randrange(len(part) + 1)
                batches = [batch for batch in (part[:cut], part[cut:]) if batch]
                lane.run(*batches, dies=upto < end, same_run=attempt > 0)
                if upto == end:
                    break
            begun = end
        assert lane.target == rows, f"seed {seed}"

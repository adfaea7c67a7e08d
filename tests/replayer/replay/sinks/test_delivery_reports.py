"""Where records stand, also those that were acknowledged without an offset."""

import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from blockgz.kafka.batch_producer import NO_OFFSET
from index_format.records import batch_from_records
from replayer.replay.sinks.producer import LaneReports, found, inferred
from tests.support.archives import records


def no_look(*_: object) -> list[int]:
    raise AssertionError("nothing is to be read back")


def acknowledgements(*offsets: int | None) -> npt.NDArray[np.int64]:
    return np.array([NO_OFFSET if each is None else each for each in offsets], np.int64)


@pytest.fixture
def reports() -> Callable[..., LaneReports]:
    def made(*offsets: int | None, end: int | None = None, sent: int | None = None) -> LaneReports:
        lane = LaneReports(0, end)
        lane.sent(batch_from_records(records(range(sent or len(offsets)))))
        lane.told(acknowledgements(*offsets))
        return lane

    return made


def test_what_is_told_is_taken_once(reports: Callable[..., LaneReports]) -> None:
    lane = reports(7, 8, 11, sent=4)
    assert lane.take(no_look, drained=False).tolist() == [7, 8, 11]
    assert lane.take(no_look, drained=False).tolist() == []
    lane.told(acknowledgements(12))
    assert lane.take(no_look, drained=True).tolist() == [12]


def test_records_are_kept_only_until_their_offsets_are_known() -> None:
    lane, batches = LaneReports(0, None), [batch_from_records(records(range(10))) for _ in range(3)]
    kept = [weakref.ref(batch) for batch in batches]
    for batch in batches:
        lane.sent(batch)
    del batch, batches
    lane.told(acknowledgements(*range(10)))
    lane.told(acknowledgements(*[None] * 10))
    assert [each() is None for each in kept] == [True, False, False]
    lane.told(acknowledgements(20))
    assert lane.take(no_look, drained=False).tolist() == list(range(21))


@pytest.mark.parametrize(
    ("told", "before", "wanted"),
    [
        ([-1, -1, 12], 9, [10, 11, 12]),
        ([-1, -1, 12], None, [-1, -1, 12]),
        ([10, -1, 12, -1, 15], 9, [10, 11, 12, -1, 15]),
        ([10, -1], 9, [10, -1]),
    ],
)
def test_offsets_that_can_only_be_what_they_are(told: list[int], before: int | None, wanted: list[int]) -> None:
    assert inferred(np.array(told, np.int64), before).tolist() == wanted


def test_records_without_an_offset_wait_for_the_ones_after_them(reports: Callable[..., LaneReports]) -> None:
    lane = reports(5, None, None, sent=4)
    assert lane.take(no_look, drained=False).tolist() == [5]
    assert lane.take(no_look, drained=False).tolist() == []
    lane.told(acknowledgements(8))
    assert lane.take(no_look, drained=False).tolist() == [6, 7, 8]


def test_the_last_ones_are_read_back(reports: Callable[..., LaneReports]) -> None:
    asked: list[tuple[int, int, int]] = []

    def look(partition: int, start: int, rows: pa.Table) -> list[int]:
        asked.append((partition, start, rows.num_rows))
        return [21, 23]

    assert reports(None, None, end=20).take(look, drained=True).tolist() == [21, 23]
    assert reports(19, None, None, end=19).take(look, drained=True).tolist() == [19, 21, 23]
    assert asked == [(0, 20, 2), (0, 20, 2)]


def test_records_are_found_in_their_order() -> None:
    mine = records(range(3))
    others = [each._replace(value=b"other") for each in records(range(9))]
    log = [
        others[0],
        mine[0]._replace(offset=1),
        others[2],
        *(each._replace(offset=each.offset + 2) for each in mine[1:]),
    ]
    table = pa.Table.from_batches([batch_from_records(mine)])
    assert found(table, [batch_from_records(log)]) == [1, 3, 4]
    assert found(table, [batch_from_records(others)]) == []

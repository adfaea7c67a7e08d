"""What the files of a checkpoint say that a batch read."""

import json
from collections.abc import Mapping

import pytest

from archiver.commit.batch import BatchReading
from archiver.spark.read_ranges import initial_offsets, logged_offsets, ranges_read
from archiver.spark.rows import RowPartition

ORDERS = RowPartition("orders", 0)
METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1763756593000, "conf": {"a": "b"}})


def logged(**topics: Mapping[str, int]) -> str:
    return f"v1\n{METADATA}\n{json.dumps(topics)}"


def initial(**topics: Mapping[str, int]) -> str:
    return f"\0v1\n{json.dumps(topics)}"


def test_a_batch_reads_from_where_the_one_before_it_ended() -> None:
    files = {"offsets/6": logged(orders={"0": 10, "1": 5}), "offsets/7": logged(orders={"0": 25, "1": 5})}
    assert ranges_read(files.get, 7) == {ORDERS: BatchReading(10, 25)}


def test_the_first_batch_reads_from_where_the_source_began() -> None:
    files = {"sources/0/0": initial(orders={"0": 3}, p={"1": 0}), "offsets/0": logged(orders={"0": 9}, p={"1": 0})}
    assert ranges_read(files.get, 0) == {ORDERS: BatchReading(3, 9)}


def test_partitions_that_came_are_read_from_their_beginning() -> None:
    files = {"offsets/0": logged(orders={"1": 5}), "offsets/1": logged(orders={"1": 5, "0": 4}, new={"0": 2})}
    assert ranges_read(files.get, 1) == {ORDERS: BatchReading(0, 4), RowPartition("new", 0): BatchReading(0, 2)}


def test_offsets_that_fall_say_nothing() -> None:
    files = {"offsets/0": logged(orders={"0": 9}), "offsets/1": logged(orders={"0": 4})}
    assert ranges_read(files.get, 1) == {}


@pytest.mark.parametrize("missing", ["offsets/6", "offsets/7"])
def test_a_missing_file_says_nothing(missing: str) -> None:
    files = {"offsets/6": logged(orders={"0": 1}), "offsets/7": logged(orders={"0": 2})}
    assert ranges_read(files.get, 7)
    del files[missing]
    assert ranges_read(files.get, 7) == {}


def test_the_first_batch_without_the_sources_file_says_nothing() -> None:
    assert ranges_read({"offsets/0": logged(orders={"0": 2})}.get, 0) == {}


def test_a_file_that_is_torn_anywhere_says_nothing() -> None:
    whole = logged(orders={"0": 123, "1": 45}, payments={"7": 6})
    assert logged_offsets(whole) == {ORDERS: 123, RowPartition("orders", 1): 45, RowPartition("payments", 7): 6}
    assert [end for end in range(len(whole)) if logged_offsets(whole[:end]) is not None] == []
    first = initial(orders={"0": 123})
    assert initial_offsets(first) == {ORDERS: 123}
    assert [end for end in range(len(first)) if initial_offsets(first[:end]) is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        f'v2\n{METADATA}\n{{"orders":{{"0":1}}}}',
        f"v1\n{METADATA}\n-",
        f"v1\n{METADATA}\n12",
        f"v1\n{METADATA}\n[1]",
        f'v1\n{METADATA}\n{{"orders":[5]}}',
        f'v1\n{METADATA}\n{{"orders":{{"x":5}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":"5"}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":true}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":-2}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":1}}}}\n{{"payments":{{"0":1}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":1}}}}\n-',
        "",
        "\0\0\0",
    ],
)
def test_other_versions_other_sources_and_more_than_one_say_nothing(text: str) -> None:
    assert logged_offsets(text) is None

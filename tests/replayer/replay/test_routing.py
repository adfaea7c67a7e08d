"""Where records go. The hashes are those of Kafka's own tests, and in the system tests those of Java itself."""

import random
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest

from blockgz.errors import UsageError
from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import (
    LONGEST_VECTORISED,
    RoutedBatch,
    Router,
    Routing,
    ScannedBatch,
    key_hashes,
    murmur2,
    parse_routing,
)

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
SEED = 20261121


@pytest.mark.parametrize(("key", "hash_in_java"), JAVA.items())
def test_hashes_are_those_of_java(key: bytes, hash_in_java: int) -> None:
    assert murmur2(key) == hash_in_java % 2**32
    assert key_hashes(pa.array([key], pa.binary())).tolist() == [hash_in_java % 2**32]


def test_many_keys_hash_as_each_of_them() -> None:
    chance = random.Random(SEED)
    lengths = [*range(17), 100, LONGEST_VECTORISED - 1, LONGEST_VECTORISED, LONGEST_VECTORISED + 1, 5000]
    keys = [None if chance.random() < 0.1 else chance.randbytes(chance.choice(lengths)) for _ in range(600)]
    whole = pa.array(keys, pa.binary())
    for start, length in ((0, 600), (7, 593), (7, 100), (600, 0)):
        hashes = key_hashes(whole.slice(start, length)).tolist()
        for key, found in zip(keys[start : start + length], hashes, strict=True):
            assert key is None or found == murmur2(key), f"seed {SEED}, key {key!r}"


def records(count: int, keyless: float = 0.2) -> list[Record]:
    chance = random.Random(SEED)
    return [
        Record(2 * n, n, 0, None if chance.random() < keyless else b"k%d" % chance.randrange(50), b"%d" % n, ())
        for n in range(count)
    ]


def routed(router: Router, source: int, rows: Sequence[Record], size: int) -> dict[int, list[Record]]:
    """By target, the records of a source that is read in batches of `size`."""
    found: dict[int, list[Record]] = defaultdict(list)
    for start in range(0, len(rows), size):
        pieces: Sequence[RoutedBatch] = router.route(
            ScannedBatch(source, batch_from_records(rows[start : start + size]))
        )
        assert len({piece.target for piece in pieces}) == len(pieces)
        for target, batch in pieces:
            found[target] += iter_records(batch)
    return found


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_by_key_keeps_the_order_of_a_key_however_batches_are_cut(partitions: int) -> None:
    rows = records(1000)
    router = Routing("by-key", partitions)
    found = routed(router, 5, rows, 1000)
    assert found == routed(router, 5, rows, 7)
    assert set(found) <= set(router.targets(5))
    for target, got in found.items():
        assert got == [row for row in rows if row in set(got)], "order is kept"
        for row in got:
            expected = (
                (row.offset + 5) % partitions if row.key is None else (murmur2(row.key) & 0x7FFFFFFF) % partitions
            )
            assert target == expected
    assert sum(map(len, found.values())) == len(rows)


def test_an_empty_key_is_a_key() -> None:
    batch = batch_from_records([Record(n, 0, 0, b"", b"", ()) for n in range(4)])
    ((target, together),) = Routing("by-key", 7).route(ScannedBatch(0, batch))
    assert (target, together.num_rows) == ((murmur2(b"") & 0x7FFFFFFF) % 7, 4)


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (Routing(), {0: 0, 5: 5}),
        (Routing("number", 3), {0: 0, 2: 2, 3: 0, 5: 2}),
        (Routing("map", places=tuple({0: 4, 5: 4}.items())), {0: 4, 5: 4}),
    ],
    ids=["keep", "number", "map"],
)
def test_whole_partitions(router: Router, expected: dict[int, int]) -> None:
    rows = records(10)
    for source, target in expected.items():
        assert routed(router, source, rows, 4) == {target: rows}
        assert list(router.targets(source)) == [target]


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("keep", Routing("keep")),
        ("by-key", Routing("by-key")),
        ("by-key:12", Routing("by-key", 12)),
        ("6", Routing("number", 6)),
        ("0:5", Routing("map", places=((0, 5),))),
        ("2-3:1,0:2", Routing("map", places=((0, 2), (2, 1), (3, 1)))),
    ],
)
def test_requests(text: str, request_: Routing) -> None:
    assert parse_routing(text) == request_


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0", "orders:0,2-4"),
        ("0,2-4", "orders:0,2-4"),
        ("key", "by-key"),
        ("by-key:", "by-key"),
        ("by-key:x", "by-key"),
        ("-1", "orders:"),
        ("1:", "SOURCE:TARGET"),
        ("3-1:0", "FIRST-LAST"),
        ("1:2,1:3", "twice"),
        ("0-999999999:0", "FIRST-LAST"),
        ("", "by-key"),
    ],
)
def test_requests_that_mean_nothing(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_routing(text)
    assert word in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"


def test_by_key_takes_the_number_of_the_target() -> None:
    assert parse_routing("by-key").for_target("copy", 4) == Routing("by-key", 4)
    with pytest.raises(ReplayRefused) as caught:
        parse_routing("by-key:8").for_target("copy", 4)
    assert "has 4 partitions" in caught.value.what
    assert caught.value.remedy


def test_a_map_must_say_where_every_partition_goes() -> None:
    with pytest.raises(ReplayRefused, match="where partition 3 goes") as caught:
        parse_routing("0:1").for_target("copy", 4).targets(3)
    assert "3:TARGET" in str(caught.value.remedy)


def test_the_number_of_partitions_of_a_new_topic() -> None:
    wanted = {"keep": 6, "by-key": 6, "by-key:12": 12, "2": 2, "0:8,1:1": 9}
    assert {text: parse_routing(text).partitions_for(6) for text in wanted} == wanted

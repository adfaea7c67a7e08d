"""Record batches of `replayer broker`: the C extension and Python give the same bytes, and these are Kafka's."""

import random
import struct

import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from index_format.kernel_choice import KERNEL, Kernel
from index_format.records import Record, batch_from_records
from replayer.broker import batches
from replayer.broker.batches import MOST_BATCH_BYTES, RecordBatch, empty_batch, record_batches

PYTHON = Kernel(None, "tested here")


@pytest.fixture(params=["c", "python"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c" and not KERNEL:
        pytest.skip(KERNEL.why_not)
    if request.param == "python":
        monkeypatch.setattr(batches, "KERNEL", PYTHON)


def head(batch: RecordBatch) -> tuple[int, ...]:
    """First offset, last offset, attributes, first and latest timestamp, number of records."""
    data = bytes(batch.data)
    base, length, epoch, magic, crc = struct.unpack_from(">qiibI", data)
    attributes, last, first_time, latest, producer, producer_epoch, sequence, count = struct.unpack_from(
        ">hiqqqhii", data, 21
    )
    assert (length, epoch, magic, crc) == (len(data) - 12, -1, 2, crc32c(data[21:]))
    assert (producer, producer_epoch, sequence, batch.end) == (-1, -1, -1, base + last + 1)
    return base, base + last, attributes, first_time, latest, count


@pytest.mark.usefixtures("kernel")
def test_the_bytes_of_a_batch_are_kafkas() -> None:
    records = [Record(100, 1000, 0, b"k", None, []), Record(103, 990, 0, None, b"", [("h", None), ("", b"v")])]
    (found,) = record_batches(batch_from_records(records))
    assert head(found) == (100, 103, 0, 1000, 1000, 2)
    first = bytes([2 * 7, 0, 0, 0, 2, ord("k"), 1, 0])
    second = bytes([2 * 13, 0, 2 * 10 - 1, 6, 1, 0, 4, 2, ord("h"), 1, 0, 2, ord("v")])
    assert bytes(found.data[61:]) == first + bytes([2 * 12]) + second[1:]


@pytest.mark.usefixtures("kernel")
def test_a_batch_is_of_one_kind_of_time_and_of_one_time_of_the_log() -> None:
    times = [(5, 0), (9, 0), (7, 1), (7, 1), (8, 1), (-1, -1), (-1, -1), (3, 0)]
    records = [Record(n, time, kind, None, b"v", []) for n, (time, kind) in enumerate(times)]
    found = [head(each) for each in record_batches(batch_from_records(records))]
    assert found == [
        (0, 1, 0, 5, 9, 2),
        (2, 3, 8, 7, 7, 2),
        (4, 4, 8, 8, 8, 1),
        (5, 6, 0, -1, -1, 2),
        (7, 7, 0, 3, 3, 1),
    ]


@pytest.mark.usefixtures("kernel")
def test_a_batch_ends_at_its_size_and_where_offsets_are_too_far_apart() -> None:
    far = 2**31
    sizes = [(0, 200_000), (1, 200_000), (2, 200_000), (3, 2_000_000), (4, 1), (far + 4, 1), (far + 5, 1)]
    records = [Record(offset, 0, 0, None, b"v" * size, []) for offset, size in sizes]
    found = record_batches(batch_from_records(records))
    assert [head(each)[:2] for each in found] == [(0, 1), (2, 2), (3, 3), (4, 4), (far + 4, far + 5)]
    assert len(found[0].data) < MOST_BATCH_BYTES < len(found[2].data)


def test_the_extension_and_python_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        offset, records = rng.choice([0, 2**62]), []
        for _ in range(rng.randrange(60)):
            offset += rng.choice([1, 1, 1, 7, 2**31])
            kind = rng.choice([0] * 20 + [1, -1])
            time = -1 if kind < 0 else rng.choice([1000, 1001, -5, 2**63 - 1, -(2**63)])
            key, value = (rng.choice([None, b"", rng.randbytes(rng.randrange(300))]) for _ in range(2))
            headers = [
                (rng.choice(["", "h", "ü"]), rng.choice([None, b"", b"v"])) for _ in range(rng.choice([0, 0, 3]))
            ]
            records.append(Record(offset, time, kind, key, value, headers))
        batch = batch_from_records(records).slice(rng.randrange(3))
        with monkeypatch.context() as patch:
            patch.setattr(batches, "KERNEL", PYTHON)
            truth = record_batches(batch)
        assert record_batches(batch) == truth


def test_an_empty_batch_reaches_over_holes() -> None:
    assert head(empty_batch(7, 10)) == (7, 9, 0, -1, -1, 0)
    assert empty_batch(0, 2**40).end == 2**31


@pytest.mark.parametrize(
    ("codec", "number", "decompress"),
    [
        ("lz4", 3, lz4.frame.decompress),
        ("zstd", 4, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ],
)
def test_records_are_compressed(codec: str, number: int, decompress: object) -> None:
    batch = batch_from_records([Record(n, 5, 1, None, b"v" * 1000, []) for n in range(100)])
    (plain,), (found,) = record_batches(batch), record_batches(batch, codec)
    assert head(found)[2] == 8 + number and len(found.data) < 5000
    assert callable(decompress) and decompress(bytes(found.data[61:])) == plain.data[61:]

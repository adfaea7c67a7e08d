import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format.errors import CorruptBlock
from index_format.record_formats import record_format
from index_format.records import SCHEMA, Record, batch_from_records, iter_records
from tests.index_format.builders import normal, record, record_lists
from tests.support.format_objects import cut

FORMAT = record_format("arrow")


def stream_of(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


ROWS = [record(7, b"value", b"key", [("h", b"\xff"), ("h", None)]), record(9, None)]
BATCH = batch_from_records(ROWS)
STREAM = stream_of(BATCH)


@pytest.mark.slow
@given(record_lists(), st.sampled_from([1, 2_200, 2_600, 1 << 20]), st.lists(st.integers(0, 6), max_size=6))
def test_records_come_back_from_blocks_within_the_limit(
    rows: list[Record], block_bytes: int, batches: list[int]
) -> None:
    blocks = cut(rows, "arrow", block_bytes, batches)
    back: list[Record] = []
    for block in blocks:
        assert FORMAT.count(block.raw) == block.num_records
        assert len(block.raw) <= block_bytes or block.num_records == 1
        back += iter_records(FORMAT.decode(block.raw, block.first_offset, 0))
    assert normal(back) == normal(rows)


def test_a_slice_of_a_larger_batch_is_sized_and_written_alone() -> None:
    rows = [record(number, b"x" * number, None, [("k", b"y" * number)] * (number % 3)) for number in range(50)]
    whole = FORMAT.encode(batch_from_records(rows), 0)
    part = FORMAT.encode(batch_from_records(rows).slice(20, 10), 0)
    assert part[1][-1] == whole[1][29] - whole[1][19]
    raw = FORMAT.join([FORMAT.piece(*whole, 20, 25), FORMAT.piece(*part, 5, 10)])
    assert normal(list(iter_records(FORMAT.decode(raw, 20, 0)))) == normal(rows[20:30])
    assert len(raw) <= part[1][-1] + FORMAT.framing_bytes


def test_several_batches_in_one_stream_are_one_block() -> None:
    raw = stream_of(BATCH, batch_from_records([record(11)]))
    assert FORMAT.count(raw) == 3
    assert FORMAT.decode(raw, 7, 0).column("offset").to_pylist() == [7, 9, 11]


OTHER_SCHEMA = SCHEMA.set(4, pa.field("value", pa.large_binary()))
NULL_OFFSET = pa.record_batch([pa.array([7, None]), *BATCH.columns[1:]], names=SCHEMA.names)
ODD_TYPE = pa.record_batch([*BATCH.columns[:2], pa.array([0, 2], pa.int8()), *BATCH.columns[3:]], names=SCHEMA.names)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "schema"),
        (STREAM + b"\0", "does not end where the block does"),
        (STREAM + STREAM, "does not end where the block does"),
        (STREAM[:-8], "does not end where the block does"),
        (stream_of(BATCH, compression="zstd"), "compressed"),
        (stream_of(BATCH, compression="lz4"), "compressed"),
        (stream_of(schema=OTHER_SCHEMA), "columns are others"),
        (stream_of(pa.RecordBatch.from_arrays(NULL_OFFSET.columns, schema=SCHEMA)), "null or unknown"),
        (stream_of(pa.RecordBatch.from_arrays(ODD_TYPE.columns, schema=SCHEMA)), "null or unknown"),
    ],
    ids=["empty", "a byte more", "twice", "no end", "zstd inside", "lz4 inside", "schema", "null offset", "type"],
)
def test_what_is_not_such_a_stream(raw: bytes, why: str) -> None:
    with pytest.raises(CorruptBlock) as caught:
        FORMAT.decode(raw, 7, 0)
    assert why in (caught.value.why or "")


def test_an_empty_stream_holds_no_records() -> None:
    assert FORMAT.count(stream_of()) == 0
    with pytest.raises(CorruptBlock):
        FORMAT.decode(stream_of(), 0, 0)


def test_a_hostile_stream_is_refused_or_read_whole() -> None:
    """The checksums outside are the sender's own: what passes them must still not break the reader."""
    seed = random.randrange(2**32)
    source = random.Random(seed)
    for _ in range(1_500):
        damaged = bytearray(STREAM)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
        try:
            batch = FORMAT.decode(bytes(damaged), 7, 0)
        except CorruptBlock:
            continue
        assert len(list(iter_records(batch))) == batch.num_rows, f"seed {seed}"

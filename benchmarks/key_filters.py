"""`python -m benchmarks.key_filters`: what filters of keys cost, and how many blocks are read in vain, on one core.

Prints a markdown table for blocks of 1 MiB of JSON lines with values of 200 bytes: each key once (then a block has most
keys), and each ten times. Blocks in vain are those that a filter lets through for keys that no record has.
"""

import argparse
import time
from typing import NamedTuple

import pyarrow as pa

from benchmarks.data import batches
from benchmarks.measure import measured_on
from benchmarks.tables import Table, as_markdown
from index_format.blocks import BlockBuilder, IsalCompressor, RawBlock
from index_format.key_filter import hashes_of, may_hold
from index_format.record_formats import record_format

VALUE_BYTES = 200
BLOCK_BYTES = 1024 * 1024
CREATE_TIME = 0
BITS = (None, 8, 10, 12)
BATCH_RECORDS = 4000
KEYS = {"each once": 1, "each ten times": 10}


class Made(NamedTuple):
    """Blocks of records, and the seconds that they took a record."""

    blocks: list[RawBlock]
    seconds: float


def made(parts: list[pa.RecordBatch], bits: int | None) -> Made:
    """The blocks of some batches, compressed as the archiver does by default, and what a record took."""
    compressor = IsalCompressor(1)
    builder = BlockBuilder(record_format("json"), CREATE_TIME, BLOCK_BYTES, bits)
    blocks: list[RawBlock] = []
    begun = time.thread_time()
    for part in parts:
        for block in builder.add(part):
            compressor.compress(block.raw)
            blocks.append(block)
    return Made(blocks, (time.thread_time() - begun) / (len(parts) * BATCH_RECORDS))


def in_vain(blocks: list[RawBlock], asked: int) -> float:
    """The share of blocks that are read for keys that no record has."""
    hashes = [hashes_of([b"nobody-%d" % number]) for number in range(asked)]
    filters = [block.key_filter for block in blocks if isinstance(block.key_filter, bytes)]
    return sum(may_hold(each, key) for each in filters for key in hashes) / (len(filters) * asked)


def rows(count: int, rounds: int, asked: int) -> list[tuple[str, ...]]:
    """A row for each kind of keys and number of bits."""
    found = []
    for name, repeats in KEYS.items():
        parts = list(batches(count, BATCH_RECORDS, VALUE_BYTES, repeats))
        for bits in BITS:
            results = [made(parts, bits) for _ in range(rounds)]
            seconds, blocks = min(each.seconds for each in results), results[0].blocks
            size = sum(len(each.key_filter) for each in blocks if isinstance(each.key_filter, bytes)) / len(blocks)
            vain = "" if bits is None else f"{in_vain(blocks, asked):.2%}"
            found.append((f"keys {name}, {bits or 'no'} bits", f"{seconds * 1e9:,.0f}", f"{size:,.0f}", vain))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.key_filters", description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help=f"batches of {BATCH_RECORDS} records")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the least counts")
    parser.add_argument("--asked", type=int, default=2000, help="keys that no record has")
    given = parser.parse_args()
    print(f"{measured_on()}, one core\n")
    head = ("", "ns a record", "bytes a block", "blocks in vain")
    print(as_markdown(Table("Filters of keys", head, rows(given.batches, given.rounds, given.asked))))


if __name__ == "__main__":
    main()

"""The measurement of key filters: of its own keys each block is found, of others few."""

from benchmarks.key_filters import BITS, batches, in_vain, made, rows
from index_format.key_filter import hashes_of, may_hold


def test_blocks_know_their_own_keys_and_few_others() -> None:
    parts = list(batches(3, 10))
    blocks = made(parts, 10).blocks
    keys = {key for part in parts for key in part.column("key").to_pylist()}
    assert len(keys) == 1200
    assert all(isinstance(block.key_filter, bytes) for block in blocks)
    assert all(any(may_hold(block.key_filter, hashes_of([key])) for block in blocks) for key in sorted(keys)[:20])
    assert 0 < in_vain(blocks, 2000) < 0.02


def test_each_kind_and_number_of_bits_has_a_row() -> None:
    assert len(rows(2, 1, 10)) == 2 * len(BITS)

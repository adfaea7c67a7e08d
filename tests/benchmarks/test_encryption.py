"""The measurement of encryption: both ways give the records, and each kind has its two rows."""

from benchmarks.encryption import BATCH_RECORDS, CIPHER_OF_ALL, KINDS, batches, read, rows, written
from index_format.blocks import IsalCompressor


def test_both_ways_give_the_records() -> None:
    parts = batches(1, 1000)
    for cipher in (None, CIPHER_OF_ALL):
        blocks = written(parts, IsalCompressor(1), cipher)
        assert 0 < read(blocks, "gzip", cipher) <= BATCH_RECORDS


def test_each_kind_has_a_row_written_and_one_read() -> None:
    assert len(rows(2, 1)) == 2 * len(KINDS)

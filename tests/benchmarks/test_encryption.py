"""The measurement of encryption: all ways give the records, and each kind has its rows."""

import base64
from pathlib import Path

import pytest

from benchmarks.encryption import (
    BATCH_RECORDS,
    CIPHER_OF_ALL,
    KEYS,
    KINDS,
    WHAT,
    archived,
    batches,
    read,
    rows,
    scanned,
    written,
)
from index_format.blocks import IsalCompressor


def test_both_ways_give_the_records() -> None:
    parts = batches(1, 1000)
    for cipher in (None, CIPHER_OF_ALL):
        blocks = written(parts, IsalCompressor(1), cipher)
        assert 0 < read(blocks, "gzip", cipher) <= BATCH_RECORDS


def test_whole_chunks_give_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS.partition(":")[2], base64.b64encode(bytes(32)).decode())
    for keys in (None, KEYS):
        root = tmp_path / str(keys)
        archived(batches(1, 1000), "gzip", IsalCompressor(1), keys, root)
        assert scanned(keys, root) == BATCH_RECORDS
        assert [path.suffix for path in root.rglob("*.gz*")] == [".enc" if keys else ".gz"]


def test_each_kind_has_its_rows() -> None:
    assert len(rows(2, 1)) == len(WHAT) * len(KINDS)

"""How the sink asks the job what a batch read."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from archiver.commit.batch import BatchReading
from archiver.spark.read_ranges import ask_ranges, serve_ranges
from archiver.spark.rows import BatchRefused, RowPartition
from tests.support.terminal import printed


def readings_of(batch_id: int) -> Mapping[RowPartition, BatchReading]:
    if batch_id == 13:
        raise RuntimeError("the checkpoint is gone")
    return {RowPartition(f"topic-{n}", n): BatchReading(batch_id, batch_id + n) for n in range(batch_id)}


def test_each_batch_gets_its_own_answer() -> None:
    with serve_ranges(readings_of) as address:
        assert address is not None
        for batch_id in (0, 3, 2000):
            assert ask_ranges(address, batch_id) == readings_of(batch_id)


def test_without_an_answer_a_batch_is_not_committed(capfd: pytest.CaptureFixture[str]) -> None:
    """As when Spark's Java is killed: what the batch read would become a gap."""
    with serve_ranges(readings_of) as address:
        assert address is not None
        with pytest.raises(BatchRefused, match="batch 13 is not committed") as caught:
            ask_ranges(address, 13)
        assert "no longer answers" in caught.value.why
        assert ask_ranges(address, 1) == readings_of(1), "the next one is answered"
    assert printed(capfd) == []


def test_after_its_job_a_batch_is_not_committed(tmp_path: Path) -> None:
    """The Python process of a sink outlives a driver that is killed."""
    with serve_ranges(readings_of) as address:
        assert address is not None
        folder = Path(address).parent
        assert folder.stat().st_mode & 0o77 == 0, "others could answer in the job's place"
    assert not folder.exists()
    for nobody in (address, str(tmp_path)):
        with pytest.raises(BatchRefused):
            ask_ranges(nobody, 1)


def test_a_folder_that_no_socket_fits_into_leaves_readings_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with serve_ranges(readings_of) as address:
        assert address is None
    assert list(long.iterdir()) == []

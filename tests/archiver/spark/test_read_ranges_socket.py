"""How the sink asks the job what a batch read."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from archiver.commit.batch import Reading
from archiver.spark.read_ranges import ask_ranges, serve_ranges
from archiver.spark.rows import SourcePartition


def readings_of(batch_id: int) -> Mapping[SourcePartition, Reading]:
    if batch_id == 13:
        raise RuntimeError("the checkpoint is gone")
    return {SourcePartition(f"topic-{n}", n): Reading(batch_id, batch_id + n) for n in range(batch_id)}


def test_each_batch_gets_its_own_answer() -> None:
    with serve_ranges(readings_of) as address:
        assert address is not None
        for batch_id in (0, 3, 2000):
            assert ask_ranges(address, batch_id) == readings_of(batch_id)


def test_a_failure_is_not_an_answer_and_the_next_one_is_answered(capfd: pytest.CaptureFixture[str]) -> None:
    with serve_ranges(readings_of) as address:
        assert address is not None
        assert ask_ranges(address, 13) == {}
        assert ask_ranges(address, 1) == readings_of(1)
    assert capfd.readouterr().err == ""


def test_nobody_there_is_not_an_answer(tmp_path: Path) -> None:
    with serve_ranges(readings_of) as address:
        assert address is not None
        folder = Path(address).parent
        assert folder.stat().st_mode & 0o77 == 0, "others could answer in the job's place"
    assert not folder.exists()
    assert ask_ranges(address, 1) == {}
    assert ask_ranges(str(tmp_path), 1) == {}


def test_a_folder_that_no_socket_fits_into_leaves_readings_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with serve_ranges(readings_of) as address:
        assert address is None
    assert list(long.iterdir()) == []

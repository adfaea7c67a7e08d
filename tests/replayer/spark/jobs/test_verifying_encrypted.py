"""Tasks look the keys up for themselves, and find what one process finds."""

from pathlib import Path

import pytest

from blockgz.archive.archive import ArchivePlace
from blockgz.store.address import LocalAddress
from replayer.verify.chunk_checks import EVERY_CHUNK
from replayer.verify.report import Depth
from tests.archiver.spark.test_sink import Sink, at
from tests.replayer.spark.jobs.test_verifying import both
from tests.support.archives import records
from tests.support.encryption import key_line


@pytest.mark.parametrize("digests", [False, True])
def test_tasks_open_encrypted_chunks(tmp_path: Path, digests: bool) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    keys = f"file:{file}"
    sink = Sink(tmp_path / "archive")
    sink.write(at("orders", 0, records(range(60))), encrypt=keys, chunkRecords="20")
    place = ArchivePlace(LocalAddress(str(sink.folder)), keys=keys)
    ours, theirs, _ = both(place, Depth.RECORDS, EVERY_CHUNK, task_bytes=1, digests=digests)
    assert ours["verdict"] == theirs["verdict"] == "OK"
    assert [each["records"] for each in ours["partitions"]] == [60]
    closed = ArchivePlace(LocalAddress(str(sink.folder)))
    ours, theirs, _ = both(closed, Depth.BLOCKS, EVERY_CHUNK, task_bytes=1, digests=False)
    assert ours["verdict"] == theirs["verdict"] == "WARNING"
    assert [each["unopened_chunks"] for each in (*ours["partitions"], *theirs["partitions"])] == [3, 3]

"""The format `blockgz-archive` with keys: tasks encrypt, the driver commits, and `blockgz` reads it again."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from archiver.errors import Diverged
from blockgz.archive.positions import AT_START
from blockgz.spark.errors import ReadFailed
from index_format.errors import KeyMissing
from index_format.records import Record
from replayer.cli import main as replayer_main
from replayer.spark.planning import PartitionRange
from replayer.spark.source import BatchReader, ReadTask
from replayer.spark.source_options import SourceOptions, parse_options
from tests.archiver.spark.test_sink import Sink, at
from tests.support.archives import records
from tests.support.encryption import key_line


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    return f"file:{file}"


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "archive")


def source(sink: Sink, **options: str) -> SourceOptions:
    given = {"path": str(sink.folder), "subscribe": "orders", **options}
    return parse_options(given, default_start=AT_START)


def offsets(wanted: SourceOptions) -> list[int]:
    task = ReadTask(PartitionRange("orders~1", 0, 0, 60))
    batches = BatchReader(wanted, ("offset", "value")).read(task)
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def test_what_spark_wrote_with_keys_it_reads_with_keys(sink: Sink, keys: str) -> None:
    sink.write(at("orders", 0, records(range(30))), at("orders", 0, records(range(30, 60))), encrypt=keys)
    files = [path for path in sink.folder.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name.endswith(".gz.enc")]) == 2
    assert not any(b"value of" in path.read_bytes() for path in files)
    assert offsets(source(sink, keys=keys)) == list(range(60))
    with pytest.raises(ReadFailed, match="is encrypted"):
        offsets(source(sink))
    words = ["verify", "--records", "-a", str(sink.folder), "--keys", keys]
    assert CliRunner().invoke(replayer_main, words, prog_name="replayer").exit_code == 0


def test_a_batch_that_comes_again_is_compared_with_what_is_encrypted(sink: Sink, keys: str) -> None:
    rows = records(range(30))
    sink.write(at("orders", 0, rows), encrypt=keys)
    sink.write(at("orders", 0, rows), encrypt=keys)
    with pytest.raises(KeyMissing):
        sink.write(at("orders", 0, rows))
    other = [*rows[:-1], Record(29, 1, 0, b"another", b"record", ())]
    with pytest.raises(Diverged):
        sink.write(at("orders", 0, other), encrypt=keys)

"""`archiver status`: what markers tell, and what a running archiver tells."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archiver.cli import main
from archiver.ingest.ownership import PartitionState
from archiver.maintain.status import PartitionStatus, read_status
from archiver.monitor.server import serving
from archiver.monitor.snapshot import ServiceSnapshot
from blockgz.errors import NoArchiveThere, NotInArchive
from blockgz.store.address import S3Address, S3Settings
from blockgz.store.local import LocalStore
from blockgz.store.s3_writer import S3Store
from blockgz.topic_patterns import TopicSelection
from index_format.keys import SEED_HOME
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records
from tests.support.commands import succeeded
from tests.support.mock_cluster import MockCluster
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server
from tests.support.snapshots import partition, service


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["status", *arguments], env={"COLUMNS": "250"})


@pytest.fixture
def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveWriter:
    """Three topics, one of them created again; a gap, and a partition that has no record yet."""
    writer = ArchiveWriter(tmp_path / "archive")
    orders = writer.partition("orders", 0)
    orders.pretend(range(70))
    orders.lose(80)
    orders.commit(records(range(80, 90)))
    writer.partition("orders", 1)
    old = writer.partition("users", 0)
    old.commit(records(range(5)))
    old.hand_over("users~2")
    writer.partition("users", 0, incarnation=2).commit(records(range(3)))
    writer.partition("payments", 12).commit(records(range(7)))
    return writer


def test_a_partition_that_is_gone_is_named(archive: ArchiveWriter) -> None:
    shutil.rmtree(archive.root / "topic=payments")
    status = read_status(LocalStore(archive.root), None)
    (lost,) = [each for each in status.partitions if each.error]
    assert (lost.topic, lost.partition) == ("payments", 12) and "gone" in (lost.error or "")
    assert run("payments", "-a", str(archive.root)).exit_code == 3


def test_markers_tell_all(archive: ArchiveWriter) -> None:
    status = read_status(LocalStore(archive.root), None)
    assert (status.archive_id, status.layout, status.cluster_id) == (ARCHIVE_ID, "topic", None)
    assert [(str(each.folder), each.partition, each.next_offset) for each in status.partitions] == [
        ("orders", 0, 90),
        ("orders", 1, None),
        ("payments", 12, 7),
        ("users", 0, 5),
        ("users~2", 0, 3),
    ]
    orders, empty, _, old, new = status.partitions
    assert (orders.records, orders.chunks, orders.gaps, orders.epoch) == (80, 71, 1, 2)
    assert orders.bytes == 7000 + len(
        (archive.root / "topic=orders/partition=00000/00000000000000000080.gz").read_bytes()
    )
    assert (orders.start_offset, orders.newest_ms, orders.writer) == (0, 1_760_000_000_089, "writer-2")
    assert (empty.records, empty.newest_ms, empty.error) == (0, None, None)
    assert (old.successor, old.is_current, new.is_current) == ("users~2", False, True)


def test_topics_are_selected(archive: ArchiveWriter) -> None:
    store = LocalStore(archive.root)
    topics = {each.topic for each in read_status(store, TopicSelection(["users", "pay*"])).partitions}
    assert topics == {"users", "payments"}
    with pytest.raises(NotInArchive, match="'gone'") as caught:
        read_status(store, TopicSelection(["gone"]))
    assert caught.value.exit_code == 4
    assert "orders, payments, users" in caught.value.why
    with pytest.raises(NotInArchive, match=r"no archived topic matches '~x\.\*'"):
        read_status(store, TopicSelection(["~x.*"]))


def test_what_does_not_belong_is_skipped(archive: ArchiveWriter) -> None:
    for folder in ("topic=orders~1", "topic=..", "topic=", "other", "topic=orders/partition=7", ".buffer"):
        (archive.root / folder).mkdir(parents=True)
    (archive.root / "topic=file").write_bytes(b"")
    assert len(read_status(LocalStore(archive.root), None).partitions) == 5


def test_a_damaged_marker_is_its_partitions_error(archive: ArchiveWriter) -> None:
    (archive.root / "topic=orders/partition=00000/last_chunk_index.json").write_bytes(b"{}")
    (archive.root / "topic=orders/partition=00001/last_chunk_index.json").unlink()
    first, second, third, *_ = read_status(LocalStore(archive.root), None).partitions
    assert first.error is not None
    assert "is damaged" in first.error
    assert second == PartitionStatus(topic="orders", incarnation=1, partition=1, error=second.error)
    assert second.error == "there is no marker; archiver repair marker orders:1 rebuilds it"
    assert third.error is None
    result = run("-a", str(archive.root))
    assert result.exit_code == 3
    assert "is damaged" in result.stdout


def test_layout_seed(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path, layout="seed")
    writer.partition("orders", 3, record_format="text").commit(records([1]))
    assert (tmp_path / SEED_HOME).is_dir()
    (found,) = read_status(LocalStore(tmp_path), None).partitions
    assert (found.topic, found.partition, found.next_offset) == ("orders", 3, 2)


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(NoArchiveThere):
        read_status(LocalStore(tmp_path), None)
    result = run("-a", str(tmp_path / "typo"))
    assert result.exit_code == 10
    assert not (tmp_path / "typo").exists(), "looking creates nothing"


@pytest.mark.slow
def test_in_a_bucket(archive: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as url:
        bucket = Bucket(url, "backup")
        for path in archive.root.rglob("*.json"):
            bucket.put(f"kafka/{path.relative_to(archive.root).as_posix()}", path.read_bytes())
        bucket.close()
        store = S3Store(S3Address("backup", "kafka/"), S3Settings(url))
        found = read_status(store, None)
    assert found.partitions == read_status(LocalStore(archive.root), None).partitions
    assert found.archive == "s3://backup/kafka"


def test_the_table(archive: ArchiveWriter) -> None:
    result = succeeded(run("-a", str(archive.root), "orders"))
    heading, columns, first, second = result.stdout.splitlines()
    assert heading.split()[:2] == ["archive", ARCHIVE_ID]
    assert columns.split()[:6] == ["TOPIC", "PARTITION", "RECORDS", "CHUNKS", "SIZE", "NEXT"]
    assert first.split()[:4] == ["orders", "0", "80", "71"]
    assert "2025-10-09T08:53:20Z" in first
    assert second.split() == ["orders", "1", "0", "0", "0", "bytes", "-", "1", "0", "-", "writer-1"]


def test_json_is_the_status(archive: ArchiveWriter) -> None:
    result = run("-a", str(archive.root), "--json", "users")
    status = json.loads(result.stdout)
    assert status["archive_id"] == ARCHIVE_ID
    assert [each["next_offset"] for each in status["partitions"]] == [5, 3]
    assert set(status["partitions"][0]) == set(PartitionStatus.__struct_fields__)


def test_lag_to_the_high_watermark(tmp_path: Path) -> None:
    mock = MockCluster()
    mock.produce("orders", 0, records(range(10)))
    mock.produce("orders", 1, records(range(3)))
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(6)))
    writer.partition("orders", 1)
    writer.partition("gone", 0).commit(records(range(6)))
    result = succeeded(run("-a", str(tmp_path), "-b", mock.bootstrap_servers, "--json"))
    found = [
        (each["topic"], each["partition"], each["high_watermark"], each["lag"], each["unstable"])
        for each in json.loads(result.stdout)["partitions"]
    ]
    assert found == [("gone", 0, None, None, None), ("orders", 0, 10, 4, 0), ("orders", 1, 3, 3, 0)]


def snapshot() -> ServiceSnapshot:
    return service(
        partition(
            0,
            durable_offset=1042,
            lag_records=3,
            lag_seconds=4.4,
            unstable_records=17,
            commit_age_seconds=61.2,
            fetch_age_seconds=1.1,
            paused_seconds=3.0,
        ),
        partition(1, PartitionState.CLAIMING, trouble="the store does not answer"),
        partition(2, PartitionState.RELEASED),
    )


def test_of_a_running_archiver(unused_address: str) -> None:
    with serving(unused_address, snapshot):
        result = succeeded(run("--http", unused_address))
        heading, _, first, second, note = result.stdout.splitlines()
        unowned = "1 of 2 partitions are not archived: orders:1 is claiming (the store does not answer)"
        assert heading == f"archiver of file:///archive: {unowned}"
        assert first.split()[:6] == ["orders", "0", "archiving", "1042", "3", "4"]
        assert first.split()[6:12] == ["-", "17", "-", "61", "1", "yes"]
        assert second.split()[:4] == ["orders", "1", "claiming", "-"]
        assert note == "orders:1: the store does not answer"
        assert json.loads(run("--http", unused_address, "--json").stdout)["group_id"] == "group"
        assert json.loads(run("--http", unused_address, "--json", "users").stdout)["partitions"] == []


def test_a_stopped_partition_is_exit_code_3(unused_address: str) -> None:
    stopped = service(partition(0, PartitionState.STOPPED, failure="the log diverged"))
    with serving(unused_address, lambda: stopped):
        result = run("--http", f"http://{unused_address}")
    assert result.exit_code == 3
    assert "the log diverged" in result.stdout


def test_errors_say_what_to_do(unused_address: str) -> None:
    result = run()
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: there is nothing to look at")
    result = run("--http", unused_address)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 3)


@pytest.mark.slow
def test_watch_shows_it_again(archive: ArchiveWriter) -> None:
    command = [sys.executable, "-m", "archiver", "status", "-a", str(archive.root), "--json", "--watch", "--interval"]
    with subprocess.Popen([*command, "1ms"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.terminate()
    assert first == second
    assert json.loads(first)["archive_id"] == ARCHIVE_ID

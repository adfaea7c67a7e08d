import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import archiver
import blockgz
from blockgz.archive.damage import Verdict
from tests.support.archives import ArchiveWriter, records
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server

START_MS = 1_760_000_000_000


@pytest.fixture
def archive(writer: ArchiveWriter) -> Iterator[blockgz.Archive]:
    """Topics orders, of two partitions with 40 and 10 records, and users."""
    orders = writer.partition("orders", 0)
    orders.commit(records(range(30)))
    orders.commit(records(range(30, 40)))
    writer.partition("orders", 1).commit(records(range(10)))
    writer.partition("users", 0).commit(records(range(5)))
    with blockgz.open_archive(writer.root) as opened:
        yield opened


def test_topics_and_partitions(archive: blockgz.Archive) -> None:
    assert archive.topics() == ("orders", "users")
    assert archive.partitions("orders") == (0, 1)
    with pytest.raises(blockgz.NotInArchive, match="topic payments"):
        archive.partitions("payments")


def test_one_record_by_offset_and_by_time(archive: blockgz.Archive) -> None:
    found = archive.get("orders", 0, 35)
    assert (found.topic, found.partition, found.offset, found.key) == ("orders", 0, 35, b"35")
    assert (found.timestamp, found.timestamp_type) == (START_MS + 35, "CreateTime")
    assert found.headers == (("h", b"v"), ("h", None))
    assert archive.get("orders", 0, datetime.fromtimestamp(START_MS / 1000 + 0.035, UTC)) == found
    assert archive.get("orders", 0, -5) == found
    assert archive.get("orders", 0, "-5") == found


def test_why_a_record_is_not_there(archive: blockgz.Archive) -> None:
    with pytest.raises(blockgz.NotInArchive) as caught:
        archive.get("orders", 0, 40)
    assert caught.value.what == "there is no record orders:0:40"
    assert "not archived yet" in caught.value.why
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("choice", "offsets"),
    [
        ({"start": 38}, [38, 39]),
        ({"start": -3, "end": "latest"}, [37, 38, 39]),
        ({"start": "+5", "end": "+2"}, [5, 6]),
        ({"at": datetime.fromtimestamp(START_MS / 1000 + 0.002, UTC)}, [0, 1]),
        ({"since": f"@{START_MS + 38}"}, [38, 39]),
        ({"until": f"@{START_MS + 1}"}, [0]),
        ({"key": "4"}, [4]),
        ({"key": ["4", b"5"]}, [4, 5]),
        ({"key": [None], "end": 4}, [0, 3]),
        ({"headers": {"h": "v"}, "end": 6}, [0, 5]),
        ({"headers": {"h": None}, "end": 6}, [0, 5]),
        ({"grep": "of 3[89]"}, [39]),
        ({"limit": 3}, [0, 1, 2]),
        ({"limit": 0}, []),
        ({"key": None, "start": None, "end": 1}, [0]),
    ],
)
def test_records_are_chosen(archive: blockgz.Archive, choice: dict[str, object], offsets: list[int]) -> None:
    found = archive.records("orders", partitions=[0], **choice)  # type: ignore[arg-type]
    assert [each.offset for each in found] == offsets


def test_batches_hold_the_same_records_as_arrow(archive: blockgz.Archive) -> None:
    table = pa.Table.from_batches(archive.batches("orders"), schema=blockgz.BATCH_SCHEMA)
    places = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert places == [(0, offset) for offset in range(40)] + [(1, offset) for offset in range(10)]
    assert places == [(each.partition, each.offset) for each in archive.records("orders")]


def test_the_offsets_of_a_time(archive: blockgz.Archive) -> None:
    first, second = archive.find("orders", f"@{START_MS + 20}")
    assert (first.partition, first.offset, first.timestamp, first.found) == (0, 20, START_MS + 20, True)
    assert (second.partition, second.offset, second.timestamp, second.found) == (1, 10, None, False)
    assert archive.find("orders", f"@{START_MS + 20}", partitions=[0]) == (first,)


@pytest.mark.parametrize("depth", ["structure", "blocks", "records"])
def test_a_whole_archive_is_verified(archive: blockgz.Archive, depth: str) -> None:
    report = archive.verify(depth=depth)  # type: ignore[arg-type]
    assert report.verdict is Verdict.OK
    assert [(each.topic, each.partition) for each in report.partitions] == [("orders", 0), ("orders", 1), ("users", 0)]


def test_what_is_missing_is_in_the_report(archive: blockgz.Archive) -> None:
    assert archive.verify("orders:1", expected=["payments"]).unmet == ["payments"]


def test_damage_raises_in_its_place_or_is_named(archive: blockgz.Archive, writer: ArchiveWriter) -> None:
    second = writer.root / "topic=orders/partition=00000/00000000000000000030.gz"
    second.write_bytes(b"\0" * second.stat().st_size)
    seen = []
    with pytest.raises(blockgz.FormatError):
        for record in archive.records("orders", partitions=[0]):
            seen.append(record.offset)
    assert seen == list(range(30))
    lost: list[blockgz.LostRecords] = []
    assert [each.offset for each in archive.records("orders", partitions=[0], lost=lost)] == seen
    assert {offset for each in lost for offset in range(each.start, each.end)} == set(range(30, 40))
    assert {each.partition for each in lost} == {0}


def test_wrong_arguments_raise_at_once(archive: blockgz.Archive) -> None:
    with pytest.raises(blockgz.UsageError, match="not a position"):
        archive.records("orders", start="yesterday")
    with pytest.raises(blockgz.UsageError, match="both set the end"):
        archive.batches("orders", end=1, at="-1h")
    with pytest.raises(blockgz.UsageError, match="limit"):
        archive.records("orders", limit=-1)
    with pytest.raises(blockgz.UsageError, match="depth is 'deep'"):
        archive.verify(depth="deep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="partition"):
        archive.records("orders", partition=0)  # type: ignore[call-arg]


def test_a_relative_folder_is_that_of_the_call(
    writer: ArchiveWriter, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.partition("orders", 0).commit(records(range(3)))
    monkeypatch.chdir(writer.root.parent)
    with blockgz.open_archive(f"./{writer.root.name}") as archive:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        assert archive.topics() == ("orders",)


def test_where_no_archive_is(tmp_path: Path) -> None:
    with blockgz.open_archive(tmp_path / "nothing") as archive, pytest.raises(blockgz.NoArchiveThere) as caught:
        archive.topics()
    assert isinstance(caught.value, blockgz.BlockgzError)


def test_an_archive_is_used_within_a_running_loop(archive: blockgz.Archive) -> None:
    async def cell() -> list[int]:
        return [record.offset for record in archive.records("orders", partitions=[1])]

    assert asyncio.run(cell()) == list(range(10))


def test_an_archive_is_used_by_several_threads(archive: blockgz.Archive) -> None:
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append([each.offset for each in archive.records("orders")]))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[*range(40), *range(10)]] * 4


def test_a_closed_archive_says_so_and_leaves_no_thread(writer: ArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(30)))
    before = threading.active_count()
    with blockgz.open_archive(writer.root) as archive:
        iterator = archive.records("orders")
        assert next(iterator).offset == 0
    assert threading.active_count() == before
    archive.close()
    with pytest.raises(blockgz.UsageError, match="archive is closed"):
        archive.topics()
    del iterator
    gc.collect()


def test_an_iterator_that_is_left_ends_what_it_read_ahead(archive: blockgz.Archive) -> None:
    for _ in range(20):
        assert next(archive.records("orders")).offset == 0
    assert archive.get("orders", 0, 1).offset == 1


@pytest.mark.slow
def test_an_archive_on_s3_with_a_profile(
    writer: ArchiveWriter, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.partition("orders", 0).commit(records(range(30)))
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path_factory.mktemp("aws") / "credentials"
    file.write_text("[archives]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with s3_server() as url:
        bucket = Bucket(url, "archives")
        for path in filter(Path.is_file, writer.root.rglob("*")):
            bucket.put(f"prefix/{path.relative_to(writer.root)}", path.read_bytes())
        bucket.close()
        place = {"endpoint_url": url, "region": "us-east-1"}
        with blockgz.open_archive("s3://archives/prefix", profile="archives", **place) as archive:
            assert archive.get("orders", 0, 17).offset == 17
            with pytest.raises(blockgz.UsageError, match="there is no job restore-1"):
                archive.verify_job("restore-1", kafka="127.0.0.1:9", jobs="s3://archives/jobs")
        with blockgz.open_archive("s3://archives/prefix", **place) as archive, pytest.raises(blockgz.AccessDenied):
            archive.topics()
        before = threading.active_count()
        with pytest.raises(blockgz.UsageError, match="S3 client"):
            blockgz.open_archive("s3://archives/prefix", profile="nobody", **place)
        assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize("program", ["replayer", "archiver"])
def test_the_version(program: str) -> None:
    done = subprocess.run([sys.executable, "-m", program, "--version"], check=True, capture_output=True, text=True)
    assert f"version {blockgz.__version__}\n" in done.stdout
    assert archiver.__version__ == blockgz.__version__


@pytest.mark.parametrize("names", ["blockgz", "blockgz.errors", "replayer, archiver"])
def test_importing_the_package_loads_no_library(names: str) -> None:
    heavy = ("pyarrow", "pydantic", "asyncio", "click", *([] if "replayer" in names else ["replayer", "archiver"]))
    code = f"import sys, {names}; print([name for name in sys.modules if name in {heavy!r}])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_all_that_is_exported_is_there() -> None:
    assert [name for name in blockgz.__all__ if getattr(blockgz, name, None) is None] == []
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = blockgz.nothing_such  # type: ignore[attr-defined]


def test_records_on_the_wrong_side_of_a_time_are_warned_of(writer: ArchiveWriter, tmp_path: Path) -> None:
    skewed = writer.partition("skewed", 0)
    skewed.commit(records(range(250), timestamps=[5_000] * 250))
    skewed.commit(records(range(250, 600), timestamps=[1_000] * 350))
    note = "skewed:0  offset 0 is the first record stamped 1970-01-01T00:00:03Z or later: at least 350 records"
    with blockgz.open_archive(writer.root) as archive:
        with pytest.warns(UserWarning, match=note):
            assert len(list(archive.records("skewed", start=datetime.fromtimestamp(3, UTC)))) == 600
        with pytest.warns(UserWarning, match=note):
            archive.export("skewed", tmp_path / "out.csv", end=datetime.fromtimestamp(3, UTC))

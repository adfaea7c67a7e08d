import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import archiver
import blockgz
from blockgz.archive.archive import TopicPartitions
from blockgz.errors import Verdict
from index_format.records import iter_records
from replayer.kafka.reader import KafkaReader
from replayer.library import BackgroundLoop
from replayer.library_replay import ReplayChoice, replay_request
from replayer.replay.request import ReplayRequest
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
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


SECONDS = 10


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


class Endless:
    """Work that ends by being cancelled alone."""

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Endless:
    """Work at which its caller is interrupted, as by Ctrl-C."""
    endless = Endless()
    schedule = asyncio.run_coroutine_threadsafe

    class Interrupted:
        def __init__(self, future: Future[Any]) -> None:
            self._future = future

        def result(self) -> Any:
            while not endless.cancelled.is_set() and not self._future.done():
                if endless.begun.wait(0.01):
                    raise KeyboardInterrupt
            return self._future.result()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *work: Interrupted(schedule(*work)))
    return endless


def test_an_interrupt_cancels_the_work_and_the_loop_continues(loop: BackgroundLoop, interrupted: Endless) -> None:
    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted.work())
    assert interrupted.cancelled.is_set()
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_an_interrupt_ends_a_generator_that_is_at_work(loop: BackgroundLoop, interrupted: Endless) -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            await interrupted.work()
        finally:
            await asyncio.sleep(0)
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        list(loop.iterate(numbers()))
    assert ended.is_set()


def test_an_interrupt_before_the_work_begins(loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()

    def interrupt(made: Coroutine[Any, Any, Any], _: object) -> None:
        made.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(asyncio, "run_coroutine_threadsafe", interrupt)
        work = endless.work()
        with pytest.raises(KeyboardInterrupt):
            loop.run(work)
        work.close()
    assert not endless.begun.is_set()
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_close_ends_what_other_threads_wait_for(loop: BackgroundLoop) -> None:
    endless = Endless()
    ended = threading.Event()

    def waits() -> None:
        with pytest.raises(CancelledError):
            loop.run(endless.work())
        ended.set()

    thread = threading.Thread(target=waits)
    thread.start()
    assert endless.begun.wait(SECONDS)
    loop.close()
    thread.join()
    assert ended.is_set()


def test_a_generator_that_is_left_is_ended(loop: BackgroundLoop) -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            ended.set()

    for number in loop.iterate(numbers()):
        if number == 3:
            break
    assert ended.is_set()
    assert list(loop.iterate(numbers())) == list(range(10))


def test_the_thread_that_makes_a_loop_has_none_of_its_own() -> None:
    BackgroundLoop().close()
    assert asyncio.run(asyncio.sleep(0, "mine")) == "mine"


@pytest.fixture
def replay_archive(writer: ArchiveWriter) -> Iterator[blockgz.Archive]:
    for partition in range(3):
        writer.partition("orders", partition).commit(records(range(40)))
    with blockgz.open_archive(writer.root) as opened:
        yield opened


def test_a_plan_writes_nothing(replay_archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    plan = replay_archive.plan_replay("orders", copy, kafka=cluster.bootstrap_servers, end=30)
    assert (plan.records, [each.partition for each in plan.sources]) == (90, [0, 1, 2])
    again = replay_archive.plan_replay("orders", copy, kafka=cluster.bootstrap_servers, end=30)
    assert not [warning for warning in again.warnings if "not empty" in warning]


def test_a_replay_and_its_progress(replay_archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    steps: list[tuple[int, int]] = []
    done = replay_archive.replay(
        "orders",
        copy,
        kafka={"bootstrap.servers": cluster.bootstrap_servers},
        partitions=[0, 2],
        start=30,
        add_headers={"from": "archive"},
        progress=lambda *step: steps.append(step),
    )
    assert done.result.complete
    assert (done.plan.records, done.result.records) == (20, 20)
    assert sum(count for count, _ in steps) == 20
    with closing(KafkaReader({"bootstrap.servers": cluster.bootstrap_servers})) as reader:
        written = [record for batch in reader.read(copy, 2, 0, 10) for record in iter_records(batch)]
    assert [each.value for each in written] == [each.value for each in records(range(30, 40))]
    assert {each.headers[-1] for each in written} == {("from", b"archive")}


@pytest.mark.slow
def test_a_copy_is_compared_and_its_job_is_proved(
    replay_archive: blockgz.Archive, cluster: MockCluster, copy: str
) -> None:
    kafka = cluster.bootstrap_servers
    done = replay_archive.replay("orders", copy, kafka=kafka, end=30)
    assert replay_archive.compare("orders", copy, kafka=kafka, end=30).verdict is Verdict.OK
    assert replay_archive.compare("orders", copy, kafka=kafka).verdict is Verdict.FAILURE
    proof = replay_archive.verify_job(done.plan.job.name, kafka=kafka)
    assert (proof.verdict, sum(lane.records for lane in proof.lanes)) == ("OK", 90)
    with pytest.raises(blockgz.UsageError, match="no job other"):
        replay_archive.verify_job("other", kafka=kafka)


@pytest.mark.slow
def test_a_second_copy_is_refused(replay_archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    replay_archive.replay("orders", copy, kafka=cluster.bootstrap_servers)
    with pytest.raises(blockgz.ReplayRefused) as caught:
        replay_archive.replay("orders", copy, kafka=cluster.bootstrap_servers, job="second")
    assert caught.value.remedy


@pytest.mark.slow
def test_damage_raises_or_is_named(
    replay_archive: blockgz.Archive, writer: ArchiveWriter, cluster: MockCluster, copy: str
) -> None:
    data = writer.root / "topic=orders/partition=00001/00000000000000000000.gz"
    data.write_bytes(b"\0" * data.stat().st_size)
    lost: list[blockgz.LostRecords] = []
    done = replay_archive.replay("orders", copy, kafka=cluster.bootstrap_servers, lost=lost)
    assert done.result.records == 80
    assert {each.partition for each in lost} == {1}
    with pytest.raises(blockgz.FormatError):
        replay_archive.replay("orders", copy, kafka=cluster.bootstrap_servers, append=True, job="strict")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"tombstones": "burn"}, "tombstones is 'burn'"),
        ({"routing": "anywhere"}, "anywhere"),
        ({"compression": "rar"}, "rar"),
        ({"start": "soon"}, "not a position"),
        ({"transforms": "none.yaml"}, "none.yaml cannot be read"),
    ],
)
def test_arguments_that_cannot_be_used(choice: ReplayChoice, words: str) -> None:
    with pytest.raises(blockgz.UsageError, match=words):
        replay_request("orders", "copy", choice)


def test_a_request_without_choices_is_that_of_the_command() -> None:
    request = replay_request("orders", "{topic}-copy", {})
    assert (request.topic, request.target) == (TopicPartitions("orders", None), "orders-copy")
    names = ("routing", "timestamps", "retention", "job", "resume")
    plain = ReplayRequest(request.topic, "orders-copy")
    assert [getattr(request, name) for name in names] == [getattr(plain, name) for name in names]


def test_all_that_a_replay_can_be_asked_for_can_be_given() -> None:
    """The library has every option of the command, but those of its process."""
    fields = set(ReplayRequest.__dataclass_fields__)
    renamed = {"chain": "transforms", "pace": "rate"}
    above = {"topic", "target", "selection", "undo_retention", "on_damage", "new_topic", "follows"}
    assert {renamed.get(name, name) for name in fields - above} <= ReplayChoice.__annotations__.keys()


@pytest.mark.slow
def test_a_copy_of_a_topic_whose_log_was_truncated_is_proved_and_resumed(
    writer: ArchiveWriter, replay_archive: blockgz.Archive, cluster: MockCluster, copy: str
) -> None:
    older = writer.partition("lines", 0)
    older.commit(records(range(10)))
    older.commit(records(range(10, 20)))
    writer.partition("lines", 1).commit(records(range(5)))
    older.truncated(10).commit(records(range(10, 50), value_bytes=30))
    kafka = cluster.bootstrap_servers
    done = replay_archive.replay("lines", copy, kafka=kafka, job="truncated")
    assert done.result.records == 55
    proof = replay_archive.verify_job("truncated", kafka=kafka)
    assert (proof.verdict, [lane.faults for lane in proof.lanes]) == ("OK", [[], []])
    assert replay_archive.replay("lines", copy, kafka=kafka, job="truncated", resume=True).result.complete


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="tempo"):
        replay_request("orders", "copy", {"tempo": "1x"})  # type: ignore[typeddict-unknown-key]

"""Tasks and driver of the format `blockgz-archive` without Spark, judged by the program `replayer`."""

import asyncio
import json
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark import cloudpickle

from archiver.commit.commit import PartitionIdentity
from archiver.commit.operations import Driver, UnreadLog
from archiver.errors import Diverged, Fenced, OwnedByAnother
from archiver.maintain.compact import Compaction, PartitionCompaction, PlannedCompaction
from archiver.maintain.rewrite.contents import MergeLimits
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.spark import sink as commit
from archiver.spark.context import WriteContext, open_context, parse_options
from archiver.spark.job import CompactionTask
from archiver.spark.rows import BatchRefused, to_rows
from archiver.spark.sink import BatchOutcome, as_write_failed, commit_all, ordered
from archiver.spark.task import PartitionBatch, differs, write_task
from benchmarks.compact import command, small_chunks
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import AT_START
from blockgz.errors import BadName, BlockgzError, KeyMissing, MalformedObject, ObjectMissing, StoreError, UsageError
from blockgz.errors import exit_code as exit_code_of
from blockgz.spark.errors import JobFailed, ReadFailed, SparkFailed, TaskFailed, WriteFailed, failure_of
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
from index_format import marker as markers
from index_format.keys import TopicPartition
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES
from index_format.records import Record
from replayer.cli import main as replayer_main
from replayer.spark.planning import PartitionRange
from replayer.spark.source import BatchReader, ReadTask
from replayer.spark.source_options import SourceOptions
from replayer.spark.source_options import parse_options as parse_source_options
from tests.support.archives import records
from tests.support.chunks import archive_all, identity_of
from tests.support.encryption import key_line
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
FIELDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
Placed = tuple[str, int, Record]


def at(topic: str, partition: int, rows: Sequence[Record]) -> list[Placed]:
    return [(topic, partition, row) for row in rows]


def spark_batch(rows: Sequence[Placed]) -> pa.RecordBatch:
    """As Spark hands it over; a record without headers has null there."""
    columns = {
        "key": [row.key for _, _, row in rows],
        "value": [row.value for _, _, row in rows],
        "topic": [topic for topic, _, _ in rows],
        "partition": [partition for _, partition, _ in rows],
        "offset": [row.offset for _, _, row in rows],
        "timestamp": [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row.timestamp) for _, _, row in rows],
        "timestampType": [row.timestamp_type for _, _, row in rows],
        "headers": [[{"key": k, "value": v} for k, v in row.headers] or None for _, _, row in rows],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in FIELDS], schema=FIELDS)


def batches(rows: Sequence[Placed], size: int = 7) -> list[pa.RecordBatch]:
    return [spark_batch(rows[start : start + size]) for start in range(0, len(rows), size)]


class Sink:
    """An archive in a folder, written as Spark would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def context(self, **options: str) -> WriteContext:
        given = {"path": str(self.folder), "singleWriter": "true", **options}
        return open_context(parse_options(given), is_batch=True)

    def task(self, rows: Sequence[Placed], **options: str) -> tuple[PartitionBatch, ...]:
        """One task; its report went over the wire."""
        sent: WriteContext = pickle.loads(pickle.dumps(self.context(**options)))
        report: tuple[PartitionBatch, ...] = pickle.loads(pickle.dumps(write_task(map(to_rows, batches(rows)), sent)))
        return report

    def commit(
        self,
        *reports: tuple[PartitionBatch, ...],
        readings: Mapping[TopicPartition, range] | None = None,
        **options: str,
    ) -> list[BatchOutcome]:
        context = self.context(**options)
        every = [each for report in reports for each in report]
        batches = ordered(every, missing_are_unverified=context.options.missing_are_unverified)
        outcomes = commit_all(batches, context, readings or {})
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return outcomes

    def write(self, *tasks: Sequence[Placed], **options: str) -> list[BatchOutcome]:
        return self.commit(*(self.task(rows, **options) for rows in tasks), **options)

    def replayer(self, *arguments: str) -> str:
        done = CliRunner().invoke(replayer_main, [*arguments, "-a", str(self.folder)], prog_name="replayer")
        assert done.exit_code == 0, done.output
        return done.stdout

    def verify(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.replayer("verify", "--deep", "--records", "--json"))
        return found

    def offsets(self, topic: str = "orders:0") -> list[int]:
        return [json.loads(line)["offset"] for line in self.replayer("cat", topic, "--json").splitlines()]

    def lines(self, topic: str = "orders:0") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.replayer("cat", topic, "--json").splitlines()]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "archive")


@pytest.mark.parametrize(
    "options",
    [{}, {"recordFormat": "arrow", "codec": "zstd"}, {"blockBytes": "300", "chunkRecords": "13"}],
    ids=["json", "arrow-zstd", "small-chunks"],
)
def test_whole_records_in_any_order_become_an_archive(sink: Sink, options: dict[str, str]) -> None:
    seed = random.randrange(2**32)
    rows = at("orders", 0, records(range(100))) + at("orders", 1, records(range(5, 60))) + at("p.x", 0, records([3]))
    random.Random(seed).shuffle(rows)
    sink.write(rows, **options)
    found = sink.verify()
    assert found["verdict"] == "OK", f"seed {seed}"
    assert {(each["topic"], each["partition"]): each["records"] for each in found["partitions"]} == {
        ("orders", 0): 100,
        ("orders", 1): 55,
        ("p.x", 0): 1,
    }
    for line, row in zip(sink.lines(), records(range(100)), strict=True):
        assert (line["offset"], line["timestamp"], line["timestamp_type"]) == (row.offset, row.timestamp, "CreateTime")
        assert line["key"] == (None if row.key is None else row.key.decode())
        assert line["value"] == (None if row.value is None else row.value.decode())
        headers = [(header["key"], header["value"]) for header in line.get("headers", [])]
        assert headers == [(key, None if value is None else value.decode()) for key, value in row.headers]


def test_types_of_timestamps_and_records_without_any_are_kept(sink: Sink) -> None:
    rows = [
        Record(0, -1, -1, None, b"", ()),
        Record(1, 0, 0, b"", None, ()),
        Record(2, 5, 1, b"\xff", b"\xfe", (("h", b"\xff"), ("h", None), ("", b""))),
    ]
    sink.write(at("orders", 0, rows))
    lines = sink.lines()
    assert [(line["timestamp"], line["timestamp_type"]) for line in lines] == [
        (-1, "NoTimestampType"),
        (0, "CreateTime"),
        (5, "LogAppendTime"),
    ]
    assert (lines[0]["value"], lines[1]["value"], lines[1]["key"]) == ("", None, "")
    assert [header["key"] for header in lines[2]["headers"]] == ["h", "h", ""]
    assert sink.verify()["verdict"] == "OK"


def test_many_tasks_share_a_partition_as_long_as_they_do_not_overlap(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(50, 70))), at("orders", 0, records(range(0, 40))), [])
    assert sink.offsets() == [*range(0, 40), *range(50, 70)]
    assert sink.verify()["verdict"] == "OK", "offsets that lack inside a batch are the log's holes"


def test_overlaps_are_refused_before_anything_is_committed(sink: Sink) -> None:
    with pytest.raises(BatchRefused) as caught:
        sink.write(at("orders", 0, records(range(0, 10, 2))), at("orders", 0, records(range(1, 10, 2))))
    assert "sortWithinPartitions" in caught.value.remedy
    assert not list(sink.folder.rglob("last_chunk_index.json"))


@pytest.mark.parametrize("twice", [records([3, 4, 4]), records([4, 3, 4])])
def test_an_offset_that_occurs_twice_is_refused(sink: Sink, twice: list[Record]) -> None:
    with pytest.raises(BatchRefused, match="offset 4 occurs twice"):
        sink.task(at("orders", 0, twice))


@pytest.mark.slow
def test_more_than_memory_holds_must_be_in_order(sink: Sink) -> None:
    rows = records(range(400), value_bytes=200_000)
    orders = at("orders", 0, rows)
    outcomes = sink.write(orders, memory="32MiB")
    assert sum(len(each.batch.chunks) for each in outcomes) == 1
    backwards = at("payments", 0, rows[200:]) + at("payments", 0, rows[:200])
    with pytest.raises(BatchRefused, match="came after") as caught:
        sink.write(backwards, memory="32MiB")
    assert "repartition" in caught.value.remedy
    sink.write(backwards, memory="128MiB")
    assert sink.offsets("payments:0") == list(range(400))


@pytest.mark.slow
def test_a_chunk_ends_within_what_is_sorted_at_once(sink: Sink) -> None:
    source = random.Random(1)
    rows = [row._replace(value=source.randbytes(100_000)) for row in records(range(200))]
    (done,) = sink.write(at("orders", 0, rows), chunkBytes="3MiB", recordFormat="arrow")
    sizes = [chunk.data.bytes for chunk in done.batch.chunks]
    assert len(sizes) >= 4 and max(sizes) < 3 * 1024**2 + 5 * 1024**2, sizes
    assert sink.offsets() == list(range(200))


@pytest.mark.slow
def test_small_memory_ends_blocks_of_many_partitions_early(sink: Sink) -> None:
    """Forty open blocks of up to a mebibyte each do not fit into a quarter of 32 MiB."""
    rows = [
        placed
        for offset in range(30)
        for partition in range(40)
        for placed in at("orders", partition, records([offset], value_bytes=40_000))
    ]
    sink.write(rows, memory="32MiB")
    found = sink.verify()
    assert found["verdict"] == "OK"
    assert [each["records"] for each in found["partitions"]] == [30] * 40
    blocks = [len(json.loads(path.read_bytes())["chunks"]) for path in sink.folder.rglob("*.index.json")]
    # Once 32 MiB have gathered a partition has less than a block of them: a second block tells of an early end.
    assert sum(count > 1 for count in blocks) >= 20, blocks


def test_a_batch_that_runs_again_leaves_out_what_is_there(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(20))))
    before = sorted(sink.folder.rglob("*.gz"))
    (again,) = sink.write(at("orders", 0, records(range(20))))
    assert (again.batch.dropped, again.committed) == (20, None)
    assert sorted(sink.folder.rglob("*.gz")) == before
    (further,) = sink.write(at("orders", 0, records(range(10, 30))))
    assert further.batch.dropped == 10
    assert sink.offsets() == list(range(30))


def test_a_jump_is_recorded_as_unverified(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(10))))
    sink.write(at("orders", 0, records(range(15, 20))))
    found = sink.verify()
    assert found["verdict"] == "WARNING"
    assert found["partitions"][0]["gaps"] == [{"from": 10, "to": 15, "reason": "unverified"}]
    assert "unverified" in sink.replayer("describe", "orders")


def test_what_a_batch_is_known_to_have_read_leaves_no_gaps(sink: Sink) -> None:
    """Two partitions, of which one has no record in the second batch; a third one has none at all."""
    first, second, never = (TopicPartition("orders", partition) for partition in range(3))
    context = sink.context()
    report = sink.task(at("orders", 0, records(range(10))) + at("orders", 1, records(range(4))))
    sink.commit(report, readings={first: range(0, 11), second: range(0, 5), never: range(0, 3)})
    report = sink.task(at("orders", 0, records(range(12, 20))))
    sink.commit(report, readings={first: range(11, 21), second: range(5, 9)})
    report = sink.task(at("orders", 0, records(range(23, 25))) + at("orders", 1, records(range(9, 11))))
    done = sink.commit(report, readings={first: range(21, 26), second: range(9, 12)})
    assert [each.committed and each.committed.gap for each in done] == [None, None]
    found = sink.verify()
    assert (found["verdict"], [each["records"] for each in found["partitions"]]) == ("OK", [20, 6])
    assert not (sink.folder / context.identity(never).keys.home).exists()
    sink.write(at("orders", 0, records(range(27, 30))))
    assert sink.verify()["partitions"][0]["gaps"] == [{"from": 26, "to": 27, "reason": "unverified"}]


def test_a_partition_without_a_record_that_fails_keeps_no_other_from_its_commit(sink: Sink) -> None:
    sink.write(at("orders", 1, records(range(4))), groupId="another")
    report = sink.task(at("orders", 0, records(range(4))))
    with pytest.raises(OwnedByAnother):
        sink.commit(
            report, readings={TopicPartition("orders", 0): range(0, 5), TopicPartition("orders", 1): range(4, 5)}
        )
    assert sink.offsets() == list(range(4))


def test_records_that_come_too_late_are_not_told_as_held(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the archive's start and inside its gap: what is left out there is nowhere."""
    sink.write(at("orders", 0, records(range(10, 20))))
    sink.write(at("orders", 0, records(range(25, 30))))
    told: list[tuple[str, int]] = []
    warning = SimpleNamespace(warning=lambda event, **keys: told.append((event, keys["records"])))
    monkeypatch.setattr(commit, "log", warning)
    (again,) = sink.write(at("orders", 0, records(range(35))), at("orders", 1, records(range(3))))[:1]
    assert (again.batch.dropped, again.batch.too_late) == (15, 15)
    assert told == [("dropped", 15), ("too_late", 15)]
    assert sink.offsets() == [*range(10, 20), *range(25, 35)]


def test_another_topic_is_noticed_beside_records_that_come_too_late(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(10))))
    sink.write(at("orders", 0, records(range(15, 20))))
    other = [row._replace(value=b"another") for row in records(range(13))]
    with pytest.raises(Diverged, match="offset 9"):
        sink.write(at("orders", 0, other))


def test_tasks_that_failed_leave_orphans_and_no_more(sink: Sink) -> None:
    sink.task(at("orders", 0, records(range(20))))
    report = sink.task(at("orders", 0, records(range(20))))
    sink.task(at("orders", 0, records(range(20))))
    sink.commit(report)
    assert len(list(sink.folder.rglob("*.gz"))) == 3
    assert sink.offsets() == list(range(20))
    assert sink.verify()["verdict"] in ("OK", "WARNING")


def test_two_drivers_with_the_same_batch_commit_it_once(sink: Sink) -> None:
    first, second = (sink.task(at("orders", 0, records(range(20)))) for _ in range(2))
    sink.commit(first)
    (late,) = sink.commit(second)
    assert late.committed is not None and (late.committed.passed, late.committed.chunks) == (20, 0)
    third = sink.task(at("orders", 0, records(range(20, 40))))
    sink.write(at("orders", 0, records(range(20, 30))))
    with pytest.raises(Fenced, match="during this batch"):
        sink.commit(third)
    assert sink.offsets() == list(range(30))


def test_a_partition_that_fails_keeps_no_other_from_its_commit(sink: Sink) -> None:
    stale = sink.task(at("orders", 0, records(range(20))) + at("orders", 1, records(range(20))))
    sink.write(at("orders", 0, records(range(5))))
    with pytest.raises(Fenced):
        sink.commit(stale)
    assert (sink.offsets("orders:0"), sink.offsets("orders:1")) == (list(range(5)), list(range(20)))


def test_another_topic_of_the_same_name_does_not_pass_for_what_is_archived(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(20))))
    other = [row._replace(value=b"another") for row in records(range(20))]
    for few in (other, other[3:8]):
        with pytest.raises(Diverged, match=f"offset {few[-1].offset}"):
            sink.write(at("orders", 0, few))
    ids = json.dumps({"orders": "id-2"})
    sink.write(at("orders", 0, other), topicIds=json.dumps({"orders": "id-1"}), path=str(sink.folder) + "2")
    sink.folder = Path(str(sink.folder) + "2")
    sink.write(at("orders", 0, records(range(20))), topicIds=ids)
    assert [line["value"] for line in sink.lines("orders~1:0")] == ["another"] * 20
    assert len(sink.offsets("orders:0")) == 20


def test_a_partition_of_another_group_is_refused_unless_taken_over(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(20))), groupId="blockgz-archiver")
    with pytest.raises(WriteFailed) as caught, as_write_failed():
        sink.write(at("orders", 0, records(range(20, 30))))
    assert "use groupId blockgz-archiver, or takeover once" in str(caught.value)
    sink.write(at("orders", 0, records(range(20, 30))), takeover="true")
    with pytest.raises(OwnedByAnother):
        sink.write(at("orders", 0, records(range(30, 40))), groupId="blockgz-archiver")
    assert sink.offsets() == list(range(30))


def test_layout_seed_for_readers_of_the_ancestor(sink: Sink) -> None:
    rows = [Record(offset, -1, -1, None, b"%d" % offset, ()) for offset in range(20)]
    options = {"layout": "seed", "recordFormat": "text"}
    sink.write(at("bar", 0, rows[:10]), **options)
    sink.write(at("bar", 0, rows[10:]), **options)
    assert (sink.folder / "last_chunk_index.bar-00000.txt").read_text().endswith("bar-00000-000000000010.index.json")
    assert sink.verify()["verdict"] == "OK"
    with pytest.raises(BatchRefused, match="offset 20"):
        sink.write(at("bar", 0, [Record(20, -1, -1, None, b"two\nlines", ())]), **options)


def test_jumps_may_be_refused(sink: Sink) -> None:
    sink.write(at("orders", 0, records(range(10))))
    with pytest.raises(WriteFailed, match="onGap record"), as_write_failed():
        sink.write(at("orders", 0, records(range(15, 20))), onGap="stop")
    assert sink.verify()["verdict"] == "OK"


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("offset", None, "column offset holds a null"),
        ("offset", -1, "column offset holds -1"),
        ("partition", -1, "column partition holds -1"),
        ("topic", None, "column topic holds a null"),
        ("timestamp", datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC), "fractions of a millisecond"),
        ("timestampType", 2, "column timestampType holds 2"),
        ("headers", [{"key": None, "value": b""}], "a header without a key"),
        ("headers", [None], "a header without a key"),
    ],
)
def test_what_no_record_of_kafka_is(column: str, value: object, says: str) -> None:
    batch = spark_batch(at("orders", 0, records(range(3))))
    cells = batch.column(column).to_pylist()
    cells[1] = value
    broken = batch.set_column(
        batch.schema.get_field_index(column),
        batch.schema.field(column),
        pa.array(cells, batch.schema.field(column).type),
    )
    with pytest.raises(BatchRefused, match=says):
        to_rows(broken)


def test_headers_of_a_slice_are_its_own() -> None:
    rows = records(range(20))
    whole, part = to_rows(spark_batch(at("orders", 0, rows))), to_rows(spark_batch(at("orders", 0, rows)).slice(4, 9))
    assert part.column("headers").to_pylist() == whole.column("headers").to_pylist()[4:13]
    assert to_rows(spark_batch(at("orders", 0, rows)).slice(0, 0)).num_rows == 0


def test_a_name_that_is_not_a_topics_is_refused(sink: Sink) -> None:
    with pytest.raises(ValueError, match="not a topic name"):
        sink.task(at("../etc", 0, records([1])))


def test_an_archive_of_another_cluster_is_refused(sink: Sink) -> None:
    sink.write(at("orders", 0, records([1])), clusterId="one")
    with pytest.raises(Diverged, match="another cluster"):
        sink.context(clusterId="two")
    with pytest.raises(UsageError, match="layout"):
        sink.context(layout="seed", recordFormat="text")


def test_data_that_the_driver_does_not_see_is_not_committed(sink: Sink) -> None:
    """As where executors on other machines write into folders of their own."""
    report = sink.task(at("orders", 0, records(range(20))))
    (data,) = sink.folder.rglob("*.gz")
    data.unlink()
    with pytest.raises(StoreError, match="is not there"):
        sink.commit(report)
    assert not list(sink.folder.rglob("last_chunk_index.json"))


def as_spark_says(error: BlockgzError) -> str:
    with pytest.raises(WriteFailed) as caught, as_write_failed():
        raise error
    told_by_spark = f"blockgz.spark.errors.WriteFailed: {caught.value}"
    return f"[STREAM_FAILED] Query ended\nTraceback ...\n{told_by_spark}\n\tat org.apache"


def test_an_error_comes_back_from_what_spark_says_of_it() -> None:
    fenced = Fenced("orders:0: another writer", why="it was quicker", remedy="use --group-id x")
    text = as_spark_says(fenced)
    assert "WriteFailed: [Fenced] orders:0: another writer\nwhy:   it was quicker\ndo:    use groupId x\n" in text
    found = failure_of(text)
    assert isinstance(found, JobFailed)
    assert (found.kind, exit_code_of(found)) == ("Fenced", 11)
    assert (found.what, found.why, found.remedy) == ("orders:0: another writer", "it was quicker", "use groupId x")
    other = failure_of("java.lang.OutOfMemoryError: heap\n at x")
    assert (type(other), other.why) == (SparkFailed, "java.lang.OutOfMemoryError: heap")


@pytest.mark.parametrize(
    "error",
    [MalformedObject("a marker", why="no JSON"), BadName("../x"), BatchRefused("offset 4 occurs twice")],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_format_and_of_a_batch_come_back_as_they_were(error: BlockgzError) -> None:
    found = failure_of(as_spark_says(error))
    assert isinstance(found, JobFailed)
    assert (found.kind, found.what, exit_code_of(found)) == (type(error).__name__, error.what, exit_code_of(error))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text(key_line(1))
    file.chmod(0o600)
    return f"file:{file}"


def source(sink: Sink, **options: str) -> SourceOptions:
    given = {"path": str(sink.folder), "subscribe": "orders", **options}
    return parse_source_options(given, default_start=AT_START)


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


CHUNKS = 70
COMPACTION = Compaction(MergeLimits(2**20, 2**20))


def planned(root: Path, buffer_bytes: int = 2**30) -> PartitionCompaction:
    store = open_existing_store(str(root), S3Settings())
    driver = Driver(store, UnreadLog(), lambda *_: None, lambda: True)
    (plan,) = PlannedCompaction(store, None, COMPACTION, driver, buffer_bytes, lambda plans: ()).partitions
    return plan


def sent(root: Path, folder: Path) -> CompactionTask:
    """As it arrives at a worker."""
    task = CompactionTask(str(root), S3Settings(), COMPACTION, folder, 2**30, 2**20, None)
    again = pickle.loads(cloudpickle.dumps(task))
    assert isinstance(again, CompactionTask) and again == task
    return again


@pytest.mark.slow
def test_a_task_compacts_its_partition(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, CHUNKS)
    plan = pickle.loads(pickle.dumps(planned(root)))
    task = sent(root, tmp_path / "buffer")
    ended = pickle.loads(pickle.dumps(task(plan)))
    assert (str(ended.plan.keys), ended.done, ended.is_whole) == ("orders:0", plan.runs, True)
    assert command("compact", "-a", root, "--dry-run").stdout == "nothing to compact\n"


@pytest.mark.slow
def test_a_task_that_is_repeated_does_what_the_first_one_left(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    small_chunks(root, 2 * CHUNKS)
    plan, task = planned(root, buffer_bytes=1), sent(root, tmp_path / "buffer")
    first, second = plan.runs
    assert task(replace(plan, runs=(first,))).outcome is RewriteOutcome.COMMITTED
    again = task(plan)
    assert (again.done, again.outcome, again.error) == ((second,), RewriteOutcome.NOTHING, None)


@pytest.mark.slow
def test_an_archive_that_is_not_there_fails_the_task(tmp_path: Path) -> None:
    small_chunks(tmp_path / "archive", CHUNKS)
    with pytest.raises(TaskFailed, match="no archive"):
        sent(tmp_path / "other", tmp_path)(planned(tmp_path / "archive"))


def test_keys_are_not_sent(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(1))
    refused = command("compact", "--master", "local", "--keys", f"file:{keys}", "-a", tmp_path)
    assert refused.exit_code == 2
    assert "--master cannot be used with keys" in refused.output


OFFSETS = [0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14, 20, 25]


@pytest.fixture
def small_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)


def archived(layout: str) -> tuple[MemoryStore, PartitionIdentity, list[Record]]:
    """One record a chunk, so that the older ones lie two catalogs deep."""
    rows = records(OFFSETS)
    if layout == "seed":
        rows = [Record(row.offset, row.timestamp, row.timestamp_type, None, b"%d" % row.offset, ()) for row in rows]
    store, log, identity = MemoryStore(), MemoryLog(rows), identity_of(layout)
    Actor("a", archive_all(identity, log, "a", lambda: 1), store, log, random.Random(1)).run_to_end()
    return store, identity, rows


def is_other(store: MemoryStore, identity: PartitionIdentity, record: Record) -> bool:
    reader, marker = MemoryReader(store.bodies()), markers.decode_marker(store.bodies()[identity.keys.marker])
    return asyncio.run(differs(ArchivedPartition(reader, identity.keys, marker, DEFAULT_MAX_BLOCK_BYTES), record))


@pytest.mark.usefixtures("small_catalogs")
@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_a_record_is_found_wherever_it_lies_and_told_from_another(layout: str) -> None:
    store, identity, rows = archived(layout)
    marker = markers.decode_marker(store.bodies()[identity.keys.marker])
    assert len(marker.catalogs) >= 2
    for row in rows:
        assert not is_other(store, identity, row)
        assert is_other(store, identity, row._replace(value=b"another"))
    assert is_other(store, identity, rows[3]._replace(key=b"k")) == (layout == "topic")


@pytest.mark.usefixtures("small_catalogs")
def test_offsets_without_a_record_make_no_difference() -> None:
    store, identity, rows = archived("topic")
    for offset in (3, 10, 26, 1000):
        assert not is_other(store, identity, rows[0]._replace(offset=offset))


@pytest.mark.usefixtures("small_catalogs")
def test_what_the_marker_leads_to_and_is_gone_is_an_error() -> None:
    store, identity, rows = archived("topic")
    marker = markers.decode_marker(store.bodies()[identity.keys.marker])
    store.delete(identity.keys.home + marker.catalogs[1][0].name)
    with pytest.raises(ObjectMissing):
        is_other(store, identity, rows[0])

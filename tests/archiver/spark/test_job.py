"""A job without Spark: its options, what a batch read, and what Spark is told."""

import json
import re
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from archiver.errors import Diverged, GapRefused
from archiver.spark import job
from archiver.spark.context import IDENTITY_OPTIONS, MISSING_OPTION, ArchiveSinkOptions, parse_options
from archiver.spark.job import Identities, SparkJob, run_job, source_options, subscription
from archiver.spark.read_ranges import (
    ask_ranges,
    checkpoint_files,
    initial_offsets,
    logged_offsets,
    ranges_read,
    serve_ranges,
)
from archiver.spark.rows import BatchRefused
from blockgz.config.kinds import SPARK_DEFAULTS, SPARK_NAMES, default_text
from blockgz.errors import UsageError
from blockgz.spark.errors import SparkFailed
from index_format.keys import TopicPartition
from tests.support.terminal import printed


def job_of(*topics: str, fails_on_gap: bool = False, once: bool = False) -> SparkJob:
    return SparkJob(
        topics=topics,
        bootstrap_servers="localhost:9",
        kafka={},
        sink={"path": "./archive", "isolationLevel": "read_committed", "onGap": "stop" if fails_on_gap else "record"},
        checkpoint="s3a://jobs/orders",
        once=once,
        interval_seconds=300,
        max_offsets=None,
        master=None,
        jars=None,
    )


@pytest.mark.parametrize("fails_on_gap", [True, False])
def test_the_source_never_passes_over_lost_offsets(fails_on_gap: bool) -> None:
    assert source_options(job_of("orders", fails_on_gap=fails_on_gap))["failOnDataLoss"] == "true"


def test_secrets_are_looked_up_for_the_java_client_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's Kafka source and the client that asks for identities know no references."""
    monkeypatch.setenv("KAFKA_SECRET", "hunter2-of-spark")
    jaas = 'Login required password="${env:KAFKA_SECRET}";'
    given: list[SparkJob] = []

    def run(begun: SparkJob, *_: object) -> None:
        given.append(begun)
        raise PySparkException(f"no login with {begun.kafka['sasl.jaas.config']}, with hunter2-of-spark")

    monkeypatch.setattr(job, "_run", run)
    monkeypatch.setattr(job, "data_loss", lambda *_, **__: None)
    with pytest.raises(SparkFailed) as caught:
        run_job(replace(job_of("orders"), kafka={"sasl.jaas.config": jaas}), threading.Event(), print)
    options = source_options(given[0])
    assert options["kafka.sasl.jaas.config"] == 'Login required password="hunter2-of-spark";'
    shown = "".join([*traceback.format_exception(caught.value), caught.value.why])
    assert "no login" in shown and "hunter2-of-spark" not in shown


@dataclass
class Throwable:
    """Of Java."""

    condition: str | None = None
    cause: "Throwable | None" = None
    parameters: dict[str, str] = field(default_factory=dict)

    def getCondition(self) -> str | None:  # noqa: N802
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
        return self.parameters

    def getCause(self) -> "Throwable | None":  # noqa: N802
        return self.cause


class QueryFailed(PySparkException):
    """As pyspark raises it: with Java's exception."""

    def __init__(self, origin: Throwable) -> None:
        super().__init__("[STREAM_FAILED] Query ended.")
        self._origin = origin


def ended_by(monkeypatch: pytest.MonkeyPatch, origin: Throwable, *, fails_on_gap: bool = False) -> Exception:
    def run(*_: object) -> None:
        raise QueryFailed(origin)

    monkeypatch.setattr(job, "_run", run)
    monkeypatch.setattr(job, "is_instance_of", lambda _, each, __: each.condition is not None)
    with pytest.raises(Exception) as caught:
        run_job(job_of("orders", fails_on_gap=fails_on_gap), threading.Event(), print)
    return caught.value


@pytest.mark.parametrize("fails_on_gap", [True, False])
def test_lost_records_end_a_job_with_the_way_on(monkeypatch: pytest.MonkeyPatch, fails_on_gap: bool) -> None:
    """A task's error is the cause of a job's, which is the cause of a query's; some have no condition."""
    lost = Throwable("KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE", None, {"startOffset": "20", "endOffset": "40"})
    error = ended_by(
        monkeypatch, Throwable("STREAM_FAILED", Throwable(None, Throwable(None, lost))), fails_on_gap=fails_on_gap
    )
    assert isinstance(error, GapRefused)
    assert "COULD_NOT_READ_OFFSET_RANGE: endOffset 40, startOffset 20" in error.why
    assert "remove the checkpoint s3a://jobs/orders" in error.remedy
    assert ("--on-gap record" in error.remedy) is fails_on_gap


def test_other_conditions_are_not_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ended_by(monkeypatch, Throwable("STREAM_FAILED", Throwable("KAFKA_NULL_TOPIC_IN_DATA")))
    assert not isinstance(error, GapRefused) and isinstance(error, SparkFailed) and "STREAM_FAILED" in error.why


class Query:
    """A query that ends once its steps are over; notes that it was stopped."""

    recentProgress: tuple[()] = ()  # noqa: N815

    def __init__(self, steps: int, *, is_active: bool) -> None:
        self._steps = steps
        self.status = {"isTriggerActive": is_active}
        self.is_stopped = False

    def awaitTermination(self, _: int) -> bool:  # noqa: N802
        self._steps -= 1
        return self._steps < 0

    def stop(self) -> None:
        self.is_stopped = True


class Session:
    """Of no Spark: each query runs for two steps, each answer of the broker's is the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Identities) -> None:
        self.is_busy = False
        self.told: list[Identities] = []
        self.sinks: list[Mapping[str, str]] = []
        self.files: dict[str, str] = {}
        self.queries: list[Query] = []
        left = iter(answers)
        monkeypatch.setattr(job, "session", lambda *_, **__: nullcontext(self))
        monkeypatch.setattr(job, "_check_kafka_source", lambda _: None)
        monkeypatch.setattr(job, "register", lambda _: None)
        monkeypatch.setattr(job, "checkpoint_files", lambda *_: self.files.get)
        monkeypatch.setattr(job, "_identities", lambda *_: next(left))
        monkeypatch.setattr(job, "_started", self._started)
        monkeypatch.setattr(job, "IDENTITIES_SECONDS", 0)

    def _started(self, _: object, job: SparkJob, identities: Identities) -> Query:
        self.sinks.append(job.sink)
        self.answers = ask_ranges(job.sink["readings"], 1) if "readings" in job.sink else {}
        self.told.append(identities)
        self.queries.append(Query(2, is_active=self.is_busy))
        return self.queries[-1]


def test_a_topic_that_comes_while_a_job_runs_gets_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    first, unanswered = Identities("c", {"orders": "id-1"}), Identities()
    second = Identities("c", {"eu-orders": "id-2", "orders": "id-1"})
    session = Session(monkeypatch, first, unanswered, second, second, second)
    assert run_job(job_of("~.*orders"), threading.Event(), print).ended
    assert session.told == [first, second]
    assert [query.is_stopped for query in session.queries] == [True, True]
    assert json.loads(session.told[1].options()["topicIds"]) == {"orders": "id-1", "eu-orders": "id-2"}


def test_every_query_of_a_job_can_ask_what_its_batches_read(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Identities("c", {"orders": "id-1"}), Identities("c", {"orders": "id-1", "eu-orders": "id-2"})
    session = Session(monkeypatch, first, second, second, second, second)
    session.files = {f"offsets/{n}": f'v1\n{{}}\n{{"orders":{{"0":{n + 4}}}}}' for n in range(2)}
    run_job(job_of("~.*orders"), threading.Event(), print)
    address, again = (sink["readings"] for sink in session.sinks)
    assert (address, session.answers) == (again, {TopicPartition("orders", 0): range(4, 5)})
    with pytest.raises(BatchRefused, match="batch 1 is not committed") as caught:
        ask_ranges(address, 1)
    assert "start the job again" in caught.value.remedy


def test_a_job_that_cannot_be_asked_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "serve_ranges", lambda _: nullcontext(None))
    session = Session(monkeypatch, *[Identities("c")] * 9)
    assert run_job(job_of("orders"), threading.Event(), print).ended
    assert "readings" not in session.sinks[0]


def test_a_query_is_not_restarted_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Identities("c", {"orders": "id-1"}), Identities("c", {"orders": "id-1", "eu-orders": "id-2"})
    session = Session(monkeypatch, first, second, second)
    session.is_busy = True
    run_job(job_of("~.*orders"), threading.Event(), print)
    assert session.told == [first]


def test_a_topic_that_is_created_again_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query would go on at the old topic's offsets, under its id."""
    deleted, again = Identities("c"), Identities("c", {"orders": "id-2"})
    session = Session(monkeypatch, Identities("c", {"orders": "id-1"}), deleted, again)
    with pytest.raises(Diverged, match="created again") as caught:
        run_job(job_of("orders"), threading.Event(), print)
    assert "checkpoint s3a://jobs/orders" in caught.value.remedy
    assert len(session.told) == 1


def parsed(**options: str) -> ArchiveSinkOptions:
    return parse_options({"path": "./archive", **options})


def test_the_least_is_a_path() -> None:
    config = parsed().config
    assert config.archive == str(Path("archive").absolute()), "executors work in other folders"
    assert (config.record_format, config.codec, config.layout) == ("json", "gzip", "topic")
    assert (config.isolation_level, config.group_id) == ("read_uncommitted", "blockgz-spark")


def test_names_in_any_case_and_values_as_of_archiver_run() -> None:
    options = parsed(chunkbytes="1MiB", CODEC="zstd", chunkSpan="1h", topicids='{"orders":"x"}', CLUSTERID="c")
    assert (options.config.chunk_bytes, options.config.codec, options.config.chunk_span) == (1024**2, "zstd", 3600)
    assert (options.cluster_id, options.topic_ids) == ("c", {"orders": "x"})


def test_ids_of_topics_are_spelled_as_archiver_run_spells_them() -> None:
    """Of Java, then of librdkafka; another spelling would be another topic."""
    for spelled in ("V_tpKAQMSYSP_KegpT6-qA", "V/tpKAQMSYSP/KegpT6+qA"):
        assert parsed(topicIds=json.dumps({"orders": spelled})).topic_ids == {"orders": "V/tpKAQMSYSP/KegpT6+qA"}


def test_what_the_job_alone_can_say_is_not_offered() -> None:
    assert parsed(readings="/tmp/x/readings").readings == "/tmp/x/readings"
    assert parsed().readings is None
    with pytest.raises(UsageError) as caught:
        parsed(reading="1")
    assert "readings" not in f"{caught.value.why} {caught.value.remedy}"


def test_a_bare_path_is_a_folder_as_everywhere_in_spark() -> None:
    assert parse_options({"path": "archive"}).config.archive == str(Path("archive").absolute())
    for path in ("s3a://backup/kafka", "file:/data/kafka", "file:///data/kafka"):
        assert parse_options({"path": path}).config.archive == path


def test_what_spark_adds_to_the_options_of_a_stream_is_let_through() -> None:
    assert parsed(checkpointlocation="/c", queryName="q").config.archive.endswith("/archive")


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ({"chunkByte": "1"}, "no option 'chunkByte'", "did you mean chunkBytes?"),
        ({"topic": "orders"}, "no option 'topic'", ""),
        ({"kafka.bootstrap.servers": "h:1"}, "no option 'kafka.bootstrap.servers'", "format kafka"),
        ({"chunkBytes": "much"}, "chunkBytes cannot be 'much'", "a size such as 64MiB"),
        ({"codec": "lz4"}, "codec cannot be 'lz4'", "one of gzip, zstd"),
        ({"memory": "2GiB"}, "memory 2GiB is too much", "1GiB"),
        ({"memory": "1MiB"}, "memory cannot be '1MiB'", "at least 32MiB"),
        ({"isolationLevel": "serializable"}, "isolationLevel cannot be", "read_committed, read_uncommitted"),
        ({"gzipLevel": "9"}, "cannot be combined", "gzip_library"),
        ({"layout": "seed"}, "cannot be combined", "record_format"),
        ({"topicIds": "[]"}, "topicIds is '[]'", "orders"),
        ({"path": ""}, "needs a path", ".save(path)"),
    ],
)
def test_what_cannot_be_names_option_and_remedy(options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_an_s3_address_stays_as_it_is() -> None:
    assert parsed(path="s3://bucket/prefix").config.archive == "s3://bucket/prefix"


def test_every_option_is_a_field() -> None:
    assert set(SPARK_NAMES.values()) <= set(type(parsed().config).model_fields)


@pytest.mark.parametrize(
    ("topics", "option"),
    [
        (["orders", "payments"], {"subscribe": "orders,payments"}),
        (["eu-*"], {"subscribePattern": r"(?:(?!__)(?:eu\-.*))"}),
        (["a.b", "~eu[.].+"], {"subscribePattern": r"(?:a\.b)|(?:(?!__)(?:eu[.].+))"}),
    ],
)
def test_topics_as_the_source_wants_them(topics: list[str], option: dict[str, str]) -> None:
    assert subscription(topics) == option


def test_the_words_of_later_pythons_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "translate", lambda _: r"(?s:eu\-.*)\z")
    assert subscription(["eu-*"]) == {"subscribePattern": r"(?:(?!__)(?:eu\-.*))"}


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UsageError):
        subscription(["~("])


def test_the_page_lists_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark-writing.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (?:`([\w-]+)`)? ?\|", page, re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
    defaults = {name: SPARK_DEFAULTS.get(field) or default_text(field) for name, field in SPARK_NAMES.items()}
    assert listed == defaults | dict.fromkeys(IDENTITY_OPTIONS, "") | {MISSING_OPTION: "hole"}


ORDERS = TopicPartition("orders", 0)
METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1763756593000, "conf": {"a": "b"}})


def logged(**topics: Mapping[str, int]) -> str:
    return f"v1\n{METADATA}\n{json.dumps(topics)}"


def initial(**topics: Mapping[str, int]) -> str:
    return f"\0v1\n{json.dumps(topics)}"


def test_a_batch_reads_from_where_the_one_before_it_ended() -> None:
    files = {"offsets/6": logged(orders={"0": 10, "1": 5}), "offsets/7": logged(orders={"0": 25, "1": 5})}
    assert ranges_read(files.get, 7) == {ORDERS: range(10, 25)}


def test_the_first_batch_reads_from_where_the_source_began() -> None:
    files = {"sources/0/0": initial(orders={"0": 3}, p={"1": 0}), "offsets/0": logged(orders={"0": 9}, p={"1": 0})}
    assert ranges_read(files.get, 0) == {ORDERS: range(3, 9)}


def test_partitions_that_came_are_read_from_their_beginning() -> None:
    files = {"offsets/0": logged(orders={"1": 5}), "offsets/1": logged(orders={"1": 5, "0": 4}, new={"0": 2})}
    assert ranges_read(files.get, 1) == {ORDERS: range(0, 4), TopicPartition("new", 0): range(0, 2)}


def test_offsets_that_fall_say_nothing() -> None:
    files = {"offsets/0": logged(orders={"0": 9}), "offsets/1": logged(orders={"0": 4})}
    assert ranges_read(files.get, 1) == {}


@pytest.mark.parametrize("missing", ["offsets/6", "offsets/7"])
def test_a_missing_file_says_nothing(missing: str) -> None:
    files = {"offsets/6": logged(orders={"0": 1}), "offsets/7": logged(orders={"0": 2})}
    assert ranges_read(files.get, 7)
    del files[missing]
    assert ranges_read(files.get, 7) == {}


def test_the_first_batch_without_the_sources_file_says_nothing() -> None:
    assert ranges_read({"offsets/0": logged(orders={"0": 2})}.get, 0) == {}


def test_a_file_that_is_torn_anywhere_says_nothing() -> None:
    whole = logged(orders={"0": 123, "1": 45}, payments={"7": 6})
    assert logged_offsets(whole) == {ORDERS: 123, TopicPartition("orders", 1): 45, TopicPartition("payments", 7): 6}
    assert [end for end in range(len(whole)) if logged_offsets(whole[:end]) is not None] == []
    first = initial(orders={"0": 123})
    assert initial_offsets(first) == {ORDERS: 123}
    assert [end for end in range(len(first)) if initial_offsets(first[:end]) is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        f'v2\n{METADATA}\n{{"orders":{{"0":1}}}}',
        f"v1\n{METADATA}\n-",
        f"v1\n{METADATA}\n12",
        f"v1\n{METADATA}\n[1]",
        f'v1\n{METADATA}\n{{"orders":[5]}}',
        f'v1\n{METADATA}\n{{"orders":{{"x":5}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":"5"}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":true}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":-2}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":1}}}}\n{{"payments":{{"0":1}}}}',
        f'v1\n{METADATA}\n{{"orders":{{"0":1}}}}\n-',
        "",
        "\0\0\0",
    ],
)
def test_other_versions_other_sources_and_more_than_one_say_nothing(text: str) -> None:
    assert logged_offsets(text) is None


class Stream:
    def __init__(self, text: str | None) -> None:
        self.text = text
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Java:
    """Of a session: one file system, whatever the path."""

    def __init__(self, files: dict[str, Stream]) -> None:
        self._files = files
        path = SimpleNamespace(Path=lambda parent, name: SimpleNamespace(getFileSystem=lambda _: self, name=name))
        text = SimpleNamespace(IOUtils=SimpleNamespace(toString=self._text))
        apache = SimpleNamespace(hadoop=SimpleNamespace(fs=path), commons=SimpleNamespace(io=text))
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
        self._jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: None))

    def open(self, path: Any) -> Stream:
        if path.name not in self._files:
            raise Py4JError("java.io.FileNotFoundException")
        return self._files[path.name]

    def _text(self, stream: Stream, _: str) -> str:
        if stream.text is None:
            raise Py4JError("java.io.IOException: the connection was reset")
        return stream.text


def reader(files: dict[str, Stream]) -> Any:
    session: Any = Java(files)
    spark: SparkSession = session
    return checkpoint_files(spark, "s3a://jobs/orders")


def test_a_file_is_read_and_closed() -> None:
    file = Stream("v1\n{}\n{}")
    assert reader({"offsets/3": file})("offsets/3") == "v1\n{}\n{}"
    assert file.is_closed


def test_what_is_missing_or_cannot_be_read_is_none() -> None:
    broken = Stream(None)
    read = reader({"offsets/3": broken})
    assert read("offsets/2") is None
    assert read("offsets/3") is None
    assert broken.is_closed


def readings_of(batch_id: int) -> Mapping[TopicPartition, range]:
    if batch_id == 13:
        raise RuntimeError("the checkpoint is gone")
    return {TopicPartition(f"topic-{n}", n): range(batch_id, batch_id + n) for n in range(batch_id)}


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

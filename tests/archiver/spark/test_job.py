"""What a job tells Spark, and makes of what Spark tells it, without Spark."""

import json
import threading
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest
from pyspark.errors import PySparkException

from archiver.commit.batch import BatchReading
from archiver.errors import Diverged, GapRefused
from archiver.spark import job
from archiver.spark.job import Identities, SparkJob, run_job, source_options
from archiver.spark.read_ranges import ask_ranges
from archiver.spark.rows import BatchRefused, RowPartition
from blockgz.spark.errors import SparkFailed


def job_of(*topics: str, fails_on_gap: bool = False, once: bool = False) -> SparkJob:
    return SparkJob(
        topics=topics,
        bootstrap_servers="localhost:9",
        kafka={},
        sink={
            "path": "./archive",
            "isolationLevel": "read_committed",
            "onGap": "stop" if fails_on_gap else "record",
        },
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
    assert (address, session.answers) == (again, {RowPartition("orders", 0): BatchReading(4, 5)})
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

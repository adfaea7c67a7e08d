"""What is asked of a cluster: bounds and single records of logs, ids and configurations that may be denied."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from archiver.ingest import kafka_cluster
from archiver.ingest.backpressure import BATCHING, INDEXES, OPEN_BLOCKS, QUEUE, WAITING
from archiver.ingest.kafka_cluster import (
    BoundsOrFailure,
    KafkaCluster,
    LogView,
    PartitionLog,
    RecordReader,
    WatermarkWatch,
    read_records,
)
from archiver.ingest.kafka_source import QUEUED_RECORD_FOOTPRINT, Partition, consumer_settings, queue_settings
from archiver.ingest.ownership import confirm_ids
from archiver.ingest.topics import SILENT_SECONDS, TopicIds, is_same_topic
from archiver.logs import LogEvent
from blockgz.config.model import RunConfig
from blockgz.errors import BrokerUnreachable, PartitionUnavailable, ShuttingDown
from blockgz.kafka import LOGGER, LogBounds
from blockgz.kafka.admin import TopicIdAnswers, log_bounds
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import client_settings
from index_format.objects import Acl
from tests.blockgz.kafka.test_admin import DENIED, future
from tests.support.archives import records, topic_config
from tests.support.mock_cluster import MockCluster

BOUNDS = LogBounds(10, 100)
SECURITY_DISABLED = KafkaError(KafkaError.SECURITY_DISABLED)
NO_ANSWER = KafkaError(KafkaError._TIMED_OUT)
NOT_ALLOWED = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def test_watermarks_outlive_a_broker_that_does_not_answer() -> None:
    now = 100.0
    assigned: set[Partition] = set()
    answers: list[dict[Partition, LogView] | BrokerUnreachable] = []

    def ask(partitions: object) -> dict[Partition, LogView]:
        answer = answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    watermarks = WatermarkWatch(lambda: assigned, ask, lambda: now)
    watermarks.refresh()
    assert watermarks.age_seconds is None, "nothing is asked about no partition"
    assigned.add(("orders", 0))
    answers += [{("orders", 0): LogView(BOUNDS, 120)}, BrokerUnreachable("no broker")]
    watermarks.refresh()
    now = 140.0
    watermarks.refresh()
    assert (watermarks.logs, watermarks.age_seconds) == ({("orders", 0): LogView(BOUNDS, 120, None)}, 40.0)
    answers.append({("orders", 0): LogView(LogBounds(10, 150), 150)})
    watermarks.refresh()
    assert watermarks.logs == {("orders", 0): LogView(LogBounds(10, 150), 150, earlier_end=100)}


class Admin:
    """A client that may read the configuration of one topic of two; `acls` is the answer to who asks for them."""

    def __init__(self, acls: object = SECURITY_DISABLED) -> None:
        self.acls = acls
        self.asked: list[AclBindingFilter] = []

    def list_topics(self, timeout: float) -> object:
        partition = SimpleNamespace(replicas=[1])
        topics = {name: SimpleNamespace(error=None, partitions={0: partition}) for name in ("orders", "users")}
        return SimpleNamespace(topics=topics, controller_id=1, brokers={1: None}, cluster_id="one")

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, object]:
        return {each: future(DENIED if each.name == "orders" else {}) for each in resources}

    def describe_acls(self, wanted: AclBindingFilter, request_timeout: float) -> object:
        self.asked.append(wanted)
        return future(self.acls)

    def poll(self, timeout: float) -> None:
        """Nothing to serve."""


def test_a_configuration_that_may_not_be_read_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin()  # type: ignore[assignment]
    with caplog.at_level("WARNING", "blockgz.archiver"):
        for _ in range(2):
            described = cluster.describe(["orders", "users"])
    assert described == {"orders": topic_config("orders", 1, None, None), "users": topic_config("users", 1, {}, {})}
    told = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    (line,) = [each for each in told if each["event"] is LogEvent.DESCRIBE_DENIED]  # beside those of a real client
    assert (line["topic"], line["asked"]) == ("orders", "configuration")
    assert line["why"] == KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED).str()


def binding(name: str, principal: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL) -> AclBinding:
    kinds = (AclOperation.READ, AclPermissionType.ALLOW)
    return AclBinding(ResourceType.TOPIC, name, pattern, f"User:{principal}", "*", *kinds)


def acl(name: str, principal: str, pattern: str = "LITERAL") -> Acl:
    return Acl(pattern, name, f"User:{principal}", "*", "READ", "ALLOW")


def test_the_acls_of_all_topics_are_asked_for_once() -> None:
    given = [binding("*", "all"), binding("ord", "some", ResourcePatternType.PREFIXED), binding("users", "one")]
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    admin = cluster.admin = Admin(given)  # type: ignore[assignment]
    described = cluster.describe(["orders", "users"])
    assert described["orders"].acls == (acl("*", "all"), acl("ord", "some", "PREFIXED"))
    assert described["users"].acls == (acl("*", "all"), acl("users", "one"))
    assert len(admin.asked) == 1  # type: ignore[attr-defined]
    assert cluster.describe([]) == {}
    assert len(admin.asked) == 1, "nothing is asked about no topic"  # type: ignore[attr-defined]


def test_the_clusters_id_is_in_its_metadata() -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin()  # type: ignore[assignment]
    assert cluster.cluster_id() == "one"


def test_no_acl_is_none_if_they_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin([])  # type: ignore[assignment]
    monkeypatch.setattr(AdminApart, "cluster_operations", lambda *_: frozenset({"DESCRIBE"}))
    assert cluster.describe(["users"])["users"].acls == ()


@pytest.mark.parametrize(
    ("answer", "rights", "lines"),
    [(SECURITY_DISABLED, {}, 0), (NO_ANSWER, {}, 0), (NOT_ALLOWED, {}, 1), ([], {"CREATE"}, 1), ([], {}, 1)],
)
def test_acls_that_cannot_be_read_are_reported_at_most_once(
    answer: object,
    rights: Collection[str],
    lines: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin(answer)  # type: ignore[assignment]
    monkeypatch.setattr(AdminApart, "cluster_operations", lambda *_: frozenset(rights))
    with caplog.at_level("WARNING", "blockgz.archiver"):
        for _ in range(3):
            assert cluster.describe(["users"])["users"] == topic_config("users", 1, {}, {})
    told = [line.msg for line in caplog.records if isinstance(line.msg, dict)]
    assert [(each["event"], each["topic"], each["asked"]) for each in told] == [
        (LogEvent.DESCRIBE_DENIED, "*", "ACLs")
    ] * lines


class WithoutController(Admin):
    """Like librdkafka's mock cluster: what an admin asks only times out."""

    def list_topics(self, timeout: float) -> object:
        return SimpleNamespace(**{**vars(super().list_topics(timeout)), "controller_id": 0})

    def describe_configs(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked")

    describe_topics = describe_acls = describe_configs  # type: ignore[assignment]


def test_where_no_controller_is_nobody_is_asked() -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = WithoutController()  # type: ignore[assignment]
    assert cluster.describe(["orders"]) == {"orders": topic_config("orders", 1, None, None)}
    assert (cluster.cluster_id(), cluster.topic_ids(["orders"]).ids) == (None, {})


def test_a_partition_without_a_leader_holds_up_no_answer_about_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = MockCluster()
    mock.create_topic("orders")
    mock.leaderless("orders", 2)
    asked: list[set[Partition]] = []

    def log_bounds(_: object, partitions: set[Partition], __: str) -> tuple[dict[Partition, tuple[int, int]], object]:
        asked.append(partitions)
        return dict.fromkeys(partitions, (0, 0)), {}

    monkeypatch.setattr(kafka_cluster, "log_bounds", log_bounds)
    cluster = KafkaCluster(client_settings({"bootstrap.servers": mock.bootstrap_servers}, "test"))
    answers = cluster.ask_bounds([("orders", number) for number in range(4)], "read_committed")
    assert asked == [{("orders", 0), ("orders", 1), ("orders", 3)}], "librdkafka waits for a leader of all of them"
    assert isinstance(answers.pop(("orders", 2)), PartitionUnavailable)
    assert set(answers.values()) == {LogBounds(0, 0)}


ROWS = records(range(20))


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    for number in range(4):
        cluster.produce("orders", number, ROWS)
    cluster.create_topic("sick")
    for number in range(4):
        cluster.produce("sick", number, ROWS[:1])
        cluster.leaderless("sick", number)
    return cluster


def new_reader(cluster: MockCluster) -> RecordReader:
    config = RunConfig(archive="./unused", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    return RecordReader(consumer_settings(config, queue_bytes=2**20))


@pytest.fixture
def reader(cluster: MockCluster) -> Iterator[RecordReader]:
    reader = new_reader(cluster)
    yield reader
    reader.close()


def test_records_of_many_logs_at_once(reader: RecordReader) -> None:
    with ThreadPoolExecutor(4) as askers:
        for offset in range(len(ROWS)):
            found = askers.map(lambda number, at=offset: reader.record_at(("orders", number), at), range(4))
            assert list(found) == [ROWS[offset]] * 4


def test_no_record_there(reader: RecordReader) -> None:
    assert reader.record_at(("orders", 0), 20) is None, "the log's end"
    assert reader.record_at(("orders", 0), 1000) is None, "above it"
    found = reader.record_at(("orders", 0), 19)
    assert found is not None and found.offset == 19


def test_the_first_record_from_an_offset_on(cluster: MockCluster, reader: RecordReader) -> None:
    assert reader.first_record(("orders", 0), 7) == 7
    assert reader.first_record(("orders", 0), 20) is None, "the log's end"


def test_records_near_the_end_of_a_log_are_not_waited_for(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_cluster, "BROKER_DEADLINE_SECONDS", 60.0)
    config = RunConfig(archive="./unused", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    settings = consumer_settings(config, queue_bytes=2**20) | {"enable.partition.eof": True}
    begun = time.monotonic()
    found = [
        offset for batch in read_records(settings, ("orders", 0), 15, 20) for offset in batch["offset"].to_pylist()
    ]
    assert (found, time.monotonic() < begun + 30) == (list(range(15, 20)), True)


def test_a_partition_without_a_leader_meets_its_own_deadline_and_holds_up_nobody(cluster: MockCluster) -> None:
    reader = new_reader(cluster)
    with ThreadPoolExecutor(4) as askers:
        waiting = [askers.submit(reader.record_at, ("sick", number), 0, 600.0) for number in range(3)]
        impatient = askers.submit(reader.record_at, ("sick", 3), 0, 0.5)
        for number in range(4):
            assert reader.record_at(("orders", number), 3) == ROWS[3]
        assert isinstance(impatient.exception(60), BrokerUnreachable)
        assert "the record at sick:3" in str(impatient.exception())
        assert not any(each.done() for each in waiting)
        reader.close()
        assert all(isinstance(each.exception(60), ShuttingDown) for each in waiting)


def test_two_readers_of_one_partition(reader: RecordReader) -> None:
    with ThreadPoolExecutor(2) as askers:
        outcomes = [askers.submit(reader.record_at, ("sick", 1), 0, 0.5).exception for _ in range(2)]
        assert {type(outcome(10)) for outcome in outcomes} == {BrokerUnreachable, PartitionUnavailable}


def test_whoever_waits_at_the_end_is_told(cluster: MockCluster) -> None:
    reader = new_reader(cluster)
    with ThreadPoolExecutor(1) as askers:
        waiting = askers.submit(reader.record_at, ("sick", 0), 0)
        while not reader._wanted:
            assert not waiting.done()
        reader.close()
        assert isinstance(waiting.exception(10), ShuttingDown)
    with pytest.raises(ShuttingDown):
        reader.record_at(("orders", 0), 0)


@pytest.mark.slow
def test_bounds_in_one_question(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[set[Partition]] = []

    def counted(admin: Any, partitions: Collection[Partition], isolation_level: str) -> Any:
        questions.append(set(partitions))
        return log_bounds(admin, partitions, isolation_level)

    monkeypatch.setattr(kafka_cluster, "log_bounds", counted)
    asked = KafkaCluster({"bootstrap.servers": cluster.bootstrap_servers})
    both = [(topic, number) for topic in ("orders", "sick") for number in range(4)]
    answers = asked.ask_bounds(both, "read_committed")
    assert questions == [{("orders", number) for number in range(4)}], "nobody leads the others"
    assert [answers["orders", number] for number in range(4)] == [LogBounds(0, 20)] * 4
    sick = [answers["sick", number] for number in range(4)]
    assert all(isinstance(each, PartitionUnavailable | BrokerUnreachable) for each in sick)
    nobody = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    assert isinstance(nobody.ask_bounds([("orders", 0)], "read_committed")["orders", 0], BrokerUnreachable)


def test_bounds_that_are_too_old_are_asked_again() -> None:
    asked: list[Collection[Partition]] = []
    answers: list[BoundsOrFailure] = [LogBounds(0, 30), PartitionUnavailable("no leader")]

    def ask(partitions: Collection[Partition]) -> dict[Partition, BoundsOrFailure]:
        asked.append(partitions)
        return {("orders", 0): answers.pop(0)}

    nothing: Any = None
    log = PartitionLog(("orders", 0), LogBounds(0, 20), ask, nothing, nothing)
    assert log.bounds(20) == LogBounds(0, 20) and not asked
    assert log.bounds(21) == LogBounds(0, 30) and asked == [[("orders", 0)]]
    with pytest.raises(PartitionUnavailable):
        log.bounds(21)


def test_lines_of_an_idle_client_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_cluster, "SERVE_SECONDS", 0.05)
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "propagate", True)
    config = RunConfig(archive="./archive", bootstrap_servers="127.0.0.1:1", topics=("orders",))
    with caplog.at_level("ERROR", LOGGER):
        reader = RecordReader(consumer_settings(config, queue_bytes=2**20))
        deadline = time.monotonic() + 10
        while not caplog.records:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        reader.close()
    assert "Connection refused" in caplog.records[0].getMessage()


MIB = 1024**2
CONFIG = RunConfig(archive="./archive", bootstrap_servers="b:9092", topics=("t",))
BUDGETS = [32 * MIB, 256 * MIB, 4096 * MIB]


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_is_held_at_rest_leaves_most_of_the_budget_to_work_on_it(budget: int) -> None:
    shares = sum(budget // part for part in (QUEUE, BATCHING, WAITING, OPEN_BLOCKS, INDEXES))
    assert budget / 4 < shares < budget / 2.5


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("record_bytes", [0, 10, 500, 20_000])
def test_the_queue_holds_its_share_whatever_the_size_of_records(budget: int, record_bytes: int) -> None:
    share = budget // QUEUE
    limits = queue_settings(share)
    most = limits["queued.min.messages"]
    by_content = limits["queued.max.messages.kbytes"] * 1024 // record_bytes if record_bytes else most
    held = min(most, by_content) * (record_bytes + QUEUED_RECORD_FOOTPRINT)
    assert held <= share


@pytest.mark.parametrize("budget", BUDGETS)
def test_one_fetch_is_small_beside_the_queue(budget: int) -> None:
    limits = queue_settings(budget // QUEUE)
    assert limits["fetch.max.bytes"] == limits["fetch.message.max.bytes"]
    assert limits["fetch.max.bytes"] <= limits["queued.max.messages.kbytes"] * 1024 / 2
    assert limits["fetch.max.bytes"] >= MIB, "librdkafka raises it to message.max.bytes, a million by default"


def test_the_consumer_is_told() -> None:
    config = RunConfig(archive="./archive", bootstrap_servers="b:9092", topics=("t",))
    assert queue_settings(32 * MIB).items() <= consumer_settings(config, queue_bytes=32 * MIB).items()


def test_the_users_own_settings_stand() -> None:
    config = RunConfig(
        archive="./archive", bootstrap_servers="b:9092", topics=("t",), kafka={"fetch.max.bytes": "52428800"}
    )
    assert consumer_settings(config, queue_bytes=32 * MIB)["fetch.max.bytes"] == "52428800"


DEADLINE_SECONDS = 30


class Cluster:
    """Answers with the number of the question, each once it is let; says nothing where it is silent."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.asked: list[set[str]] = []
        self.is_silent = False

    def ask(self, topics: Collection[str]) -> TopicIdAnswers:
        self.asked.append(set(topics))
        number = len(self.asked)
        self.begun.release()
        assert self.let.acquire(timeout=DEADLINE_SECONDS)
        return TopicIdAnswers({} if self.is_silent else dict.fromkeys(topics, str(number)), frozenset())


def ids_of(cluster: Cluster, clock: Callable[[], float] = lambda: 0.0) -> TopicIds:
    return TopicIds(cluster.ask, lambda: {"payments"}, clock)


@pytest.mark.parametrize(
    ("claimed", "told", "expected"),
    [("one", "one", True), ("one", "two", False), ("one", None, None), (None, None, True), (None, "one", True)],
)
def test_topics_are_compared_by_id(claimed: str | None, told: str | None, expected: bool | None) -> None:
    assert is_same_topic(claimed, told) is expected


def test_who_asks_while_a_question_is_on_its_way_shares_the_next_one() -> None:
    cluster = Cluster()
    ids = ids_of(cluster)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ids.now, "orders")
        assert cluster.begun.acquire(timeout=DEADLINE_SECONDS)
        joined = threading.Barrier(9)

        def late() -> str:
            joined.wait(DEADLINE_SECONDS)
            return ids.now("orders").ids["orders"]

        others = [pool.submit(late) for _ in range(8)]
        joined.wait(DEADLINE_SECONDS)
        # Each of them may still be on its way into the call; a question of another round is then its own.
        cluster.let.release()
        assert first.result(DEADLINE_SECONDS).ids["orders"] == "1"
        for _ in range(8):
            cluster.let.release()
        answers = {other.result(DEADLINE_SECONDS) for other in others}
    assert "1" not in answers, "an answer older than the question"
    assert len(cluster.asked) == 1 + len(answers)
    assert cluster.asked[0] == {"orders", "payments"}, "all topics in one request"


def test_a_cluster_that_said_nothing_is_left_alone_for_a_moment() -> None:
    cluster, now = Cluster(), [0.0]
    ids = ids_of(cluster, lambda: now[0])
    cluster.is_silent = True
    cluster.let.release(10)
    assert ids.now("orders").ids == {}
    assert ids.now("orders").ids == {} and len(cluster.asked) == 1, "ten thousand commits would wait one by one"
    cluster.is_silent = False
    now[0] += SILENT_SECONDS
    assert ids.now("orders").ids["orders"] == "2"
    assert ids.now("orders").ids["orders"] == "3"


def test_a_cluster_that_spoke_meanwhile_is_asked_again() -> None:
    cluster = Cluster()
    ids = ids_of(cluster)
    cluster.is_silent = True
    cluster.let.release(10)
    assert ids.now("orders").ids == {}
    cluster.is_silent = False
    ids.heard()
    assert ids.now("orders").ids["orders"] == "2"
    cluster.is_silent = True
    assert ids.now("orders").ids == {}
    ids.heard()
    assert ids.now("orders").ids == {} and len(cluster.asked) == 3, "commits would wait each time for ids"


def test_a_look_at_nothing_does_not_make_the_cluster_answer() -> None:
    """All partitions left: their last commits would each wait for a cluster that is known to be silent."""
    asked: list[Collection[str]] = []

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        asked.append(topics)
        return TopicIdAnswers({}, frozenset())

    ids = TopicIds(ask, set, lambda: 0.0)
    ids.now("orders")
    ids.asked()
    assert ids.now("orders").ids == {} and len(asked) == 1


def test_a_failure_is_raised_and_forgotten() -> None:
    failures = iter([ConnectionError("no")])

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        for failure in failures:
            raise failure
        return TopicIdAnswers(dict.fromkeys(topics, "1"), frozenset())

    ids = TopicIds(ask, set)
    with pytest.raises(ConnectionError):
        ids.now("orders")
    assert ids.now("orders").ids == {"orders": "1"}


def test_what_is_fetched_while_the_question_is_on_its_way_is_not_confirmed() -> None:
    told: list[tuple[str | None, int]] = []
    partition: Any = SimpleNamespace(
        state=SimpleNamespace(fetched=7), told=lambda topic_id, fetched: told.append((topic_id, fetched))
    )

    def ask(topics: Collection[str]) -> TopicIdAnswers:
        partition.state.fetched = 9
        return TopicIdAnswers({"orders": "one"}, frozenset())

    confirm_ids(TopicIds(ask, lambda: {"orders"}), {("orders", 0): partition})
    assert told == [("one", 7)]

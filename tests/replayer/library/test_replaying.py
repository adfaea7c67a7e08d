import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

import blockgz
from blockgz.archive.archive import TopicPartitions
from blockgz.archive.damage import Verdict
from index_format.records import iter_records
from replayer.kafka.reader import KafkaReader
from replayer.library_replay import ReplayChoice, replay_request
from replayer.replay.request import ReplayRequest
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster

names = map("library-{}".format, itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture
def copy(cluster: MockCluster) -> str:
    topic = next(names)
    cluster.create_topic(topic)
    return topic


@pytest.fixture
def archive(
    writer: ArchiveWriter, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[blockgz.Archive]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for partition in range(3):
        writer.partition("orders", partition).commit(records(range(40)))
    with blockgz.open_archive(writer.root) as opened:
        yield opened


def test_a_plan_writes_nothing(archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    plan = archive.plan_replay("orders", copy, kafka=cluster.bootstrap_servers, end=30)
    assert (plan.records, [each.partition for each in plan.sources]) == (90, [0, 1, 2])
    again = archive.plan_replay("orders", copy, kafka=cluster.bootstrap_servers, end=30)
    assert not [warning for warning in again.warnings if "not empty" in warning]


def test_a_replay_and_its_progress(archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    steps: list[tuple[int, int]] = []
    done = archive.replay(
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
def test_a_copy_is_compared_and_its_job_is_proved(archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    kafka = cluster.bootstrap_servers
    done = archive.replay("orders", copy, kafka=kafka, end=30)
    assert archive.compare("orders", copy, kafka=kafka, end=30).verdict is Verdict.OK
    assert archive.compare("orders", copy, kafka=kafka).verdict is Verdict.FAILURE
    proof = archive.verify_job(done.plan.job.name, kafka=kafka)
    assert (proof.verdict, sum(lane.records for lane in proof.lanes)) == ("OK", 90)
    with pytest.raises(blockgz.UsageError, match="no job other"):
        archive.verify_job("other", kafka=kafka)


@pytest.mark.slow
def test_a_second_copy_is_refused(archive: blockgz.Archive, cluster: MockCluster, copy: str) -> None:
    archive.replay("orders", copy, kafka=cluster.bootstrap_servers)
    with pytest.raises(blockgz.ReplayRefused) as caught:
        archive.replay("orders", copy, kafka=cluster.bootstrap_servers, job="second")
    assert caught.value.remedy


@pytest.mark.slow
def test_damage_raises_or_is_named(
    archive: blockgz.Archive, writer: ArchiveWriter, cluster: MockCluster, copy: str
) -> None:
    data = writer.root / "topic=orders/partition=00001/00000000000000000000.gz"
    data.write_bytes(b"\0" * data.stat().st_size)
    lost: list[blockgz.LostRecords] = []
    done = archive.replay("orders", copy, kafka=cluster.bootstrap_servers, lost=lost)
    assert done.result.records == 80
    assert {each.partition for each in lost} == {1}
    with pytest.raises(blockgz.FormatError):
        archive.replay("orders", copy, kafka=cluster.bootstrap_servers, append=True, job="strict")


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
    writer: ArchiveWriter, archive: blockgz.Archive, cluster: MockCluster, copy: str
) -> None:
    older = writer.partition("lines", 0)
    older.commit(records(range(10)))
    older.commit(records(range(10, 20)))
    writer.partition("lines", 1).commit(records(range(5)))
    older.truncated(10).commit(records(range(10, 50), value_bytes=30))
    kafka = cluster.bootstrap_servers
    done = archive.replay("lines", copy, kafka=kafka, job="truncated")
    assert done.result.records == 55
    proof = archive.verify_job("truncated", kafka=kafka)
    assert (proof.verdict, [lane.faults for lane in proof.lanes]) == ("OK", [[], []])
    assert archive.replay("lines", copy, kafka=kafka, job="truncated", resume=True).result.complete


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="tempo"):
        replay_request("orders", "copy", {"tempo": "1x"})  # type: ignore[typeddict-unknown-key]

"""`archiver doctor`: each judgement by its values, the whole against a mock cluster, and never a traceback."""

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from archiver import doctor
from archiver.cli import main
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import load_keyring
from blockgz.errors import AccessDenied
from blockgz.store.s3_writer import S3Store
from index_format.errors import BlockgzError
from index_format.objects import ArchiveInfo
from tests.support.archives import ArchiveWriter, topic_config
from tests.support.commands import exited
from tests.support.encryption import key_line, key_of
from tests.support.mock_cluster import MockCluster

OK, WARN, FAIL = doctor.Severity
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": str(168 * HOUR_MS)}, None),
        ({"retention.ms": str(HOUR_MS)}, None),
        ({"retention.ms": str(HOUR_MS - 1)}, WARN),
        ({"retention.ms": "300001"}, WARN),
        ({"retention.ms": "300000"}, FAIL),
        ({"retention.ms": "0"}, FAIL),
        ({"retention.ms": "0", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "0", "cleanup.policy": "compact,delete"}, FAIL),
        ({"retention.ms": "-1", "retention.bytes": "1073741824"}, WARN),
    ],
)
def test_retention_against_chunks_of_five_minutes(settings: dict[str, str], expected: doctor.Severity | None) -> None:
    finding = doctor.judge_retention("orders", settings, 300.0)
    assert (finding.verdict if finding else None) is expected
    assert finding is None or (finding.remedy and "orders" in finding.detail)


def test_topics_are_told_apart_only_where_something_is_to_be_done() -> None:
    fine = topic_config("orders", 1, {}, {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    short = topic_config("orders", 1, {"retention.ms": "1000"}, {"retention.ms": "-1"})
    silent = topic_config("orders", 1, None, None)
    findings = list(doctor.judge_topics({"a": fine, "b": fine, "c": short, "d": silent}, 300.0))
    assert [(each.check, each.verdict) for each in findings] == [
        ("retention", FAIL),
        ("retention", WARN),
        ("retention", OK),
        ("timestamp type", OK),
    ]
    assert findings[-1].detail.startswith("CreateTime on 1 topics, LogAppendTime on 2 topics")


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"a": frozenset({"DESCRIBE", "READ", "WRITE"})}, [OK]),
        ({"a": frozenset({"DESCRIBE"}), "b": frozenset({"DESCRIBE", "READ"})}, [FAIL]),
        ({"a": None, "b": frozenset({"DESCRIBE", "READ"})}, [WARN]),
        ({}, []),
    ],
)
def test_topic_permissions(allowed: dict[str, frozenset[str] | None], expected: list[doctor.Severity]) -> None:
    assert [each.verdict for each in doctor.judge_topic_permissions(allowed)] == expected


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (doctor.judge_group_permissions("g", frozenset({"READ"})), OK),
        (doctor.judge_group_permissions("g", frozenset({"DESCRIBE"})), FAIL),
        (doctor.judge_group_permissions("g", None), WARN),
        (doctor.judge_dead_letters("dead", True, frozenset({"DESCRIBE", "WRITE"})), OK),
        (doctor.judge_dead_letters("dead", True, frozenset({"DESCRIBE", "READ"})), FAIL),
        (doctor.judge_dead_letters("dead", True, None), WARN),
        (doctor.judge_dead_letters("dead", False, None), FAIL),
        (doctor.judge_topic_ids("id"), OK),
        (doctor.judge_topic_ids(None), WARN),
        (doctor.judge_protocols(frozenset({"classic", "consumer"})), OK),
        (doctor.judge_protocols(frozenset({"classic"})), FAIL),
        (doctor.judge_protocols(None), WARN),
        (doctor.judge_newest(None, 1000.0), OK),
        (doctor.judge_newest(1_060_000, 1000.0), OK),
        (doctor.judge_newest(1_061_000, 1000.0), WARN),
        (doctor.judge_open_files(None, 3, 1000), OK),
        (doctor.judge_open_files(1024, 3, 1000), OK),
        (doctor.judge_open_files(doctor.FILES, 3, 1), WARN),
        (doctor.judge_space(Path("/b"), 10, 10), OK),
        (doctor.judge_space(Path("/b"), 9, 10), WARN),
        (doctor.judge_clock(59), OK),
        (doctor.judge_clock(-61), WARN),
        (doctor.judge_clock(901), FAIL),
    ],
)
def test_judgements(finding: doctor.Finding, expected: doctor.Severity) -> None:
    assert finding.verdict is expected
    assert finding.detail


@pytest.mark.parametrize(
    ("layout", "cluster_id", "expected"),
    [("topic", "c", OK), ("topic", None, OK), ("seed", "c", FAIL), ("topic", "other", FAIL)],
)
def test_an_archive_of_another_layout_or_cluster_is_refused(
    layout: str, cluster_id: str | None, expected: doctor.Severity
) -> None:
    found = {"topic": ArchiveInfo(archive_id="a", cluster_id="c", layout="topic")}
    assert doctor.judge_identity(found, layout, cluster_id).verdict is expected


@pytest.mark.parametrize(
    ("owners", "takeover", "expected"),
    [
        ({}, False, OK),
        ({("orders", 0): "a"}, False, OK),
        ({("orders", 0): "b"}, False, FAIL),
        ({("orders", 0): "b"}, True, WARN),
    ],
)
def test_a_group_in_which_another_archive_commits(
    owners: dict[tuple[str, int], str], takeover: bool, expected: doctor.Severity
) -> None:
    archive = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")
    assert doctor.judge_group_owners("g", archive, owners, takeover=takeover).verdict is expected


def test_a_new_archive_in_the_group_of_another() -> None:
    assert doctor.judge_group_owners("g", None, {("orders", 0): "b"}, takeover=False).verdict is FAIL
    assert doctor.judge_group_owners("g", None, {}, takeover=False).verdict is OK


def test_the_worst_verdict_counts() -> None:
    assert doctor.worst([]) is OK
    assert doctor.worst([doctor.Finding("a", WARN, ""), doctor.Finding("b", OK, "")]) is WARN
    assert (
        doctor.worst([doctor.Finding("a", WARN, ""), doctor.Finding("b", FAIL, ""), doctor.Finding("c", OK, "")])
        is FAIL
    )


@pytest.mark.parametrize(
    ("found", "exit_code"),
    [
        ([doctor.Finding("a", WARN, "", denied=True), doctor.Finding("b", OK, "")], 0),
        ([doctor.Finding("a", FAIL, ""), doctor.Finding("b", OK, "")], 1),
        ([doctor.Finding("a", FAIL, ""), doctor.failed("b", AccessDenied("no"))], 12),
        ([doctor.failed("b", BlockgzError("no"))], 1),
    ],
)
def test_what_is_denied_ends_with_the_code_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: list[doctor.Finding], exit_code: int
) -> None:
    monkeypatch.setattr("archiver.cli.doctor.examine", lambda _: found)
    assert run("orders", "-b", "127.0.0.1:1", "-a", tmp_path).exit_code == exit_code


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock does not answer half of the questions; nobody waits for it."""
    for module in ("blockgz.kafka.admin", "archiver.ingest.kafka_cluster"):
        monkeypatch.setattr(f"{module}.FACTS_DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr("archiver.doctor.DEADLINE_SECONDS", 0.3)


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    cluster.create_topic("orders")
    return cluster


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def verdicts(result: Result) -> dict[str, str]:
    """Check -> its last verdict."""
    return {each["check"]: each["verdict"] for each in orjson.loads(result.stdout)["findings"]}


def test_a_sound_site_is_ok_and_what_cannot_be_asked_is_a_warning(cluster: MockCluster, tmp_path: Path) -> None:
    archive = tmp_path / "new" / "archive"
    result = run("orders", "-b", cluster.bootstrap_servers, "-a", archive, "--buffer-bytes", "1MiB", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = verdicts(result)
    sound = {"versions", "broker", "topics", "buffer", "store", "store clock", "conditional writes", "archive"}
    assert {found[check] for check in sound} == {"ok"}
    assert found["topic ACL"] == found["group ACL"] == "warn", "the mock does not tell"
    assert orjson.loads(result.stdout)["verdict"] == "warn"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.slow
def test_the_table_names_what_to_do(cluster: MockCluster, tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, "seed")
    result = exited(run("orders", "missing", "-b", cluster.bootstrap_servers, "-a", tmp_path), 1)
    lines = result.stdout.splitlines()
    (found,) = [number for number, line in enumerate(lines) if "there is no topic missing" in line]
    assert lines[found].startswith("fail  ") and "do: " in lines[found + 1] and "create it" in lines[found + 1]
    (found,) = [number for number, line in enumerate(lines) if "  archive: " in line]
    assert "layout seed" in lines[found] and "--layout seed" in lines[found + 1]


@pytest.mark.slow
def test_without_a_broker_the_rest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockgz.kafka.connection.BROKER_DEADLINE_SECONDS", 0.3)
    result = exited(run("orders", "-b", "127.0.0.1:1", "-a", tmp_path, "--json"), 1)
    found = verdicts(result)
    assert found["broker"] == "fail"
    assert found["topics"] == found["permissions"] == found["retention"] == "warn"
    assert found["store"] == found["conditional writes"] == "ok"


def test_a_store_that_cannot_be_reached_is_a_failure(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Store.__init__, "__kwdefaults__", {"attempts": 1})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    options = ("--endpoint-url", "http://127.0.0.1:1", "--region", "us-east-1", "--json")
    result = exited(run("orders", "-b", cluster.bootstrap_servers, "-a", "s3://nowhere/a", *options), 1)
    assert verdicts(result)["store"] == "fail"
    assert "Traceback" not in result.stderr


def test_a_fault_of_ours_in_one_check_stops_no_other(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken\ncheck")

    monkeypatch.setattr("archiver.doctor.shutil.disk_usage", broken)
    result = run("orders", "-b", cluster.bootstrap_servers, "-a", tmp_path, "--json")
    (finding,) = [each for each in orjson.loads(result.stdout)["findings"] if each["check"] == "buffer"]
    assert finding["verdict"] == "warn"
    assert finding["detail"] == "could not be checked: RuntimeError: broken check"
    assert verdicts(result)["store"] == "ok"


def test_without_a_topic_all_are_looked_at(cluster: MockCluster, tmp_path: Path) -> None:
    result = run("-b", cluster.bootstrap_servers, "-a", tmp_path, "--json")
    (finding,) = [each for each in orjson.loads(result.stdout)["findings"] if each["check"] == "topics"]
    assert finding["detail"] == "1 topics, 4 partitions"


def checked(encrypt: str | None) -> list[doctor.Finding]:
    config = RunConfig(archive="./a", bootstrap_servers="h:1", topics="orders", encrypt=encrypt)
    return list(doctor.carefully("keys", lambda: doctor.check_keys(config)))


def test_keys_of_encrypted_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_keyring.cache_clear()
    monkeypatch.setenv("KEYS", key_line(1) + key_line(2))
    assert checked(None) == []
    (finding,) = checked("env:KEYS")
    assert finding.verdict is doctor.Severity.OK and key_of(2).id in finding.detail
    (missing,) = checked(f"file:{tmp_path / 'none'}")
    assert missing.verdict is doctor.Severity.FAIL and "cannot be read" in missing.detail

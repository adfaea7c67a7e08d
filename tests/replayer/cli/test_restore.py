from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from blockgz.archive.archive import ArchivePlace
from replayer.cli import main
from replayer.replay.jobs.folder import open_jobs
from replayer.restore.document import RestorePlan, TopicToRestore, WantedTopics, plan_text
from replayer.restore.folder import RestoreFolder, RestoreRecord
from tests.support.archives import ArchiveWriter, records

CLUSTER = ("-b", "127.0.0.1:1", "-a", "./archive")


def restore(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["restore", *arguments, *CLUSTER])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--at, which says as of when, is missing"),
        (("--at", "soon"), "'soon' is not a time"),
        (("--at", "-1h", "--map", "a"), "--map 'a' renames nothing"),
        (("--at", "-1h", "--group-map", "(=x"), "--group-map '(=x' renames nothing"),
        (("--at", "-1h", "--no-groups", "--groups", "a*"), "--no-groups restores no groups"),
        (("--at", "-1h", "--report", "r.html"), "a restore writes .json"),
        (("--at", "-1h", "--rate", "fast"), "'fast' is not a rate"),
        (("--at", "-1h", "--sample", "1%"), "--sample says how much is proved with --prove sample"),
        (("--follow",), "--follow needs --name"),
        (("--follow", "--status", "--name", "n"), "--follow and --status are two things"),
        (("--follow", "--name", "n", "--at", "-1h"), "--follow has no end"),
        (("--follow", "--name", "n", "--from-plan", "plan.json"), "--follow has no end"),
        (("--follow", "--name", "n", "--no-transactional"), "needs transactions"),
        (("--follow", "--name", "n", "--prove", "all"), "--prove says what --switch-over compares"),
        (("--status", "--name", "n", "orders"), "--status is of what is followed"),
        (("--switch-over", "--name", "n", "--map", "a=b"), "--switch-over is of what is followed"),
        (("--switch-over",), "--switch-over needs --name"),
        (("--from-plan", "plan.json", "--at", "-1h"), "--from-plan says what is restored"),
        (("--from-plan", "plan.json", "orders"), "--from-plan says what is restored"),
        (("--from-plan", "plan.json", "--resume"), "remove --from-plan"),
        (("--from-plan", "plan.json", "--group-map", "a=b"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--no-groups"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--prove", "none"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--partial"), "--from-plan says how topics are restored"),
        (("--from-plan", "plan.json", "--replication-factor", "1"), "--from-plan says how topics are restored"),
    ],
)
def test_contradictions_are_usage_errors(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_bytes(b"{}")
    result = restore(*arguments)
    assert result.exit_code == 2, result.output
    assert told in " ".join(result.stderr.split())


def test_the_plan_of_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ArchiveWriter(Path("archive")).partition("orders", 0).commit(records(range(3)))
    topic = TopicToRestore(source="orders~1", target="copy", partitions=1, numbers=(0,), settings={})
    other = RestorePlan(archive_id="another", at=1_760_000_000_000, topics=(topic,))
    Path("plan.json").write_bytes(plan_text(other))
    refused = restore("--from-plan", "plan.json", "--yes")
    assert (refused.exit_code, "is of another archive" in refused.stderr) == (2, True), refused.output
    begun = {"cluster_id": None, "host": "h", "begun_at": 1}
    for name, plan in (("night", other), ("standby", replace(other, follow=WantedTopics()))):
        folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), name)
        folder.begin(RestoreRecord(name=name, plan=plan, **begun))
    for arguments in (
        ("--resume", "--name", "night"),
        ("--resume", "--follow", "--name", "standby"),
        ("--status", "--name", "standby"),
        ("--switch-over", "--name", "standby", "--yes"),
    ):
        refused = restore(*arguments)
        assert (refused.exit_code, "is of another archive" in refused.stderr) == (2, True), refused.output


TOPIC = TopicToRestore(source="orders~1", target="copy", partitions=1, numbers=(0,), settings={})
PLAN = RestorePlan(archive_id="", at=1_760_000_000_000, topics=(TOPIC,), partial=True)
AT = "2025-10-09T08:53:20Z"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestorePlan:
    """A restore of the name night and a standby."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ArchiveWriter(Path("archive")).partition("orders", 0).commit(records(range(3)))
    followed = replace(PLAN, follow=WantedTopics(("orders",), (("a", "b"),)), topics=())
    for name, plan in (("night", PLAN), ("standby", followed)):
        folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), name)
        folder.begin(RestoreRecord(name=name, plan=plan, cluster_id=None, host="h", begun_at=1))
    return PLAN


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--at", "2025-10-09T08:53:21Z"), "--at"),
        (("--map", "orders=other"), "--map"),
        (("bills",), "TOPIC"),
        (("b*",), "TOPIC"),
        (("--prove", "none"), "--prove"),
        (("--prove", "sample", "--sample", "1%"), "--prove, --sample"),
        (("--replication-factor", "2"), "--replication-factor"),
        (("--groups", "bil*"), "--groups or --group-map"),
        (("--group-map", "a=b", "--groups", "bil*"), "--groups or --group-map"),
        (("--on-damage", "skip", "--no-transactional"), "--no-transactional, --on-damage"),
        (("--follow", "--name", "standby", "bills"), "TOPIC"),
        (("--follow", "--name", "standby", "--map", "a=c"), "--map"),
    ],
)
@pytest.mark.usefixtures("begun")
def test_a_restore_is_resumed_as_it_was_begun(given: tuple[str, ...], named: str) -> None:
    refused = restore("--resume", "--dry-run", "--name", "night", *given)
    assert refused.exit_code == 2, refused.output
    assert f"was begun otherwise: {named}\n" in refused.stderr


@pytest.mark.parametrize("given", [(), ("orders", "--at", AT, "--map", "(o)rders=copy", "--partial"), ("ord*",)])
@pytest.mark.usefixtures("begun")
def test_the_first_command_may_be_repeated(given: tuple[str, ...]) -> None:
    done = restore("--resume", "--dry-run", "--name", "night", *given)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 3), ({"lacks": (), "refused": "it exists"}, 2), ({"lacks": ()}, 0)], ids=str
)
def test_a_dry_run_exits_as_the_run_would(begun: RestorePlan, changes: dict[str, str], code: int) -> None:
    topic = replace(begun.topics[0], **{"lacks": ("partition 1 is missing",), **changes})
    folder = RestoreFolder(open_jobs(None, ArchivePlace("./archive")), "part")
    plan = replace(begun, topics=(topic,))
    folder.begin(RestoreRecord(name="part", plan=plan, cluster_id=None, host="h", begun_at=1))
    done = restore("--resume", "--dry-run", "--name", "part")
    assert done.exit_code == code, done.output


def test_what_is_no_plan_or_was_not_begun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("plan.json").write_bytes(b"{}")
    Path("archive").mkdir()
    assert "plan.json is not the plan of a restore" in restore("--from-plan", "plan.json").stderr
    unknown = restore("--resume", "--name", "night")
    assert (unknown.exit_code, "there is no restore night" in unknown.stderr) == (2, True)
    for doing in (("--status",), ("--switch-over", "--yes")):
        unknown = restore(*doing, "--name", "night")
        assert (unknown.exit_code, "there is no restore night" in unknown.stderr) == (2, True)
    nameless = restore("--resume")
    assert (nameless.exit_code, "which restore is to be continued" in nameless.stderr) == (2, True)

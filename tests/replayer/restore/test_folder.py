from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.errors import UsageError
from blockgz.store.local import LocalStore
from replayer.errors import ReplayRefused
from replayer.restore.folder import (
    AclsDone,
    GroupsDone,
    RestoreFolder,
    RestoreRecord,
    StandbyReport,
    SwitchOver,
    TopicDone,
    TopicFollowed,
    TopicStand,
)
from tests.replayer.restore.test_document import PLAN

RECORD = RestoreRecord(name="night", cluster_id="c", host="h:1", begun_at=1, plan=PLAN)


@pytest.fixture
def folder(tmp_path: Path) -> RestoreFolder:
    return RestoreFolder(LocalStore(tmp_path), "night")


def test_what_was_agreed_to_is_written_once(folder: RestoreFolder) -> None:
    with pytest.raises(UsageError, match="there is no restore night"):
        folder.begun()
    folder.refuse_begun()
    folder.begin(RECORD)
    assert folder.begun() == RECORD
    with pytest.raises(ReplayRefused, match="restore night has begun already"):
        folder.begin(RECORD)
    with pytest.raises(ReplayRefused, match="restore night has begun already"):
        folder.refuse_begun()


def test_what_is_done(folder: RestoreFolder) -> None:
    done = TopicDone(source="a~1", target="a", records=3, verdict="OK", at=5)
    groups, acls = GroupsDone(groups={"billing": 2}, at=6), AclsDone(acls={"a": 2}, at=7)
    assert (folder.get(TopicDone, "night.a-1"), folder.get(GroupsDone), folder.get(AclsDone)) == (None, None, None)
    for _ in range(2):
        folder.put(done, "night.a-1")
        folder.put(groups)
        folder.put(acls)
    assert (folder.get(TopicDone, "night.a-1"), folder.get(GroupsDone), folder.get(AclsDone)) == (done, groups, acls)


def test_damage_is_refused(folder: RestoreFolder, tmp_path: Path) -> None:
    folder.begin(RECORD)
    path = tmp_path / "night" / "restore.json"
    path.write_bytes(path.read_bytes().replace(b"archive-1", b"archive-2"))
    with pytest.raises(ReplayRefused, match="the folder of restore night cannot be read"):
        folder.get(RestoreRecord)


def test_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a job name"):
        RestoreFolder(LocalStore(tmp_path), "a/b")


def test_what_a_standby_follows_and_found(folder: RestoreFolder) -> None:
    later, first = (TopicFollowed(topic=replace(PLAN.topics[each], refused=None), at=5 - each) for each in (0, 1))
    assert (folder.followed(), folder.get(StandbyReport), folder.get(SwitchOver)) == ({}, None, None)
    for topic in (later, first, later):
        folder.put(topic, f"night.{topic.topic.target}-1")
    assert list(folder.followed().items()) == [("big~2", first.topic), ("small~1", later.topic)]
    stand = TopicStand("small~1", "small", "stopped", "created again", "delete it", ("0 [1..2)",))
    report = StandbyReport(state="following", host="h:1", slot_at=7, every=60.0, topics=(stand,), group_notes=("n",))
    for each in (report, replace(report, state="ended")):
        folder.report(each)
        assert folder.get(StandbyReport) == each
    told = SwitchOver(host="h:2", at=9)
    for other in (told, SwitchOver(host="h:3", at=10)):
        folder.put(other)
    assert folder.get(SwitchOver) == told

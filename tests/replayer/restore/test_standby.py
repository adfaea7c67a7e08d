import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from replayer.replay.surroundings import Surroundings
from replayer.restore.document import RestorePlan, TopicLeftOut
from replayer.restore.folder import StandbyReport, TopicStand
from replayer.restore.standby import (
    StandbySurvey,
    StandbyTurn,
    TopicLag,
    follows_elsewhere,
    lag_of,
    standby_document,
    switched_plan,
)
from tests.replayer.restore.test_turns import plan, topic
from tests.support.archives import ArchiveWriter, records

REPORT = StandbyReport(
    state="following",
    host="here:1",
    slot_at=100_000,
    every=10.0,
    topics=(TopicStand("orders~1", "orders", "failing", "no", "wait", ("0 [1..2)",)),),
    group_notes=("a note",),
)


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    """Two topics: 40 records in each of two partitions, and 10 in one."""
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in (0, 2):
        writer.partition("orders", partition).commit(records(range(40), timestamps=range(1000, 1040)))
    writer.partition("bills", 0).commit(records(range(10)))
    archive = Archive(LocalReader(LocalAddress(str(writer.root))))
    return Surroundings(archive, {"bootstrap.servers": "127.0.0.1:1"}, LocalStore(tmp_path / "jobs"))


def switched(around: Surroundings, found: StandbySurvey, *followed: str) -> RestorePlan:
    by_source = {each: topic(each) for each in followed}
    return asyncio.run(switched_plan(plan(), found, by_source, around))


def test_a_switch_over_restores_what_is_followed_with_its_size(around: Surroundings) -> None:
    found = StandbySurvey(replace(plan(), at=9), [StandbyTurn(topic("bills~1")), StandbyTurn(topic("orders~1"))], [])
    bills, orders = switched(around, found, "bills~1").topics
    assert (orders.partitions, orders.numbers, orders.records) == (3, (0, 2), 80)
    assert (orders.oldest, orders.newest, orders.refused) == (1000, 1039, None)
    assert 0 < orders.largest < orders.bytes
    assert bills.records == 10
    assert switched(around, found).at == 9


def test_a_topic_that_stopped_is_restored_as_far_as_it_came(around: Surroundings) -> None:
    found = StandbySurvey(
        plan(), [StandbyTurn(topic("orders~1"), "created again"), StandbyTurn(topic("bills~1"), "x exists")], []
    )
    orders, bills = switched(around, found, "orders~1").topics
    assert (orders.lacks, orders.records, orders.refused) == (("created again",), 80, None)
    assert (bills.refused, bills.records) == ("x exists", 0)


def test_what_is_gone_is_left_out_once(around: Surroundings) -> None:
    left_out = TopicLeftOut("deals", "deleted")
    found = StandbySurvey(plan(left_out=(left_out,)), [], [StandbyTurn(topic("deals~1"), "deleted")])
    assert switched(around, found, "deals~1").left_out == (left_out,)


def test_before_its_job_begins_a_topic_is_all_behind(around: Surroundings) -> None:
    lag = asyncio.run(lag_of(topic("orders~1"), "standby", around))
    assert lag == TopicLag(0, 80, 1000)
    assert (lag.seconds(3000), lag.seconds(500)) == (2.0, 0.0)
    assert asyncio.run(lag_of(topic("nobody~1"), "standby", around)).error is not None


def test_the_document_of_a_status() -> None:
    due = [
        StandbyTurn(topic("orders~1")),
        StandbyTurn(topic("bills~1"), "it was created again", "delete it"),
        StandbyTurn(topic("new~1")),
    ]
    found = StandbySurvey(plan(), due, [StandbyTurn(topic("deals~1"), "deleted")])
    lags = {"orders~1": TopicLag(5, 3, 1000), "bills~1": TopicLag(9), "new~1": TopicLag(0, 2, 3000)}
    document = standby_document("standby", found, lags, REPORT, "following", 5000)
    told = {each["source"]: (each["state"], each["why"], each["behind_records"]) for each in document["topics"]}
    assert told == {
        "orders~1": ("failing", "no", 3),
        "bills~1": ("stopped", "it was created again", 0),
        "new~1": ("behind", None, 2),
        "deals~1": ("gone", "deleted", 0),
    }
    assert (document["behind_records"], document["behind_seconds"], document["slot_at"]) == (5, 4.0, 100_000)
    assert document["topics"][0]["skipped"] == ["0 [1..2)"]
    unknown = standby_document("standby", found, lags | {"new~1": TopicLag(error="e")}, None, "not running", 5000)
    assert [each["state"] for each in unknown["topics"]] == ["behind", "stopped", "failing", "gone"]


def test_who_follows_elsewhere_is_believed_for_a_while() -> None:
    assert not follows_elsewhere(None, "there:2", 0)
    assert not follows_elsewhere(REPORT, "here:2", 100_000)
    assert follows_elsewhere(REPORT, "there:2", 160_000)
    assert not follows_elsewhere(REPORT, "there:2", 170_001)
    assert not follows_elsewhere(replace(REPORT, state="ended"), "there:2", 100_000)

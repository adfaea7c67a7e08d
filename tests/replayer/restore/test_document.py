from typing import Any

import msgspec
import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.positions import AtOffset, BeforeTime
from blockgz.errors import UsageError
from replayer.replay.surroundings import Surroundings
from replayer.restore.document import (
    RestoreGroups,
    RestorePlan,
    TopicLeftOut,
    TopicToRestore,
    parse_plan,
    plan_text,
    refuse_group_twins,
    refuse_twins,
)
from replayer.restore.planning import replay_of
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryStore


def topic(source: str, target: str | None = None, **fields: Any) -> TopicToRestore:
    given: dict[str, Any] = {"partitions": 2, "numbers": (0, 1), "settings": {"retention.ms": "-1"}, **fields}
    return TopicToRestore(source=source, target=target or source.partition("~")[0], **given)


PLAN = RestorePlan(
    archive_id="archive-1",
    at=1_760_000_000_000,
    groups=RestoreGroups(("billing*",), (("(.*)", r"drill-\1"),)),
    topics=(
        topic("small~1", bytes=5),
        topic("big~2", "large", bytes=50),
        topic("bad~1", bytes=99, refused="it exists"),
    ),
    left_out=(TopicLeftOut("gone", "it was gone"),),
    warnings=("a warning",),
)


def test_a_plan_is_read_as_it_was_written() -> None:
    assert parse_plan(plan_text(PLAN), "plan.json") == PLAN
    assert parse_plan(plan_text(msgspec.structs.replace(PLAN, groups=None)), "plan.json").groups is None


def test_the_biggest_topic_goes_first_and_refused_ones_do_not() -> None:
    assert [each.source for each in PLAN.restorable] == ["big~2", "small~1"]
    assert [each.source for each in PLAN.refused] == ["bad~1"]
    assert PLAN.bytes == 55


def edited(**changes: Any) -> bytes:
    document = msgspec.json.decode(plan_text(PLAN))
    return msgspec.json.encode(document | changes)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        edited(format="other"),
        edited(version=2),
        edited(topicz=[]),
        edited(topics=[{"source": "a~1"}]),
        edited(topics=[msgspec.to_builtins(topic("a~1", "no/name"))]),
        edited(topics=[msgspec.to_builtins(topic("a~1", partitions=0))]),
        edited(topics=[]),
        edited(at=0),
        edited(groups={"rename": [["(", "x"]]}),
        edited(groups={"rename": [["(.*)", r"x\7"]]}),
        edited(groups={"rename": [["a{99999999999999}", "x"]]}),
        edited(follow={"rename": [["(", "x"]]}),
    ],
)
def test_what_is_no_plan_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match=r"plan.json is not the plan of a restore"):
        parse_plan(body, "plan.json")


def test_two_groups_of_one_topic_that_get_one_name_are_refused() -> None:
    rename = RestoreGroups(rename=(("(.*)-.*", r"\1"),))
    apart = (topic("a~1", groups=("billing-1", "search-1")), topic("b~1", groups=("billing-2",)))
    refuse_group_twins(msgspec.structs.replace(PLAN, groups=rename, topics=apart))
    twins = msgspec.structs.replace(PLAN, topics=(topic("a~1", groups=("billing-1", "billing-2")),))
    refuse_group_twins(msgspec.structs.replace(twins, groups=None))
    with pytest.raises(UsageError, match="groups billing-1 and billing-2 would both be billing"):
        refuse_group_twins(msgspec.structs.replace(twins, groups=rename))


def test_two_topics_of_one_name_are_refused() -> None:
    twins = [topic("a~1", "x"), topic("b~1", "x")]
    with pytest.raises(UsageError, match="a~1 and b~1 would both be restored as x"):
        refuse_twins(twins)
    with pytest.raises(UsageError, match="would both be restored"):
        parse_plan(edited(topics=msgspec.to_builtins(twins)), "plan.json")
    with pytest.raises(UsageError, match="a~1 is to be restored twice"):
        refuse_twins([topic("a~1", "x"), topic("a~1", "y")])
    refuse_twins([topic("a~1"), topic("b~1")])


def test_a_plan_without_a_rule_keeps_kafkas_and_its_jobs_their_names() -> None:
    document = msgspec.json.decode(plan_text(PLAN))
    del document["at_rule"]
    older = parse_plan(msgspec.json.encode(document), "plan.json")
    (small, *_) = older.topics
    around = Surroundings(Archive(MemoryReader({})), {}, MemoryStore())
    asked = replay_of(older, small, "night", around).selection
    assert asked.asked == ("earliest", "@1760000000000")
    assert asked.positions.end == BeforeTime(1_760_000_000_000, "first")


def test_the_cuts_of_a_plan_are_where_its_partitions_end() -> None:
    plan = msgspec.structs.replace(PLAN, at_rule="majority", topics=(topic("small~1", cuts={0: 17, 7: 4}),))
    asked = replay_of(
        plan, plan.topics[0], "night", Surroundings(Archive(MemoryReader({})), {}, MemoryStore())
    ).selection
    assert asked.positions.of(0) == (None, AtOffset(17))
    assert asked.positions.of(1) == (None, BeforeTime(1_760_000_000_000, "majority"))
    assert asked.asked == ("earliest", "@1760000000000", "majority")
    broken = msgspec.structs.replace(plan, topics=(topic("small~1", cuts={0: -1}),))
    with pytest.raises(UsageError, match="not the plan of a restore"):
        parse_plan(plan_text(broken), "plan.json")

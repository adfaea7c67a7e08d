"""A drill: which partitions it takes, and what its report calls a failure."""

import pytest

from blockgz.archive.damage import Verdict
from blockgz.errors import NotInArchive
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.drill import Drill, drill_document, sampled
from replayer.restore.running import TopicOutcome

DRILL = Drill(1000, (), "drill.", 0.05, 7)


def topic(name: str, partitions: int = 10, records: int = 100, **changes: object) -> TopicToRestore:
    fields = {"settings": {}, "bytes": 10 * records, **changes}
    return TopicToRestore(
        source=name,
        target=f"drill.{name}",
        partitions=partitions,
        numbers=tuple(range(partitions)),
        records=records,
        **fields,  # type: ignore[arg-type]
    )


def plan(*topics: TopicToRestore) -> RestorePlan:
    return RestorePlan(archive_id="a", at=1000, topics=topics)


def chosen(found: RestorePlan) -> list[tuple[str, int]]:
    return [(each.source, number) for each in found.topics for number in each.numbers]


@pytest.mark.parametrize(("share", "expected"), [(0.0001, 1), (0.05, 1), (0.051, 2), (0.5, 10), (1.0, 20)])
def test_a_share_of_the_partitions_at_least_one(share: float, expected: int) -> None:
    whole = plan(topic("a"), topic("b"))
    found = chosen(sampled(whole, share, 7))
    assert len(found) == len(set(found)) == expected
    assert set(found) <= set(chosen(whole))
    assert chosen(sampled(whole, share, 7)) == found


def test_every_seed_takes_others() -> None:
    whole = plan(topic("a", 100))
    assert len({tuple(chosen(sampled(whole, 0.05, seed))) for seed in range(20)}) > 15


def test_a_topic_is_made_no_wider_than_it_must_be() -> None:
    (found,) = sampled(plan(topic("a", 100)), 0.02, 7).topics
    assert found.partitions == found.numbers[-1] + 1


def test_what_is_refused_or_empty_is_not_taken() -> None:
    whole = plan(topic("a", refused="it exists"), topic("b", records=0), topic("c", 1))
    assert chosen(sampled(whole, 1.0, 7)) == [("c", 0)]
    with pytest.raises(NotInArchive, match="there is nothing to try a restore with"):
        sampled(plan(topic("a", refused="it exists")), 1.0, 7)


def outcome(state: str, **changes: object) -> TopicOutcome:
    fields = {"records": 100, "verdict": Verdict.OK, **changes}
    return TopicOutcome(topic("a"), "drill.a-1", state, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "left", "whole", "verdict"),
    [
        (outcome("restored"), [], plan(topic("a")), "OK"),
        (outcome("restored"), [], plan(topic("a"), topic("b")), "SAMPLED"),
        (outcome("restored", verdict=Verdict.WARNING), [], plan(topic("a"), topic("b")), "WARNING"),
        (outcome("failed", error="no"), [], plan(topic("a")), "FAILURE"),
        (outcome("interrupted"), [], plan(topic("a")), "FAILURE"),
        (outcome("restored", skipped=["0 [3..5): damaged"]), [], plan(topic("a")), "FAILURE"),
        (outcome("restored"), ["drill.a: it changed"], plan(topic("a")), "FAILURE"),
        (outcome("restored"), [], plan(topic("a", lacks=("partition 3 is missing",))), "FAILURE"),
        (outcome("restored"), [], plan(topic("a"), topic("b", refused="it exists")), "FAILURE"),
    ],
)
def test_ok_is_only_what_was_proved_and_removed(
    found: TopicOutcome, left: list[str], whole: RestorePlan, verdict: str
) -> None:
    assert drill_document(DRILL, whole, plan(topic("a")), [found], left, 2.0)["verdict"] == verdict


def test_recorded_gaps_are_a_warning() -> None:
    part = plan(topic("a", gaps=("partition 0 [3..5) (retention)",)))
    told = drill_document(DRILL, part, part, [outcome("restored")], [], 2.0)
    assert (told["verdict"], told["gaps"]) == ("WARNING", ["a: partition 0 [3..5) (retention)"])


def test_the_time_of_a_whole_restore_is_told_by_bytes() -> None:
    told = drill_document(DRILL, plan(topic("a"), topic("b", records=300)), plan(topic("a")), [], [], 2.0)
    assert told["whole"] == {"topics": 2, "records": 400, "bytes": 4000, "seconds": 8.0}


def test_notes_are_told() -> None:
    found = TopicOutcome(topic("a", notes=("pruned",)), "drill.a-1", "restored", 100, verdict="OK", notes=["retention"])
    told = drill_document(DRILL, plan(topic("a")), plan(topic("a")), [found], [], 2.0)
    assert (told["verdict"], told["notes"]) == ("OK", ["drill.a: pruned", "drill.a: retention"])

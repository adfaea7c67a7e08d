from collections.abc import Collection, Sequence

from replayer.restore.document import RestorePlan, TopicLeftOut, TopicToRestore, WantedTopics
from replayer.restore.planning import TRUNCATED
from replayer.restore.standby import gone, turns


def topic(source: str, target: str | None = None, lacks: tuple[str, ...] = ()) -> TopicToRestore:
    target = source.partition("~")[0] if target is None else target
    return TopicToRestore(source=source, target=target, partitions=1, numbers=(0,), settings={}, lacks=lacks)


def plan(*topics: TopicToRestore, partial: bool = False, left_out: tuple[TopicLeftOut, ...] = ()) -> RestorePlan:
    return RestorePlan(
        archive_id="a", at=5, partial=partial, follow=WantedTopics(("o*",), (("(.*)", r"x.\1"),)), topics=topics,
        left_out=left_out,
    )  # fmt: skip


def stopped(
    found: RestorePlan, followed: Sequence[TopicToRestore] = (), existing: Collection[str] = ()
) -> list[tuple[str, str | None]]:
    by_source = {each.source: each for each in followed}
    return [(each.topic.source, each.stopped) for each in turns(found, by_source, existing)]


def test_topics_that_are_there_and_new_ones_are_followed() -> None:
    found = plan(topic("bills~1"), topic("orders~1"))
    assert stopped(found) == [("bills~1", None), ("orders~1", None)]
    assert stopped(found, [topic("orders~1")], {"orders"}) == [("bills~1", None), ("orders~1", None)]


def test_one_that_was_created_again_stops_while_its_copy_is_there() -> None:
    found, before = plan(topic("orders~2")), [topic("orders~1")]
    ((source, why),) = stopped(found, before, {"orders"})
    assert source == "orders~1"
    assert why == "orders was created again as orders~2: orders stays a copy of orders~1"
    assert stopped(found, before, set()) == [("orders~2", None)], "its copy was deleted"
    assert stopped(found, [*before, topic("orders~2")], {"orders"}) == [("orders~2", None)]
    ((source, why),) = stopped(plan(topic("orders~3")), [*before, topic("orders~2")], {"orders"})
    assert (source, "as orders~3: orders stays a copy of orders~2" in str(why)) == ("orders~2", True)


def test_two_topics_of_one_name() -> None:
    one, other = topic("a~1", "x"), topic("b~1", "x")
    assert stopped(plan(one, other)) == [("a~1", None), ("b~1", "x is a copy of a~1")]
    assert stopped(plan(one, other), [other], {"x"}) == [("a~1", "x is a copy of b~1"), ("b~1", None)]


def test_what_cannot_be_followed() -> None:
    assert stopped(plan(topic("lines"))) == [("lines", TRUNCATED)]
    assert stopped(plan(topic("lines")), [topic("lines~1")], {"lines"}) == [("lines~1", TRUNCATED)]
    lacking = topic("orders~1", lacks=("orders:1 is missing",))
    assert stopped(plan(lacking)) == [("orders~1", "orders:1 is missing")]
    assert stopped(plan(lacking, partial=True)) == [("orders~1", None)]


def test_topics_that_are_gone_were_followed_before() -> None:
    found = plan(left_out=(TopicLeftOut("orders", "deleted"), TopicLeftOut("bills", "deleted")))
    followed = {each.source: each for each in (topic("orders~1"), topic("orders~2"), topic("deals~1"))}
    assert [(each.topic.source, each.stopped) for each in gone(found, followed)] == [("orders~2", "deleted")]

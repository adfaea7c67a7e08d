import pytest

from blockgz.errors import NotInArchive, UsageError
from index_format.identity import Incarnation, Inventory
from index_format.keys import TopicFolder
from replayer.replay.job import is_job_name
from replayer.restore.document import (
    ChosenIncarnation,
    TopicLeftOut,
    incarnation_at,
    restore_name,
    same_topic,
    topic_job,
    wanted_topics,
)

ORDERS = (TopicFolder("orders", 1), TopicFolder("orders", 2), TopicFolder("orders", 3))


def inventory(*lives: tuple[int, int | None], ids: str = "abc") -> Inventory:
    """Incarnations of `orders`, each from and until."""
    return Inventory(
        incarnations=tuple(
            Incarnation("orders", number, ids[number - 1], begin, end, (0,))
            for number, (begin, end) in enumerate(lives, 1)
        )
    )


def chosen(at_ms: int, *lives: tuple[int, int | None]) -> int | str:
    found = incarnation_at("orders", ORDERS[: len(lives)], inventory(*lives), at_ms)
    return found.folder.incarnation if isinstance(found, ChosenIncarnation) else found.why


@pytest.mark.parametrize(("at_ms", "incarnation"), [(10, 1), (19, 1), (30, 2), (99, 2), (100, 3), (10_000, 3)])
def test_the_incarnation_that_existed_then(at_ms: int, incarnation: int) -> None:
    assert chosen(at_ms, (10, 20), (30, 100), (100, None)) == incarnation


def test_one_that_was_deleted_or_created_again_since_still_existed_then() -> None:
    assert chosen(50, (10, 60)) == 1
    assert chosen(50, (10, 60), (70, None)) == 1
    assert chosen(50, (10, None), (70, None)) == 1, "nobody saw its end"


@pytest.mark.parametrize("at_ms", [20, 25, 29])
def test_a_topic_that_was_gone_is_left_out(at_ms: int) -> None:
    why = chosen(at_ms, (10, 20), (30, None))
    assert isinstance(why, str) and "gone" in why


def test_the_first_one_that_was_seen_later_is_in_doubt() -> None:
    found = incarnation_at("orders", ORDERS[:2], inventory((10, 20), (30, None)), 9)
    assert isinstance(found, ChosenIncarnation)
    assert (found.folder.incarnation, found.in_doubt) == (1, True)


@pytest.mark.parametrize("known", [None, Inventory()])
def test_without_an_inventory_the_newest_is_taken_with_a_warning(known: Inventory | None) -> None:
    found = incarnation_at("orders", ORDERS, known, 5)
    assert isinstance(found, ChosenIncarnation)
    assert found.folder == ORDERS[2]
    assert found.note and "the newest is taken" in found.note
    assert not isinstance(found, TopicLeftOut)


def test_folders_of_one_topic_whose_log_was_truncated() -> None:
    lives = (10, None), (20, None), (30, None)
    assert same_topic(ORDERS[2], inventory(*lives, ids="abb")) == ORDERS[1:]
    assert same_topic(ORDERS[2], inventory(*lives, ids="bbb")) == ORDERS
    assert same_topic(ORDERS[2], inventory(*lives)) == ORDERS[2:]
    assert same_topic(ORDERS[2], None) == ORDERS[2:]


def test_topics_by_name_glob_and_regex() -> None:
    known = ["b", "a", "orders", "order-lines", "__internal", "a"]
    assert wanted_topics([], known) == ["a", "b", "order-lines", "orders"]
    assert wanted_topics(["order*", "~orders|a", "orders"], known) == ["order-lines", "orders", "a"]
    with pytest.raises(NotInArchive, match="topic c is not in the archive"):
        wanted_topics(["c"], known)
    with pytest.raises(NotInArchive, match="no archived topic matches"):
        wanted_topics(["c*"], known)
    with pytest.raises(UsageError, match="names an incarnation"):
        wanted_topics(["orders~2"], known)


def test_any_other_archive_time_topic_or_cluster_changes_the_name() -> None:
    asked = ("archive", 1, [("a~1", "a"), ("b~1", "b")], "cluster")
    names = {
        restore_name(*asked),
        restore_name("other", *asked[1:]),
        restore_name("archive", 2, *asked[2:]),
        restore_name("archive", 1, [("a~1", "a"), ("b~1", "c")], "cluster"),
        restore_name("archive", 1, [("a~1", "a")], "cluster"),
        restore_name(*asked[:3], "elsewhere"),
    }
    assert len(names) == 6
    assert restore_name("archive", 1, [("b~1", "b"), ("a~1", "a")], "cluster") == restore_name(*asked)
    assert all(map(is_job_name, names))


def test_jobs_have_names_of_their_own() -> None:
    assert topic_job("night", "orders~2") == "night.orders-2"
    assert topic_job("night", "orders") == "night.orders-1"
    sources = ["orders~2", "orders-2~1", "orders~1", "x" * 249 + "~1", "x" * 248 + "~1", "x" * 249 + "~2"]
    names = {topic_job("night", source) for source in sources}
    assert len(names) == len(sources)
    assert all(map(is_job_name, names))
    with pytest.raises(UsageError, match="not a job name"):
        topic_job("a b", "orders~1")
    with pytest.raises(UsageError, match="not a job name"):
        topic_job("n" * 99, "orders~1")

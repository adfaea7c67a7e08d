"""Whether a topic is still the one that was located, and which one lives in a folder."""

import pytest

from archiver.commit.archive import find_incarnation
from archiver.errors import TopicGone
from archiver.ingest.identity import TopicIds
from archiver.ingest.topics import TopicDirectory
from blockgz_runtime.errors import AccessDenied
from blockgz_runtime.kafka.admin import TopicIdAnswers
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder
from tests.support.memory_store import MemoryStore

ARCHIVE = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")


def directory(told: str | None, *, missing: bool = False, store: MemoryStore | None = None) -> TopicDirectory:
    answers = TopicIdAnswers({"orders": told} if told else {}, frozenset({"orders"} if missing else ()))
    return TopicDirectory(store or MemoryStore(), TopicIds(lambda _: answers, set), ARCHIVE)


@pytest.mark.parametrize(
    ("claimed", "told", "is_same"),
    [("one", "one", True), ("one", None, True), ("one", "two", False), (None, None, True), (None, "one", True)],
)
def test_a_topic_is_another_one_only_where_the_cluster_says_so(
    claimed: str | None, told: str | None, is_same: bool
) -> None:
    assert directory(told).is_same("orders", claimed) == is_same


def test_a_topic_that_is_not_there_is_gone_and_gets_no_folder() -> None:
    store = MemoryStore()
    with pytest.raises(TopicGone):
        directory(None, missing=True, store=store).locate("orders")
    assert not store.objects


def test_a_topic_that_may_not_be_described_is_denied_and_gets_no_folder() -> None:
    store = MemoryStore()
    answers = TopicIdAnswers({}, frozenset(), {"orders": AccessDenied("topic 'orders' cannot be described")})
    with pytest.raises(AccessDenied, match="cannot be described"):
        TopicDirectory(store, TopicIds(lambda _: answers, set), ARCHIVE).locate("orders")
    assert not store.objects


def test_an_id_that_was_not_known_is_adopted_once_and_tells_topics_apart() -> None:
    store = MemoryStore()
    assert directory(None, store=store).locate("orders") == (None, TopicFolder("orders"))
    later = directory("one", store=store)
    assert later.locate("orders") == ("one", TopicFolder("orders")) and not later.has_id(TopicFolder("orders"))
    later.adopt(TopicFolder("orders"), "one")
    later.adopt(TopicFolder("orders"), "two")
    assert later.has_id(TopicFolder("orders"))
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="one").incarnation == 1
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="two").incarnation == 2

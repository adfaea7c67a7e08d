"""Whether a topic is still the one that was located, and which one lives in a folder."""

import pytest

from archiver.commit.archive import find_incarnation
from archiver.errors import TopicGone
from archiver.ingest.topics import UNKNOWN_FRESH_SECONDS, TopicDirectory, TopicIds
from blockgz.errors import AccessDenied, BrokerUnreachable, PartitionUnavailable
from blockgz.kafka.admin import TopicIdAnswers
from index_format.identity import ArchiveInfo
from index_format.keys import TopicFolder
from tests.support.memory_store import MemoryStore

ARCHIVE = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")


def directory(told: str | None, *, missing: bool = False, store: MemoryStore | None = None) -> TopicDirectory:
    answers = TopicIdAnswers({"orders": told} if told else {}, frozenset({"orders"} if missing else ()))
    return TopicDirectory(store or MemoryStore(), TopicIds(lambda _: answers, set), ARCHIVE)


def test_a_topic_is_confirmed_by_the_cluster_alone() -> None:
    directory("one").confirm("orders", "one")
    with pytest.raises(BrokerUnreachable, match="is unknown"):
        directory(None).confirm("orders", "one")
    with pytest.raises(PartitionUnavailable, match="created again"):
        directory("two").confirm("orders", "one")


def test_an_id_that_was_told_since_the_claim_is_remembered_where_the_cluster_is_silent() -> None:
    """Otherwise the new topic's records would be taken for the claimed one's as soon as the cluster is silent."""
    answers, now = ["one", "two", None, None, None], [0.0]

    def ask(_: object) -> TopicIdAnswers:
        told = answers.pop(0)
        return TopicIdAnswers({"orders": told} if told else {}, frozenset())

    topics = TopicDirectory(MemoryStore(), TopicIds(ask, set, lambda: now[0]), ARCHIVE, lambda: now[0])
    assert topics.id_of_claimed("orders", "one", 0.0) == "one"
    now[0] = 10.0
    assert topics.id_of_claimed("orders", "one", 0.0) == "two"
    for claimed, claimed_at, told in (("one", 0.0, "two"), ("two", 0.0, None), ("three", 11.0, None)):
        now[0] += 10.0
        assert topics.id_of_claimed("orders", claimed, claimed_at) == told


def test_an_id_that_is_not_confirmed_is_not_used_again() -> None:
    """For a few seconds many partitions share an answer; the topic may have been created again since."""
    told = ["one", "two", "two"]
    ids = TopicIds(lambda _: TopicIdAnswers({"orders": told.pop(0)}, frozenset()), set)
    topics = TopicDirectory(MemoryStore(), ids, ARCHIVE)
    assert topics.locate("orders") == topics.locate("orders") == ("one", TopicFolder("orders"))
    with pytest.raises(PartitionUnavailable):
        topics.confirm("orders", "one")
    assert topics.locate("orders") == ("two", TopicFolder("orders", 2))


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


def test_an_id_that_was_not_reported_is_asked_for_again_soon() -> None:
    now, told = 0.0, TopicIdAnswers({}, frozenset())
    ids = TopicIds(lambda _: told, set, lambda: now)
    topics = TopicDirectory(MemoryStore(), ids, ARCHIVE, lambda: now)
    assert topics.locate("orders")[0] is None
    told = TopicIdAnswers({"orders": "one"}, frozenset())
    ids.heard()
    assert topics.locate("orders")[0] is None, "many partitions share an answer"
    now += UNKNOWN_FRESH_SECONDS + 0.1
    assert topics.locate("orders")[0] == "one"


def test_an_id_that_was_not_known_is_adopted_once_and_tells_topics_apart() -> None:
    store = MemoryStore()
    assert directory(None, store=store).locate("orders") == (None, TopicFolder("orders"))
    later = directory("one", store=store)
    assert later.locate("orders") == ("one", TopicFolder("orders")) and later.archived_id(TopicFolder("orders")) is None
    later.adopt(TopicFolder("orders"), "one")
    later.adopt(TopicFolder("orders"), "two")
    assert later.archived_id(TopicFolder("orders")) == "one"
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="one").incarnation == 1
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="two").incarnation == 2

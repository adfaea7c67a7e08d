from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from archiver.ingest.topics import MissingTopics, TopicWatch, selected_topics
from blockgz.errors import BrokerUnreachable, NoSuchTopic
from blockgz.topic_patterns import TopicSelection
from tests.support.executors import Later


def test_topics_are_looked_up_again_when_it_is_time() -> None:
    answers: list[Collection[str]] = [["b-1", "a", "b-2"]]

    def ask() -> dict[str, int]:
        if not answers:
            raise BrokerUnreachable("no answer")
        return dict.fromkeys(answers.pop(), 1)

    later = Later()
    watch = TopicWatch(TopicSelection(["b-*"]), ask, later, every_seconds=30, topics=[], now=1000)
    assert watch.topics(1029.9) is None and not later.submitted
    assert watch.topics(1030) is None and len(later.submitted) == 1
    assert watch.topics(1031) is None and len(later.submitted) == 1, "one look at a time"
    later.carry_out()
    assert watch.topics(1032) == ["b-1", "b-2"]
    assert watch.topics(1061.9) is None and not later.submitted, "the interval counts from the answer"
    assert watch.topics(1062) is None
    later.carry_out()
    assert watch.topics(1063) is None, "without an answer nothing changes"
    assert watch.topics(1093) is None and later.submitted, "and it is asked again"


def test_a_topic_is_gone_if_two_answers_in_a_row_lack_it() -> None:
    """A broker that has just started may know of none."""
    answers = [["a"], ["a", "b"], [], ["a", "b"], ["b"], ["b", "c"], [], ["b"], []]
    seen = []
    with ThreadPoolExecutor(1) as executor:
        watch = TopicWatch(
            TopicSelection(["*"]),
            lambda: dict.fromkeys(answers[len(seen)], 1),
            executor,
            every_seconds=0,
            topics=["a", "b"],
            now=0,
        )
        for _ in answers:
            while (topics := watch.topics(1)) is None:
                pass
            seen.append("".join(topics))
    assert seen == ["ab", "ab", "ab", "ab", "ab", "bc", "bc", "b", "b"]


def test_one_of_the_named_topics_must_exist() -> None:
    assert selected_topics(TopicSelection(["b", "a*"]), ["b", "a1", "c"]) == ["a1", "b"]
    assert selected_topics(TopicSelection(["a*"]), ["b"]) == []
    with pytest.raises(NoSuchTopic) as caught:
        selected_topics(TopicSelection(["e", "d", "x*"]), ["b", "__consumer_offsets"])
    assert caught.value.what == "the cluster has no topic 'd', 'e'" and caught.value.why == "it has b"


def test_named_topics_that_are_missing_keep_nothing_else_back(caplog: pytest.LogCaptureFixture) -> None:
    selection = TopicSelection(["b", "d", "e", "left-out"], ["left-*"])
    assert selected_topics(selection, ["b"]) == ["b"]
    missing = MissingTopics(selection)
    looks = [(["b"], ["d", "e"], 2), (["b", "d"], ["e"], 0), (["b", "d", "e"], [], 0), (["d"], ["b", "e"], 2)]
    for known, expected, warnings in looks:
        caplog.clear()
        missing.look(known)
        assert missing.names == expected
        assert len(caplog.messages) == warnings, "each is told when it goes missing, not at every look"

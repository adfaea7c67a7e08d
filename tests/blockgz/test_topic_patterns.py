import pytest

from blockgz.errors import NotInArchive, UsageError
from blockgz.topic_patterns import TopicRules, is_pattern, matching

TOPICS = ["bills", "orders", "orders-eu", "__consumer_offsets"]


@pytest.mark.parametrize(("text", "pattern"), [("orders", False), ("orders~2", False), ("or*", True), ("~o.*", True)])
def test_what_is_a_pattern(text: str, pattern: bool) -> None:
    assert is_pattern(text) is pattern


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders*", ["orders", "orders-eu"]),
        ("~orders", ["orders"]),
        ("~.*s", ["bills", "orders"]),
        ("[bo]*", TOPICS[:3]),
    ],
)
def test_whole_names_and_none_of_kafkas_own(pattern: str, topics: list[str]) -> None:
    assert matching(pattern, TOPICS) == topics


def test_what_fits_nothing_and_what_is_not_an_expression() -> None:
    with pytest.raises(NotInArchive, match="no archived topic matches 'x\\*'") as caught:
        matching("x*", TOPICS)
    assert "bills, orders" in caught.value.why
    with pytest.raises(UsageError, match="is not a regular expression"):
        matching("~(", TOPICS)


def test_the_first_rule_that_matches_a_topic_counts() -> None:
    rules = TopicRules(["orders-eu=1", "~or(?=d).*=2", "bil*=3"], int)
    assert [rules(topic) for topic in TOPICS] == [3, 2, 1, None]
    assert [TopicRules(["bills=1", "2", "orders=3"], int)(topic) for topic in TOPICS] == [1, 2, 2, 2]
    assert TopicRules(["*=1"], int)("__consumer_offsets") is None
    with pytest.raises(ValueError, match="invalid literal"):
        TopicRules(["orders=x"], int)

"""The retention of a target that is held and set back."""

from pathlib import Path

import pytest

from blockgz.errors import UsageError
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import ConfigChange, TopicFacts, parse_config
from replayer.replay.request import parse_topic_config
from replayer.replay.target_topic import (
    RetentionFile,
    plan_hold,
    plan_undo,
    raised_limit,
    still_means,
    while_held,
)


def test_settings_as_text() -> None:
    assert parse_topic_config("cleanup.policy=compact,delete") == ("cleanup.policy", "compact,delete")
    for text in ("retention.ms", "=1"):
        with pytest.raises(UsageError):
            parse_topic_config(text)


@pytest.mark.parametrize(
    ("before", "meanwhile", "change"),
    [
        ({"retention.ms": "1000"}, {}, ConfigChange({"retention.ms": "1000"}, ("retention.bytes",))),
        ({}, {}, ConfigChange({}, ("retention.ms", "retention.bytes"))),
        ({"retention.ms": "-1", "retention.bytes": "5"}, {}, ConfigChange({"retention.bytes": "5"})),
        ({"retention.ms": "1000"}, {"retention.ms": "7"}, ConfigChange({}, ("retention.bytes",), ("retention.ms",))),
        ({"retention.ms": "1000"}, {"retention.ms": "1000"}, ConfigChange({}, ("retention.bytes",))),
    ],
    ids=["set", "from-the-cluster", "was-unlimited", "changed-since", "set-back-already"],
)
def test_a_held_retention_is_set_back_to_what_it_was(
    before: dict[str, str], meanwhile: dict[str, str], change: ConfigChange
) -> None:
    hold = plan_hold("copy", "id", before)
    during = {**before, **hold.held, **meanwhile}
    undo = plan_undo(hold, during)
    assert undo == change
    after = {name: value for name, value in {**during, **undo.values}.items() if name not in undo.removed}
    assert after == {**before, **{name: value for name, value in meanwhile.items() if name in undo.kept}}


def test_a_new_topic_takes_records_of_any_block() -> None:
    assert raised_limit({"max.message.bytes": "1000000"}, 600_000) == {"max.message.bytes": "1201024"}
    assert raised_limit({"max.message.bytes": "1000000"}, 499_000) == {}
    assert raised_limit({}, 600_000) == {}, "the cluster's own limit is not known"
    assert raised_limit({"max.message.bytes": "5"}, 2**40) == {"max.message.bytes": str(2**31 - 1)}


def test_setting_back_twice_changes_nothing() -> None:
    hold = plan_hold("copy", "id", {"retention.ms": "1000"})
    assert not plan_undo(hold, {"retention.ms": "1000"})


def test_a_hold_on_a_topic_that_is_gone_means_nothing() -> None:
    hold = plan_hold("copy", "old", {})
    assert still_means(hold, "copy", "old")
    assert still_means(hold, "copy", None)
    assert not still_means(hold, "copy", "new")


def test_nothing_is_deleted_while_it_is_held() -> None:
    facts = TopicFacts("copy", 1, None, parse_config({"retention.ms": "5", "retention.bytes": "6"}))
    config = while_held(facts).config
    assert config is not None
    assert (config.retention_ms, config.retention_bytes) == (None, None)
    assert while_held(TopicFacts("copy", 1, None, None)).config is None


def test_the_file(tmp_path: Path) -> None:
    file = RetentionFile(tmp_path / "new" / "folder", "cluster", "copy")
    assert file.read() is None
    hold = plan_hold("copy", "id", {"retention.ms": "1000"})
    file.write(hold)
    assert file.read() == hold
    assert RetentionFile(tmp_path / "new" / "folder", "other", "copy").read() is None
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    file.path.write_text("{")
    with pytest.raises(ReplayRefused, match="cannot store"):
        file.read()
    file.remove()
    file.remove()
    assert file.read() is None

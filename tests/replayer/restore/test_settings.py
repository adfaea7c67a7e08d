import pytest

from replayer.restore.document import TopicToRestore
from replayer.restore.settings import KEEPING_ALL, first_settings, last_settings

DAY = 86_400_000
NOW = 1000 * DAY
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "max.message.bytes": "2000000",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": str(7 * DAY),
}


def topic(oldest: int | None, largest: int = 10, settings: dict[str, str] = SETTINGS) -> TopicToRestore:
    return TopicToRestore(
        source="a~1", target="a", partitions=1, numbers=(0,), settings=settings, oldest=oldest, largest=largest
    )


def test_a_new_topic_keeps_everything_as_it_is_sent() -> None:
    assert first_settings(SETTINGS) == {**KEEPING_ALL, "max.message.bytes": "2000000"}


def test_what_comes_last() -> None:
    restored = topic(NOW - DAY)
    change, notes = last_settings(restored, first_settings(SETTINGS), 3, NOW)
    assert change.values == {
        name: SETTINGS[name]
        for name in ("cleanup.policy", "message.timestamp.type", "min.insync.replicas", "retention.ms")
    }
    assert not notes
    again, _ = last_settings(restored, {**first_settings(SETTINGS), **change.values}, 3, NOW)
    assert not again, "done once, there is nothing to do"


def test_a_raised_limit_comes_last() -> None:
    """Unless the replay, which raised it, has set it back."""
    own = {**first_settings(SETTINGS), "max.message.bytes": "3000000"}
    change, _ = last_settings(topic(NOW - DAY), own, 3, NOW)
    assert change.values["max.message.bytes"] == "2000000"
    lower = {**own, "max.message.bytes": "1000000"}
    assert "max.message.bytes" not in last_settings(topic(NOW), lower, 3, NOW)[0].values


def test_what_somebody_has_set_since_stays() -> None:
    own = {**first_settings(SETTINGS), "retention.ms": "5", "min.insync.replicas": "1"}
    change, _ = last_settings(topic(NOW), own, 3, NOW)
    assert change.values.keys() == {"cleanup.policy", "message.timestamp.type"}


@pytest.mark.parametrize(
    ("changes", "oldest", "largest", "held"),
    [
        ({}, NOW - 8 * DAY, 10, "retention.ms"),
        ({}, NOW - 6 * DAY, 10, None),
        ({}, None, 10, None),
        ({"cleanup.policy": "compact"}, NOW - 8 * DAY, 10, None),
        ({"retention.bytes": "9"}, NOW, 10, "retention.bytes"),
        ({"retention.bytes": "10"}, NOW, 10, None),
        ({"min.insync.replicas": "4"}, NOW, 10, "min.insync.replicas"),
    ],
)
def test_what_would_delete_records_at_once_or_refuse_new_ones_is_not_set(
    changes: dict[str, str], oldest: int | None, largest: int, held: str | None
) -> None:
    settings = {**SETTINGS, **changes}
    change, notes = last_settings(topic(oldest, largest, settings), first_settings(settings), 3, NOW)
    assert len(notes) == (held is not None)
    if held is not None:
        assert held not in change.values
        assert notes[0].startswith(f"{held}={settings[held]} is not set")

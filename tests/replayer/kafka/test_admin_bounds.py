"""The bounds of a topic that was made a moment ago."""

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from blockgz.errors import BlockgzError
from blockgz.kafka import LogBounds
from replayer.kafka import admin

Place = tuple[str, int]


def asking(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[admin.KafkaAdmin, list[list[Place]]]:
    """Partition 1 fails with one code after the other, then answers."""
    asked: list[list[Place]] = []
    failing = list(codes)

    def log_bounds(_admin: Any, places: Iterable[Place], _level: str) -> Any:
        asked.append(list(places))
        failures = {("t", 1): KafkaError(failing.pop(0))} if failing else {}
        return {place: (0, 5) for place in asked[-1] if place not in failures}, failures

    monkeypatch.setattr(admin, "log_bounds", log_bounds)
    monkeypatch.setattr(admin, "ASK_AGAIN_SECONDS", 0)
    asker = object.__new__(admin.KafkaAdmin)
    asker._admin = None  # type: ignore[assignment]
    return asker, asked


def test_a_broker_that_does_not_lead_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert asker.watermarks("t", [1, 0]) == {0: LogBounds(0, 5), 1: LogBounds(0, 5)}
    assert asked == [[("t", 0), ("t", 1)], [("t", 1)], [("t", 1)]]


def test_another_failure_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BlockgzError):
        asker.watermarks("t", [0, 1])
    assert len(asked) == 1


def test_a_broker_that_never_leads_is_not_asked_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(BlockgzError):
        asker.watermarks("t", [0, 1], patience=-1)
    assert len(asked) == 1

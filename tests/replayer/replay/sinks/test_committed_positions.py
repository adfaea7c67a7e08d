"""Positions are read through the moments in which the group has no coordinator."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from index_format.errors import BlockgzError
from replayer.replay.job import Job, Position
from replayer.replay.sinks import committed_positions
from replayer.replay.sinks.committed_positions import CommittedPositions


class Group:
    """A consumer whose group answers with each of these in turn: an error of the call, of a partition, or none."""

    def __init__(self, answers: Iterator[tuple[int | None, int | None]]) -> None:
        self._answers = answers

    def committed(self, wanted: list[TopicPartition], timeout: float) -> list[Any]:
        assert timeout > 0
        of_call, of_partition = next(self._answers)
        if of_call is not None:
            raise KafkaException(KafkaError(of_call))
        return [_Answer(each.partition, of_partition) for each in wanted]

    def close(self) -> None: ...


class _Answer:
    metadata = ""

    def __init__(self, partition: int, error: int | None) -> None:
        self.partition, self.offset = partition, 7
        self.error = None if error is None else KafkaError(error)


def positions(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int | None, int | None]) -> CommittedPositions[Position]:
    monkeypatch.setattr(committed_positions, "ASK_AGAIN_SECONDS", 0)
    group = Group(iter(answers))
    monkeypatch.setattr(committed_positions, "make_client", lambda *_: group)
    decode: Any = lambda offset, _: offset  # noqa: E731
    return CommittedPositions({"bootstrap.servers": "b:9092"}, Job("j", "t", "s"), decode)


def test_a_group_without_its_coordinator_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = positions(
        monkeypatch,
        (KafkaError.NOT_COORDINATOR, None),
        (None, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, None),
        (None, None),
    )
    assert asked.read([0, 1]) == {0: 7, 1: 7}


@pytest.mark.parametrize(
    "answer", [(KafkaError.INVALID_GROUP_ID, None), (None, KafkaError.INVALID_GROUP_ID)], ids=["call", "partition"]
)
def test_any_other_error_is_the_answer(answer: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = positions(monkeypatch, answer)
    with pytest.raises(BlockgzError, match="the job's positions in t cannot be read"):
        asked.read([0])


def test_a_group_that_finds_no_coordinator_is_not_asked_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_positions, "COORDINATOR_SECONDS", 0)
    asked = positions(monkeypatch, (KafkaError.NOT_COORDINATOR, None))
    with pytest.raises(BlockgzError, match="cannot be read"):
        asked.read([0])

"""What the cluster says of its consumer groups: which there are, and where each stands on some topics."""

import threading
import time
from collections.abc import Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blockgz.errors import BrokerUnreachable
from blockgz.kafka.committed import CommittedOffset, GroupOffsets
from blockgz.kafka.connection import BROKER_DEADLINE_SECONDS, kafka_failure
from blockgz.kafka.settings import make_client
from index_format.errors import BlockgzError
from index_format.groups import MAX_METADATA_BYTES, GroupPosition

ASKED_AT_ONCE = 4
ANSWER_SECONDS = 5.0
"""So long one group's coordinator is waited for."""
HURRIED_SECONDS = 2.0
"""The same once a coordinator gave no answer: that of many other groups may be the same broker."""
NO_OFFSETS = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID)
"""A group that is gone since it was listed, or of a kind that commits none."""

Positions = Mapping[str, tuple[GroupPosition, ...]]
"""By topic, in order of the partitions; topics without a position are left out."""


class GroupAnswer(NamedTuple):
    """Where a group stood."""

    asked_at: int
    """When the answer came, in ms."""
    positions: Positions


def listed_groups(admin: AdminClient, seconds: float = BROKER_DEADLINE_SECONDS) -> dict[str, ConsumerGroupState]:
    """The groups that all brokers of a cluster list, and whether their consumers are at work.

    Raises AccessDenied or BrokerUnreachable where one of the brokers does not answer.
    """
    what = "the consumer groups of the cluster cannot be listed"
    asked = admin.list_consumer_groups(request_timeout=seconds)
    try:
        answer = asked.result(timeout=2 * seconds)
    except KafkaException as error:
        raise kafka_failure(error.args[0], what) from error
    except TimeoutError as error:
        raise BrokerUnreachable(what, why="the client gave no answer") from error
    for failure in answer.errors:
        raise kafka_failure(failure if isinstance(failure, KafkaError) else failure.args[0], what)
    return {group.group_id: group.state for group in answer.valid if group.group_id}


class ClusterGroups:
    """Asks with clients of its own; every answer is waited for so long at most, and safely given up at any time."""

    def __init__(self, settings: Mapping[str, Any], admin: AdminClient) -> None:
        self._settings = dict(settings)
        self._admin = admin

    def ids(self, seconds: float = BROKER_DEADLINE_SECONDS) -> list[str]:
        """The groups that the cluster lists; raises AccessDenied or BrokerUnreachable where it lists not all."""
        return list(listed_groups(self._admin, seconds))

    def positions(self, group_ids: Iterable[str], topics: Mapping[str, int], seconds: float) -> "Asked":
        """Where each group stands on the topics, which are given with their numbers of partitions; a few at a time.

        After `seconds` no more groups are asked.
        """
        deadline = time.monotonic() + seconds
        waiting: SimpleQueue[str] = SimpleQueue()
        answered: SimpleQueue[tuple[str, GroupAnswer | BlockgzError] | None] = SimpleQueue()
        for group_id in group_ids:
            waiting.put(group_id)

        asked = Asked({}, {})

        def work() -> None:
            try:
                while time.monotonic() < deadline:
                    group_id = waiting.get_nowait()
                    answer_seconds = HURRIED_SECONDS if asked.failures else ANSWER_SECONDS
                    answered.put((group_id, self._answer(group_id, topics, answer_seconds)))
            except Empty:
                pass
            finally:
                answered.put(None)

        num_threads = min(ASKED_AT_ONCE, waiting.qsize())
        for _ in range(num_threads):
            threading.Thread(target=work, name="groups", daemon=True).start()
        while num_threads:
            try:
                each = answered.get(timeout=max(0, deadline + 2 * ANSWER_SECONDS - time.monotonic()))
            except Empty:  # a client that hangs is left behind
                break
            if each is None:
                num_threads -= 1
            elif isinstance(each[1], BlockgzError):
                asked.failures[each[0]] = each[1]
            else:
                asked.answers[each[0]] = each[1]
        return asked

    def _answer(self, group_id: str, topics: Mapping[str, int], seconds: float) -> GroupAnswer | BlockgzError:
        what = f"the offsets of consumer group {group_id[:80]!r} cannot be read"
        # Under read_committed the broker would have us wait for the end of transactions that commit offsets.
        settings = {**self._settings, "group.id": group_id, "isolation.level": "read_uncommitted"}
        try:
            reader: GroupOffsets = make_client(GroupOffsets, settings)
            try:
                wanted = ((topic, number) for topic, count in topics.items() for number in range(count))
                committed = reader.committed(wanted, seconds)
                return GroupAnswer(_now_ms(), _positions(committed))
            finally:
                reader.close()
        except KafkaException as error:
            if error.args[0].code() in NO_OFFSETS:
                return GroupAnswer(_now_ms(), {})
            return kafka_failure(error.args[0], what)
        except BlockgzError as error:
            return error


class Asked(NamedTuple):
    """What came of it; groups in neither were not asked in time."""

    answers: dict[str, GroupAnswer]
    failures: dict[str, BlockgzError]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _positions(committed: Iterable[CommittedOffset]) -> Positions:
    found: dict[str, list[GroupPosition]] = {}
    for each in sorted(committed):
        position = GroupPosition(each.partition, each.offset, _kept_metadata(each))
        found.setdefault(each.topic, []).append(position)
    return {topic: tuple(positions) for topic, positions in found.items()}


def _kept_metadata(committed: CommittedOffset) -> str | None:
    text = committed.metadata_text
    return text if text is not None and len(text.encode()) <= MAX_METADATA_BYTES else None

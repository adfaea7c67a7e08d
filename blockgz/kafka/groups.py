"""Consumer groups of a cluster: which ones it has, and their committed offsets, read and written byte by byte.

A client that joins no group calls librdkafka through ctypes. Confluent-kafka has two ways to read offsets. Its admin
client crashes the process if the coordinator of a group is unknown or changes (2.16). Its consumer takes metadata for a
C string, so that it reads beyond the end of what other clients committed.
"""

import ctypes
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, cimpl
from confluent_kafka.admin import AdminClient

from blockgz.errors import BlockgzError, BrokerUnreachable
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import BROKER_DEADLINE_SECONDS, kafka_failure, make_client
from blockgz.units import wall_clock
from index_format.groups import MAX_METADATA_BYTES, GroupPosition

# The kind of client, for rd_kafka_new.
CONSUMER = 1
# A flag of rd_kafka_destroy_flags: no group was joined.
WITHOUT_LEAVING = 8
TEXT_BYTES = 512


class CommittedOffset(NamedTuple):
    """An offset that a group committed for a partition: the next one to be read."""

    topic: str
    partition: int
    offset: int
    metadata: bytes

    @property
    def metadata_text(self) -> str | None:
        """Without the NUL that confluent-kafka adds to what it commits; None for none, and for what is no text."""
        try:
            return self.metadata.removesuffix(b"\0").decode() or None
        except UnicodeDecodeError:
            return None


class _Place(Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("error", c_int),
        ("private", c_void_p),
    )


class _Places(Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", c_int), ("size", c_int), ("elements", POINTER(_Place)))


class OffsetsClient:
    """A client in the name of a group; for `make_client`, which looks up the secrets among the settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` name the `group.id`. Raises ValueError for those that librdkafka refuses, or Python functions."""
        library = _library()
        text = ctypes.create_string_buffer(TEXT_BYTES)
        conf = library.rd_kafka_conf_new()
        # Log lines go to a queue that nobody reads: what fails is raised.
        for name, value in {**settings, "log.queue": True}.items():
            if name == "logger":
                continue
            plain = str(value).lower() if isinstance(value, bool) else str(value)
            if callable(value) or library.rd_kafka_conf_set(conf, name.encode(), plain.encode(), text, TEXT_BYTES):
                library.rd_kafka_conf_destroy(conf)
                raise ValueError(text.value.decode(errors="replace") or f"{name} is a function")
        self._client = library.rd_kafka_new(CONSUMER, conf, text, TEXT_BYTES)
        if not self._client:
            library.rd_kafka_conf_destroy(conf)
            raise ValueError(text.value.decode(errors="replace"))

    def committed(self, partitions: Iterable[tuple[str, int]], seconds: float) -> list[CommittedOffset]:
        """Return the offsets that the group committed for these partitions, if it committed any.

        Raises KafkaException if there is no answer within `seconds`, or one about a partition is an error.
        """
        library = _library()
        places = library.rd_kafka_topic_partition_list_new(16)
        try:
            for topic, number in partitions:
                library.rd_kafka_topic_partition_list_add(places, topic.encode(), number)
            _raise_code(library.rd_kafka_committed(self._client, places, round(seconds * 1000)))
            found = []
            for index in range(places.contents.count):
                place = places.contents.elements[index]
                _raise_code(place.error)
                if place.offset >= 0:
                    metadata = ctypes.string_at(place.metadata, place.metadata_size) if place.metadata else b""
                    found.append(CommittedOffset(place.topic.decode(), place.partition, place.offset, metadata))
            return found
        finally:
            library.rd_kafka_topic_partition_list_destroy(places)

    def commit(self, offsets: Iterable[CommittedOffset]) -> None:
        """Commit offsets for a group that has no members, with no leader epoch; raises KafkaException."""
        library = _library()
        places = library.rd_kafka_topic_partition_list_new(16)
        texts = []
        try:
            for each in offsets:
                added = library.rd_kafka_topic_partition_list_add(places, each.topic.encode(), each.partition)
                place = ctypes.cast(added, POINTER(_Place)).contents
                place.offset = each.offset
                if each.metadata:
                    texts.append(ctypes.create_string_buffer(each.metadata, len(each.metadata)))
                    place.metadata, place.metadata_size = ctypes.addressof(texts[-1]), len(each.metadata)
            _raise_code(library.rd_kafka_commit(self._client, places, 0))
            for index in range(places.contents.count):
                _raise_code(places.contents.elements[index].error)
        finally:
            for index in range(places.contents.count):
                # The texts are Python's, which librdkafka must not free.
                places.contents.elements[index].metadata = None
            library.rd_kafka_topic_partition_list_destroy(places)

    def close(self) -> None:
        """End the client; it answers nothing after this."""
        _library().rd_kafka_destroy_flags(self._client, WITHOUT_LEAVING)


def _raise_code(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))


@cache
def _library() -> Any:
    """Return the librdkafka that confluent-kafka loaded."""
    library = ctypes.CDLL(cimpl.__file__)
    for name, result, arguments in (
        ("conf_new", c_void_p, ()),
        ("conf_set", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
        ("conf_destroy", None, (c_void_p,)),
        ("new", c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
        ("destroy_flags", None, (c_void_p, c_int)),
        ("committed", c_int, (c_void_p, POINTER(_Places), c_int)),
        ("commit", c_int, (c_void_p, POINTER(_Places), c_int)),
        ("topic_partition_list_new", POINTER(_Places), (c_int,)),
        ("topic_partition_list_add", c_void_p, (POINTER(_Places), c_char_p, c_int32)),
        ("topic_partition_list_destroy", None, (POINTER(_Places),)),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


ASKED_AT_ONCE = 4
IDLE = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
# Seconds to ask groups, regardless of their number.
ASK_SECONDS = 30.0
# Seconds to wait for the coordinator of one group.
ANSWER_SECONDS = 5.0
# Seconds to wait after one coordinator gave no answer: many other groups may have the same broker.
HURRIED_SECONDS = 2.0
# A group that is gone since it was listed, or of a kind that commits none.
NO_OFFSETS = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID)

# Positions by topic, in order of the partitions, without topics that have none.
Positions = Mapping[str, tuple[GroupPosition, ...]]


class GroupAnswer(NamedTuple):
    asked_at: int
    """When the answer came, in ms."""
    positions: Positions


def listed_groups(admin: AdminClient, seconds: float = BROKER_DEADLINE_SECONDS) -> dict[str, ConsumerGroupState]:
    """Return the groups that all brokers of a cluster list, and their states."""
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


class GroupOffset(NamedTuple):
    """The offset of the next record that a group reads of a partition, and the text that its consumer left there."""

    offset: int
    metadata: str | None = None


class GroupMembers(NamedTuple):
    """The members of a group. An active group sets its positions by itself."""

    active: bool
    state: str
    clients: tuple[str, ...] = ()


# The answers of groups, and their failures; groups in neither were not asked in time.
GroupAnswers = tuple[dict[str, GroupAnswer], dict[str, BlockgzError]]


class KafkaGroups:
    """The consumer groups of one cluster.

    Calls block, and raise BrokerUnreachable, AccessDenied or PartitionUnavailable. Every answer is waited for only so
    long, and may be given up at any time.
    """

    def __init__(self, settings: Mapping[str, Any], admin: AdminClient | None = None) -> None:
        """`settings` are those of `client_settings`. Raises UsageError."""
        self._settings = dict(settings)
        # By `is`: a client has a length, which is 0.
        self._admin: AdminClient = make_client(AdminClient, self._settings) if admin is None else admin

    def ids(self, seconds: float = BROKER_DEADLINE_SECONDS) -> list[str]:
        """Return the groups that the cluster lists. Raises AccessDenied or BrokerUnreachable if it cannot list all."""
        return list(listed_groups(self._admin, seconds))

    def answers(self, group_ids: Iterable[str], topics: Mapping[str, int], seconds: float) -> GroupAnswers:
        """Return the positions of groups on the topics, given with their numbers of partitions; a few groups at a time.

        After `seconds` the remaining groups are left out.
        """
        deadline = time.monotonic() + seconds
        waiting: SimpleQueue[str] = SimpleQueue()
        answered: SimpleQueue[tuple[str, GroupAnswer | BlockgzError] | None] = SimpleQueue()
        for group_id in group_ids:
            waiting.put(group_id)

        answers, failures = dict[str, GroupAnswer](), dict[str, BlockgzError]()

        def work() -> None:
            try:
                while time.monotonic() < deadline:
                    group_id = waiting.get_nowait()
                    answer_seconds = HURRIED_SECONDS if failures else ANSWER_SECONDS
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
                failures[each[0]] = each[1]
            else:
                answers[each[0]] = each[1]
        return answers, failures

    def _answer(self, group_id: str, topics: Mapping[str, int], seconds: float) -> GroupAnswer | BlockgzError:
        what = f"the offsets of consumer group {group_id[:80]!r} cannot be read"
        # Under read_committed the broker would have us wait for the end of transactions that commit offsets.
        try:
            with self._offsets(group_id, what, **{"isolation.level": "read_uncommitted"}) as offsets:
                wanted = ((topic, number) for topic, count in topics.items() for number in range(count))
                # The time comes after the answer: what is committed while the cluster is asked must not look older.
                positions = _positions(offsets.committed(wanted, seconds))
                return GroupAnswer(wall_clock(), positions)
        except BlockgzError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() in NO_OFFSETS:
                return GroupAnswer(wall_clock(), {})
            return error

    def members(self, groups: Collection[str]) -> dict[str, GroupMembers]:
        """Return the members of each group; a group that does not exist is not active."""
        # Asked by lists of groups: `describe_consumer_groups` of librdkafka 2.16 aborts the process where the broker of
        # a group's coordinator goes away in the meantime.
        listed = listed_groups(self._admin)
        return {group: self._members(group, listed.get(group, ConsumerGroupState.DEAD)) for group in groups}

    def _members(self, group: str, state: ConsumerGroupState) -> GroupMembers:
        if state in IDLE:
            return GroupMembers(active=False, state=state.name)
        try:
            described = self._admin.list_groups(group, timeout=BROKER_DEADLINE_SECONDS)
        except KafkaException as error:
            raise kafka_failure(error.args[0], f"consumer group {group!r} cannot be described") from error
        clients = {str(member.client_id) for each in described for member in each.members}
        return GroupMembers(active=True, state=state.name, clients=tuple(sorted(clients)))

    def positions(self, group: str, topic: str, partitions: Collection[int]) -> dict[int, GroupOffset]:
        """Return the positions of a group on these partitions of a topic, without partitions where it has none."""
        wanted = [(topic, partition) for partition in sorted(partitions)]
        with self._offsets(group, f"the positions of consumer group {group!r} in {topic} cannot be read") as offsets:
            found = offsets.committed(wanted, BROKER_DEADLINE_SECONDS)
        return {each.partition: GroupOffset(each.offset, each.metadata_text) for each in found}

    def has_others(self, group: str, topic: str, partitions: Collection[int]) -> bool:
        """Return whether a group has positions anywhere else."""
        what = f"the positions of consumer group {group!r} cannot be read"
        own = {(topic, partition) for partition in partitions}
        try:
            topics = self._admin.list_topics(timeout=BROKER_DEADLINE_SECONDS).topics
        except KafkaException as error:
            raise kafka_failure(error.args[0], what) from error
        places = {(name, number) for name, found in topics.items() for number in found.partitions}
        with self._offsets(group, what) as offsets:
            return bool(offsets.committed(sorted(places - own), BROKER_DEADLINE_SECONDS))

    def in_topic(
        self, topic: str, num_partitions: int, seconds: float = ASK_SECONDS
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the groups that have a position in a topic, and those that gave no answer within `seconds`."""
        listed = sorted(self.ids())
        answers, _ = self.answers(listed, {topic: num_partitions}, seconds)
        found = tuple(each for each in listed if each in answers and answers[each].positions)
        return found, tuple(each for each in listed if each not in answers)

    def metadata(self, group: str, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return the text that a group committed with its offsets of these partitions, if it committed any."""
        with self._offsets(group, f"the offsets of consumer group {group!r} cannot be read") as offsets:
            committed = offsets.committed(partitions, BROKER_DEADLINE_SECONDS)
        return {(each.topic, each.partition): text for each in committed if (text := each.metadata_text)}

    def set_positions(self, group: str, topic: str, positions: Mapping[int, GroupOffset]) -> None:
        """Set the positions of a group without consumers, with no leader epoch: another cluster's means nothing."""
        wanted = [
            CommittedOffset(topic, partition, position.offset, (position.metadata or "").encode())
            for partition, position in sorted(positions.items())
        ]
        with self._offsets(group, f"the positions of consumer group {group!r} in {topic} cannot be set") as offsets:
            offsets.commit(wanted)

    def delete(self, group: str) -> None:
        """Delete a group with all its positions; it may be gone already."""
        apart: AdminApart = make_client(AdminApart, self._settings)
        try:
            apart.delete_group(group, BROKER_DEADLINE_SECONDS)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise kafka_failure(failure, f"consumer group {group!r} cannot be deleted") from error

    @contextmanager
    def _offsets(self, group: str, what: str, **settings: str) -> Iterator[OffsetsClient]:
        client: OffsetsClient = make_client(OffsetsClient, {**self._settings, **settings, "group.id": group})
        try:
            yield client
        except KafkaException as error:
            raise kafka_failure(error.args[0], what) from error
        finally:
            client.close()


def _positions(committed: Iterable[CommittedOffset]) -> Positions:
    found: dict[str, list[GroupPosition]] = {}
    for each in sorted(committed):
        text = each.metadata_text
        kept = text if text is not None and len(text.encode()) <= MAX_METADATA_BYTES else None
        found.setdefault(each.topic, []).append(GroupPosition(each.partition, each.offset, kept))
    return {topic: tuple(positions) for topic, positions in found.items()}

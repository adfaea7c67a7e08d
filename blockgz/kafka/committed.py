"""The committed offsets of any consumer group, read and written, with their metadata byte by byte.

Librdkafka is asked through ctypes, by a client that joins no group. Of confluent-kafka's two ways, its admin client
crashes the process where the group's coordinator is not known or changes (2.16), and its consumer takes metadata for a
C string, so that it reads on behind the end of what other clients committed.
"""

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, cimpl

CONSUMER = 1
"""The kind of client, for rd_kafka_new."""
WITHOUT_LEAVING = 8
"""A flag of rd_kafka_destroy_flags: no group was joined."""
TEXT_BYTES = 512


class CommittedOffset(NamedTuple):
    """What a group committed for a partition; it is the next offset to be read."""

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


class GroupOffsets:
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
        """What the group committed for these partitions, where it committed anything.

        Raises KafkaException where there is no answer within `seconds`, or one about a partition is an error.
        """
        library = _library()
        places = library.rd_kafka_topic_partition_list_new(16)
        try:
            for topic, number in partitions:
                library.rd_kafka_topic_partition_list_add(places, topic.encode(), number)
            _check(library.rd_kafka_committed(self._client, places, round(seconds * 1000)))
            found = []
            for index in range(places.contents.count):
                place = places.contents.elements[index]
                _check(place.error)
                if place.offset >= 0:
                    metadata = ctypes.string_at(place.metadata, place.metadata_size) if place.metadata else b""
                    found.append(CommittedOffset(place.topic.decode(), place.partition, place.offset, metadata))
            return found
        finally:
            library.rd_kafka_topic_partition_list_destroy(places)

    def commit(self, offsets: Iterable[CommittedOffset]) -> None:
        """Commits offsets for a group that has no members, with no leader epoch; raises KafkaException."""
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
            _check(library.rd_kafka_commit(self._client, places, 0))
            for index in range(places.contents.count):
                _check(places.contents.elements[index].error)
        finally:
            for index in range(places.contents.count):
                # The texts are Python's, which librdkafka must not free.
                places.contents.elements[index].metadata = None
            library.rd_kafka_topic_partition_list_destroy(places)

    def close(self) -> None:
        """Ends the client; nothing may be asked after this."""
        _library().rd_kafka_destroy_flags(self._client, WITHOUT_LEAVING)


def _check(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))


@cache
def _library() -> Any:
    """The librdkafka that confluent-kafka loaded."""
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

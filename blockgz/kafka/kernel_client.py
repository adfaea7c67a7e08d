"""The kernel's consumer, which fetches records without an object for each; see kernel/README.md."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from blockgz.kafka.fetching import Partition, Polled, Rising, Run, Told, Unreadable
from blockgz.kafka.kernel_choice import KERNEL
from index_format.records import Record

PYTHONS_OWN = {"default.topic.config", "plugin.library.paths", "sasl.oauthbearer.metadata.authentication.type"}
"""Settings that confluent-kafka does not hand to librdkafka as they are."""
MOST_COLUMN_BYTES = 2**30
"""An Arrow column of the kind that records have holds 2 GiB."""
MOST_MESSAGES = 2000


def kernel_takes(settings: Mapping[str, Any]) -> bool:
    """Whether the kernel is in use, and its consumer can be made with these settings."""
    functions = (name for name, value in settings.items() if callable(value))
    return bool(KERNEL) and not (PYTHONS_OWN & settings.keys() or any(functions))


class KernelClient:
    """A FetchClient. To be made in the process that uses it, and by `make_client`."""

    most_messages = MOST_MESSAGES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError for settings that librdkafka refuses."""
        self._logger: logging.Logger | None = settings.get("logger")
        texts = {name: _text(value) for name, value in settings.items() if name != "logger"}
        self._consumer = KERNEL.module.Consumer(texts)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        _check(self._consumer.assign([(*partition, at) for partition, at in positions.items()]))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        _check(self._consumer.unassign(list(partitions)))

    def pause(self, partitions: Iterable[Partition]) -> None:
        _check(self._consumer.pause(list(partitions)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        _check(self._consumer.resume(list(partitions)))

    def ask_leaders(self, seconds: float) -> None:
        _check(self._consumer.ask_leaders(round(seconds * 1000)))

    def poll(self, most: int, seconds: float) -> Polled:
        found: list[Run | Told] = []
        num_messages = num_bytes = 0
        for entry in self._consumer.consume(most, round(seconds * 1000)):
            if isinstance(entry, tuple):
                topic, partition, offset, code, text = entry
                found.append(Told(None if topic is None else (topic, partition), offset, KafkaError(code, text)))
                num_messages += 1
            else:
                found.append(Run((entry.topic, entry.partition), [entry]))
                num_messages += len(entry)
                num_bytes += entry.num_bytes
        self._log()
        return Polled(found, num_messages, num_bytes)

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | Unreadable]:
        for piece in self._consumer.columns(list(messages), MOST_COLUMN_BYTES):
            if len(piece) == 2:
                columns, leader_epoch = piece
                yield Rising(pa.record_batch(columns), leader_epoch)
            else:
                record = Record(*piece, headers=())  # type: ignore[misc]
                yield Unreadable(record, "a header key is not UTF-8")

    def uncounted(self, _: Collection[pa.RecordBatch]) -> int:
        """Nothing."""
        return 0

    def close(self) -> None:
        self._consumer.close()
        self._log()

    def _log(self) -> None:
        lines = self._consumer.log_lines()
        if self._logger is not None:
            for level, *line in lines:
                self._logger.log(level, "%s [%s] %s", *line)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(failure: tuple[int, str] | None) -> None:
    if failure is not None:
        raise KafkaException(KafkaError(*failure))

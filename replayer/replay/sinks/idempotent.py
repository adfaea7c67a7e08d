"""Producing without transactions: idempotent, so nothing is doubled unless the process or a broker dies."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from replayer.errors import JobTakenOver
from replayer.replay.job import LanePosition
from replayer.replay.pipeline import Router, ScannedBatch
from replayer.replay.sinks.producer import WINDOW_BYTES, TopicProducer, at_once, producer_settings, read_back

MESSAGE_TIMEOUT_MS = 120_000
TRIES = 5
"""Attempts to take over positions that another run still writes."""


class PositionStore(Protocol):
    """A store of positions, if there is one."""

    def read(self) -> Mapping[int, LanePosition]:
        """The last ones that were written, none if there are none."""

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replace those of these lanes.

        Raises JobTakenOver if somebody else wrote since `read`, if the store can tell; also with no lanes.
        """


class KafkaSink:
    """A few producers share the lanes. What the cluster took stands; positions after it are noted."""

    rolls_back = False

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        store: PositionStore,
        max_message_bytes: int | None = None,
        router: Router | None = None,
        timeout_ms: int = MESSAGE_TIMEOUT_MS,
        producers: int = 1,
    ) -> None:
        """Make a sink; `max_message_bytes` and `router` as for TransactionalSink. Raises UsageError.

        Each of the `producers` has its own requests in flight, which helps if the cluster is far away.
        """
        settings = {"message.timeout.ms": timeout_ms, **producer_settings(properties, max_message_bytes)}
        look = partial(read_back, properties, topic)
        window = WINDOW_BYTES // producers
        self._producers = [TopicProducer(settings, topic, look, window=window) for _ in range(producers)]
        self._store = store
        self._router = router

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        recorded = self._taken_over()
        return {lane: recorded[lane] for lane in lanes if lane in recorded}

    def stand_at(self, ends: Mapping[int, int]) -> None:
        for producer in self._producers:
            producer.ends = ends

    def _taken_over(self) -> Mapping[int, LanePosition]:
        """Return the positions, once no earlier reader can write them."""
        for _ in range(TRIES - 1):
            recorded = self._store.read()
            with suppress(JobTakenOver):
                self._store.write({})
                return recorded
        recorded = self._store.read()
        self._store.write({})
        return recorded

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        if self._router is None:
            self._of(lane).send(lane, batch)
            return
        for target, records in self._router.route(ScannedBatch(lane, batch)):
            self._of(target).send(target, records)

    def acknowledged(self, *, wait: bool) -> Mapping[int, Any] | None:
        if wait or self._router is not None:
            at_once(TopicProducer.flush, self._producers)
        taken = {lane: told for each in self._producers for lane, told in each.acknowledged().items()}
        return None if self._router is not None else taken

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Note the positions; raises what the store raises."""
        self._store.write(positions)

    def stop(self) -> None:
        at_once(TopicProducer.stop, self._producers)

    def _of(self, lane: int) -> TopicProducer:
        return self._producers[lane % len(self._producers)]

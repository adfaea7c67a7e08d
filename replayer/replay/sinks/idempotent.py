"""Producing without transactions: idempotent, so nothing is doubled unless the process dies; positions go to a file."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from replayer.replay.lane_position import LanePosition
from replayer.replay.pipeline import KeepPartitions, Router, ScannedBatch
from replayer.replay.record_sink import Delivered
from replayer.replay.sinks.producer import Outlet, producer_settings

MESSAGE_TIMEOUT_MS = 120_000


class PositionStore(Protocol):
    """Where positions last, if anywhere."""

    def read(self) -> Mapping[int, LanePosition]:
        """The last ones that were written, none where there are none."""

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replaces those of these lanes."""


class KafkaSink:
    """One producer for all lanes. A commit waits until everything is written, then notes the positions."""

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        store: PositionStore,
        max_message_bytes: int | None = None,
        router: Router | None = None,
    ) -> None:
        """`max_message_bytes` and `router` as for TransactionalSink. Raises UsageError."""
        settings = {"message.timeout.ms": MESSAGE_TIMEOUT_MS, **producer_settings(properties, max_message_bytes)}
        self._outlet = Outlet(settings, topic)
        self._store = store
        self._router = router or KeepPartitions()

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """What the store has for these lanes."""
        recorded = self._store.read()
        return {lane: recorded[lane] for lane in lanes if lane in recorded}

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """As Outlet.send."""
        for target, records in self._router.route(ScannedBatch(lane, batch)):
            self._outlet.send(target, records)

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Waits for everything and notes the positions; raises as `send` does, and what the store raises."""
        self._outlet.flush()
        self._store.write(positions)

    def delivered(self) -> dict[int, Delivered]:
        """What is known to be written by now."""
        return {lane: reports.delivered for lane, reports in self._outlet.lanes.items()}

    def stop(self) -> None:
        """As Outlet.stop."""
        self._outlet.stop()

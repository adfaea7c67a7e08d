"""One source partition of a transactional write: a producer of its own, and a ledger of what stands."""

from contextlib import ExitStack
from time import monotonic

from index_format.records import payload_bytes
from replayer.replay.run import CADENCE
from replayer.replay.stages import sendable
from replayer.spark.lanes import LaneTarget, lane_sink, source_lane
from replayer.spark.sink.options import SinkOptions
from replayer.spark.sink.row_position import NOTHING, RowLedger, Writer, decode_row_position
from replayer.spark.sink.rows_in import Part
from replayer.spark.sink.target_check import Target, refuse_missing_partition

PLACES = 1
"""A write does not know how many partitions its target will have tomorrow; the first one stays."""


class RowLane:
    """The rows of one source partition, their transactions, and what is known of them."""

    def __init__(self, options: SinkOptions, target: Target, part: Part, writer: Writer, last: int = NOTHING) -> None:
        """Fences whoever wrote the partition before, and reads what stands; `part` is the first of it.

        `last` is that of the task's lane before this one for the same partition, if there was one.

        Raises ReplayRefused, or what TransactionalSink raises.
        """
        assert part.partition is not None
        refuse_missing_partition(target, part.partition)
        lane = source_lane(options.job_into(target.facts.name), part.partition, PLACES)
        self._number = lane.number
        self.written = 0
        with ExitStack() as stack:
            to = LaneTarget(options.properties, target.router, target.max_message_bytes)
            self._sink = stack.enter_context(lane_sink(lane, to, decode_row_position))
            recorded = self._sink.begin([lane.number]).get(lane.number)
            self._ledger = RowLedger(recorded, part.topic or "", part.partition, writer, last)
            self._open = stack.pop_all()
        self._open_since: float | None = None
        self._open_records = self._open_bytes = 0

    @property
    def last(self) -> int:
        """The newest source offset that was written or stood already."""
        return self._ledger.last

    def write(self, part: Part) -> None:
        """Sends those of the records that do not stand yet; raises ReplayRefused, or what TransactionalSink raises."""
        self._ledger.refuse_other_topic(part.topic or "")
        records = part.records
        fresh, _ = sendable(records.slice(self._ledger.accept(records.column("offset").to_numpy())))
        if not fresh.num_rows:
            return
        if self._open_since is None:
            self._open_since = monotonic()
        self._sink.send(self._number, fresh)
        self.written += fresh.num_rows
        self._open_records += fresh.num_rows
        self._open_bytes += payload_bytes(fresh)

    def due_in(self) -> float | None:
        """Seconds until the transaction has to end, None where none is open."""
        if self._open_since is None:
            return None
        if self._open_records >= CADENCE.records or self._open_bytes >= CADENCE.bytes:
            return 0.0
        return max(0.0, self._open_since + CADENCE.seconds - monotonic())

    def commit(self) -> None:
        """Ends the transaction, if there is anything to commit."""
        position = self._ledger.position()
        if position is not None:
            self._sink.commit({self._number: position})
            self._ledger.committed(position)
        self._open_since = None
        self._open_records = self._open_bytes = 0

    def finish(self) -> None:
        """There are no more records; commits."""
        self._ledger.finish()
        self.commit()

    def stop(self) -> None:
        """Gives up what is not committed."""
        self._open.close()

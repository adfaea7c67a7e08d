"""One task of a write: its rows to a topic, as they come or in transactions that no second run repeats."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from blockgz_runtime.errors import UsageError
from index_format.errors import BlockgzError
from replayer.replay.ledger import LanePosition
from replayer.replay.pipeline import ScannedBatch
from replayer.replay.sinks.idempotent import KafkaSink
from replayer.replay.stages import sendable
from replayer.spark.background import Background
from replayer.spark.sink.options import SinkOptions
from replayer.spark.sink.row_lane import RowLane
from replayer.spark.sink.row_position import NOTHING, Writer
from replayer.spark.sink.rows_in import Columns, Part, RowReader
from replayer.spark.sink.target_check import Target, find_target, opened_admin, refuse_missing_partition, refuse_part

LANES_AT_ONCE = 8
"""Source partitions that a task keeps producers for; rows in order of their partitions need one."""


@dataclass(frozen=True)
class WriteWork:
    """What every task of a write gets; `target` is None where each row names its topic."""

    options: SinkOptions
    columns: Columns
    target: Target | None


def write_rows(batches: Iterator[pa.RecordBatch], work: WriteWork, writer: Writer) -> int:
    """Writes what arrives, all of it taken by the cluster in the end; how many records that were.

    Raises a BlockgzError for rows that cannot be written as promised, or that the cluster does not take.
    """
    arriving = Background[pa.RecordBatch](lambda offer: all(map(offer, batches)), 1)
    reader = RowReader(work.columns, headers=work.options.headers)
    producers = _Producers(work, writer)
    try:
        while True:
            try:
                batch = arriving.next(producers.due_in())
            except TimeoutError:
                producers.commit_due()
                continue
            if batch is None:
                break
            for part in reader.parts(batch):
                producers.write(part)
            producers.commit_due()
        return producers.finish()
    except BaseException:
        producers.stop()
        raise


class _TopicProducer(Protocol):
    """Where the records of one target topic go."""

    @property
    def written(self) -> int:
        """Records that were handed over."""

    def write(self, part: Part) -> None:
        """Takes a part; raises a BlockgzError."""

    def due_in(self) -> float | None:
        """Seconds until `commit_due` is to be called, None where there is no hurry."""

    def commit_due(self) -> None:
        """Commits what may not stay open any longer."""

    def finish(self) -> None:
        """Waits until everything is taken."""

    def stop(self) -> None:
        """Gives up."""


class _Producers:
    """One for each target topic."""

    def __init__(self, work: WriteWork, writer: Writer) -> None:
        self._work, self._writer = work, writer
        self._by_topic: dict[str, tuple[Target, _TopicProducer]] = {}

    def write(self, part: Part) -> None:
        target, producer = self._to(part)
        refuse_part(target, part)
        with _without_flags():
            producer.write(part)

    def due_in(self) -> float | None:
        waits = [wait for _, producer in self._by_topic.values() if (wait := producer.due_in()) is not None]
        return min(waits, default=None)

    def commit_due(self) -> None:
        with _without_flags():
            for _, producer in self._by_topic.values():
                producer.commit_due()

    def finish(self) -> int:
        with _without_flags():
            for _, producer in self._by_topic.values():
                producer.finish()
        return sum(producer.written for _, producer in self._by_topic.values())

    def stop(self) -> None:
        for _, producer in self._by_topic.values():
            producer.stop()

    def _to(self, part: Part) -> tuple[Target, _TopicProducer]:
        work, options = self._work, self._work.options
        name = options.topic or part.topic or ""
        if options.topic is not None and part.topic == name and "offset" in work.columns and not options.into_source:
            raise _into_source(name)
        if name not in self._by_topic:
            target = work.target or find_target(options, work.columns, name, opened_admin(options))
            kind: Callable[[SinkOptions, Target, Writer], _TopicProducer]
            kind = _Transactional if options.transactional else _Idempotent
            self._by_topic[name] = target, kind(options, target, self._writer)
        return self._by_topic[name]


class _Idempotent:
    """Every row once while the task lives; a task that Spark repeats writes its rows again."""

    def __init__(self, options: SinkOptions, target: Target, writer: Writer) -> None:
        self.written = 0
        self._target, self._writer = target, writer
        self._sink = KafkaSink(options.properties, target.facts.name, _Nowhere(), target.max_message_bytes)

    def write(self, part: Part) -> None:
        source = self._writer.task if part.partition is None else part.partition
        refuse_missing_partition(self._target, source)
        records, _ = sendable(part.records)
        for piece in self._target.router.route(ScannedBatch(source, records)):
            self._sink.send(piece.target, piece.records)
        self.written += records.num_rows

    def due_in(self) -> None:
        return None

    def commit_due(self) -> None:
        """Nothing is held back."""

    def finish(self) -> None:
        self._sink.commit({})

    def stop(self) -> None:
        self._sink.stop()


class _Nowhere:
    """Positions of a write that keeps none."""

    def read(self) -> Mapping[int, LanePosition]:
        return {}

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        pass


class _Transactional:
    """Every row once, however often tasks and writes are repeated: a lane for each source partition."""

    def __init__(self, options: SinkOptions, target: Target, writer: Writer) -> None:
        self._options, self._target, self._writer = options, target, writer
        self._lanes: OrderedDict[int, RowLane] = OrderedDict()
        """Those that are open, the one that was written to last at the end."""
        self._closed = 0
        self._last: dict[int, int] = {}
        """By source partition, where closed lanes ended: rows below it that come later would pass for written."""

    @property
    def written(self) -> int:
        return self._closed + sum(lane.written for lane in self._lanes.values())

    def write(self, part: Part) -> None:
        if part.partition is None:
            raise AssertionError("a transactional write without partitions is refused before it begins")
        if part.partition not in self._lanes:
            if len(self._lanes) >= LANES_AT_ONCE:
                self._close(next(iter(self._lanes)))
            last = self._last.get(part.partition, NOTHING)
            self._lanes[part.partition] = RowLane(self._options, self._target, part, self._writer, last)
        self._lanes.move_to_end(part.partition)
        self._lanes[part.partition].write(part)

    def due_in(self) -> float | None:
        waits = [wait for lane in self._lanes.values() if (wait := lane.due_in()) is not None]
        return min(waits, default=None)

    def commit_due(self) -> None:
        for lane in self._lanes.values():
            wait = lane.due_in()
            if wait is not None and wait <= 0:
                lane.commit()

    def finish(self) -> None:
        for partition in tuple(self._lanes):
            self._close(partition)

    def stop(self) -> None:
        for lane in self._lanes.values():
            lane.stop()

    def _close(self, partition: int) -> None:
        lane = self._lanes[partition]
        lane.finish()
        self._closed += lane.written
        self._last[partition] = lane.last
        del self._lanes[partition]
        lane.stop()


@contextmanager
def _without_flags() -> Iterator[None]:
    """Errors of a replay, with a remedy that a write has."""
    try:
        yield
    except BlockgzError as error:
        if "--" in error.remedy:
            error.remedy = "repair the cause and write again: a transactional write goes on where it stopped"
        raise


def _into_source(name: str) -> UsageError:
    return UsageError(
        f"{name} is the topic that the rows come from",
        why="a second copy of its records would be appended to it",
        remedy='name another topic, or say .option("intoSource", "true") if that is what you want',
    )

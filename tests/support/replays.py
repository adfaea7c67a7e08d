"""Replays in tests: as fast as they go, and a sink that behaves like a cluster with transactions."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from blockgz.archive.selection import Selection
from index_format.records import Record, iter_records
from replayer.errors import CommitLost
from replayer.replay.job import Job, LanePosition, chain_hash, decode_position, first_positions
from replayer.replay.pace import Commands, Pace, Slowest
from replayer.replay.pipeline import Pipeline
from replayer.replay.run import (
    CADENCE,
    NOTHING_KEPT,
    Cadence,
    Keeping,
    RecordSink,
    ReplayResult,
    ReplayWork,
    run_replay,
)

JOB = Job("job", "copy", "0" * 16)


async def work_of(selections: Sequence[Selection], pipeline: Pipeline) -> ReplayWork:
    """The work of a job that begins with these selections."""
    histories = {each.partition.partition: await chain_hash(*each[:2]) for each in selections}
    return ReplayWork(JOB, pipeline, selections, first_positions(JOB, selections, histories, pipeline))


def replay_into(
    sink: RecordSink,
    selections: Sequence[Selection],
    pipeline: Pipeline | None = None,
    cadence: Cadence = CADENCE,
    pace: Pace | None = None,
    keeping: Keeping = NOTHING_KEPT,
) -> ReplayResult:
    """Replays everything that the sink's positions leave to do."""
    stages = pipeline or Pipeline()

    async def replayed() -> ReplayResult:
        work = await work_of(selections, stages)
        control = Impatient()
        return await run_replay(work, sink, pace or Slowest(), control, lambda *_: None, keeping, cadence)

    return asyncio.run(replayed())


class Impatient(Commands):
    """Waits for nothing."""

    async def wait(self, seconds: float | None) -> None:
        await asyncio.sleep(0)


class NoStore:
    """Positions that are forgotten."""

    def read(self, _lanes: Sequence[int]) -> Mapping[int, LanePosition]:
        return {}

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Nowhere."""


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Topic:
    """What a cluster holds of a target topic: it outlives every sink. Per lane the records, and the position."""

    records: dict[int, list[Record]] = field(default_factory=dict)
    positions: dict[int, tuple[int, str]] = field(default_factory=dict)
    writers: dict[int, "FakeSink"] = field(default_factory=dict)


class FakeSink:
    """Transactions by the book; at the step `crash_at` the process dies, at those of `lose_at` an answer is lost.

    Every call is two steps, before and after it took effect.
    """

    rolls_back = True

    def __init__(self, topic: Topic, *, crash_at: int | None = None, lose_at: Iterable[int] = ()) -> None:
        self.topic = topic
        self.steps = 0
        self.stopped = False
        self._crash_at, self._lose_at = crash_at, set(lose_at)
        self._open: dict[int, list[Record]] = {}
        self._untold: dict[int, int] = {}

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        self._step()
        self._open.clear()
        self._untold.clear()
        wanted = list(lanes)
        self.topic.writers.update(dict.fromkeys(wanted, self))
        return {lane: decode_position(*self.topic.positions[lane]) for lane in wanted if lane in self.topic.positions}

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        self._step()
        self._open.setdefault(lane, []).extend(iter_records(batch))
        self._untold[lane] = self._untold.get(lane, 0) + batch.num_rows
        self._step()

    def stand_at(self, ends: Mapping[int, int]) -> None:
        """See RecordSink."""

    def acknowledged(self, *, wait: bool) -> dict[int, Any]:  # everything is taken at once
        """Where the records will stand once they are committed."""
        self._step()
        told = {}
        for lane, count in self._untold.items():
            end = len(self.topic.records.get(lane, ())) + len(self._open[lane])
            told[lane] = np.arange(end - count, end)
        self._untold.clear()
        return told

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Lane after lane, so that a crash falls between them too."""
        for lane, position in positions.items():
            assert self.topic.writers[lane] is self, "fenced"
            self._step()
            held = self.topic.records.setdefault(lane, [])
            held += self._open.pop(lane, [])
            self.topic.positions[lane] = (position.written, position.encoded())
            self._step()

    def stop(self) -> None:
        self.stopped = True

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._crash_at:
            raise Crash
        if self.steps in self._lose_at:
            raise CommitLost("no answer", why="it was lost")

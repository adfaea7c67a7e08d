"""Proving one lane of a job: its records against what becomes of the archived ones, run by run."""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from blockgz.archive.blocks import ReadAhead
from blockgz.archive.damage import SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, selected
from blockgz.record_filter import RecordFilter
from index_format.records import batch_from_records
from replayer.replay.jobs.lane_maps import LaneMap
from replayer.replay.pipeline import Pipeline, ScannedBatch
from replayer.replay.run_map import Run
from replayer.replay.stages import sendable

MOST_NAMED = 20
COMPARED = ("timestamp", "key", "value", "headers")
READ_AHEAD = ReadAhead(4 * 1024 * 1024, 2 * 1024 * 1024)
EMPTY = batch_from_records([])


class Asked(NamedTuple):
    """What became of records: what a proof applies again. `compared` are the columns that can be compared."""

    pipeline: Pipeline
    filter: RecordFilter
    compared: tuple[str, ...] = COMPARED


@dataclass
class LaneProof:
    """What was found of a lane; `faults` say what is wrong, at most MOST_NAMED of them, the counts are of all.

    `not_compared` are records that were only counted, `gone` those that the archive pruned or erased since the replay:
    that they were sent is in the run map, and nothing proves what they were.
    """

    lane: int
    records: int = 0
    """Those that are as they must be."""
    runs: int = 0
    differing: int = 0
    missing: int = 0
    foreign: int = 0
    sent_twice: int = 0
    not_compared: int = 0
    gone: int = 0
    faults: list[str] = field(default_factory=list)
    faulty: bool = False

    def fault(self, text: str) -> None:
        self.faulty = True
        if len(self.faults) < MOST_NAMED:
            self.faults.append(text)

    def add(self, part: "LaneProof") -> None:
        """Adds what was found of a part of the lane."""
        for name in ("records", "runs", "differing", "missing", "foreign", "sent_twice", "gone"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        for text in part.faults:
            self.fault(text)


class SourceOfLane:
    """What becomes of the records of one source partition, as far as it goes to one lane, in order."""

    def __init__(self, selection: Selection, lane: int, asked: Asked) -> None:
        self._source, self._lane, self._asked = selection.partition.partition, lane, asked
        self.damage = SkipDamage()
        start, end = selection.offsets
        # What was pruned since is known, and no damage.
        kept = selection._replace(offsets=OffsetRange(max(start, min(selection.partition.floor, end)), end))
        self._batches = selected(kept, asked.filter, self.damage, READ_AHEAD)
        self._scanned = start
        self._held: list[pa.RecordBatch] = []

    async def take_below(self, offset: int) -> pa.RecordBatch:
        """All that is left of the source offsets below this one."""
        while self._scanned < offset and await self._fill():
            pass
        taken, held = [EMPTY], []
        for batch in self._held:
            rows = int(np.searchsorted(batch.column("offset").to_numpy(), offset))
            taken.append(batch.slice(0, rows))
            if rows < batch.num_rows:
                held.append(batch.slice(rows))
        self._held = held
        return pa.concat_batches(taken)

    async def ahead(self, records: int) -> AsyncIterator[pa.RecordBatch]:
        """The next records, so many or more, as far as there are any."""
        while records > 0 and (self._held or await self._fill()):
            for batch in self._held:
                records -= batch.num_rows
                yield batch
            self._held = []

    async def _fill(self) -> bool:
        batch = await anext(self._batches, None)
        if batch is None:
            return False
        self._scanned = batch.column("offset")[-1].as_py() + 1
        pieces = self._asked.pipeline(ScannedBatch(self._source, batch))
        self._held += [sendable(piece.records)[0] for piece in pieces if piece.target == self._lane]
        return True

    async def aclose(self) -> None:
        await self._batches.aclose()


class TargetLane:
    """The readable records of a lane since the job began, in order."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch = EMPTY

    async def below(self, offset: int) -> AsyncIterator[pa.RecordBatch]:
        """All that is left of the target offsets below this one."""
        while self._batch.num_rows or await self._fill():
            rows = int(np.searchsorted(self._batch.column("offset").to_numpy(), offset))
            if rows:
                taken, self._batch = self._batch.slice(0, rows), self._batch.slice(rows)
                yield taken
            if self._batch.num_rows:
                return

    async def _fill(self) -> bool:
        batch = await anext(self._batches, None)
        self._batch = EMPTY if batch is None else batch
        return batch is not None


@dataclass
class LaneTask:
    """A lane, its map, its readable records, and by source partition what of it is to be in the lane.

    `required` says up to where the records of a source must be there. `open_end`: records behind the last run may be
    such as were sent and not committed.
    """

    lane: int
    map: LaneMap
    found: AsyncGenerator[pa.RecordBatch]
    selections: Mapping[int, Selection]
    required: Mapping[int, int]
    rolls_back: bool
    open_end: bool
    gone: Mapping[int, Sequence[OffsetRange]] = field(default_factory=dict)
    """By source partition, what the archive has pruned or erased: offsets in order and apart."""


async def prove_lane(task: LaneTask, asked: Asked, progress: Callable[[int], None]) -> LaneProof:
    """Memory holds a run, what is read ahead, and 16 bytes and some for a record outside all runs after a crash."""
    return await _Proving(task, asked, progress).proved()


class _Proving:
    def __init__(self, task: LaneTask, asked: Asked, progress: Callable[[int], None]) -> None:
        self._task, self._asked, self._progress = task, asked, progress
        self._proof = LaneProof(task.lane)
        self._target = TargetLane(task.found)
        self._sources: dict[int, SourceOfLane] = {}
        self._pending: Counter[bytes] = Counter()
        """Records outside all runs that must be sent again behind them."""
        self._pending_at: dict[bytes, int] = {}
        self._foreign_ranges: list[OffsetRange] = []

    async def proved(self) -> LaneProof:
        proof, task = self._proof, self._task
        for text in task.map.faults:
            proof.fault(f"partition {task.lane}: {text}")
        async with aclosing(task.found), AsyncExitStack() as stack:
            for run in task.map.runs:
                await self._outside(run.target_start)
                await self._run(run, stack)
            await self._outside(None)
            for number, end in sorted(task.required.items()):
                self._uncovered(number, await self._source(number, stack).take_below(end))
            for number in task.required if self._pending and task.open_end else ():
                async for batch in self._source(number, stack).ahead(self._pending.total()):
                    self._sent_again(batch)
        if any(task.gone.values()):
            # They may be such as were sent again and are gone from the archive now.
            proof.gone += self._pending.total()
            self._pending.clear()
        for digest in self._pending:
            self._foreign(self._pending_at[digest], self._pending[digest])
        for start, end in self._foreign_ranges:
            proof.fault(f"partition {task.lane} [{start}..{end}): records that are not from this job")
        return proof

    def _source(self, number: int, stack: AsyncExitStack) -> SourceOfLane:
        if number not in self._sources:
            made = SourceOfLane(self._task.selections[number], self._task.lane, self._asked)
            stack.push_async_callback(made.aclose)
            self._sources[number] = made
        return self._sources[number]

    async def _outside(self, end: int | None) -> None:
        """Meets the records up to the next run, or up to the lane's end."""
        bound = 2**63 - 1 if end is None else end
        async for batch in self._target.below(bound):
            offsets = batch.column("offset").to_pylist()
            for offset, digest in zip(offsets, self._digests(batch), strict=True):
                if self._may_be_repeat(offset):
                    self._pending[digest] += 1
                    self._pending_at.setdefault(digest, offset)
                else:
                    self._foreign(offset, 1)

    def _may_be_repeat(self, offset: int) -> bool:
        if self._task.rolls_back:
            return False
        if self._task.open_end and offset >= self._task.map.end:
            return True
        return any(start <= offset < end for start, end in self._task.map.repeats)

    def _foreign(self, offset: int, records: int) -> None:
        self._proof.foreign += records
        before = self._foreign_ranges[-1] if self._foreign_ranges else None
        if before is not None and before.end == offset:
            self._foreign_ranges[-1] = OffsetRange(before.start, offset + 1)
        elif len(self._foreign_ranges) < MOST_NAMED:
            self._foreign_ranges.append(OffsetRange(offset, offset + 1))

    async def _run(self, run: Run, stack: AsyncExitStack) -> None:
        proof, task = self._proof, self._task
        proof.runs += 1
        place = f"partition {run.lane} [{run.target_start}..{run.target_end})"
        found = pa.concat_batches([EMPTY, *[batch async for batch in self._target.below(run.target_end)]])
        if run.source not in task.selections:
            proof.missing += run.records
            proof.fault(f"{place}: source partition {run.source} does not go there")
            return
        source = self._source(run.source, stack)
        self._uncovered(run.source, await source.take_below(run.start))
        wanted = await source.take_below(run.end)
        self._progress(wanted.num_rows)
        if self._pending:
            self._sent_again(wanted)
        if found.num_rows != run.records:
            proof.missing += max(run.records - found.num_rows, 0)
            proof.fault(f"{place}: {run.records} records are in the run map, and {found.num_rows} in the topic")
        elif wanted.num_rows < run.records <= wanted.num_rows + self._gone_of(run) and not _lost(source.damage, run):
            self._compare_rest(wanted, found, run)
        elif wanted.num_rows != run.records or _bounds(wanted) != (run.start, run.end):
            lost = _lost(source.damage, run)
            proof.differing += run.records
            proof.fault(
                f"{place}: the run map has {run.records} records of source {run.source} [{run.start}..{run.end}), and "
                f"{wanted.num_rows} from {_bounds(wanted)} go there"
                + (f"; the archive cannot read {lost}" if lost else "")
            )
        else:
            self._compare(wanted, found, run)

    def _compare(self, wanted: pa.RecordBatch, found: pa.RecordBatch, run: Run) -> None:
        names = [name for name in self._asked.compared if not wanted.column(name).equals(found.column(name))]
        rows = sorted({row for name in names for row in _unequal(wanted.column(name), found.column(name))})
        self._proof.differing += len(rows)
        self._proof.records += wanted.num_rows - len(rows)
        if rows:
            ours, theirs = (side.column("offset")[rows[0]].as_py() for side in (wanted, found))
            self._proof.fault(
                f"partition {run.lane}, offset {theirs}: not the record of source {run.source}, offset {ours}: "
                f"{', '.join(names)}"
            )

    def _gone_of(self, run: Run) -> int:
        """How many records of a run the archive may have pruned or erased."""
        erased = self._task.gone.get(run.source, ())
        first = max(bisect_right(erased, run.start, key=lambda each: each.start) - 1, 0)
        count = 0
        for start, end in erased[first:]:
            if start >= run.end:
                break
            count += max(0, min(end, run.end) - max(start, run.start))
        return count

    def _compare_rest(self, wanted: pa.RecordBatch, found: pa.RecordBatch, run: Run) -> None:
        """What is left of a run in the archive must be in the topic, in its order, among what is left no longer."""
        there = self._digests(found)
        in_order = sum(1 for digest in self._digests(wanted) if digest in there)
        self._proof.records += in_order
        self._proof.gone += run.records - wanted.num_rows
        if in_order < wanted.num_rows:
            self._proof.differing += wanted.num_rows - in_order
            self._proof.fault(
                f"partition {run.lane} [{run.target_start}..{run.target_end}): of {wanted.num_rows} records of source "
                f"{run.source} [{run.start}..{run.end}) that the archive still has, {in_order} are there in order"
            )

    def _uncovered(self, source: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._proof.missing += batch.num_rows
            first, last = (batch.column("offset")[row].as_py() for row in (0, -1))
            self._proof.fault(
                f"partition {self._task.lane}: {batch.num_rows} records of source {source} [{first}..{last + 1}) are "
                "in no run"
            )

    def _sent_again(self, batch: pa.RecordBatch) -> None:
        """What was outside all runs, and is sent again here, was sent twice."""
        for digest in self._digests(batch):
            self._proof.sent_twice += self._pending.pop(digest, 0)

    def _digests(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        columns = [batch.column(name).to_pylist() for name in self._asked.compared]
        for row in zip(*columns, strict=True):
            yield hashlib.blake2b(repr(row).encode(), digest_size=16).digest()


def _bounds(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The offset of the first record, and the one behind the last."""
    offsets = batch.column("offset")
    return (offsets[0].as_py(), offsets[-1].as_py() + 1) if batch.num_rows else None


def _unequal(ours: pa.Array, theirs: pa.Array) -> Sequence[int]:
    return [row for row, (a, b) in enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True)) if a != b]


def _lost(damage: SkipDamage, run: Run) -> str:
    lost = [OffsetRange(start, end) for start, end, _ in damage.skipped if start < run.end and end > run.start]
    return ", ".join(f"[{start}..{end})" for start, end in lost)

"""The proof of a job: the records in its target against the archived ones, changed as the job did, run by run."""

import asyncio
import hashlib
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from blockgz.archive.blocks import ReadAhead
from blockgz.archive.partition import SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection, erased_ranges, joined_ranges, selected
from blockgz.errors import Verdict
from blockgz.record_filter import RecordFilter
from index_format.records import batch_from_records
from replayer.kafka.reader import KafkaReader
from replayer.replay.job import LanePosition, Run
from replayer.replay.jobs.folder import JobRequest
from replayer.replay.pipeline import Pipeline, ScannedBatch, sendable
from replayer.replay.plan import describe_source
from replayer.replay.recorded_job import LaneMap, RecordedJob, recorded_job, source_selections
from replayer.replay.request import Surroundings

MOST_NAMED = 20
COMPARED = ("timestamp", "key", "value", "headers")
READ_AHEAD = ReadAhead(4 * 1024 * 1024, 2 * 1024 * 1024)
EMPTY = batch_from_records([])
LAST_OFFSET = 2**63 - 1


@dataclass
class LaneProof:
    """The findings of a lane; `faults` describe at most MOST_NAMED problems, the counts are of all.

    `not_compared` are records that were only counted, `gone` those that the archive pruned or erased since the replay:
    that they were sent is in the run map, and nothing proves what they were.
    """

    lane: int
    records: int = 0
    """Records that are correct."""
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
        """Add the findings of a part of the lane."""
        for name in ("records", "runs", "differing", "missing", "foreign", "sent_twice", "gone"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        for text in part.faults:
            self.fault(text)


class _Records:
    """Records of a source partition or of a lane, taken in the order of their offsets."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch]) -> None:
        self.batches = batches
        self._batch = EMPTY

    async def below(self, offset: int) -> AsyncIterator[pa.RecordBatch]:
        """Yield the remaining records of offsets below this one."""
        while self._batch.num_rows or await self._fill():
            rows = int(np.searchsorted(self._batch.column("offset").to_numpy(), offset))
            if rows:
                taken, self._batch = self._batch.slice(0, rows), self._batch.slice(rows)
                yield taken
            if self._batch.num_rows:
                return

    async def take_below(self, offset: int) -> pa.RecordBatch:
        """Return the remaining records of offsets below this one as one batch."""
        return pa.concat_batches([EMPTY, *[batch async for batch in self.below(offset)]])

    async def _fill(self) -> bool:
        batch = await anext(self.batches, None)
        self._batch = EMPTY if batch is None else batch
        return batch is not None


# The readable records of a lane between two of its offsets.
ReadTarget = Callable[[int, int], AsyncGenerator[pa.RecordBatch]]


@dataclass
class LaneTask:
    """A lane or a part of it: its map, the `offsets` since the job began, and by source partition what is to be there.

    `required` says up to where the records of a source must be there. `open_end`: records behind the last run may be
    such as were sent and not committed. `compared` are the columns that can be compared.
    """

    lane: int
    map: LaneMap
    offsets: OffsetRange
    read: ReadTarget
    selections: dict[int, Selection]
    required: dict[int, int]
    rolls_back: bool
    open_end: bool
    pipeline: Pipeline = field(default_factory=Pipeline)
    filter: RecordFilter = field(default_factory=RecordFilter)
    compared: tuple[str, ...] = COMPARED
    gone: Mapping[int, Sequence[OffsetRange]] = field(default_factory=dict)
    """Offsets that were pruned or erased, for each source partition, in order and disjoint."""

    def require(self, source: int, selection: Selection, start: int, end: int) -> None:
        """Add what a source has between two offsets, or extend what was added of it before."""
        start = self.selections[source].offsets.start if source in self.selections else start
        self.selections[source] = selection._replace(offsets=OffsetRange(start, end))
        self.required[source] = end

    async def expected(self, source: int, damage: SkipDamage) -> AsyncGenerator[pa.RecordBatch]:
        """Yield the records of a source partition that go to this lane, in order."""
        selection = self.selections[source]
        start, end = selection.offsets
        # What was pruned since is known, and no damage.
        kept = selection._replace(offsets=OffsetRange(max(start, min(selection.partition.floor, end)), end))
        async with aclosing(selected(kept, self.filter, damage, READ_AHEAD)) as batches:
            async for batch in batches:
                for piece in self.pipeline(ScannedBatch(source, batch)):
                    if piece.target == self.lane:
                        yield sendable(piece.records)[0]


class _Proving:
    def __init__(self, task: LaneTask, progress: Callable[[int], None]) -> None:
        self._task, self._progress = task, progress
        self._proof = LaneProof(task.lane)
        self._target = _Records(task.read(*task.offsets))
        # The expected records of each source partition, and what of it cannot be read.
        self._sources: dict[int, tuple[_Records, SkipDamage]] = {}
        # Records outside all runs that must be sent again behind them.
        self._pending: Counter[bytes] = Counter()
        self._pending_at: dict[bytes, int] = {}
        self._foreign_ranges: list[OffsetRange] = []

    async def proved(self) -> LaneProof:
        proof, task = self._proof, self._task
        for text in task.map.faults:
            proof.fault(f"partition {task.lane}: {text}")
        async with aclosing(self._target.batches), AsyncExitStack() as stack:
            for run in task.map.runs:
                await self._outside(run.target_start)
                await self._run(run, stack)
            await self._outside(LAST_OFFSET)
            for number, end in sorted(task.required.items()):
                self._uncovered(number, await self._source(number, stack)[0].take_below(end))
            for number in task.required if self._pending and task.open_end else ():
                left = self._pending.total()
                async for batch in self._source(number, stack)[0].below(LAST_OFFSET):
                    self._sent_again(batch)
                    if (left := left - batch.num_rows) <= 0:
                        break
        if any(task.gone.values()):
            # They may be such as were sent again and are gone from the archive now.
            proof.gone += self._pending.total()
            self._pending.clear()
        for digest in self._pending:
            self._foreign(self._pending_at[digest], self._pending[digest])
        for start, end in self._foreign_ranges:
            proof.fault(f"partition {task.lane} [{start}..{end}): records that are not from this job")
        return proof

    def _source(self, number: int, stack: AsyncExitStack) -> tuple[_Records, SkipDamage]:
        if number not in self._sources:
            damage = SkipDamage()
            batches = self._task.expected(number, damage)
            stack.push_async_callback(batches.aclose)
            self._sources[number] = _Records(batches), damage
        return self._sources[number]

    async def _outside(self, end: int) -> None:
        """Handle the records up to the next run, or up to the lane's end."""
        async for batch in self._target.below(end):
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
        found = await self._target.take_below(run.target_end)
        if run.source not in task.selections:
            proof.missing += run.records
            proof.fault(f"{place}: source partition {run.source} does not go there")
            return
        source, damage = self._source(run.source, stack)
        self._uncovered(run.source, await source.take_below(run.start))
        wanted = await source.take_below(run.end)
        self._progress(wanted.num_rows)
        if self._pending:
            self._sent_again(wanted)
        if found.num_rows != run.records:
            proof.missing += max(run.records - found.num_rows, 0)
            proof.fault(f"{place}: {run.records} records are in the run map, and {found.num_rows} in the topic")
        elif wanted.num_rows < run.records <= wanted.num_rows + self._gone_of(run) and not _lost(damage, run):
            self._compare_rest(wanted, found, run)
        elif wanted.num_rows != run.records or _bounds(wanted) != (run.start, run.end):
            lost = _lost(damage, run)
            proof.differing += run.records
            proof.fault(
                f"{place}: the run map has {run.records} records of source {run.source} [{run.start}..{run.end}), and "
                f"{wanted.num_rows} from {_bounds(wanted)} go there"
                + (f"; the archive cannot read {lost}" if lost else "")
            )
        else:
            self._compare(wanted, found, run)

    def _compare(self, wanted: pa.RecordBatch, found: pa.RecordBatch, run: Run) -> None:
        names = [name for name in self._task.compared if not wanted.column(name).equals(found.column(name))]
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
        """Return how many records of a run the archive may have pruned or erased."""
        erased = self._task.gone.get(run.source, ())
        first = max(bisect_right(erased, run.start, key=lambda each: each.start) - 1, 0)
        count = 0
        for start, end in erased[first:]:
            if start >= run.end:
                break
            count += max(0, min(end, run.end) - max(start, run.start))
        return count

    def _compare_rest(self, wanted: pa.RecordBatch, found: pa.RecordBatch, run: Run) -> None:
        """Check that records of a run which the archive still has are in the topic, in order."""
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
        """Count as sent twice what was outside all runs and is sent again here."""
        for digest in self._digests(batch):
            self._proof.sent_twice += self._pending.pop(digest, 0)

    def _digests(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        columns = [batch.column(name).to_pylist() for name in self._task.compared]
        for row in zip(*columns, strict=True):
            yield hashlib.blake2b(repr(row).encode(), digest_size=16).digest()


def _bounds(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """Return the offset of the first record, and the one after the last."""
    offsets = batch.column("offset")
    return (offsets[0].as_py(), offsets[-1].as_py() + 1) if batch.num_rows else None


def _unequal(ours: pa.Array, theirs: pa.Array) -> Sequence[int]:
    return [row for row, (a, b) in enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True)) if a != b]


def _lost(damage: SkipDamage, run: Run) -> str:
    lost = [OffsetRange(start, end) for start, end, _ in damage.skipped if start < run.end and end > run.start]
    return ", ".join(f"[{start}..{end})" for start, end in lost)


PIECE_RECORDS = 10_000


class Sample(NamedTuple):
    """A share (0..1] of each lane; the same seed chooses the same pieces."""

    share: float
    seed: int

    def chosen(self, lane: int, pieces: int) -> frozenset[int]:
        """Return which of this many pieces of a lane are compared; at least one."""
        drawn = random.Random(f"{self.seed}:{lane}").sample(range(pieces), math.ceil(self.share * pieces))
        return frozenset({0, pieces - 1, *drawn})


def pieces(lane_map: LaneMap) -> Iterator[Run]:
    """Yield the runs that count, in order; long runs are split if every offset in them has a record."""
    for run in lane_map.runs:
        if run.records != run.end - run.start:
            yield run
            continue
        for first in range(0, run.records, PIECE_RECORDS):
            count = min(PIECE_RECORDS, run.records - first)
            start = run.start + first
            yield Run(run.source, start, start + count, run.lane, run.target_start + first, count)


def windows(task: LaneTask, chosen: Container[int]) -> list[LaneTask]:
    """Return the compared parts of a lane that has a run: the chosen pieces, with what is right before each.

    The last one has all that follows, too: up to the end of the lane, and of what is required of its sources.
    """
    found, is_open = list[LaneTask](), False
    at, read = task.offsets.start, {number: each.offsets.start for number, each in task.selections.items()}
    for number, piece in enumerate(pieces(task.map)):
        if number in chosen:
            if not is_open:
                found.append(replace(task, map=LaneMap(at), offsets=OffsetRange(at, at), selections={}, required={}))
            window = found[-1]
            window.map.add(piece)
            window.offsets = window.offsets._replace(end=piece.target_end)
            if piece.source in task.selections:
                window.require(piece.source, task.selections[piece.source], read[piece.source], piece.end)
        is_open = number in chosen
        at, read[piece.source] = piece.target_end, piece.end
    last = found[-1]
    last.offsets = last.offsets._replace(end=task.offsets.end)
    for number, selection in task.selections.items():
        last.require(number, selection, read[number], task.required[number])
    return found


async def prove_lane(task: LaneTask, progress: Callable[[int], None], sample: Sample | None = None) -> LaneProof:
    """Prove one lane; with a sample its chosen pieces, and by the archive's indexes that no record is missing.

    Memory holds a run, the records read ahead, and after a crash about 16 bytes for each record outside all runs.
    Proved in whole are a lane whose numbers differ, one with records that were sent twice or that is not complete, and
    a job that changed or chose records.
    """
    count = sum(1 for _ in pieces(task.map)) if sample else 0
    chosen = sample.chosen(task.lane, count) if sample and count else frozenset[int]()
    is_simple = task.rolls_back or not task.map.repeats
    if len(chosen) == count or not is_simple or task.open_end or task.map.faults or not await _as_many(task):
        return await _Proving(task, progress).proved()
    whole = LaneProof(task.lane, not_compared=task.map.records)
    for window in windows(task, chosen):
        whole.add(await _Proving(window, progress).proved())
        whole.not_compared -= window.map.records
    return whole


async def _as_many(task: LaneTask) -> bool:
    """Return whether the archive's indexes have as many records for the lane as its map."""
    pipeline = task.pipeline
    if pipeline.stages or not task.filter.passes_all or pipeline.router.divides:
        return False
    archived = 0
    for number, selection in task.selections.items():
        offsets = OffsetRange(selection.offsets.start, task.required[number])
        skipping = Reading(on_damage=lambda _: SkipDamage())
        archived += (await describe_source(Selection(selection.partition, offsets), skipping)).records
    return archived == task.map.records


# Small fetches: what follows a piece is not needed.
FETCHING_PIECES: Mapping[str, str] = {"fetch.message.max.bytes": "1048576", "queued.max.messages.kbytes": "4096"}


@dataclass
class JobProof:
    request: JobRequest
    complete: bool
    lanes: list[LaneProof] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """FAILURE where records are wrong, foreign or not there; WARNING where some came twice, are still to come, or
        were pruned or erased from the archive since.

        SAMPLED if nothing of that was found, and not all was looked at.
        """
        if any(lane.faulty for lane in self.lanes):
            return Verdict.FAILURE
        if self.warnings or any(lane.sent_twice or lane.gone for lane in self.lanes):
            return Verdict.WARNING
        return Verdict.SAMPLED if self.not_compared else Verdict.OK

    @property
    def not_compared(self) -> int:
        """Records that were counted but not compared."""
        return sum(lane.not_compared for lane in self.lanes)


async def prove_job(
    name: str,
    around: Surroundings,
    watched: Callable[[int], AbstractContextManager[Callable[[int], None]]] = lambda _: nullcontext(lambda _: None),
    sample: Sample | None = None,
) -> JobProof:
    """Apply again what a job did to the archived records, and compare with what its target holds.

    `watched` is given the records that there are, and what it gives is called with those that are done. With a `sample`
    only that share is compared. Raises UsageError for no such job, TargetChanged, or ReplayRefused where the job is
    another archive's or cannot be repeated.
    """
    job = await recorded_job(name, around)
    kept, compared = job.request, _compared(job)
    proof = JobProof(kept, job.complete, warnings=_warnings(job, compared))
    lanes = sorted(job.feeding.keys() | job.maps.keys())
    bounds = await asyncio.to_thread(around.admin.watermarks, kept.target, lanes, kept.isolation_level)
    selections = await source_selections(around.archive, kept)
    gone = {number: await _gone(selection) for number, selection in selections.items()}
    with watched(sum(each.records for each in job.maps.values())) as advance:
        fetching = around.properties if sample is None else {**around.properties, **FETCHING_PIECES}
        reader = await asyncio.to_thread(KafkaReader, fetching, kept.isolation_level)
        try:
            for lane in lanes:
                lane_map = job.maps.get(lane) or LaneMap(bounds[lane].end)
                position, feeding = job.positions.get(lane), job.feeding.get(lane, ())
                task = LaneTask(
                    lane,
                    lane_map,
                    OffsetRange(max(bounds[lane].low, lane_map.began), bounds[lane].end),
                    partial(_in_thread, reader, kept.target, lane),
                    {number: selections[number] for number in feeding},
                    {number: _required(kept, position, number) for number in feeding},
                    rolls_back=kept.transactional,
                    open_end=not proof.complete,
                    pipeline=job.pipeline,
                    filter=job.asked.selection.filter,
                    compared=compared,
                    gone={number: gone[number] for number in feeding},
                )
                proof.lanes.append(await prove_lane(task, advance, sample))
        finally:
            await asyncio.to_thread(reader.close)
    return proof


async def _gone(selection: Selection) -> list[OffsetRange]:
    """Return the offsets of a selection that were pruned or erased, in order and disjoint."""
    partition, (start, end) = selection[:2]
    pruned = [(start, min(partition.floor, end))] if start < partition.floor else []
    return joined_ranges([*pruned, *await erased_ranges(partition, start, end)])


def proof_document(proof: JobProof) -> dict[str, Any]:
    """Return the findings as plain JSON values."""
    request = proof.request
    sums = ("records", "differing", "missing", "foreign", "sent_twice", "not_compared", "gone")
    return {
        "verdict": proof.verdict,
        "job": request.job,
        "source": request.folder,
        "target": request.target,
        "transactional": request.transactional,
        "complete": proof.complete,
        **{name: sum(getattr(lane, name) for lane in proof.lanes) for name in sums},
        "warnings": proof.warnings,
        "lanes": [asdict(lane) for lane in proof.lanes],
    }


def _compared(job: RecordedJob) -> tuple[str, ...]:
    """Return the columns that can be compared."""
    config = job.target.config
    stamped = config is not None and config.timestamp_type == "LogAppendTime"
    return COMPARED[1:] if stamped or job.asked.timestamps.rule == "now" else COMPARED


def _required(kept: JobRequest, position: LanePosition | None, source: int) -> int:
    """Return the end of the offsets that must be in the lane; all, if the cluster has no position."""
    if position is not None and source in position.sources:
        return position.sources[source].next
    return kept.ranges[source][1] if kept.transactional else kept.ranges[source][0]


def _warnings(job: RecordedJob, compared: Sequence[str]) -> list[str]:
    warnings = []
    transactional = job.request.transactional
    if job.forgotten and transactional:
        warnings.append(
            f"the cluster has no positions of the job in partitions {', '.join(map(str, job.forgotten))}: "
            "these are proved as if they were complete"
        )
    if not all(each.complete for each in job.positions.values()) or (job.forgotten and not transactional):
        warnings.append("the job is not complete: it is proved as far as it got")
    if "timestamp" not in compared:
        by_broker = job.target.config is not None and job.target.config.timestamp_type == "LogAppendTime"
        reason = "the broker sets them" if by_broker else "they are the times of sending"
        warnings.append(f"timestamps are not compared: {reason}")
    return warnings


async def _in_thread(
    reader: KafkaReader, topic: str, lane: int, start: int, end: int
) -> AsyncGenerator[pa.RecordBatch]:
    batches = reader.read(topic, lane, start, end)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch

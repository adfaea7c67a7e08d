"""The job that a command line means, and what is recorded of it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from blockgz_runtime.errors import NotInArchive
from replayer.cli.options.cluster_options import KafkaOptions
from replayer.cli.options.damage import DamagePolicies
from replayer.cli.options.replay_options import ReplayOptions
from replayer.read.archive import Archive
from replayer.read.positions import OffsetRange
from replayer.read.selection import Reading, Selection
from replayer.replay.job import Job, chain_hash, first_positions, make_job, pinned, refuse_other_job
from replayer.replay.job_file import JobFile
from replayer.replay.lane_position import LanePosition, decode_position, refuse_long_metadata
from replayer.replay.ledger import Ledger
from replayer.replay.pipeline import Pipeline
from replayer.replay.plan import JobState
from replayer.replay.record_sink import RecordSink
from replayer.replay.run import Work
from replayer.replay.sinks.bounded_calls import Calls, NoAnswer
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.replay.sinks.idempotent import KafkaSink
from replayer.replay.sinks.transactional import TransactionalSink

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class KnownJob:
    """A job, what it has to do, and what is recorded of it so far."""

    job: Job
    pipeline: Pipeline
    work: Work
    recorded: Mapping[int, LanePosition]
    planning: Reading
    """As the work's, for looking ahead: what it passes over the replay comes to again, and reports."""
    transactional: bool

    @property
    def remaining(self) -> list[Selection]:
        """The selections from the lowest offset that a lane still needs."""
        ledger = Ledger({**self.work.first, **self.recorded})
        ranges = []
        for selection in self.work.selections:
            start = ledger.start_of(selection.partition.partition)
            end = selection.offsets.end
            ranges.append(selection._replace(offsets=OffsetRange(end if start is None else start, end)))
        return ranges

    def state(self, *, resume: bool) -> JobState:
        """What the plan needs to know of it."""
        return JobState(
            self.job.name,
            transactional=self.transactional,
            resume=resume,
            written=sum(position.written for position in self.recorded.values()),
            begun=bool(self.recorded),
            complete=self.work.first.keys() <= self.recorded.keys()
            and all(position.complete for position in self.recorded.values()),
        )


@dataclass(frozen=True)
class PreparedJob(KnownJob):
    """One that this process does, and where it is recorded."""

    store: CommittedPositions[LanePosition] | JobFile

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other runs of the job away on this machine; transactions do it in the cluster."""
        if isinstance(self.store, JobFile):
            with self.store.held():
                yield
        else:
            yield

    def forget(self) -> None:
        """A job without transactions that is complete can be run again from the start."""
        if isinstance(self.store, JobFile):
            self.store.remove()

    def sink(self, kafka: KafkaOptions, max_message_bytes: int | None) -> RecordSink:
        """Where its records go."""
        if isinstance(self.store, CommittedPositions):
            return TransactionalSink(kafka.properties, self.job, self.store, max_message_bytes)
        return KafkaSink(kafka.properties, self.job.target, self.store, max_message_bytes)


@asynccontextmanager
async def prepared_job(
    options: ReplayOptions, archive: Archive, pipeline: Pipeline, kafka: KafkaOptions, damage: DamagePolicies
) -> AsyncIterator[PreparedJob]:
    """The job of a command line, whose scans tell `damage`; nothing is written and nobody fenced.

    Raises ReplayRefused where what is recorded of it belongs to another selection or another history.
    """
    selections, job = await asked_job(options, archive, pipeline)
    lanes = sorted({lane for each in selections for lane in pipeline.targets(each.partition.partition)})
    planning = Reading(options.selection.filter, DamagePolicies(options.on_damage).of)
    reading = planning._replace(on_damage=damage.of)
    if not options.transactional:
        file = JobFile(options.job_file or default_job_file(job), job)
        yield await _prepared(job, pipeline, selections, file, lanes, planning, reading)
        return
    positions = CommittedPositions(kafka.properties, job, decode_position)
    try:
        prepared = await _prepared(job, pipeline, selections, positions, lanes, planning, reading)
        refuse_long_metadata(prepared.work.first)
        yield prepared
    finally:
        with suppress(NoAnswer):
            await asyncio.to_thread(Calls().make, positions.close, CLOSE_SECONDS)


async def asked_job(
    options: ReplayOptions, archive: Archive, pipeline: Pipeline, *more: str
) -> tuple[list[Selection], Job]:
    """What a command line selects, and the job that this is; `more` is what else makes it another one.

    Raises NotInArchive.
    """
    selections = await options.selection.select(archive, options.topic)
    if not selections:
        raise NotInArchive(f"no partition of {options.topic.topic} is archived yet", why="there is nothing to replay")
    partition = selections[0].partition
    numbers = "all" if options.topic.partitions is None else ",".join(map(str, options.topic.partitions))
    asked = (numbers, *options.selection.asked, *more)
    archive_id, folder = partition.marker.archive_id, str(partition.keys.folder)
    return selections, make_job(options.job, archive_id, folder, options.target, asked, pipeline)


def default_job_file(job: Job) -> Path:
    """Where a job's position is kept unless another file is named."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "blockgz" / "jobs" / f"{job.name}.json"


async def _prepared(
    job: Job,
    pipeline: Pipeline,
    selections: list[Selection],
    store: CommittedPositions[LanePosition] | JobFile,
    lanes: list[int],
    planning: Reading,
    reading: Reading,
) -> PreparedJob:
    transactional = isinstance(store, CommittedPositions)
    found = await asyncio.to_thread(store.read, lanes) if isinstance(store, CommittedPositions) else store.read()
    selections, first = await job_begin(job, pipeline, selections, found, planning)
    return PreparedJob(job, pipeline, Work(selections, first, reading), found, planning, transactional, store)


async def job_begin(
    job: Job,
    pipeline: Pipeline,
    selections: list[Selection],
    found: Mapping[int, LanePosition],
    planning: Reading,
) -> tuple[list[Selection], Mapping[int, LanePosition]]:
    """The selections as the job began with them, and where each lane of the pipeline stood then.

    Raises ReplayRefused where what was found recorded is another job's.
    """
    selections = pinned(selections, found)
    histories = {
        each.partition.partition: await chain_hash(*each, planning.on_damage(each.partition)) for each in selections
    }
    ranges = {each.partition.partition: each.offsets for each in selections}
    first = first_positions(job, ranges, histories, pipeline)
    refuse_other_job(found, first)
    return selections, first

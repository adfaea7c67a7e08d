"""A replay from its request to its result: what it would do, and doing it. Whoever calls it asks, steers and prints."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from blockgz.archive.archive import Archive
from blockgz.archive.request import DamagePolicies
from blockgz.open_files import allow_open_files
from blockgz.store.writer import Store
from index_format.keys import check_topic, parse_topic_folder
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.pace import Commands
from replayer.replay.plan import ReplayPlan, TargetRequest
from replayer.replay.preflight import make_plan, refuse_source
from replayer.replay.prepare import (
    PRODUCERS,
    KnownJob,
    PreparedJob,
    ask_before,
    missing_sources,
    prepared_job,
    with_missing,
)
from replayer.replay.request import ReplayRequest
from replayer.replay.result import ReplayResult
from replayer.replay.run import Progress, run_replay
from replayer.replay.seams import Keeping, RecordSink
from replayer.replay.shaped_target import ShapedTarget, make_ready, shaped_target
from replayer.replay.sinks.compression import codec_of
from replayer.replay.target_topic import set_back, undo_retention

FILES, FILES_OF_A_PRODUCER = 100, 15
"""So many files a replay may open, and so many more for each producer, beside a connection to each broker."""


@dataclass(frozen=True)
class Groundwork:
    """What archive and cluster say of a request, whoever does it; nothing is changed before `make_ready`."""

    request: ReplayRequest
    properties: Mapping[str, str]
    """librdkafka's, as they were given."""
    admin: KafkaAdmin
    missing: tuple[str, ...]
    """What the archive should hold by its inventory, and lacks."""
    target: ShapedTarget

    async def plan(self, known: KnownJob, *notes: str) -> ReplayPlan:
        """The plan of a job, with more notes; raises NoSuchTopic or ReplayRefused."""
        codec = codec_of(self.request.producing(self.properties))
        preflight = with_missing(await ask_before(self.request, known, self.target, self.admin, codec), self.missing)
        can_undo = self.target.creates is not None or (isinstance(known, PreparedJob) and known.created)
        last = () if can_undo else (f"{self.target.name} exists: what is written to it cannot be taken back",)
        return make_plan(replace(preflight, notes=(*preflight.notes, *notes, *last)))

    async def make_ready(self, plan: ReplayPlan) -> None:
        """Make the target topic, and hold its retention, as the plan says."""
        await asyncio.to_thread(make_ready, self.target, plan.lifted, self.admin, self.properties)

    async def set_back(self) -> str | None:
        """Sets back the retention that any run of a job held, once that is complete; says so if there was one."""
        return await asyncio.to_thread(set_back, self.target.name, self.admin, self.properties)


async def groundwork(
    request: ReplayRequest,
    archive: Archive,
    properties: Mapping[str, str],
    admin: KafkaAdmin | None = None,
    missing: Sequence[str] | None = None,
) -> Groundwork:
    """Asks archive and cluster, through `admin` if there is one already; `missing` where that is known already.

    Raises BadName for a target that no topic can have, and ReplayRefused where the archive lacks a part, or the routing
    does not fit. What the archive alone can refuse comes before a client of the cluster is made: that asks for tokens
    at once.
    """
    topic = request.topic.topic
    check_topic(request.target)
    refuse_source(TargetRequest(parse_topic_folder(topic).topic, request.target, request.into_source))
    if missing is None:
        await archive.partitions(topic)
        missing = await missing_sources(request, archive)
    if admin is None:
        admin = await asyncio.to_thread(KafkaAdmin, properties)
    return Groundwork(request, properties, admin, tuple(missing), await shaped_target(request, archive, admin))


async def undone_retention(request: ReplayRequest, properties: Mapping[str, str]) -> str:
    """Sets back what a replay that was broken off left held; says what was done. Raises NoSuchTopic."""
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    return await asyncio.to_thread(undo_retention, request.target, admin, properties)


class BegunReplay(NamedTuple):
    """A replay whose target is ready, and whose job no other run does."""

    planned: "PlannedReplay"
    sink: RecordSink
    keeping: Keeping

    async def run(self, commands: Commands, progress: Progress) -> ReplayResult:
        """Replays; raises as `run_replay` does."""
        job, pace = self.planned.job, self.planned.ground.request.pace
        result = await run_replay(job.work, job.pipeline, self.sink, pace, commands, progress, self.keeping)
        if result.complete and not self.planned.ground.request.follows:
            await asyncio.to_thread(self.keeping.log.complete)
        return result

    async def settled(self, result: ReplayResult) -> str | None:
        """Sets the target's retention back once the job is complete; what there is to say about it."""
        if result.complete:
            return await self.planned.ground.set_back()
        target = self.planned.ground.target
        return f"retention of {target.name} is still lifted: run --resume or --undo-retention" if target.holds else None


@dataclass(frozen=True)
class PlannedReplay:
    """A replay that can be begun; nothing is written before."""

    ground: Groundwork
    job: PreparedJob
    plan: ReplayPlan
    damage: DamagePolicies
    """What was passed over at damage, once it ran."""

    @property
    def seconds(self) -> float:
        """How long it takes at the least, by the pace that was asked for."""
        return self.ground.request.pace.seconds(self.plan.records, self.plan.bytes, self.plan.span_ms)

    def kept_alone(self) -> "PlannedReplay":
        """The same for a caller that keeps the job alone already, as `job_alone` does."""
        return replace(self, job=replace(self.job, alone=nullcontext))

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[BegunReplay]:
        """Makes the target ready and takes the job; raises JobTakenOver, TargetChanged or ReplayRefused."""
        ground = self.ground
        with self.job.alone():
            await ground.make_ready(self.plan)
            fresh = ground.admin
            if ground.target.creates:
                fresh = await asyncio.to_thread(ground.admin.again)
            allow_open_files(FILES + PRODUCERS * (FILES_OF_A_PRODUCER + ground.admin.num_brokers))
            yield BegunReplay(self, *await asyncio.to_thread(self.job.begun, fresh))


@asynccontextmanager
async def planned_replay(
    request: ReplayRequest,
    archive: Archive,
    properties: Mapping[str, str],
    jobs: Store,
    admin: KafkaAdmin | None = None,
    missing: Sequence[str] | None = None,
) -> AsyncIterator[PlannedReplay]:
    """What a request would do; `properties` are librdkafka's, `jobs` holds the folders of jobs. Nothing is written.

    `admin` is asked, if there is one already; the inventory is not, if what is `missing` is known. Raises
    ReplayRefused, NoSuchTopic, NotInArchive, TargetChanged, or what archive and cluster raise.
    """
    producing = request.producing(properties)
    ground = await groundwork(request, archive, properties, admin, missing)
    damage = DamagePolicies(request.on_damage)
    async with prepared_job(request, archive, ground.target, producing, jobs, damage) as job:
        yield PlannedReplay(ground, job, await ground.plan(job), damage)

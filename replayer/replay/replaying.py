"""A replay from its request to its result: what it would do, and doing it. Whoever calls it asks, steers and prints."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec

from blockgz.archive.archive import Archive
from blockgz.archive.inventory import compare
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import Budget, OffsetRange
from blockgz.archive.request import SKIPS, DamagePolicies
from blockgz.archive.selection import Reading, Selection, cuts_of, notes_of, selected
from blockgz.errors import NotInArchive, listed
from blockgz.open_files import allow_open_files
from blockgz.store.writer import Store
from index_format.keys import check_topic, parse_topic_folder
from index_format.records import Record, iter_records
from replayer.errors import ReplayRefused, TargetChanged
from replayer.kafka.admin import KafkaAdmin, TopicPin
from replayer.kafka.topic_facts import NewTopic, TopicFacts, parse_config
from replayer.replay.job import (
    Job,
    LanePosition,
    Ledger,
    chain_hash,
    check_job_name,
    continued,
    decode_position,
    first_positions,
    followed,
    followed_positions,
    make_job,
    pinned,
    refuse_long_metadata,
    refuse_other_job,
    rewritten_since,
)
from replayer.replay.jobs.folder import FolderLog, JobFolder, JobRequest
from replayer.replay.jobs.state import held, shared
from replayer.replay.pace import Commands
from replayer.replay.pipeline import Pipeline
from replayer.replay.plan import (
    EDGE_BYTES,
    JobState,
    Preflight,
    ReplayPlan,
    SourcePartition,
    TargetRequest,
    TimeBounds,
    describe_source,
    find_refusable,
    largest_block,
    make_plan,
    refuse_source,
)
from replayer.replay.request import ReplayRequest, asked_of, codec_of
from replayer.replay.result import ReplayResult
from replayer.replay.run import Keeping, Progress, RecordSink, ReplayWork, run_replay
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.replay.sinks.idempotent import KafkaSink
from replayer.replay.sinks.transactional import TransactionalSink
from replayer.replay.stages import TransformStage, wall_clock
from replayer.replay.target_topic import (
    LIMIT,
    ROOM,
    ShapedTarget,
    make_ready,
    raised_limit,
    set_back,
    shaped_target,
    state_folder,
    undo_retention,
)

PRODUCERS = 4
"""So many share the lanes of a job with transactions."""
LEAST_TIMEOUT_SECONDS = 120.0
FIRST_RECORDS = 1000
"""Records that show whether transforms do anything."""


@dataclass(frozen=True)
class KnownJob:
    """A job, what it has to do, and what is recorded of it so far."""

    job: Job
    pipeline: Pipeline
    work: ReplayWork
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
        return JobState(
            self.job.name,
            transactional=self.transactional,
            resume=resume,
            written=sum(position.written for position in self.recorded.values()),
            begun=bool(self.recorded),
            complete=self.work.first.keys() <= self.recorded.keys()
            and all(position.complete for position in self.recorded.values()),
        )


@dataclass(frozen=True, kw_only=True)
class PreparedJob(KnownJob):
    """One that this process does; `created` says whether an earlier run of it made the target."""

    created: bool

    alone: Callable[[], AbstractContextManager[None]]
    """Keeps the job, and where the cluster does not do it by transactions other runs of it away, on this machine."""
    begun: Callable[[KafkaAdmin], tuple[RecordSink, Keeping]]
    """Where its records go, and what it keeps to: with the target as it is now, whose id is written down."""


@asynccontextmanager
async def prepared_job(
    request: ReplayRequest,
    archive: Archive,
    target: ShapedTarget,
    properties: Mapping[str, str],
    jobs: Store,
    damage: DamagePolicies,
) -> AsyncIterator[PreparedJob]:
    """The job of a request, whose scans report to `damage`; nothing is written and nobody fenced.

    `properties` are librdkafka's, `jobs` holds the folders of jobs. Raises ReplayRefused where what is recorded of the
    job belongs to another selection or another history, or its folder is missing, and TargetChanged.
    """
    kept = None
    if request.job is not None:
        check_job_name(request.job)
        kept = await asyncio.to_thread(JobFolder(jobs, request.job).request)
    request = await _of_the_same_incarnation(request, archive, kept)
    opened = await opened_partitions(request, archive)
    request, job, kept = await asyncio.to_thread(_known, request, opened, target.pipeline, jobs, kept)
    folder = JobFolder(jobs, job.name)
    fresh = _asked_of_folder(request, job, opened[0], target)
    if kept is not None:
        await asyncio.to_thread(refuse_undone, folder)
        refuse_other_folder(kept, fresh, target.facts if target.creates is None else None, folder.address)
    if kept is not None and not request.follows:
        selections = _as_begun(kept, opened)
    else:
        selections = await request.selection.resolve(archive, request.topic, opened)
    positions: CommittedPositions[LanePosition] | None = None
    try:
        if request.transactional:
            positions = CommittedPositions(properties, job, decode_position)
            lanes = sorted({lane for each in selections for lane in target.pipeline.targets(each.partition.partition)})
            recorded = await asyncio.to_thread(positions.read, lanes)
        else:
            recorded = await asyncio.to_thread(folder.positions.read)
        if recorded and kept is None:
            raise _folder_missing(folder, recorded)
        known = await known_job(request, job, target.pipeline, selections, recorded, damage)
        if positions is not None:
            refuse_long_metadata(known.work.first)
        begun = partial(_begun, request, folder, kept or fresh, positions, properties)
        yield PreparedJob(
            **vars(known),
            created=kept is not None and kept.created is True,
            alone=partial(job_alone, request, job.name),
            begun=partial(begun, job, known.work),
        )
    finally:
        if positions is not None:
            await asyncio.to_thread(positions.close)


def job_alone(request: ReplayRequest, name: str) -> AbstractContextManager[None]:
    """Keeps the job of that name to this run on this machine, as PreparedJob says."""
    return (shared if request.transactional else held)(state_folder() / "jobs", name)


def _begun(
    request: ReplayRequest,
    folder: JobFolder,
    asked: JobRequest,
    positions: CommittedPositions[LanePosition] | None,
    properties: Mapping[str, str],
    job: Job,
    work: ReplayWork,
    admin: KafkaAdmin,
) -> tuple[RecordSink, Keeping]:
    facts = admin.topic(job.target)
    kept = folder.request()
    if kept is None:
        ranges = {each.partition.partition: tuple(each.offsets) for each in work.selections}
        told = facts.topic_id if facts else None
        lanes = len(work.first)
        kept = msgspec.structs.replace(
            asked, target_topic_id=told, ranges=ranges, producers=max(1, min(PRODUCERS, lanes))
        )
        folder.create(kept)
    else:
        refuse_changed_target(kept, facts)
    keeping = Keeping(FolderLog(folder), TopicPin(admin, job.target, kept.target_topic_id), request.patience)
    return job_sink(request, folder, kept, positions, properties, job, facts), keeping


def job_sink(
    request: ReplayRequest,
    folder: JobFolder,
    kept: JobRequest,
    positions: CommittedPositions[LanePosition] | None,
    properties: Mapping[str, str],
    job: Job,
    facts: TopicFacts | None,
) -> RecordSink:
    """Where the records of a job go whose target is `facts`; with transactions the cluster has its `positions`."""
    limit = facts.config.max_message_bytes if facts and facts.config else None
    if positions is not None:
        return TransactionalSink(properties, job, positions, limit, producers=kept.producers)
    timeout_ms = int(max(request.patience, LEAST_TIMEOUT_SECONDS) * 1000)
    return KafkaSink(properties, job.target, folder.positions, limit, timeout_ms=timeout_ms, producers=kept.producers)


async def _of_the_same_incarnation(request: ReplayRequest, archive: Archive, kept: JobRequest | None) -> ReplayRequest:
    """What is resumed reads the incarnation that it began with, whatever was archived since."""
    if kept is None or not request.resume or request.follows:
        return request
    if parse_topic_folder(kept.folder).topic != request.topic.topic:
        return request
    return replace(request, topic=replace(request.topic, topic=await archive.whole_topic(kept.folder)))


def _known(
    request: ReplayRequest,
    opened: Sequence[ArchivedPartition],
    pipeline: Pipeline,
    jobs: Store,
    kept: JobRequest | None,
) -> tuple[ReplayRequest, Job, JobRequest | None]:
    """Return the request, its job and what that job's folder keeps.

    A job that an earlier release began by Kafka's rule is found as well, if the request has no rule for `--at`.
    """
    found = []
    for each in request.by_rules:
        job = job_of(each, opened, pipeline)
        if request.job is None:
            job = job if request.transactional else _numbered(job, jobs, resume=request.resume)
            kept = JobFolder(jobs, job.name).request()
        found.append((each, job, kept))
    return next((each for each in found if each[2] is not None and each[2].selection == each[1].selection), found[0])


def _numbered(job: Job, jobs: Store, *, resume: bool) -> Job:
    """The newest job of that name; one that is complete or undone is done again as the next one, unless resumed."""
    newest, number = job, 2
    while JobFolder(jobs, (following := replace(job, name=f"{job.name}-{number}")).name).request() is not None:
        newest, number = following, number + 1
    folder = JobFolder(jobs, newest.name)
    positions = folder.positions.read()
    is_complete = bool(positions) and all(position.complete for position in positions.values())
    if not resume and (is_complete or folder.undone() is not None):
        return following
    return newest


def _asked_of_folder(
    request: ReplayRequest, job: Job, partition: ArchivedPartition, target: ShapedTarget
) -> JobRequest:
    folder = partition.keys.folder if request.follows else partition.folders[0][0].folder
    return JobRequest(
        job=job.name,
        selection=job.selection,
        archive_id=partition.marker.archive_id,
        folder=f"{folder.topic}~{folder.incarnation}",
        source_topic_id=partition.marker.topic_id,
        target=job.target,
        target_topic_id=None,
        transactional=request.transactional,
        producers=0,
        begun_at=wall_clock(),
        ranges={},
        asked=asked_of(request, target.pipeline, target.facts.num_partitions if target.facts else 0),
        created=target.creates is not None,
        follows=request.follows or msgspec.UNSET,
    )


def _as_begun(kept: JobRequest, opened: Sequence[ArchivedPartition]) -> list[Selection]:
    """The partitions and offsets that the job began with: the archive may have grown since."""
    return [
        Selection(each, OffsetRange(*kept.ranges[each.partition])) for each in opened if each.partition in kept.ranges
    ]


def refuse_other_folder(kept: JobRequest, asked: JobRequest, facts: TopicFacts | None, address: str) -> None:
    """Raises ReplayRefused where a job of that name is another one, and TargetChanged; `facts` are the target's."""
    if kept.target == asked.target:
        # First, as the target has a say in the routing.
        refuse_changed_target(kept, facts)
    names = ("selection", "archive_id", "folder", "target", "transactional")
    other = [name for name in names if getattr(kept, name) != getattr(asked, name)]
    if other:
        told = {"selection": "other partitions, positions, filters or routing", "archive_id": "another archive"}
        raise ReplayRefused(
            "this is not the replay that the job started with",
            why=f"job {kept.job} was started into {kept.target} with "
            + ", ".join(told.get(name, f"{name} {getattr(kept, name)}") for name in other),
            remedy="repeat the first command with --resume, start another job with --job NAME, or forget the first one "
            f"with replayer jobs rm {kept.job} ({address})",
        )


def refuse_undone(folder: JobFolder) -> None:
    """Raises ReplayRefused where the job was taken back."""
    undone = folder.undone()
    if undone is not None:
        raise ReplayRefused(
            f"job {folder.job} was undone",
            why=f"replayer undo deleted topic {undone.target}, with {undone.records} records of the job",
            remedy=f"start another job with --job NAME, or remove this one with replayer jobs rm {folder.job}",
        )


def refuse_changed_target(kept: JobRequest, facts: TopicFacts | None) -> None:
    """Raises TargetChanged where the job's target is gone, or another topic has its name now."""
    found = facts.topic_id if facts else None
    if facts is not None and (found is None or kept.target_topic_id in (None, found)):
        return
    now = f"the topic with that name has id {found}" if facts else "the topic no longer exists"
    raise TargetChanged(
        f"topic {kept.target} is not the one that job {kept.job} wrote to",
        why=f"that had id {kept.target_topic_id}, {now}: what the job wrote is gone",
        remedy=f"start another job with --job NAME, or remove this one with replayer jobs rm {kept.job}",
    )


def _folder_missing(folder: JobFolder, recorded: Mapping[int, LanePosition]) -> ReplayRefused:
    written = sum(position.written for position in recorded.values())
    return ReplayRefused(
        f"the folder of job {folder.job} is missing",
        why=f"{written} of its records are committed, and {folder.address} does not say where they are",
        remedy="set --jobs to the folder that the job started with, or start another job with --job NAME",
    )


async def missing_sources(request: ReplayRequest, archive: Archive) -> tuple[str, ...]:
    """What the archive should hold of the topic by its inventory, and lacks; empty where nothing is missing.

    Raises ReplayRefused, unless the request goes on with what is there.
    """
    wanted = request.topic.narrowed(request.selection.partitions)
    compared = await compare(archive, [(wanted.topic, wanted.partitions)])
    missing = [str(each) for each in compared.missing]
    if compared.damage is not None:
        missing.append(f"{compared.damage.key} ({compared.damage.reason})")
    if missing and not request.partial:
        raise ReplayRefused(
            f"the archive lacks a part of {wanted.topic}",
            why=f"its inventory lists partitions that are not there: {listed(missing)}",
            remedy="restore it, or replay the rest with --partial",
        )
    return tuple(missing)


def with_missing(preflight: Preflight, missing: Sequence[str]) -> Preflight:
    """The preflight with a note on what the archive lacks."""
    if not missing:
        return preflight
    return replace(preflight, notes=(*preflight.notes, f"missing in the archive: {', '.join(missing)}"))


async def opened_partitions(request: ReplayRequest, archive: Archive) -> tuple[ArchivedPartition, ...]:
    """Open the partitions of a request, at least one; raises NotInArchive, or KeyMissing."""
    opened = await request.selection.open(archive, request.topic)
    if not opened:
        raise NotInArchive(f"no partition of {request.topic.topic} is archived yet", why="there is nothing to replay")
    for each in opened:
        await each.check_keys()
    return opened


def job_of(request: ReplayRequest, opened: Sequence[ArchivedPartition], pipeline: Pipeline, *more: str) -> Job:
    """Return the job that a request is; `more` is what else makes it another one."""
    partition = opened[0]
    numbers = "all" if request.topic.partitions is None else ",".join(map(str, request.topic.partitions))
    asked = (numbers, *request.selection.asked, *more)
    # The first of its folders: the job is the same one after its log was truncated.
    archive_id, first_folder = partition.marker.archive_id, str(partition.folders[0][0].folder)
    return make_job(request.job, archive_id, first_folder, request.target, asked, pipeline)


async def known_job(
    request: ReplayRequest,
    job: Job,
    pipeline: Pipeline,
    selections: list[Selection],
    recorded: Mapping[int, LanePosition],
    damage: DamagePolicies | None = None,
) -> KnownJob:
    """The job as it began, where each lane of the pipeline stood then, and `recorded`, where they stand.

    Raises ReplayRefused where what is recorded is another job's.
    """
    planning = Reading(request.selection.filter, DamagePolicies(request.on_damage).of)
    if request.follows:
        selections = followed(selections, recorded)
        first = followed_positions(job, selections, pipeline)
        recorded = continued(recorded, first)
    else:
        selections = pinned(selections, recorded)
        histories = {
            each.partition.partition: await chain_hash(each.partition, each.offsets, planning.on_damage(each.partition))
            for each in selections
        }
        ranges = {each.partition.partition: each.offsets for each in selections}
        rewritten = {each.partition.partition for each in selections if each.partition.is_maintained}
        first = rewritten_since(first_positions(job, ranges, histories, pipeline), recorded, rewritten)
    refuse_other_job(recorded, first)
    reading = planning if damage is None else planning._replace(on_damage=damage.of)
    return KnownJob(
        job,
        pipeline,
        ReplayWork(selections, first, reading, request.follows),
        recorded,
        planning,
        request.transactional,
    )


def _as_sent(source: SourcePartition, request: ReplayRequest, now_ms: int) -> SourcePartition:
    """Return the source with the timestamps that its records will have; fewer may be sent than are read."""
    shape, times = request.shape, source.timestamps
    drops = shape.chain is not None or shape.tombstones == "drop" or request.on_damage == SKIPS
    if times is not None:
        times = TimeBounds(*(shape.timestamps.moved(time, now_ms) for time in times))
    return replace(source, timestamps=times, is_exact=source.is_exact and not drops)


async def lifted_settings(
    creates: NewTopic | None, known: KnownJob, admin: KafkaAdmin
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the limit of records that a new topic gets at first, and what the plan says of it."""
    own = None if creates is None else parse_config(creates.config).max_message_bytes
    if creates is None or own is None:
        return {}, ()
    # Of smaller blocks, raised_limit would not raise it: their indexes need not be read.
    lifted = raised_limit(creates.config, await largest_block(known.remaining, (own - ROOM) // 2, known.planning))
    if not lifted:
        return {}, ()
    text = f"{LIMIT}={lifted[LIMIT]}"
    try:
        await asyncio.to_thread(admin.refuse_uncreatable, replace(creates, config={**creates.config, **lifted}))
    except ReplayRefused as error:
        return {}, (f"the cluster refuses {text} while records arrive ({error.why}): records above {own} are refused",)
    return lifted, (f"{creates.name} has {text} while records arrive, then {own}",)


async def refuse_unchanged(request: ReplayRequest, known: KnownJob) -> None:
    """Raise ReplayRefused if a transform does nothing to the first records; a job that has begun is not asked again."""
    stage = next((each for each in known.pipeline.stages if isinstance(each, TransformStage)), None)
    if stage is None or request.shape.allow_unchanged or known.recorded:
        return
    first: list[tuple[int, Record]] = []
    for selection in known.remaining:
        partition, reading = selection.partition, known.planning
        async with aclosing(selected(selection, reading.filter, reading.on_damage(partition))) as batches:
            async for batch in batches:
                some = iter_records(batch.slice(0, FIRST_RECORDS - len(first)))
                first += [(partition.partition, record) for record in some]
                if len(first) == FIRST_RECORDS:
                    break
        if len(first) == FIRST_RECORDS:
            break
    found = await asyncio.to_thread(stage.unchanged, first) if first else None
    if found is not None:
        raise ReplayRefused(
            f"transform {found[0]} changes none of the first {len(first):,} records",
            why=found[1],
            remedy="correct the transforms, or repeat the command with --allow-unchanged",
        )


async def ask_before(
    request: ReplayRequest, known: KnownJob, target: ShapedTarget, admin: KafkaAdmin, codec: str
) -> Preflight:
    """Ask archive and cluster; change nothing. `codec` compresses what is sent."""
    remaining, facts, now_ms = known.remaining, target.facts, wall_clock()
    budget = Budget(EDGE_BYTES)
    sources = [_as_sent(await describe_source(each, known.planning, budget), request, now_ms) for each in remaining]
    there = facts is not None and target.creates is None
    lanes = {lane for each in remaining for lane in known.pipeline.targets(each.partition.partition)}
    held = sorted(lane for lane in lanes if there and facts and lane < facts.num_partitions)
    # Only the records themselves could tell what transforms make of their keys and sizes.
    asked = None if request.shape.chain else facts.config if facts else None
    await refuse_unchanged(request, known)
    lifted, notes = await lifted_settings(target.creates, known, admin)
    if lifted and asked is not None:
        asked = replace(asked, max_message_bytes=None)
    topic = known.work.selections[0].partition.topic
    return Preflight(
        TargetRequest(topic, request.target, request.into_source, request.shape.append),
        tuple(sources),
        facts,
        await asyncio.to_thread(admin.watermarks, request.target, held) if held else {},
        await find_refusable(remaining, asked, known.planning, codec),
        now_ms,
        known.pipeline.router,
        known.state(resume=request.resume),
        creates=target.creates is not None,
        notes=(*target.notes, *notes, *notes_of(remaining)),
        lifted=lifted,
        cuts=cuts_of(remaining),
        cut_bytes=request.selection.positions.cut_bytes,
    )


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

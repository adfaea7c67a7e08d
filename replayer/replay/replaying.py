"""A replay from its request to its result. Callers ask, steer and print."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.inventory import archive_info, compare
from blockgz.archive.partition import ArchivedPartition, LostRange
from blockgz.archive.positions import Budget, OffsetRange
from blockgz.archive.selection import SKIPS, DamagePolicies, Reading, Selection, cuts_of, notes_of, selected
from blockgz.errors import BlockgzError, BrokerUnreachable, NotInArchive, PartitionUnavailable, StoreUnavailable, listed
from blockgz.process import allow_open_files
from blockgz.store.writer import Store
from blockgz.units import wall_clock
from index_format.keys import check_topic, parse_topic_folder
from index_format.records import Record, iter_records
from replayer.errors import JobTakenOver, ReplayRefused, TargetChanged
from replayer.kafka.admin import KafkaAdmin, TopicPin, kafka_groups
from replayer.kafka.topic_facts import parse_config
from replayer.replay import plan as plans
from replayer.replay.job import (
    Job,
    LanePosition,
    chain_hash,
    check_job_name,
    continued,
    decode_position,
    first_positions,
    followed_positions,
    make_job,
    recorded_ranges,
    refuse_long_metadata,
    refuse_other_job,
    rewritten_since,
)
from replayer.replay.jobs import folder as folders
from replayer.replay.jobs.control import held, lock_folder, shared
from replayer.replay.jobs.undo import carry_out, plan_undo
from replayer.replay.pace import Commands
from replayer.replay.pipeline import Pipeline, TransformStage
from replayer.replay.request import ReplayRequest, Surroundings, asked_of, codec_of
from replayer.replay.run import JobLog, Keeping, Progress, RecordSink, ReplayResult, ReplayWork, run_replay
from replayer.replay.sinks.producer import KafkaSink
from replayer.replay.sinks.transactional import CommittedPositions, TransactionalSink
from replayer.replay.target_topic import LIMIT, ROOM, TargetTopic, find_target, raised_limit

# Producers that share the lanes of a job.
PRODUCERS = 4
LEAST_TIMEOUT_SECONDS = 120.0
# Files that a replay may open, and files for each producer, without its connections to brokers.
FILES, FILES_OF_A_PRODUCER = 100, 15
# Failures after which the same command continues the job: its topic stays.
MAY_CONTINUE = (BrokerUnreachable, PartitionUnavailable, StoreUnavailable, JobTakenOver, TargetChanged)
# Objects that tell why a job failed.
REPORTED = ("launch.json", "control.json", "progress.json")
# Records that show whether transforms do anything.
FIRST_RECORDS = 1000


def job_alone(request: ReplayRequest, name: str) -> AbstractContextManager[None]:
    """Keep the job of that name to this run on this machine; with transactions, a later run may take it over."""
    return (shared if request.transactional else held)(lock_folder(), name)


async def _of_the_same_incarnation(
    request: ReplayRequest, archive: ArchiveReader, kept: folders.JobRequest | None
) -> ReplayRequest:
    """Return the request with the incarnation that a resumed job began with, even if a newer one is archived."""
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
    kept: folders.JobRequest | None,
) -> tuple[ReplayRequest, Job, folders.JobRequest | None]:
    """Return the request, its job and what that job's folder keeps."""
    # A job that an earlier release began by Kafka's rule is found as well, if the request has no rule for `--at`.
    found = []
    for each in request.by_rules:
        job = job_of(each, opened, pipeline)
        if request.job is None:
            job = job if request.transactional else _numbered(job, jobs, resume=request.resume)
            kept = folders.JobFolder(jobs, job.name).request()
        found.append((each, job, kept))
    return next((each for each in found if each[2] is not None and each[2].selection == each[1].selection), found[0])


def _numbered(job: Job, jobs: Store, *, resume: bool) -> Job:
    """Return the newest job of that name, or the next one if that is complete or undone and not resumed."""
    newest, number = job, 2
    while folders.JobFolder(jobs, (following := replace(job, name=f"{job.name}-{number}")).name).request() is not None:
        newest, number = following, number + 1
    folder = folders.JobFolder(jobs, newest.name)
    positions = folder.positions.read()
    is_complete = bool(positions) and all(position.complete for position in positions.values())
    if not resume and (is_complete or folder.get(folders.JobUndone) is not None):
        return following
    return newest


def _asked_of_folder(
    request: ReplayRequest, job: Job, partition: ArchivedPartition, target: TargetTopic
) -> folders.JobRequest:
    folder = partition.keys.folder if request.follows else partition.folders[0][0].folder
    return folders.JobRequest(
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


def skipped_before(
    skipped: Sequence[folders.JobSkipped], work: ReplayWork
) -> list[tuple[ArchivedPartition, LostRange]]:
    """Return what earlier runs passed over, without what this run reads again."""
    opened = {each.partition.partition: each.partition for each in work.selections}
    reached: dict[int, int] = {}
    for position in work.recorded.values():
        for number, source in position.sources.items():
            reached[number] = max(source.next, reached.get(number, 0))
    return [
        (opened[each.partition], LostRange(each.start, each.end, each.reason))
        for each in skipped
        if each.partition in opened and each.start < reached.get(each.partition, 0)
    ]


async def missing_sources(request: ReplayRequest, archive: ArchiveReader) -> tuple[str, ...]:
    """Return what the archive lacks of the topic by its inventory; empty if it is whole.

    Raises ReplayRefused, unless the request is `partial`.
    """
    wanted = request.topic.narrow(request.selection.partitions)
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


async def refuse_source(request: ReplayRequest, archive: ArchiveReader, target: TargetTopic | None = None) -> None:
    """Raise ReplayRefused if the records would go to the topic that they come from, unless that is wanted.

    A topic of its name in another cluster is another topic; so is one that the replay creates after the source was
    deleted. Without a target, raise only what the archive alone decides.
    """
    if request.target != request.source or request.into_source:
        return
    info = None if archive.other is not None else await archive_info(archive)
    archived, cluster = info.cluster_id if info is not None else None, target.admin.cluster_id if target else ""
    if None not in (archived, cluster):
        is_missing = target is None or target.facts is None or target.creates is not None
        if is_missing or archived != cluster:
            return
    known = "may be" if None in (archived, cluster) else "is"
    raise ReplayRefused(
        f"{request.target} is the topic that was archived",
        why=f"this {known} the cluster that was archived, and the replay would append a second copy of its records",
        remedy="choose another topic with --to-topic, or add --into-source if this is what you want; to get a lost "
        f"topic back as it was, use replayer restore {request.source} --at TIME",
    )


async def opened_partitions(request: ReplayRequest, archive: ArchiveReader) -> tuple[ArchivedPartition, ...]:
    """Open the partitions of a request, at least one; raises NotInArchive, or KeyMissing."""
    opened = await request.selection.open(archive, request.topic)
    if not opened:
        raise NotInArchive(f"no partition of {request.topic.topic} is archived yet", why="there is nothing to replay")
    for each in opened if request.on_damage != SKIPS else ():
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


async def work_of_job(
    request: ReplayRequest,
    job: Job,
    pipeline: Pipeline,
    selections: list[Selection],
    recorded: Mapping[int, LanePosition],
    damage: DamagePolicies | None = None,
) -> ReplayWork:
    """Return the work of a job, with its first positions in each lane of the pipeline, and its recorded ones.

    Raises ReplayRefused if what is recorded is another job's.
    """
    selections = recorded_ranges(selections, recorded, follows=request.follows)
    if request.follows:
        first = followed_positions(job, selections, pipeline)
        recorded = continued(recorded, first)
    else:
        passed = DamagePolicies(request.on_damage)
        histories = {
            each.partition.partition: await chain_hash(each.partition, each.offsets, passed.of(each.partition))
            for each in selections
        }
        # A chain of which a part was lost since the job began is still that of the job.
        rewritten = {each.partition.partition for each in selections if each.partition.is_maintained}
        rewritten |= {partition.partition for partition, _ in passed.skipped}
        first = rewritten_since(first_positions(job, selections, histories, pipeline), recorded, rewritten)
    refuse_other_job(recorded, first)
    reading = Reading(request.selection.filter, (damage or DamagePolicies(request.on_damage)).of)
    return ReplayWork(job, pipeline, selections, first, reading, recorded, request.follows)


def _as_sent(source: plans.SourcePartition, request: ReplayRequest, now_ms: int) -> plans.SourcePartition:
    """Return the source with the timestamps that its records will have; fewer may be sent than are read."""
    times = source.timestamps
    drops = request.chain is not None or request.tombstones == "drop" or request.on_damage == SKIPS
    if times is not None:
        times = plans.TimeBounds(*(request.timestamps.moved(time, now_ms) for time in times))
    return replace(source, timestamps=times, is_exact=source.is_exact and not drops)


async def lifted_settings(
    target: TargetTopic, remaining: Sequence[Selection], reading: Reading
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the limit of records that a new topic gets at first, and what the plan says of it."""
    creates = target.creates
    own = None if creates is None else parse_config(creates.config).max_message_bytes
    if creates is None or own is None:
        return {}, ()
    # Of smaller blocks, raised_limit would not raise it: their indexes need not be read.
    lifted = raised_limit(creates.config, await plans.largest_block(remaining, (own - ROOM) // 2, reading))
    if not lifted:
        return {}, ()
    text = f"{LIMIT}={lifted[LIMIT]}"
    try:
        new = replace(creates, config={**creates.config, **lifted})
        await asyncio.to_thread(target.admin.refuse_uncreatable, new)
    except ReplayRefused as error:
        return {}, (f"the cluster refuses {text} while records arrive ({error.why}): records above {own} are refused",)
    return lifted, (f"{creates.name} has {text} while records arrive, then {own}",)


async def refuse_unchanged(
    request: ReplayRequest, pipeline: Pipeline, remaining: Sequence[Selection], reading: Reading
) -> None:
    """Raise ReplayRefused if a transform changes none of the first records."""
    stage = next((each for each in pipeline.stages if isinstance(each, TransformStage)), None)
    if stage is None or request.allow_unchanged:
        return
    first: list[tuple[int, Record]] = []
    for selection in remaining:
        partition = selection.partition
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


async def plan_work(
    request: ReplayRequest, target: TargetTopic, work: ReplayWork, missing: Sequence[str], *notes: str, created: bool
) -> plans.ReplayPlan:
    """Return the plan of a job, with more notes; change nothing. Raise NoSuchTopic or ReplayRefused.

    `missing` are parts of the topic that the archive lacks; `created` says whether the job created its target.
    """
    remaining, now_ms, facts = work.remaining, wall_clock(), target.facts
    # Damage that is skipped here is met again by the replay, and reported then: these policies are thrown away.
    reading = Reading(request.selection.filter, DamagePolicies(request.on_damage).of)
    budget = Budget(plans.EDGE_BYTES)
    described = [await plans.describe_source(each, reading, budget) for each in remaining]
    lanes = {lane for each in remaining for lane in work.pipeline.targets(each.partition.partition)}
    held = sorted(lanes & set(target.lanes))
    # Keys and sizes after transforms are unknown until the records are read.
    config = None if request.chain or facts is None else facts.config
    if not work.recorded:
        await refuse_unchanged(request, work.pipeline, remaining, reading)
    lifted, of_limit = await lifted_settings(target, remaining, reading)
    if lifted and config is not None:
        config = replace(config, max_message_bytes=None)
    codec = codec_of(request.producing(target.properties))
    without_key, too_large = await plans.find_refusable(remaining, config, reading, codec)
    can_undo = target.creates is not None or created
    return plans.make_plan(
        plans.ReplayPlan(
            work.selections[0].partition.topic,
            request.target,
            tuple(_as_sent(each, request, now_ms) for each in described),
            facts,
            now_ms,
            work.pipeline.router,
            work.job,
            transactional=request.transactional,
            resume=request.resume,
            begun=bool(work.recorded),
            written=work.written,
            complete=work.complete,
            into_source=request.into_source,
            append=request.append,
            watermarks=await asyncio.to_thread(target.admin.watermarks, request.target, held) if held else {},
            without_key=without_key,
            too_large=too_large,
            creates=target.creates is not None,
            notes=(
                *target.notes,
                *of_limit,
                *notes_of(remaining),
                *([f"missing in the archive: {', '.join(missing)}"] if missing else ()),
                *notes,
                *(() if can_undo else (f"{target.name} exists: what is written to it cannot be taken back",)),
            ),
            lifted=lifted,
            cuts=cuts_of(remaining),
            cut_bytes=request.selection.positions.cut_bytes,
            missing=tuple(missing),
        )
    )


async def check_request(
    request: ReplayRequest, archive: ArchiveReader, missing: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return what the archive lacks, unless `missing` says it already, before any client of the cluster is made.

    Raise BadName for a target that no topic can have, NotInArchive, or ReplayRefused if the archive lacks a part.
    """
    topic = request.topic.topic
    check_topic(request.target)
    if missing is None:
        await archive.partitions(topic)
    await refuse_source(request, archive)
    if missing is not None:
        return tuple(missing)
    return await missing_sources(request, archive)


@dataclass
class PlannedReplay:
    """A replay that can be begun; nothing is written before."""

    request: ReplayRequest
    """With the incarnation and the rule of the job."""
    target: TargetTopic
    work: ReplayWork
    plan: plans.ReplayPlan
    damage: DamagePolicies
    """Collects what the running replay passes over at damage."""
    folder: folders.JobFolder
    asked: folders.JobRequest
    """The request as the job's folder has it, or will have it."""
    positions: CommittedPositions[LanePosition] | None
    """Positions in the cluster; None for a job without transactions."""
    log: JobLog
    is_alone: bool = False
    """True if the caller keeps other runs of the job away, as `job_alone` does."""

    @property
    def seconds(self) -> float:
        """The least seconds that it takes at the requested pace."""
        return self.request.pace.seconds(self.plan.records, self.plan.bytes, self.plan.span_ms)

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Callable[[Commands, Progress], Awaitable[ReplayResult]]]:
        """Make the target ready, take the job and yield what runs it, which raises as `run_replay` does.

        Raise JobTakenOver, TargetChanged or ReplayRefused.
        """
        with nullcontext() if self.is_alone else job_alone(self.request, self.work.job.name):
            await asyncio.to_thread(self.target.make_ready, self.plan.lifted)
            admin = self.target.admin
            if self.target.creates:
                admin = await asyncio.to_thread(admin.again)
            allow_open_files(FILES + PRODUCERS * (FILES_OF_A_PRODUCER + admin.num_brokers))
            try:
                yield partial(self._run, *await asyncio.to_thread(self._begun, admin))
            except BlockgzError as error:
                if self.target.creates and not (self.request.follows or isinstance(error, MAY_CONTINUE)):
                    await asyncio.to_thread(self._take_back, error)
                raise

    def _take_back(self, error: BlockgzError) -> None:
        """Delete the topic that this run created, and forget the job, if the failure left the topic empty."""
        with suppress(BlockgzError):
            kept, properties = self.folder.request(), self.target.properties
            if kept is None or (undo := plan_undo(self.folder, kept, properties)).records:
                return
            carry_out(undo, self.folder, properties, wall_clock())
            kafka_groups(properties).delete(kept.names.group_id)
            self.folder.remove(kept=REPORTED)
            error.why += f"; topic {kept.target}, which this run created, was empty and is deleted again"

    def _begun(self, admin: KafkaAdmin) -> tuple[RecordSink, Keeping]:
        """Write the job's request into its folder, with the id of the target as it is now."""
        job, work, folder = self.work.job, self.work, self.folder
        facts, kept = admin.topic(job.target), folder.request()
        if kept is None:
            kept = msgspec.structs.replace(
                self.asked,
                target_topic_id=facts.topic_id if facts else None,
                ranges={each.partition.partition: tuple(each.offsets) for each in work.selections},
                producers=max(1, min(PRODUCERS, len(work.first))),
            )
            folder.create(kept)
        else:
            folders.refuse_changed_target(kept, facts)
        patience, properties = self.request.patience, self.request.producing(self.target.properties)
        check = TopicPin(admin, job.target, kept.target_topic_id).check
        keeping = Keeping(self.log, check, patience, self._note_skips)
        limit = facts.config.max_message_bytes if facts and facts.config else None
        if self.positions is not None:
            return TransactionalSink(properties, job, self.positions, limit, producers=kept.producers), keeping
        timeout_ms = int(max(patience, LEAST_TIMEOUT_SECONDS) * 1000)
        sink = KafkaSink(
            properties, job.target, folder.positions, limit, timeout_ms=timeout_ms, producers=kept.producers
        )
        return sink, keeping

    def _note_skips(self, _: None) -> None:
        """Store what was passed over at damage and is not stored yet."""
        for partition, lost in self.damage.skipped:
            if (partition, lost) not in self.damage.earlier:
                name = f"{partition.partition:05d}-{lost.start:020d}-{lost.end:020d}"
                self.folder.put(folders.JobSkipped(partition=partition.partition, **lost._asdict()), name)
                self.damage.earlier.append((partition, lost))

    async def _run(self, sink: RecordSink, keeping: Keeping, commands: Commands, progress: Progress) -> ReplayResult:
        result = await run_replay(self.work, sink, self.request.pace, commands, progress, keeping)
        if result.complete and not self.request.follows:
            # Only the cluster knows the positions of a job with transactions, and forgets them.
            complete = folders.JobComplete(host=folders.this_process(), completed_at=wall_clock())
            await asyncio.to_thread(self.folder.put, complete)
        return result

    async def settled(self, result: ReplayResult) -> str | None:
        """Set the target's retention back once the job is complete; what there is to say about it."""
        if result.complete:
            return await self.target.set_back()
        name = self.target.name
        return f"retention of {name} is still lifted: run --resume or --undo-retention" if self.target.holds else None


@asynccontextmanager
async def planned_replay(
    request: ReplayRequest, around: Surroundings, missing: Sequence[str] | None = None
) -> AsyncIterator[PlannedReplay]:
    """Plan a replay; write nothing, and fence nobody. The inventory is read only if `missing` is None.

    Raises ReplayRefused if what is recorded of the job belongs to another selection or history or its folder is
    missing, NoSuchTopic, NotInArchive, TargetChanged, or what archive and cluster raise.
    """
    archive, jobs, producing = around.archive, around.jobs, request.producing(around.properties)
    missing = await check_request(request, archive, missing)
    admin = await asyncio.to_thread(lambda: around.admin)
    target = await find_target(request, archive, around.properties, admin)
    damage, kept = DamagePolicies(request.on_damage), None
    if request.job is not None:
        check_job_name(request.job)
        kept = await asyncio.to_thread(folders.JobFolder(jobs, request.job).request)
    request = await _of_the_same_incarnation(request, archive, kept)
    opened = await opened_partitions(request, archive)
    request, job, kept = await asyncio.to_thread(_known, request, opened, target.pipeline, jobs, kept)
    folder = folders.JobFolder(jobs, job.name)
    fresh = _asked_of_folder(request, job, opened[0], target)
    if kept is None or kept.created is not True:
        await refuse_source(request, archive, target)
    if kept is not None:
        await asyncio.to_thread(folder.refuse_undone)
        folders.refuse_other_folder(kept, fresh, target.facts if target.creates is None else None, folder.address)
    if kept is not None and not request.follows:
        # The archive may have grown since the job began.
        ranges = {number: OffsetRange(*offsets) for number, offsets in kept.ranges.items()}
        selections = [Selection(each, ranges[each.partition]) for each in opened if each.partition in ranges]
    else:
        selections = await request.selection.resolve(archive, request.topic, opened)
    async with AsyncExitStack() as stack:
        positions: CommittedPositions[LanePosition] | None = None
        if request.transactional:
            positions = CommittedPositions(producing, job, decode_position)
            stack.push_async_callback(asyncio.to_thread, positions.close)
            lanes = sorted({lane for each in selections for lane in target.pipeline.targets(each.partition.partition)})
            recorded = await asyncio.to_thread(positions.read, lanes)
        else:
            recorded = await asyncio.to_thread(folder.positions.read)
        if recorded and kept is None:
            written = sum(position.written for position in recorded.values())
            raise ReplayRefused(
                f"the folder of job {folder.job} is missing",
                why=f"{written} of its records are committed, and {folder.address} does not say where they are",
                remedy="set --jobs to the folder that the job started with, or start another job with --job NAME",
            )
        work = await work_of_job(request, job, target.pipeline, selections, recorded, damage)
        if positions is not None:
            refuse_long_metadata(work.first)
        created = kept is not None and kept.created is True
        plan = await plan_work(request, target, work, missing, created=created)
        damage.earlier += skipped_before(await asyncio.to_thread(folder.all, folders.JobSkipped), work)
        yield PlannedReplay(
            request, target, work, plan, damage, folder, kept or fresh, positions, log=folders.FolderLog(folder)
        )

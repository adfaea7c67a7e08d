"""The plan of a restore: what archive and cluster say of every topic. Nothing is written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec

from blockgz.archive import selection
from blockgz.archive.archive import ArchiveReader, SurveyedTopic, TopicPartitions
from blockgz.archive.cuts import Cut, cut_lines
from blockgz.archive.group_tables import config_at, groups_at
from blockgz.archive.inventory import Compared, archive_info, compare
from blockgz.archive.partition import ArchivedPartition, Damaged
from blockgz.archive.positions import AtOffset, BeforeTime, Budget
from blockgz.errors import (
    AccessDenied,
    BlockgzError,
    BrokerUnreachable,
    NotInArchive,
    ObjectMissing,
    UsageError,
    listed,
)
from blockgz.kafka.groups import GroupOffset
from blockgz.units import time_text
from index_format.keys import TopicFolder, check_topic
from index_format.marker import ChunkEntry
from index_format.objects import TopicConfig as ArchivedTopic
from replayer.groups import GroupMap, map_of
from replayer.groups.planning import chosen_groups, idle_globs, positions_of, vanished_text
from replayer.kafka.topic_facts import ConfigChange, NewTopic, parse_config
from replayer.replay.jobs.folder import JobFolder
from replayer.replay.plan import SourcePartition, pruned_text
from replayer.replay.replaying import PlannedReplay, planned_replay
from replayer.replay.request import ReplayRequest, Surroundings
from replayer.replay.target_topic import LIMIT
from replayer.restore.document import (
    ChosenIncarnation,
    RestoreFolder,
    RestorePlan,
    TopicDone,
    TopicLeftOut,
    TopicToRestore,
    WantedTopics,
    incarnation_at,
    refuse_group_twins,
    refuse_twins,
    restore_name,
    same_topic,
    topic_job,
    wanted_topics,
)
from replayer.topics import MIN_INSYNC, left_behind, omission_note, without_refused
from replayer.topics import new_topic as archived_topic
from replayer.verify.above_marker import AboveListing, list_above

# Under these a topic keeps every record as it is sent.
KEEPING_ALL: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
# Settings that come last: they would delete, change or refuse records on their way, or tombstones too soon.
LAST = frozenset(
    {
        *KEEPING_ALL,
        MIN_INSYNC,
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "delete.retention.ms",
    }
)


def first_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which the topic is created."""
    early = {name: value for name, value in settings.items() if name not in LAST}
    return dict(sorted({**early, **KEEPING_ALL}.items()))


def last_settings(
    topic: TopicToRestore, own: Mapping[str, str], replicas: int, now_ms: int
) -> tuple[ConfigChange, tuple[str, ...]]:
    """Return the settings that make a restored topic as it was, and the settings left out with the reason; `own` are
    its settings now.

    Retention that would delete restored records at once stays lifted.
    """
    settings = topic.settings
    held = dict(_held(topic, replicas, now_ms))
    # A setting that differs from the one at creation was set by somebody since: it is kept.
    values = {
        name: value
        for name, value in sorted(settings.items())
        if name in LAST and name not in held and own.get(name) == KEEPING_ALL.get(name) and own.get(name) != value
    }
    # The replay raised it, and set it back unless another machine finished it.
    limit = parse_config(settings).max_message_bytes
    if limit is not None and (parse_config(own).max_message_bytes or 0) > limit:
        values[LIMIT] = settings[LIMIT]
    return ConfigChange(values), tuple(held.values())


def _held(topic: TopicToRestore, replicas: int, now_ms: int) -> Iterator[tuple[str, str]]:
    config = parse_config(topic.settings)
    oldest, limit = topic.oldest, config.retention_ms
    if config.deletes and limit is not None and oldest is not None and 0 <= oldest < now_ms - limit:
        yield (
            "retention.ms",
            f"retention.ms={limit} is not set: it would delete records now, of which the oldest are of "
            f"{time_text(oldest)}; set it when consumers have read on",
        )
    if config.deletes and config.retention_bytes is not None and topic.largest > config.retention_bytes:
        yield (
            "retention.bytes",
            f"retention.bytes={config.retention_bytes} is not set: it would delete records now; set it when consumers "
            "have read on",
        )
    least = topic.settings.get(MIN_INSYNC)
    if least is not None and least.isdigit() and int(least) > replicas:
        yield MIN_INSYNC, f"{MIN_INSYNC}={least} is not set: the topic has {replicas} replicas"


def new_topic(plan: RestorePlan, topic: TopicToRestore) -> NewTopic:
    """Return the topic as it is created, before its records come."""
    return NewTopic(topic.target, topic.partitions, first_settings(topic.settings), plan.replication_factor)


def replay_of(plan: RestorePlan, topic: TopicToRestore, restore: str, around: Surroundings) -> ReplayRequest:
    """Return the replay that restores one topic: it resumes what an earlier run of the restore began."""
    # One that follows the archive takes all partitions that there are, and all of their records.
    follows = plan.follow is not None
    until = selection.positions_before(
        None, BeforeTime(plan.at, plan.at_rule, around.budget), ("earliest", f"@{plan.at}")
    )
    ends = {number: (None, AtOffset(end)) for number, end in topic.cuts.items() if number in topic.numbers}
    until = replace(until, of_partitions=ends)
    return ReplayRequest(
        TopicPartitions(topic.source, None if follows else topic.numbers),
        topic.target,
        selection.SelectionRequest(selection.Positions(asked=("earliest", "latest")) if follows else until),
        create_topic=True,
        new_topic=new_topic(plan, topic),
        on_damage=plan.on_damage,
        into_source=True,
        transactional=plan.transactional,
        partial=True,
        resume=True,
        follows=follows,
        job=topic_job(restore, topic.source),
        patience=around.patience,
        pace=around.pace,
    )


# A topic or why it is left out, the archive's id if a partition says it, and a warning about the groups.
LookedAt = tuple[TopicToRestore | TopicLeftOut, str | None, str | None]


class Looking(NamedTuple):
    """Looks up topics in an archive that is pinned, and `compared` with its inventory, as of the time of a plan."""

    archive: ArchiveReader
    compared: Compared
    plan: RestorePlan
    rename: GroupMap
    budget: Budget

    async def at(self, chosen: ChosenIncarnation) -> LookedAt:
        """Return the topic of an incarnation; raise BadName for a new name that no topic can have."""
        folders = same_topic(chosen.folder, self.compared.inventory)
        held = self.compared.held or dict.fromkeys(await self.archive.find())
        source, missing = str(chosen.folder), [each for each in self.compared.missing if each.folder in folders]
        source = source if "~" in source else f"{source}~1"
        if chosen.folder not in held:
            survey = SurveyedTopic((), {})
        else:
            meant = [chosen.folder]
            if len(folders) > 1 and chosen.folder == max(each for each in held if each.topic == chosen.folder.topic):
                # The plain name means the folders before it, too.
                source, meant = chosen.folder.topic, [each for each in folders if each in held]
            numbers = [number for each in meant for number in self.compared.held.get(each, ())]
            survey = await self.archive.survey_topic(source, numbers if self.compared.held else None)
        archive_id = next((each.marker.archive_id for each in survey.partitions), None)
        if chosen.in_doubt and not await self._began_before(survey.partitions):
            why = f"{chosen.note}, and holds no record from before"
            return TopicLeftOut(chosen.folder.topic, why), archive_id, None
        plan = self.plan
        archived, damage = await self._config(chosen.folder)
        count = await self._partitions(archived, survey)
        found = TopicToRestore(
            source=source,
            target=check_topic(self.rename(chosen.folder.topic)),
            partitions=count,
            numbers=tuple(each.partition for each in survey.partitions if each.partition < count),
            settings=dict(
                archived_topic("", count, archived, plan.topic_config or {}, plan.omit_topic_config or ()).config
            ),
            left_behind=left_behind(archived.config if archived else None),
            acls=None if archived is None or archived.acls is msgspec.UNSET else archived.acls,
            lacks=(
                *(f"{each} is missing" for each in map(str, missing)),
                *(
                    f"partition {number} cannot be read: {error.reason}; {error.remedy}"
                    for number, error in survey.damaged.items()
                ),
            ),
            notes=tuple(_notes(chosen, archived, damage, folders, source)),
        )
        topic, warning = await self._with_groups(found, chosen.folder)
        return topic, archive_id, warning

    async def _config(self, folder: TopicFolder) -> tuple[ArchivedTopic | None, str | None]:
        try:
            return await config_at(self.archive.reader, self.archive.layout, folder, self.plan.at), None
        except Damaged as error:
            return None, f"its configuration cannot be read: {error.reason}"

    async def _partitions(self, archived: ArchivedTopic | None, survey: SurveyedTopic) -> int:
        """Return the number of partitions at the time: those that were seen, or hold records from before."""
        numbers = [*(each.partition for each in survey.partitions), *survey.damaged]
        if archived is None or archived.seen_at is msgspec.UNSET:
            seen = 0 if archived is None else archived.partitions
            return max([1, seen, *(number + 1 for number in numbers)])
        later = [each for each in survey.partitions if each.partition >= archived.partitions]
        begun = [each.partition + 1 for each in later if await self._began_before([each])]
        return max([1, archived.partitions, *begun])

    async def _began_before(self, partitions: Sequence[ArchivedPartition]) -> bool:
        before = selection.Positions(None, BeforeTime(self.plan.at, budget=self.budget))
        chosen = await selection.resolved(self.archive, partitions, before)
        return any(each.offsets.start < each.offsets.end for each in chosen)

    async def _with_groups(self, topic: TopicToRestore, folder: TopicFolder) -> tuple[TopicToRestore, str | None]:
        if self.plan.groups is None:
            return topic, None
        try:
            table = await groups_at(self.archive.reader, self.archive.layout, folder, self.plan.at)
        except Damaged as error:
            note = f"where consumer groups stood cannot be read: {error.reason}"
            return msgspec.structs.replace(topic, notes=(*topic.notes, note)), None
        if table is None:
            note = "the archive does not say where consumer groups stood"
            return msgspec.structs.replace(topic, notes=(*topic.notes, note)), None
        warning = await vanished_text(self.archive, folder, table, self.plan.groups.globs)
        groups = chosen_groups(positions_of(table), self.plan.groups.globs)
        found = msgspec.structs.replace(
            topic,
            groups=tuple(sorted(groups)),
            positions=sum(map(len, groups.values())),
            group_ends=_foremost(groups),
            groups_at=table.slot,
        )
        return found, warning


def _foremost(groups: Mapping[str, Mapping[int, GroupOffset]]) -> dict[int, int]:
    """Return by partition how far the foremost group had come."""
    ends: dict[int, int] = {}
    for positions in groups.values():
        for number, position in positions.items():
            ends[number] = max(ends.get(number, 0), position.offset)
    return ends


def _notes(
    chosen: ChosenIncarnation,
    archived: ArchivedTopic | None,
    damage: str | None,
    folders: Sequence[TopicFolder],
    source: str,
) -> Iterator[str]:
    if chosen.note is not None:
        yield chosen.note + (": it is taken, because it holds records from before" if chosen.in_doubt else "")
    if damage is not None:
        yield damage
    elif archived is None:
        yield "the archive does not say what it was like: it gets Kafka's defaults"
    elif archived.config is None:
        yield "the archive holds its partition count and not its configuration: it gets the cluster's defaults"
    elif archived.seen_at is msgspec.UNSET:
        yield "its settings are those it had last: the archive has none from that time or before"
    if len(folders) > 1 and "~" in source:
        yield f"its log was truncated: partitions that are only in {folders[-2]} and before are not restored"


T = TypeVar("T")
R = TypeVar("R")

TOPICS_AT_ONCE = 6
CONTINUE_WITHOUT = "continue without it: --on-damage skip, which --resume takes as well"
TRUNCATED = "its log was truncated, some partitions are in other folders: restore it without --follow"
# The topic in which schema registries keep their schemas, unless configured otherwise.
SCHEMAS = "_schemas"


async def found_topics(plan: RestorePlan, wanted: WantedTopics, around: Surroundings) -> RestorePlan:
    """Return the plan with what the archive has of the topics; raise NotInArchive, UsageError or StoreError."""
    plan = await surveyed_topics(plan, wanted, around)
    if not plan.topics:
        left_out = plan.left_out
        raise NotInArchive(
            f"there is nothing to restore at {time_text(plan.at)}",
            why=f"{left_out[0].topic}: {left_out[0].why}" if left_out else "the archive has no topic",
            remedy="archive the topics first" if plan.follow else "choose another time with --at",
        )
    refuse_twins(plan.topics)
    return plan


async def surveyed_topics(plan: RestorePlan, wanted: WantedTopics, around: Surroundings) -> RestorePlan:
    """Return the plan with what the archive has of the topics, which may be nothing."""
    archive = await around.archive.pin()
    compared = await compare(archive)
    held = await archive.find()
    known = compared.inventory.incarnations if compared.inventory else ()
    names = wanted_topics(wanted.topics, [*(each.topic for each in held), *(each.topic for each in known)])
    chosen = [incarnation_at(each, held, compared.inventory, plan.at) for each in names]
    looking = Looking(archive, compared, plan, map_of(wanted.rename), around.budget)
    found = await gathered((each for each in chosen if isinstance(each, ChosenIncarnation)), looking.at)
    left_out = [each for each in chosen if isinstance(each, TopicLeftOut)]
    left_out += [topic for topic, *_ in found if isinstance(topic, TopicLeftOut)]
    topics = [topic for topic, *_ in found if isinstance(topic, TopicToRestore)]
    vanished = [warning for *_, warning in found if warning is not None]
    return msgspec.structs.replace(
        plan,
        archive_id=next((archive_id for _, archive_id, _ in found if archive_id is not None), ""),
        topics=tuple(topics),
        left_out=tuple(left_out),
        warnings=(*_of_inventory(compared), *vanished, *_of_schemas(plan, topics), *_of_names(plan, wanted, topics)),
    )


def name_of(plan: RestorePlan, cluster: str) -> str:
    """Return the name of a restore that is given none; `cluster` is the target's id."""
    return restore_name(plan.archive_id, plan.at, [(each.source, each.target) for each in plan.topics], cluster)


async def refuse_other_archive(plan: RestorePlan, archive: ArchiveReader) -> None:
    """Raise UsageError if the plan was made for another archive, whose topics may have the same names."""
    info = await archive_info(archive)
    if info is not None and plan.archive_id and info.archive_id != plan.archive_id:
        raise UsageError(
            "the plan of this restore is of another archive",
            why=f"that has id {plan.archive_id}, the one that is named has {info.archive_id}",
            remedy="check -a/--archive",
        )


async def looked_over(plan: RestorePlan, name: str, around: Surroundings) -> RestorePlan:
    """Return the plan with what archive and cluster say of each topic now: its size, and why it cannot be restored.

    Raise ReplayRefused if a restore of that name has begun already, UsageError where two groups of a topic would get
    one name.
    """
    await asyncio.to_thread(RestoreFolder(around.jobs, name).refuse_begun)
    existing = frozenset((await asyncio.to_thread(lambda: around.admin)).topics)
    around = around.reading(await around.archive.pin())

    async def planned(topic: TopicToRestore) -> PlannedTopic:
        job = JobFolder(around.jobs, topic_job(name, topic.source))
        exists = topic.target in existing and await asyncio.to_thread(job.request) is None
        refused = _refusal(plan, topic, exists=exists)
        if refused is not None or not topic.numbers:
            return PlannedTopic(msgspec.structs.replace(topic, refused=refused))
        return await _planned(plan, topic, name, around)

    found = await gathered(plan.topics, planned)
    whole = msgspec.structs.replace(plan, topics=await _with_missing(plan, found, around.archive))
    refuse_group_twins(whole)
    warnings = dict.fromkeys([*plan.warnings, *_late(whole)])
    return msgspec.structs.replace(whole, warnings=tuple(warnings))


async def planned_again(plan: RestorePlan, name: str, around: Surroundings) -> RestorePlan:
    """Return the plan of a restore that has begun, with the topics planned again that it refused then.

    A topic that is done is not looked at. One whose cuts are in doubt stays refused: nobody chose them.
    """
    folder, around = RestoreFolder(around.jobs, name), around.reading(await around.archive.pin())

    async def again(topic: TopicToRestore) -> PlannedTopic:
        job = topic_job(name, topic.source)
        if topic.refused is None or not topic.numbers:
            return PlannedTopic(topic)
        if await asyncio.to_thread(folder.get, TopicDone, job) is not None:
            return PlannedTopic(msgspec.structs.replace(topic, refused=None))
        try:
            found = await _planned(plan, topic, name, around)  # a run decides whether a topic of its name is its own
        except BrokerUnreachable:
            return PlannedTopic(topic)  # the topics that can be restored report it
        choice = found.topic.choice
        if choice is None or await asyncio.to_thread(JobFolder(around.jobs, job).request) is not None:
            return found
        doubt = f"{choice}: restore it in another restore, with --name NAME and --at-rule majority or first"
        return PlannedTopic(msgspec.structs.replace(found.topic, refused=doubt))

    topics = await _with_missing(plan, await gathered(plan.topics, again), around.archive)
    return msgspec.structs.replace(plan, topics=topics)


class PlannedTopic(NamedTuple):
    """A topic as it is planned, and what of its partitions is read."""

    topic: TopicToRestore
    selections: Sequence[selection.Selection] = ()


async def _with_missing(
    plan: RestorePlan, planned: Sequence[PlannedTopic], archive: ArchiveReader
) -> tuple[TopicToRestore, ...]:
    """Return the topics with the objects that the archive lacks; refuse those topics, unless damage is skipped."""
    places = [(each.topic.source, chosen.partition.partition) for each in planned for chosen in each.selections]
    listing = await list_above(archive, places, chunks=True)

    async def looked(each: PlannedTopic) -> TopicToRestore:
        missing = tuple([text for chosen in each.selections async for text in _missing_chunks(chosen, listing)])
        topic = msgspec.structs.replace(each.topic, missing=missing or msgspec.UNSET)
        if not missing or topic.refused is not None or plan.on_damage == selection.SKIPS:
            return topic
        return msgspec.structs.replace(
            topic, refused=f"{listed(missing, most=1)}: put the object back, or {CONTINUE_WITHOUT}"
        )

    return tuple(await gathered(planned, looked))


async def _missing_chunks(chosen: selection.Selection, listing: AboveListing) -> AsyncIterator[str]:
    """Yield the objects of chunks that were not listed, are not there, and to which the current marker still leads."""
    partition, (start, end) = chosen[:2]
    async for entry in selection.chosen_entries(partition, start, end):
        if not isinstance(entry, ChunkEntry):
            continue
        index_key = partition.index_key(entry)
        if not listing.lacks(partition.keys_of(entry).layout, index_key):
            continue
        try:
            await partition.reader.size(index_key)
            await partition.reader.size((await partition.chunk(entry)).data_key)
        except ObjectMissing as error:
            if await partition.newer(entry.start_offset) is None:
                offsets = f"[{max(start, entry.start_offset)}..{min(end, entry.next_offset)})"
                yield f"the object {error.key} is missing, {partition} {offsets}"
        except Damaged:
            continue  # it is there, and reading it says what is wrong


def with_accepted_settings(plan: RestorePlan, topic: TopicToRestore, around: Surroundings) -> TopicToRestore:
    """Return the topic without the settings that the cluster does not accept, which its notes name."""
    wanted = NewTopic(topic.target, topic.partitions, topic.settings, plan.replication_factor)
    made, why = without_refused(around.admin, wanted, plan.topic_config or ())
    notes = [omission_note(name, topic.settings[name], text) for name, text in why.items()]
    return msgspec.structs.replace(topic, settings=dict(made.config), notes=(*topic.notes, *notes))


async def _planned(plan: RestorePlan, topic: TopicToRestore, name: str, around: Surroundings) -> PlannedTopic:
    topic = msgspec.structs.replace(topic, refused=None)
    try:
        topic = await asyncio.to_thread(with_accepted_settings, plan, topic, around)
        request = replay_of(plan, topic, name, around)
        async with planned_replay(request, around, topic.lacks) as replay:
            return PlannedTopic(_measured(topic, replay), replay.work.remaining)
    except (AccessDenied, BrokerUnreachable):
        raise
    except BlockgzError as error:
        why = "; ".join(filter(None, (error.reason, error.remedy)))
        if isinstance(error, Damaged) and plan.on_damage != selection.SKIPS:
            why += f"; or {CONTINUE_WITHOUT}"
        return PlannedTopic(msgspec.structs.replace(topic, refused=why))


def _refusal(plan: RestorePlan, topic: TopicToRestore, *, exists: bool) -> str | None:
    """Return why a topic is refused before it is examined; `exists`: the target has a topic of its new name."""
    if plan.follow is not None and not topic.is_in_one_folder:
        return TRUNCATED
    if exists:
        return f"topic {topic.target} exists: give the restored one another name with --map, or delete it"
    if topic.lacks and not plan.partial:
        return f"{topic.lacks[0]}; repair that first: --partial restores the rest, and leaves this out for good"
    if topic.lacks and not topic.numbers:
        return "nothing of it is left in the archive"
    return None


def _measured(topic: TopicToRestore, replay: PlannedReplay) -> TopicToRestore:
    topic = sized(topic, replay.plan.sources)
    chosen = replay.work.selections
    cuts = selection.cuts_of(chosen)
    if not cuts:
        ends_before = all(each.offsets.end == each.partition.next_offset for each in chosen)
        return msgspec.structs.replace(topic, ends_before=ends_before)
    return msgspec.structs.replace(
        topic,
        ends_before=not any(cut.reaches for _, _, cut in cuts),
        cuts={**topic.cuts, **{number: cut.end for _, number, cut in cuts}},
        choice=next(_choices(topic, cuts), None),
        notes=tuple(dict.fromkeys([*topic.notes, *cut_lines(cuts)])),
    )


def _choices(topic: TopicToRestore, cuts: Sequence[tuple[str, int, Cut]]) -> Iterator[str]:
    """Return why a person should choose the rule by which partitions end."""
    for name, number, cut in cuts:
        why, reached = cut.doubt, topic.group_ends.get(number, 0)
        if why is None and reached > cut.end and not cut.is_decided:
            why = f"a consumer group had come to offset {reached} by then"
        if why is not None:
            yield f"{name}:{number} ends before offset {cut.majority} (majority) or {cut.first} (Kafka's rule): {why}"


def sized(topic: TopicToRestore, sources: Sequence[SourcePartition]) -> TopicToRestore:
    """Return the topic with the sizes of what is archived of it."""
    times = [source.timestamps for source in sources if source.timestamps is not None]
    pruned = [pruned_text(source.partition, source.pruned) for source in sources if source.pruned is not None]
    return msgspec.structs.replace(
        topic,
        notes=tuple(dict.fromkeys([*topic.notes, *pruned])),
        records=sum(source.records for source in sources),
        bytes=sum(source.bytes for source in sources),
        largest=max((source.bytes for source in sources), default=0),
        stored_bytes=sum(source.stored_bytes for source in sources),
        oldest=min((each.min for each in times), default=None),
        newest=max((each.max for each in times), default=None),
        gaps=tuple(
            f"partition {source.partition} [{gap.start}..{gap.end}) ({gap.reason})"
            for source in sources
            for gap in source.gaps
        ),
    )


def _of_inventory(compared: Compared) -> Iterator[str]:
    if compared.damage is not None:
        yield f"{compared.damage.key}: {compared.damage.reason}"
    if compared.inventory is None:
        yield "the archive has no inventory: the newest incarnation of each topic is taken, whether or not it was there"
    elif compared.inventory.rebuilt_at is not None:
        rebuilt = time_text(compared.inventory.rebuilt_at)
        yield f"the inventory was rebuilt at {rebuilt}: what was lost before is unknown"


def _late(plan: RestorePlan) -> Iterator[str]:
    if plan.follow is not None:
        return
    sized = [each for each in plan.restorable if each.newest is not None]
    if sized and all(each.ends_before for each in sized):
        newest = max(each.newest for each in sized if each.newest is not None)
        yield (
            f"nothing is archived from {time_text(plan.at)} or later, the newest record is of {time_text(newest)}: "
            "what came in between and was not archived is missing"
        )


def _of_schemas(plan: RestorePlan, topics: Iterable[TopicToRestore]) -> Iterator[str]:
    if plan.transactional and any(each.target == SCHEMAS for each in topics):
        yield (
            f"{SCHEMAS} is restored with transactions: some schema registries wait for ever for the marker at its end; "
            "restore it with --no-transactional, as docs/schemas.md says"
        )


def _of_names(plan: RestorePlan, wanted: WantedTopics, topics: Sequence[TopicToRestore]) -> Iterator[str]:
    """Yield a warning for each option that matches nothing."""
    if wanted.rename and all(each.target == each.topic for each in topics):
        yield "--map renames no topic"
    if plan.groups is None:
        return
    groups = {group for each in topics for group in each.groups}
    for glob in idle_globs(groups, plan.groups.globs):
        yield f"--groups {glob}: no consumer group of these topics has such a name"
    rename = map_of(plan.groups.rename)
    if plan.groups.rename and all(rename(group) == group for group in groups):
        yield "--group-map renames no group"


async def gathered(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the results of work on some topics, in order, a few at once."""
    limit = asyncio.Semaphore(TOPICS_AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await work(item)

    return await asyncio.gather(*map(one, items))

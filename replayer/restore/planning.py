"""The plan of a restore: what archive and cluster say of every topic. Nothing is written."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from blockgz.archive.archive import Archive
from blockgz.archive.cuts import Cut, cut_lines
from blockgz.archive.inventory import Compared, archive_info, compare
from blockgz.archive.selection import cuts_of
from blockgz.errors import AccessDenied, BrokerUnreachable, NotInArchive, UsageError
from blockgz.units import time_text
from index_format.errors import BlockgzError
from replayer.groups import map_of, rules_of
from replayer.groups.planning import idle_globs
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.jobs.folder import JobFolder
from replayer.replay.plan import SourcePartition
from replayer.replay.preflight import pruned_text
from replayer.replay.replaying import PlannedReplay, planned_replay
from replayer.restore.choosing import ChosenIncarnation, incarnation_at, restore_name, topic_job, wanted_topics
from replayer.restore.document import (
    Followed,
    RestorePlan,
    TopicLeftOut,
    TopicToRestore,
    refuse_group_twins,
    refuse_twins,
)
from replayer.restore.folder import RestoreFolder
from replayer.restore.looking import Looking
from replayer.restore.request import RestoreRequest, Surroundings, replay_of

T = TypeVar("T")
R = TypeVar("R")

TOPICS_AT_ONCE = 6
TRUNCATED = "its log was truncated, some partitions are in other folders: restore it without --follow"
SCHEMAS = "_schemas"
"""Where schema registries keep their schemas, unless they are told otherwise."""


async def found_topics(asked: RestoreRequest, around: Surroundings) -> RestorePlan:
    """What the archive has of the topics, not looked over; raises NotInArchive, UsageError, StoreError."""
    plan = await surveyed_topics(asked, around)
    if not plan.topics:
        left_out = plan.left_out
        raise NotInArchive(
            f"there is nothing to restore at {time_text(asked.at)}",
            why=f"{left_out[0].topic}: {left_out[0].why}" if left_out else "the archive has no topic",
            remedy="archive the topics first" if asked.follows else "choose another time with --at",
        )
    refuse_twins(plan.topics)
    return plan


async def surveyed_topics(asked: RestoreRequest, around: Surroundings) -> RestorePlan:
    """The same, whatever is found."""
    archive = await around.archive.pinned()
    compared = await compare(archive)
    held = await archive.find()
    listed = compared.inventory.incarnations if compared.inventory else ()
    names = wanted_topics(asked.topics, [*(each.topic for each in held), *(each.topic for each in listed)])
    chosen = [incarnation_at(each, held, compared.inventory, asked.at) for each in names]
    looking = Looking(archive, compared, asked.at, asked.rename, asked.groups)
    found = await gathered((each for each in chosen if isinstance(each, ChosenIncarnation)), looking.at)
    left_out = [each for each in chosen if isinstance(each, TopicLeftOut)]
    left_out += [each.topic for each in found if isinstance(each.topic, TopicLeftOut)]
    topics = [each.topic for each in found if isinstance(each.topic, TopicToRestore)]
    vanished = [each.warning for each in found if each.warning is not None]
    return RestorePlan(
        archive_id=next((each.archive_id for each in found if each.archive_id is not None), ""),
        at=asked.at,
        at_rule=asked.at_rule or "majority",
        transactional=asked.transactional,
        replication_factor=asked.replication_factor,
        on_damage=asked.on_damage,
        partial=asked.partial,
        prove=asked.prove,
        prove_share=asked.sample.share,
        prove_seed=asked.sample.seed,
        groups=asked.groups,
        create_acls=asked.create_acls,
        follow=Followed(asked.topics, rules_of(asked.rename)) if asked.follows else None,
        topics=tuple(topics),
        left_out=tuple(left_out),
        warnings=(*_of_inventory(compared), *vanished, *_of_schemas(asked, topics), *_of_names(asked, topics)),
    )


def name_of(plan: RestorePlan, cluster: str) -> str:
    """What its restore is called that is given no name; `cluster` is the target's id."""
    return restore_name(plan.archive_id, plan.at, [(each.source, each.target) for each in plan.topics], cluster)


async def refuse_other_archive(plan: RestorePlan, archive: Archive) -> None:
    """Raises UsageError where the plan was made for another archive, whose topics may have the same names."""
    info = await archive_info(archive)
    if info is not None and plan.archive_id and info.archive_id != plan.archive_id:
        raise UsageError(
            "the plan of this restore is of another archive",
            why=f"that has id {plan.archive_id}, the one that is named has {info.archive_id}",
            remedy="check -a/--archive",
        )


async def looked_over(plan: RestorePlan, name: str, around: Surroundings, admin: KafkaAdmin) -> RestorePlan:
    """The plan with what archive and cluster say of each topic now: its size, and why it cannot be restored.

    Raises ReplayRefused where a restore of that name has begun already, UsageError where two groups of a topic would
    get one name.
    """
    await asyncio.to_thread(RestoreFolder(around.jobs, name).refuse_begun)
    around = replace(around, archive=await around.archive.pinned())
    existing = frozenset(admin.topics)

    async def planned(topic: TopicToRestore) -> TopicToRestore:
        job = JobFolder(around.jobs, topic_job(name, topic.source))
        exists = topic.target in existing and await asyncio.to_thread(job.request) is None
        refused = _refusal(plan, topic, exists=exists)
        if refused is not None or not topic.numbers:
            return msgspec.structs.replace(topic, refused=refused)
        return await _planned(plan, topic, name, around, admin)

    whole = msgspec.structs.replace(plan, topics=tuple(await gathered(plan.topics, planned)))
    refuse_group_twins(whole)
    warnings = dict.fromkeys([*plan.warnings, *_late(whole)])
    return msgspec.structs.replace(whole, warnings=tuple(warnings))


async def _planned(
    plan: RestorePlan, topic: TopicToRestore, name: str, around: Surroundings, admin: KafkaAdmin
) -> TopicToRestore:
    topic = msgspec.structs.replace(topic, refused=None)
    try:
        request = replay_of(plan, topic, name, around)
        place = (around.archive, around.properties, around.jobs)
        async with planned_replay(request, *place, admin, topic.lacks) as replay:
            return _measured(topic, replay)
    except (AccessDenied, BrokerUnreachable):
        raise
    except BlockgzError as error:
        return msgspec.structs.replace(topic, refused=error.reason)


def _refusal(plan: RestorePlan, topic: TopicToRestore, *, exists: bool) -> str | None:
    """Why a topic is refused before it is looked at more closely; `exists`: others have made one of its new name."""
    if plan.follow is not None and not topic.is_in_one_folder:
        return TRUNCATED
    if exists:
        return f"topic {topic.target} exists: give the restored one another name with --map, or delete it"
    if topic.lacks and not plan.partial:
        return f"{topic.lacks[0]}: restore what is there with --partial"
    if topic.lacks and not topic.numbers:
        return "nothing of it is left in the archive"
    return None


def _measured(topic: TopicToRestore, replay: PlannedReplay) -> TopicToRestore:
    topic = sized(topic, replay.plan.sources)
    chosen = replay.job.work.selections
    cuts = cuts_of(chosen)
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
    """Why a person should choose by which rule partitions end."""
    for name, number, cut in cuts:
        why, reached = cut.doubt, topic.group_ends.get(number, 0)
        if why is None and reached > cut.end and not cut.is_decided:
            why = f"a consumer group had come to offset {reached} by then"
        if why is not None:
            yield f"{name}:{number} ends before offset {cut.majority} (majority) or {cut.first} (Kafka's rule): {why}"


def sized(topic: TopicToRestore, sources: Sequence[SourcePartition]) -> TopicToRestore:
    """The topic with the sizes of what is archived of it."""
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


def _of_schemas(asked: RestoreRequest, topics: Iterable[TopicToRestore]) -> Iterator[str]:
    if asked.transactional and any(each.target == SCHEMAS for each in topics):
        yield (
            f"{SCHEMAS} is restored with transactions: some schema registries wait for ever for the marker at its end; "
            "restore it with --no-transactional, as docs/schemas.md says"
        )


def _of_names(asked: RestoreRequest, topics: Sequence[TopicToRestore]) -> Iterator[str]:
    """What was typed that concerns nothing."""
    if asked.rename.rules and all(each.target == each.topic for each in topics):
        yield "--map renames no topic"
    if asked.groups is None:
        return
    groups = {group for each in topics for group in each.groups}
    for glob in idle_globs(groups, asked.groups.globs):
        yield f"--groups {glob}: no consumer group of these topics has such a name"
    rename = map_of(asked.groups.rename)
    if asked.groups.rename and all(rename(group) == group for group in groups):
        yield "--group-map renames no group"


async def gathered(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results of work on some topics, in order, a few at once."""
    limit = asyncio.Semaphore(TOPICS_AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await work(item)

    return await asyncio.gather(*map(one, items))

"""A standby as it is now: how far each topic is behind its archive, and what a switch-over restores."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from blockgz.archive.damage import SkipDamage
from blockgz.archive.positions import OffsetRange, resolve_range
from blockgz.archive.selection import Reading, Selection
from index_format.errors import BlockgzError
from replayer.replay.job import Job
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.jobs.summary import FRESH_MS
from replayer.replay.ledger import LanePosition, decode_position
from replayer.replay.plan import describe_source
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.restore.choosing import topic_job
from replayer.restore.document import RestorePlan, TopicLeftOut, TopicToRestore
from replayer.restore.folder import StandbyReport, TopicStand
from replayer.restore.planning import gathered, sized
from replayer.restore.request import Surroundings
from replayer.restore.turns import Survey, Turn

PASSING_DAMAGE = Reading(on_damage=lambda _: SkipDamage())


class TopicLag(NamedTuple):
    """What the standby has of a topic, and how much more the archive has; `oldest` is the least missing timestamp."""

    copied: int = 0
    records: int = 0
    oldest: int | None = None
    error: str | None = None

    def seconds(self, now_ms: int) -> float:
        """How long ago the oldest missing record was written, by its timestamp; 0 where none is missing."""
        return 0.0 if self.oldest is None else max(0, now_ms - self.oldest) / 1000


async def lag_of(topic: TopicToRestore, restore: str, around: Surroundings) -> TopicLag:
    """Asks archive and cluster; an error is told, and not raised."""
    try:
        kept = await asyncio.to_thread(JobFolder(around.jobs, topic_job(restore, topic.source)).request)
        opened = (await around.archive.survey_topic(topic.source)).partitions
        numbers = [each.partition for each in opened]
        positions = {} if kept is None else await asyncio.to_thread(_positions, kept, numbers, around)
        missing = []
        for partition in opened:
            start, end = await resolve_range(partition, None, None)
            if (position := positions.get(partition.partition)) is not None:
                start = position.sources[partition.partition].next
            if start < end:
                missing.append(await describe_source(Selection(partition, OffsetRange(start, end)), PASSING_DAMAGE))
    except BlockgzError as error:
        return TopicLag(error=error.reason)
    oldest = min((each.timestamps.min for each in missing if each.timestamps is not None), default=None)
    return TopicLag(sum(each.written for each in positions.values()), sum(each.records for each in missing), oldest)


def _positions(kept: JobRequest, lanes: Sequence[int], around: Surroundings) -> dict[int, LanePosition]:
    """A standby keeps partitions: the lane of a partition has its number."""
    positions = CommittedPositions(around.properties, Job(kept.job, kept.target, kept.selection), decode_position)
    try:
        return positions.read(lanes)
    finally:
        positions.close()


def follows_elsewhere(report: StandbyReport | None, host: str, now_ms: int) -> bool:
    """Whether a process of another machine than that of `host` still follows, by its last report."""
    if report is None or report.state != "following" or report.host.rpartition(":")[0] == host.rpartition(":")[0]:
        return False
    return now_ms - report.slot_at < report.every * 1000 + FRESH_MS


async def switched_plan(
    plan: RestorePlan, found: Survey, followed: Mapping[str, TopicToRestore], around: Surroundings
) -> RestorePlan:
    """What a switch-over restores: all that is archived now of the topics that are followed, or can be.

    A topic that stopped is as far as it was archived, and the plan says what it lacks.
    """
    topics = await gathered(found.due, lambda turn: _measured(_known(turn, followed), around))
    left_out = [*found.found.left_out, *(TopicLeftOut(each.topic.topic, str(each.stopped)) for each in found.gone)]
    return msgspec.structs.replace(
        plan,
        at=found.found.at,
        topics=tuple(topics),
        left_out=tuple({each.topic: each for each in left_out}.values()),
        warnings=found.found.warnings,
    )


def _known(turn: Turn, followed: Mapping[str, TopicToRestore]) -> TopicToRestore:
    topic, stopped, _ = turn
    if stopped is None:
        return topic
    if topic.source not in followed:
        return msgspec.structs.replace(topic, refused=stopped)
    return msgspec.structs.replace(topic, lacks=tuple(dict.fromkeys((stopped, *topic.lacks))))


async def _measured(topic: TopicToRestore, around: Surroundings) -> TopicToRestore:
    """The topic with the sizes of all that is archived of it, which decide about its retention."""
    if topic.refused is not None:
        return topic
    sources = []
    for partition in (await around.archive.survey_topic(topic.source)).partitions:
        offsets = await resolve_range(partition, None, None)
        sources.append(await describe_source(Selection(partition, offsets), PASSING_DAMAGE))
    numbers = tuple(each.partition for each in sources)
    count = max([topic.partitions, *(number + 1 for number in numbers)])
    return sized(msgspec.structs.replace(topic, numbers=numbers, partitions=count), sources)


def standby_document(
    name: str,
    found: Survey,
    lags: Mapping[str, TopicLag],
    report: StandbyReport | None,
    follower: str,
    now_ms: int,
) -> dict[str, Any]:
    """How far a standby is behind its archive, by source in `lags`, and what its follower said last."""
    said = {each.source: each for each in report.topics} if report else {}
    topics = [_topic_document(turn, lags[turn.topic.source], said.get(turn.topic.source), now_ms) for turn in found.due]
    topics += [_topic_document(turn, TopicLag(), None, now_ms) | {"state": "gone"} for turn in found.gone]
    return {
        "restore": name,
        "follower": follower,
        "host": report.host if report else None,
        "slot_at": report.slot_at if report else None,
        "behind_records": sum(each["behind_records"] for each in topics),
        "behind_seconds": max((each["behind_seconds"] for each in topics), default=0.0),
        "topics": topics,
        "group_notes": list(report.group_notes) if report else [],
        "error": report.error if report else None,
    }


def _topic_document(turn: Turn, lag: TopicLag, said: TopicStand | None, now_ms: int) -> dict[str, Any]:
    topic, why, do = turn
    state = "stopped" if why is not None else "behind" if lag.records else "following"
    if why is None and lag.error is not None:
        state, why = "failing", lag.error
    elif why is None and said is not None and said.state == "failing":
        state, why, do = said.state, said.why, said.do
    return {
        "source": topic.source,
        "target": topic.target,
        "state": state,
        "records": lag.copied,
        "behind_records": lag.records,
        "behind_seconds": round(lag.seconds(now_ms), 3),
        "why": why,
        "do": do,
        "skipped": list(said.skipped) if said else [],
    }

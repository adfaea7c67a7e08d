"""What a standby follows: the topics that its archive has now, and those of them that are not followed any more."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from replayer.groups import map_of
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.planning import TRUNCATED, surveyed_topics
from replayer.restore.request import RestoreRequest, Surroundings

AHEAD_MS = 24 * 3600 * 1000
"""Everything that is archived is meant, also what a clock stamped that is ahead of ours."""


class Turn(NamedTuple):
    """A topic that is there now, and why it is not followed: None where it is."""

    topic: TopicToRestore
    stopped: str | None = None
    do: str | None = None


def request_of(plan: RestorePlan, now_ms: int) -> RestoreRequest:
    """What a standby asks of its archive at any time."""
    assert plan.follow is not None
    return RestoreRequest(
        now_ms + AHEAD_MS,
        plan.follow.topics,
        map_of(plan.follow.rename),
        plan.replication_factor,
        plan.transactional,
        plan.on_damage,
        plan.partial,
        groups=plan.groups,
        create_acls=plan.create_acls,
        follows=True,
    )


def turns(found: RestorePlan, followed: Mapping[str, TopicToRestore], existing: Collection[str]) -> Iterator[Turn]:
    """What becomes of each topic that was found.

    `followed` are by source those that were followed before, oldest first, `existing` the topics of the target.
    """
    owners = {each.target: source for source, each in followed.items() if each.target in existing}
    for topic in found.topics:
        owner = owners.setdefault(topic.target, topic.source)
        copied = followed[owner] if owner in followed and followed[owner].topic == topic.topic else topic
        if not topic.is_in_one_folder:
            yield Turn(copied, TRUNCATED)
        elif copied.source != topic.source:
            yield Turn(
                copied,
                f"{topic.topic} was created again as {topic.source}: {topic.target} stays a copy of {owner}",
                f"delete topic {topic.target} in the standby, and {topic.source} is followed",
            )
        elif owner != topic.source:
            yield Turn(topic, f"{topic.target} is a copy of {owner}", "use another standby, with --map")
        elif topic.lacks and not found.partial:
            yield Turn(topic, topic.lacks[0], "repair the archive, or follow what is there with --partial")
        else:
            yield Turn(topic)


def gone(found: RestorePlan, followed: Mapping[str, TopicToRestore]) -> list[Turn]:
    """The topics that were followed and are no longer in the source."""
    newest = {each.topic: each for each in followed.values()}
    return [Turn(newest[each.topic], each.why) for each in found.left_out if each.topic in newest]


class Survey(NamedTuple):
    """What was found in the archive: the turn of each topic that is there, and of each that is there no longer."""

    found: RestorePlan
    due: list[Turn]
    gone: list[Turn]


async def survey(
    plan: RestorePlan, followed: Mapping[str, TopicToRestore], around: Surroundings, now_ms: int
) -> Survey:
    """Asks the archive, and which topics the target has; raises as `surveyed_topics` and KafkaAdmin do."""
    found = await surveyed_topics(request_of(plan, now_ms), around)
    existing = await asyncio.to_thread(_existing, around)
    return Survey(found, list(turns(found, followed, existing)), gone(found, followed))


def _existing(around: Surroundings) -> Collection[str]:
    return around.admin.again().topics

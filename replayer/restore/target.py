"""The topics that a restore makes: none that it did not create is touched, and the settings that come last."""

from replayer.errors import ReplayRefused, TargetChanged
from replayer.replay.jobs.folder import JobFolder
from replayer.replay.prepare import refuse_changed_target
from replayer.replay.stages import wall_clock
from replayer.replay.target_topic import LIMIT
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.request import Surroundings, new_topic
from replayer.restore.settings import Restored, last_settings


def refuse_foreign(plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Raises ReplayRefused for a topic that this restore did not create.

    Killed right after it had, nothing but the topic itself tells: then it is empty and just as it is created.
    """
    if JobFolder(around.jobs, job).request() is not None:
        return
    facts = around.admin.again().topic(topic.target)
    if facts is None:
        return
    wanted = new_topic(plan, topic)
    own = dict(around.changes.own_config(topic.target))
    if LIMIT in own and LIMIT in wanted.config:
        own[LIMIT] = wanted.config[LIMIT]  # a replay raises it at first
    if facts.num_partitions != wanted.partitions or own != dict(wanted.config):
        raise ReplayRefused(
            f"topic {topic.target} exists",
            why="this restore did not create it",
            remedy="restore under another name with --map and another --name, or delete it",
        )


def make_ready(plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Raises ReplayRefused as `refuse_foreign` does; adds the partitions that a topic gained which is followed.

    Raises TargetChanged for another topic of its name.
    """
    refuse_foreign(plan, topic, job, around)
    kept = JobFolder(around.jobs, job).request()
    if plan.follow is None or kept is None:
        return
    facts = around.admin.again().topic(topic.target)
    refuse_changed_target(kept, facts)
    if facts is not None and facts.num_partitions < topic.partitions:
        around.changes.add_partitions(topic.target, topic.partitions)


def create_empty(plan: RestorePlan, topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Creates a topic of which no partition is archived; raises as `refuse_foreign` does."""
    refuse_foreign(plan, topic, job, around)
    if around.admin.again().topic(topic.target) is None:
        around.changes.create(new_topic(plan, topic))


def refuse_lost(topic: TopicToRestore, job: str, around: Surroundings) -> None:
    """Raises TargetChanged where a topic that was restored is gone, or another one has its name now."""
    kept = JobFolder(around.jobs, job).request()
    facts = around.admin.again().topic(topic.target)
    remedy = f"restore {topic.topic} again in another restore, with --name NAME"
    if facts is None:
        raise TargetChanged(
            f"topic {topic.target} no longer exists in the target",
            why="it was restored, and deleted since",
            remedy=remedy,
        )
    known = None if kept is None else kept.target_topic_id
    if None not in (known, facts.topic_id) and known != facts.topic_id:
        raise TargetChanged(
            f"topic {topic.target} is not the one that was restored",
            why=f"that had id {known}, the topic with that name has id {facts.topic_id}",
            remedy=f"delete it, and {remedy}",
        )


def set_last(topic: TopicToRestore, around: Surroundings) -> tuple[str, ...]:
    """Gives the topic the settings that come last; what is not set, and why."""
    replicas = around.admin.again().replication_factor(topic.target)
    restored = Restored(topic.oldest, topic.largest, replicas)
    change, notes = last_settings(topic.settings, around.changes.own_config(topic.target), restored, wall_clock())
    if change:
        around.changes.alter(topic.target, change)
    return notes

"""What is asked of a restore, and the replay of each of its topics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from blockgz.archive.archive import Archive
from blockgz.archive.positions import AtOffset, BeforeTime, Budget, Rule
from blockgz.archive.request import STOPS, SelectionRequest
from blockgz.archive.selection import Positions, positions_before
from blockgz.archive.topics import TopicPartitions
from blockgz.store.writer import Store
from replayer.groups import GroupMap
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import NewTopic
from replayer.replay.pace import Slowest
from replayer.replay.proof.sampling import Sample
from replayer.replay.request import ReplayRequest, Shape
from replayer.replay.seams import PATIENCE_SECONDS
from replayer.restore.choosing import topic_job
from replayer.restore.document import SAMPLE, RestoreGroups, RestorePlan, TopicToRestore
from replayer.restore.settings import first_settings


@dataclass(frozen=True)
class RestoreRequest:
    """What is restored, as of `at` in ms: topics by name, glob or `~regex`, all without any."""

    at: int
    topics: tuple[str, ...] = ()
    rename: GroupMap = field(default_factory=GroupMap)
    """New names of topics."""
    replication_factor: int | None = None
    transactional: bool = True
    on_damage: str = STOPS
    partial: bool = False
    prove: Literal["all", "sample", "none"] = "all"
    sample: Sample = SAMPLE
    """What is compared where a sample is to be proved."""
    groups: RestoreGroups | None = field(default_factory=RestoreGroups)
    create_acls: bool = False
    follows: bool = False
    """Whether what is archived later is restored as well."""
    at_rule: Rule | None = None
    """None if nobody chose one."""


@dataclass(frozen=True)
class Surroundings:
    """Where a restore reads, writes and notes, and how fast and patient it is; nothing of it changes what is restored.

    `properties` are librdkafka's, `jobs` holds the folders of jobs and of restores.
    """

    archive: Archive
    properties: Mapping[str, str]
    jobs: Store
    pace: Slowest = field(default_factory=Slowest)
    patience: float = PATIENCE_SECONDS
    budget: Budget = field(default_factory=Budget)
    """For the cuts of all topics."""

    @cached_property
    def admin(self) -> KafkaAdmin:
        """A client of the cluster, made when it is first asked for: that blocks. Raises as KafkaAdmin does."""
        return KafkaAdmin(self.properties)

    def reading(self, archive: Archive) -> "Surroundings":
        """The same with another view of the archive; clients that were made stay."""
        same = replace(self, archive=archive)
        vars(same).update({name: made for name, made in vars(self).items() if name in ("admin", "changes")})
        return same

    @cached_property
    def changes(self) -> TopicChanges:
        """One for changes, made when it is first asked for."""
        return TopicChanges(self.properties)


def new_topic(plan: RestorePlan, topic: TopicToRestore) -> NewTopic:
    """The topic as it is created, before its records come."""
    return NewTopic(topic.target, topic.partitions, first_settings(topic.settings), plan.replication_factor)


def replay_of(plan: RestorePlan, topic: TopicToRestore, restore: str, around: Surroundings) -> ReplayRequest:
    """The replay that restores one topic: it resumes what an earlier run of the restore began.

    One that follows the archive takes all partitions that there are, and all of their records.
    """
    follows = plan.follow is not None
    until = positions_before(None, BeforeTime(plan.at, plan.at_rule, around.budget), ("earliest", f"@{plan.at}"))
    ends = {number: (None, AtOffset(end)) for number, end in topic.cuts.items() if number in topic.numbers}
    until = replace(until, of_partitions=ends)
    return ReplayRequest(
        TopicPartitions(topic.source, None if follows else topic.numbers),
        topic.target,
        SelectionRequest(Positions(asked=("earliest", "latest")) if follows else until),
        Shape(create_topic=True, new_topic=new_topic(plan, topic)),
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

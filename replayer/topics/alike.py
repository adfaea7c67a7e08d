"""Topics of a cluster compared with archived ones, and made like them."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import UNSET

from blockgz.archive.archive import Archive
from blockgz.errors import NotInArchive, UsageError
from blockgz.topic_patterns import is_pattern, matching
from index_format.acls import Acl
from index_format.identity import TopicConfig as ArchivedTopic
from index_format.keys import parse_topic_folder
from replayer.kafka.acls import KafkaAcls
from replayer.kafka.admin import ASK_AGAIN_SECONDS, CHANGE_SECONDS, KafkaAdmin, TopicChanges
from replayer.topics.acls import compare_acls, literal_acls
from replayer.topics.archived_topic import partition_count
from replayer.topics.comparison import LiveTopic, TopicComparison, TopicPlan, compare_topics


class FoundTopic(NamedTuple):
    """A topic as the archive describes it: `name` is that of the live one, without an incarnation."""

    name: str
    config: ArchivedTopic
    partitions: int


class FoundTopics(NamedTuple):
    """What the archive holds of topics, and why it holds nothing of others."""

    topics: Sequence[FoundTopic]
    unknown: Sequence[NotInArchive]


async def find_topics(archive: Archive, wanted: Collection[str]) -> FoundTopics:
    """The topics that names, globs and `~regex`es mean, each once.

    Raises UsageError for two incarnations of one topic, NotInArchive for a name or pattern that means none.
    """
    pinned = await archive.pinned()
    names = list[str]()
    for each in wanted:
        names += matching(each, await pinned.topics()) if is_pattern(each) else [each]
    found, unknown = dict[str, FoundTopic](), list[NotInArchive]()
    for name in dict.fromkeys(names):
        config, live = await pinned.topic_config(name), parse_topic_folder(name).topic
        if config is None:
            unknown.append(
                NotInArchive(
                    f"the archive does not say what topic {name} was like",
                    why="its partition count and configuration were never stored, as by archivers of other programs",
                    remedy="let archiver run see the topic once, or leave it out",
                )
            )
            continue
        if live in found:
            raise UsageError(
                f"topic {live} is named twice", why="two incarnations of it are given", remedy="choose one of them"
            )
        found[live] = FoundTopic(live, config, partition_count(config, await pinned.partitions(name)))
    return FoundTopics(list(found.values()), unknown)


def compare_all(
    topics: Sequence[FoundTopic],
    properties: Mapping[str, str],
    ignored: Collection[str] = (),
    *,
    with_acls: bool = False,
) -> list[TopicComparison]:
    """The topics as the cluster has them; raises AccessDenied or BrokerUnreachable.

    `with_acls`: their ACLs as well; raises ReplayRefused where the cluster has no authorizer.
    """
    live = live_topics([each.name for each in topics], properties)
    found = [compare_topics(each.name, each.config, each.partitions, live[each.name], ignored) for each in topics]
    if not with_acls:
        return found
    acls = KafkaAcls(properties).of_topics(live.keys())
    return [replace(each, acls=compare_acls(each.name, _acls_of(each.archived), acls[each.name])) for each in found]


def _acls_of(archived: ArchivedTopic) -> Sequence[Acl] | None:
    return None if archived.acls is UNSET else archived.acls


def live_topics(names: Collection[str], properties: Mapping[str, str]) -> dict[str, LiveTopic | None]:
    """Topics as the cluster has them now; raises AccessDenied or BrokerUnreachable."""
    admin, changes = KafkaAdmin(properties), TopicChanges(properties)
    found = dict[str, LiveTopic | None]()
    for name in names:
        facts = admin.topic(name)
        if facts is None:
            found[name] = None
        else:
            replicas = admin.replication_factor(name)
            found[name] = LiveTopic(facts.num_partitions, replicas, changes.settings(name))
    return found


def carry_out(plan: TopicPlan, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Makes the topic as planned, and reads it back; what it still lacks after some time.

    Raises ReplayRefused for what the cluster does not accept, AccessDenied or BrokerUnreachable.
    """
    name, changes = plan.compared.name, TopicChanges(properties)
    if plan.creates is not None:
        changes.create(plan.creates)
    if plan.adds_to is not None:
        changes.add_partitions(name, plan.adds_to)
    if plan.change:
        changes.alter(name, plan.change)
    acls = KafkaAcls(properties) if plan.acls else None
    if acls:
        acls.create(plan.acls)
    deadline = time.monotonic() + CHANGE_SECONDS
    # A broker may hear of a change later than the one that made it.
    while lacks := _lacks(plan, properties, acls):
        if time.monotonic() > deadline:
            break
        time.sleep(ASK_AGAIN_SECONDS)
    return lacks


def _lacks(plan: TopicPlan, properties: Mapping[str, str], acls: KafkaAcls | None) -> tuple[str, ...]:
    """What of the plan the topic does not have now."""
    name = plan.compared.name
    there = acls.of_topics([name])[name] if acls else ()
    return plan.outstanding(live_topics([name], properties)[name], literal_acls(there, name))

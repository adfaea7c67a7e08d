"""Topics as the archive describes them and as a cluster has them: compared, and made alike."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from blockgz.archive.archive import ArchiveReader
from blockgz.errors import NotInArchive, UsageError
from blockgz.topic_patterns import is_pattern, matching
from index_format.keys import parse_topic_folder
from index_format.objects import LITERAL, Acl
from index_format.objects import TopicConfig as ArchivedTopic
from replayer.kafka.admin import ASK_AGAIN_SECONDS, CHANGE_SECONDS, KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import ConfigChange, NewTopic


def literal_acls(acls: Iterable[Acl], topic: str) -> tuple[Acl, ...]:
    """Return ACLs on the name of a topic alone that grant and deny the same there as the given ones; in order, each
    once.
    """
    return tuple(sorted({msgspec.structs.replace(each, pattern=LITERAL, name=topic) for each in acls}))


def compare_acls(
    topic: str, archived: Iterable[Acl] | None, live: Iterable[Acl]
) -> tuple[tuple[Acl, ...] | None, tuple[Acl, ...]]:
    """Return the ACLs that the live topic lacks, and those that only it has, as ACLs on its name alone."""
    # Compares what they grant and deny, regardless of their patterns; None and nothing if `archived` is None: unknown.
    if archived is None:
        return None, ()
    then, now = literal_acls(archived, topic), literal_acls(live, topic)
    return tuple(each for each in then if each not in now), tuple(each for each in now if each not in then)


def acl_text(acl: Acl) -> str:
    """Return what an ACL grants or denies, for people: `ALLOW READ for User:billing from *`."""
    return f"{acl.permission} {acl.operation} for {_shown(acl.principal)} from {_shown(acl.host)}"


def _shown(text: str) -> str:
    return text if text.isprintable() else repr(text)


# Settings that decide which records a topic keeps, and as what; with Kafka's defaults, for an archive without any.
# A new topic gets them even where the source had them from its cluster: the target's cluster may have others.
DECISIVE: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
# Settings that belong to the source's brokers, their storage or their version of Kafka, not to the records.
OF_THE_BROKERS = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
# The prefix of settings that only one vendor's brokers know.
OF_A_VENDOR = "confluent."
# Fits a replication factor: what is made like a topic keeps it, the target of a replay does not.
MIN_INSYNC = "min.insync.replicas"


def carried_over(config: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings of a topic that do not belong to its brokers."""
    return {name: value for name, value in sorted((config or {}).items()) if not _is_of_the_brokers(name)}


def left_behind(config: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings of a topic that belong to its brokers."""
    return {name: value for name, value in sorted((config or {}).items()) if _is_of_the_brokers(name)}


def new_topic(
    name: str,
    partitions: int,
    archived: ArchivedTopic | None,
    chosen: Mapping[str, str],
    without: Collection[str] = (),
    replication_factor: int | None = None,
) -> NewTopic:
    """Return a topic like the archived one, apart from what was chosen, and `without` some settings.

    None if the archive did not record its settings.
    """
    defaults = (archived.defaults if archived else None) or {}
    decisive = {key: defaults.get(key, value) for key, value in DECISIVE.items()}
    own = carried_over(archived.config if archived else None)
    taken = {key: value for key, value in {**decisive, **own}.items() if key not in without}
    return NewTopic(name, partitions, dict(sorted({**taken, **chosen}.items())), replication_factor)


def without_refused(
    admin: KafkaAdmin, topic: NewTopic, chosen: Collection[str] = ()
) -> tuple[NewTopic, dict[str, str]]:
    """Return the topic without the settings that the cluster does not accept, and why it does not accept each of them.

    A person's choice stays, and so do the settings that decide which records are kept: raise ReplayRefused if the
    cluster does not accept one of these.
    """
    error, changeable = admin.why_uncreatable(topic), admin.changeable_settings()
    optional = topic.config.keys() - DECISIVE.keys() - set(chosen)
    why = dict.fromkeys(optional - changeable, "topics of this cluster have no such setting") if changeable else {}
    if error is not None:
        needed = {name: value for name, value in topic.config.items() if name not in optional}
        admin.refuse_uncreatable(replace(topic, config=needed))
        for name in sorted(optional):
            with_it = replace(topic, config={**needed, name: topic.config[name]})
            if (refused := admin.why_uncreatable(with_it)) is not None:
                why[name] = refused.why
    made = replace(topic, config={name: value for name, value in topic.config.items() if name not in why})
    if error is not None:
        admin.refuse_uncreatable(made)
    return made, dict(sorted(why.items()))


def omission_note(name: str, value: str, why: str) -> str:
    """Return the note that a setting is left out because the cluster does not accept it."""
    return f"{name}={value} is left out, because the cluster does not accept it ({why}): choose it with --topic-config"


def partition_count(archived: ArchivedTopic | None, numbers: Collection[int]) -> int:
    """Return the number of partitions that a topic had; `numbers` are the archived ones."""
    return max([archived.partitions if archived else 0, *(number + 1 for number in numbers)])


def creation_note(topic: NewTopic) -> str:
    """Return how a plan describes a topic that is created."""
    settings = ", ".join(f"{name}={value}" for name, value in topic.config.items())
    factor = "" if topic.replication_factor is None else f", replication factor {topic.replication_factor}"
    return f"topic {topic.name} is created with {topic.partitions} partitions{factor} and {settings}"


def _is_of_the_brokers(name: str) -> bool:
    return name in OF_THE_BROKERS or name.startswith(OF_A_VENDOR)


# Settings that are lists, whose order says nothing.
LISTS = frozenset({"cleanup.policy"})
NO_CHANGE = ConfigChange({})
# The name of an ACL among settings.
ACL = "acl"


@dataclass(frozen=True)
class LiveTopic:
    """A topic as the cluster has it."""

    partitions: int
    replication_factor: int
    own: Mapping[str, str]
    inherited: Mapping[str, str]


class Difference(NamedTuple):
    """A setting that differs: set in the archived topic, or in effect in the live one.

    None for the side that has nothing of the kind.
    """

    setting: str
    archived: str | None
    live: str | None


@dataclass(frozen=True)
class TopicComparison:
    """An archived topic of this name, and the live one, None if it is missing; `archived_partitions` it had.

    `changed` are settings of the archived topic that the live one has otherwise, `extra` such as only the live one has.
    """

    name: str
    archived: ArchivedTopic
    archived_partitions: int
    live: LiveTopic | None
    ignored: Collection[str] = ()
    changed: tuple[Difference, ...] = ()
    extra: tuple[Difference, ...] = ()
    missing_acls: tuple[Acl, ...] | None = ()
    """ACLs that the live topic lacks; none if they were not requested, None if the archive does not know them."""
    extra_acls: tuple[Acl, ...] = ()
    """ACLs that only the live topic has."""

    @property
    def state(self) -> str:
        """`equal`, `differs` or `missing`."""
        if self.live is None:
            return "missing"
        return "differs" if self.differences else "equal"

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return the differences of partitions, settings and ACLs; none for a topic that is missing."""
        if self.live is None:
            return ()
        counts = Difference("partitions", str(self.archived_partitions), str(self.live.partitions))
        missing = (Difference(ACL, acl_text(each), None) for each in self.missing_acls or ())
        extra = (Difference(ACL, None, acl_text(each)) for each in self.extra_acls)
        partitions = [counts] if counts.archived != counts.live else []
        return (*partitions, *self.changed, *self.extra, *missing, *extra)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes that are not differences and should be known."""
        acls = () if self.missing_acls is not None else ("the archive does not know which ACLs it had",)
        return tuple(f"{self.name}: {text}" for text in (*_notes(self.archived), *_live_notes(self), *acls))


def compare_topics(
    name: str, archived: ArchivedTopic, archived_partitions: int, live: LiveTopic | None, ignored: Collection[str] = ()
) -> TopicComparison:
    """Compare the settings in effect that were set for either topic, without `ignored` ones and those of brokers."""
    # So a setting that one side has from its cluster, with the same value, is not a difference.
    compared = TopicComparison(name, archived, archived_partitions, live, ignored)
    if live is None or archived.config is None:
        return compared  # What an archive does not tell is not a difference.
    # What a topic gets that is made like it is not a difference.
    ours, defaults = carried_over(archived.config), {**DECISIVE, **(archived.defaults or {})}
    in_effect = {**live.inherited, **live.own}
    changed = [
        Difference(setting, value, in_effect.get(setting))
        for setting, value in ours.items()
        if setting not in ignored and not _same(setting, value, in_effect.get(setting))
    ]
    extra = [
        Difference(setting, None, value)
        for setting, value in carried_over(live.own).items()
        if setting not in archived.config
        and setting not in ignored
        and not _same(setting, value, defaults.get(setting))
    ]
    return TopicComparison(name, archived, archived_partitions, live, ignored, tuple(changed), tuple(extra))


@dataclass(frozen=True)
class TopicPlan:
    """Steps that make a live topic like the archived one: it is created, or gets `adds_to` partitions and settings."""

    compared: TopicComparison
    creates: NewTopic | None = None
    adds_to: int | None = None
    change: ConfigChange = NO_CHANGE

    @property
    def acls(self) -> tuple[Acl, ...]:
        """Return the ACLs that are created."""
        return self.compared.missing_acls or ()

    def __bool__(self) -> bool:
        return bool(self.creates or self.adds_to or self.change or self.acls)

    @property
    def steps(self) -> tuple[str, ...]:
        """Return the steps, for people."""
        name = self.compared.name
        done = [creation_note(self.creates)] if self.creates else []
        if self.adds_to is not None and self.compared.live is not None:
            done.append(f"topic {name} gets {self.adds_to - self.compared.live.partitions} more partitions")
        done += [f"topic {name}: {setting}={value} is set" for setting, value in self.change.values.items()]
        done += [f"topic {name}: {setting} is reset to the cluster's" for setting in self.change.removed]
        return (*done, *(f"topic {name}: ACL {acl_text(each)} is created" for each in self.acls))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what stays as it is, and what the changes mean."""
        return tuple(f"{self.compared.name}: {text}" for text in _plan_notes(self))

    def outstanding(self, now: LiveTopic | None, acls: Collection[Acl] = ()) -> tuple[str, ...]:
        """Return the parts of the plan that the topic lacks, as it is now; `acls` are those on its name."""
        lacking = (f"ACL {acl_text(each)} is missing" for each in self.acls if each not in acls)
        return (*_outstanding(self, now), *lacking)


def plan_topic(compared: TopicComparison, replication_factor: int | None, *, reset_extra: bool) -> TopicPlan:
    """Return the steps that remove the differences. Settings only of the live topic are reset if that is requested."""
    live, partitions = compared.live, compared.archived_partitions
    if live is None:
        made = new_topic(compared.name, partitions, compared.archived, {}, compared.ignored, replication_factor)
        return TopicPlan(compared, creates=made)
    values = {each.setting: each.archived for each in compared.changed if each.archived is not None}
    removed = tuple(each.setting for each in compared.extra) if reset_extra else ()
    return TopicPlan(
        compared, adds_to=partitions if live.partitions < partitions else None, change=ConfigChange(values, removed)
    )


def _same(setting: str, one: str, other: str | None) -> bool:
    if other is None or setting not in LISTS:
        return one == other
    return {part.strip() for part in one.split(",")} == {part.strip() for part in other.split(",")}


def _notes(archived: ArchivedTopic) -> Iterator[str]:
    if archived.config is None:
        yield "the archive holds its partition count and not its configuration: settings are not compared"
    for setting, value in left_behind(archived.config).items():
        yield f"{setting}={value} belonged to the old brokers and is left out"


def _live_notes(compared: TopicComparison) -> Iterator[str]:
    live, archived = compared.live, compared.archived
    if live is None:
        return
    if archived.replication_factor not in (None, live.replication_factor):
        yield f"its replication factor was {archived.replication_factor} and is {live.replication_factor}"
    in_effect, defaults = {**live.inherited, **live.own}, archived.defaults or {}
    needed = carried_over(archived.config).get(MIN_INSYNC) or in_effect.get(MIN_INSYNC, "1")
    yield from _too_few_replicas(needed, live.replication_factor)
    set_somewhere = (archived.config or {}).keys() | live.own.keys()
    for setting in sorted(DECISIVE.keys() & defaults.keys() - set_somewhere - set(compared.ignored)):
        now = in_effect.get(setting)
        if now is not None and not _same(setting, defaults[setting], now):
            yield f"{setting} was {defaults[setting]} by the old cluster's default and is {now} by this one's"


def _too_few_replicas(needed: str, replication_factor: int) -> Iterator[str]:
    if needed.isdigit() and int(needed) > replication_factor:
        yield (
            f"{MIN_INSYNC}={needed} is above the replication factor {replication_factor}: producers with acks=all are "
            "refused"
        )


def _plan_notes(plan: TopicPlan) -> Iterator[str]:
    compared, live, made = plan.compared, plan.compared.live, plan.creates
    if made is not None and compared.archived.config is None:
        yield "it gets Kafka's defaults, seven days of retention among them"
    if made is not None and made.replication_factor is not None:
        yield from _too_few_replicas(made.config.get(MIN_INSYNC, "1"), made.replication_factor)
    elif made is not None and MIN_INSYNC in made.config:
        yield f"{MIN_INSYNC}={made.config[MIN_INSYNC]} needs as many replicas: choose with --replication-factor"
    if plan.adds_to is not None:
        yield "records of a key that come later may go to another partition than those before"
    if live is not None and live.partitions > compared.archived_partitions:
        yield f"{live.partitions} partitions stay, as none is removed; {compared.archived_partitions} were archived"
    kept = [each.setting for each in compared.extra if each.setting not in plan.change.removed]
    if kept:
        yield f"{', '.join(kept)} stays as only the live topic has it: --reset-extra resets it"
    if compared.extra_acls:
        yield f"{len(compared.extra_acls)} ACLs stay that only the live topic has: ACLs are never deleted"


def _outstanding(plan: TopicPlan, now: LiveTopic | None) -> Iterator[str]:
    if now is None:
        if plan:
            yield "the topic is missing"
        return
    wanted = plan.creates.partitions if plan.creates else plan.adds_to
    if wanted is not None and now.partitions != wanted:
        yield f"partitions are {now.partitions} and not {wanted}"
    values: Mapping[str, str] = plan.creates.config if plan.creates else plan.change.values
    for setting, value in values.items():
        found = now.own.get(setting)
        if found is None or not _same(setting, value, found):
            yield f"{setting} is {found} and not {value}"
    for setting in plan.change.removed:
        if setting in now.own:
            yield f"{setting} is still {now.own[setting]}"


class FoundTopic(NamedTuple):
    """A topic as the archive describes it: `name` is that of the live one, without an incarnation."""

    name: str
    config: ArchivedTopic
    partitions: int


async def find_topics(archive: ArchiveReader, wanted: Collection[str]) -> tuple[list[FoundTopic], list[NotInArchive]]:
    """Return the topics that names, globs and `~regex`es match, each once, and why others are unknown.

    Raises UsageError for two incarnations of one topic, NotInArchive for a name or pattern that means none.
    """
    pinned = await archive.pin()
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
    return list(found.values()), unknown


def compare_all(
    topics: Sequence[FoundTopic],
    properties: Mapping[str, str],
    ignored: Collection[str] = (),
    *,
    with_acls: bool = False,
) -> list[TopicComparison]:
    """Compare the topics with those of the cluster. Raises AccessDenied or BrokerUnreachable.

    `with_acls`: their ACLs as well; raises ReplayRefused where the cluster has no authorizer.
    """
    live = live_topics([each.name for each in topics], properties)
    found = [compare_topics(each.name, each.config, each.partitions, live[each.name], ignored) for each in topics]
    if not with_acls:
        return found
    acls = TopicChanges(properties).acls(live.keys())
    for number, each in enumerate(found):
        archived = None if each.archived.acls is UNSET else each.archived.acls
        missing, extra = compare_acls(each.name, archived, acls[each.name])
        found[number] = replace(each, missing_acls=missing, extra_acls=extra)
    return found


def live_topics(names: Collection[str], properties: Mapping[str, str]) -> dict[str, LiveTopic | None]:
    """Return the topics as the cluster has them now. Raises AccessDenied or BrokerUnreachable."""
    admin, changes = KafkaAdmin(properties), TopicChanges(properties)
    found = dict[str, LiveTopic | None]()
    for name in names:
        facts = admin.topic(name)
        if facts is None:
            found[name] = None
        else:
            replicas = admin.replication_factor(name)
            found[name] = LiveTopic(facts.num_partitions, replicas, *changes.settings(name))
    return found


def carry_out(plan: TopicPlan, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Make the topic as planned, read it back, and return what it still lacks after some time; raises ReplayRefused."""
    name, changes = plan.compared.name, TopicChanges(properties)
    if plan.creates is not None:
        changes.create(plan.creates)
    if plan.adds_to is not None:
        changes.add_partitions(name, plan.adds_to)
    if plan.change:
        changes.alter(name, plan.change)
    if plan.acls:
        changes.create_acls(plan.acls)
    deadline = time.monotonic() + CHANGE_SECONDS
    # A broker may hear of a change later than the one that made it.
    while lacks := _lacks(plan, properties, changes):
        if time.monotonic() > deadline:
            break
        time.sleep(ASK_AGAIN_SECONDS)
    return lacks


def _lacks(plan: TopicPlan, properties: Mapping[str, str], changes: TopicChanges) -> tuple[str, ...]:
    """Return the parts of the plan that the topic lacks now."""
    name = plan.compared.name
    there = changes.acls([name])[name] if plan.acls else ()
    return plan.outstanding(live_topics([name], properties)[name], literal_acls(there, name))

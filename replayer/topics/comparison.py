"""An archived topic compared with the live one, what makes them alike, and what is not done yet of that. Pure."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from index_format.acls import Acl
from index_format.identity import TopicConfig as ArchivedTopic
from replayer.kafka.topic_facts import ConfigChange, NewTopic, TopicSettings
from replayer.topics.acls import AclComparison, acl_text
from replayer.topics.archived_topic import (
    DECISIVE,
    MIN_INSYNC,
    carried_over,
    creation_note,
    left_behind,
    new_topic,
)

LISTS = frozenset({"cleanup.policy"})
"""Settings that are lists, whose order says nothing."""
NO_CHANGE = ConfigChange({})
NO_ACLS = AclComparison()
ACL = "acl"
"""What an ACL is called where settings are named."""


@dataclass(frozen=True)
class LiveTopic:
    """A topic as the cluster has it."""

    partitions: int
    replication_factor: int
    settings: TopicSettings


class Difference(NamedTuple):
    """A setting that differs: what was set in the archived topic and what is in effect in the live one.

    None for the side that has nothing of the kind.
    """

    setting: str
    archived: str | None
    live: str | None


@dataclass(frozen=True)
class TopicComparison:
    """An archived topic of this name, and the live one, None where it is missing; `archived_partitions` it had.

    `changed` are settings of the archived topic that the live one has otherwise, `extra` such as only the live one has.
    """

    name: str
    archived: ArchivedTopic
    archived_partitions: int
    live: LiveTopic | None
    ignored: Collection[str] = ()
    changed: tuple[Difference, ...] = ()
    extra: tuple[Difference, ...] = ()
    acls: AclComparison = NO_ACLS
    """Without a difference where they were not asked for."""

    @property
    def state(self) -> str:
        """`equal`, `differs` or `missing`."""
        if self.live is None:
            return "missing"
        return "differs" if self.differences else "equal"

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of partitions, settings and ACLs; none of a topic that is missing."""
        if self.live is None:
            return ()
        counts = Difference("partitions", str(self.archived_partitions), str(self.live.partitions))
        missing = (Difference(ACL, acl_text(each), None) for each in self.acls.missing)
        extra = (Difference(ACL, None, acl_text(each)) for each in self.acls.extra)
        partitions = [counts] if counts.archived != counts.live else []
        return (*partitions, *self.changed, *self.extra, *missing, *extra)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is no difference and should be known."""
        acls = () if self.acls.known else ("the archive does not know which ACLs it had",)
        return tuple(f"{self.name}: {text}" for text in (*_notes(self.archived), *_live_notes(self), *acls))


def compare_topics(
    name: str, archived: ArchivedTopic, archived_partitions: int, live: LiveTopic | None, ignored: Collection[str] = ()
) -> TopicComparison:
    """Compares in effect what was set for either topic itself, without what belongs to brokers or is `ignored`.

    So a setting that one side has from its cluster, with the same value, is no difference.
    """
    compared = TopicComparison(name, archived, archived_partitions, live, ignored)
    if live is None or archived.config is None:
        return compared  # What an archive does not tell is no difference.
    # What a topic gets that is made like it is no difference.
    ours, defaults = carried_over(archived.config), {**DECISIVE, **(archived.defaults or {})}
    in_effect = {**live.settings.inherited, **live.settings.own}
    changed = [
        Difference(setting, value, in_effect.get(setting))
        for setting, value in ours.items()
        if setting not in ignored and not _same(setting, value, in_effect.get(setting))
    ]
    extra = [
        Difference(setting, None, value)
        for setting, value in carried_over(live.settings.own).items()
        if setting not in archived.config
        and setting not in ignored
        and not _same(setting, value, defaults.get(setting))
    ]
    return TopicComparison(name, archived, archived_partitions, live, ignored, tuple(changed), tuple(extra))


@dataclass(frozen=True)
class TopicPlan:
    """What makes a live topic like the archived one: it is created, or gets `adds_to` partitions and settings."""

    compared: TopicComparison
    creates: NewTopic | None = None
    adds_to: int | None = None
    change: ConfigChange = NO_CHANGE

    @property
    def acls(self) -> tuple[Acl, ...]:
        """The ACLs that are created."""
        return self.compared.acls.missing

    def __bool__(self) -> bool:
        return bool(self.creates or self.adds_to or self.change or self.acls)

    @property
    def steps(self) -> tuple[str, ...]:
        """What is done, for people."""
        name = self.compared.name
        done = [creation_note(self.creates)] if self.creates else []
        if self.adds_to is not None and self.compared.live is not None:
            done.append(f"topic {name} gets {self.adds_to - self.compared.live.partitions} more partitions")
        done += [f"topic {name}: {setting}={value} is set" for setting, value in self.change.values.items()]
        done += [f"topic {name}: {setting} is reset to the cluster's" for setting in self.change.removed]
        return (*done, *(f"topic {name}: ACL {acl_text(each)} is created" for each in self.acls))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left as it is, and what the changes mean."""
        return tuple(f"{self.compared.name}: {text}" for text in _plan_notes(self))

    def outstanding(self, now: LiveTopic | None, acls: Collection[Acl] = ()) -> tuple[str, ...]:
        """What of the plan the topic does not have, as it is now; `acls` are those on its name."""
        lacking = (f"ACL {acl_text(each)} is missing" for each in self.acls if each not in acls)
        return (*_outstanding(self, now), *lacking)


def plan_topic(compared: TopicComparison, replication_factor: int | None, *, reset_extra: bool) -> TopicPlan:
    """What is done about the differences: nothing is removed, but settings that only the live topic has, if asked."""
    live, partitions = compared.live, compared.archived_partitions
    if live is None:
        made = new_topic(compared.name, partitions, compared.archived, {}, compared.ignored, replication_factor)
        return TopicPlan(compared, creates=made)
    values = {each.setting: each.archived for each in compared.changed if each.archived is not None}
    removed = tuple(each.setting for each in compared.extra) if reset_extra else ()
    return TopicPlan(
        compared,
        adds_to=partitions if live.partitions < partitions else None,
        change=ConfigChange(values, removed),
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
    in_effect, defaults = {**live.settings.inherited, **live.settings.own}, archived.defaults or {}
    needed = carried_over(archived.config).get(MIN_INSYNC) or in_effect.get(MIN_INSYNC, "1")
    yield from _too_few_replicas(needed, live.replication_factor)
    set_somewhere = (archived.config or {}).keys() | live.settings.own.keys()
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
    if compared.acls.extra:
        yield f"{len(compared.acls.extra)} ACLs stay that only the live topic has: ACLs are never deleted"


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
        found = now.settings.own.get(setting)
        if found is None or not _same(setting, value, found):
            yield f"{setting} is {found} and not {value}"
    for setting in plan.change.removed:
        if setting in now.settings.own:
            yield f"{setting} is still {now.settings.own[setting]}"

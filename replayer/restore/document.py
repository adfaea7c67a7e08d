"""The plan of a restore as a document that people edit before it runs, and the folder that keeps it and what is done.

Also which incarnation of a topic existed at a time, and the names of restores and their jobs. docs/jobs.md specifies
the folder: `restore.json`, `topics/{job}.json` for each topic that is restored, `groups.json` once groups are set,
`acls.json` once ACLs are created, `undone.json` once it is undone. Each is written once. A warm standby also has
`followed/{job}.json` for each topic that it began to follow, `switch-over.json` once a switch-over is requested, and
`standby.json`, which is replaced.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from blockgz.archive.positions import Rule
from blockgz.errors import NotInArchive, UsageError, Verdict
from blockgz.store.writer import Store
from blockgz.topic_patterns import is_pattern, matching
from blockgz.units import time_text
from index_format.keys import TopicFolder, check_topic, parse_topic_folder
from index_format.objects import Acl, Count, Inventory, Sealed, Timestamp, encode, stored
from replayer.errors import ReplayRefused
from replayer.groups import map_of, twins
from replayer.replay.job import NAME_DIGITS, check_job_name
from replayer.replay.jobs.folder import RecordFolder
from replayer.replay.proof import Sample

Number = int
SAMPLE = Sample(0.05, 0)


class RestoreGroups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The consumer groups to restore, and their new names; `approximate` as of `replayer groups`."""

    globs: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expressions and names; the first that matches counts."""
    approximate: bool = False


class WantedTopics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics to restore, by name, glob or `~regex` (all if there is none), and their new names."""

    topics: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    """Regular expressions and names; the first that matches counts."""


class TopicToRestore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One topic. `target`, `partitions`, `settings`, `cuts` and `acls` may be edited; the other fields are findings.

    `source` is the incarnation, `numbers` its partitions that are read. Sizes are those of records before the time of
    the restore: `bytes` encoded, `largest` those of the largest partition, `stored_bytes` in the archive; `oldest` and
    `newest` bound the timestamps. `lacks` lists data that the archive should have and lacks; `refused` is the reason
    why the topic cannot be restored.
    """

    source: str
    target: str
    partitions: Number
    numbers: tuple[Number, ...]
    settings: dict[str, str]
    left_behind: dict[str, str] = {}
    """Settings that belonged to the old brokers."""
    records: Number = 0
    bytes: Number = 0
    largest: Number = 0
    stored_bytes: Number = 0
    oldest: Number | None = None
    newest: Number | None = None
    cuts: dict[Number, Number] = {}
    """The offset before which each partition ends, found as of the time; may be edited."""
    choice: str | None = None
    """Why a person should look at the cuts, and choose; null if nothing speaks against them."""
    ends_before: bool = False
    """True if no record from the time of the restore or later is archived."""
    gaps: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    missing: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Objects of committed chunks that are missing in the archive, with their offsets."""
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    positions: Number = 0
    group_ends: dict[Number, Number] = {}
    """The position of the foremost of these groups in each partition."""
    groups_at: Number | None = None
    """Time at which the table of groups was taken, in ms; null if there is none."""
    acls: tuple[Acl, ...] | None = None
    """The ACLs of the source; null if the archive does not know them."""
    refused: str | None = None

    @property
    def topic(self) -> str:
        """The source's name without its incarnation."""
        return parse_topic_folder(self.source).topic

    def lacking(self, job: str) -> str | None:
        """Return the partitions that the archive lacked, and how the topic gets them; None if it lacked none."""
        words = [each.split(" ") for each in self.lacks]
        if not words:
            return None
        names = ", ".join(f"{self.topic}:{each[1]}" if each[0] == "partition" else each[0] for each in words)
        return (
            f"lacks {names}, and --resume does not add them: repair the archive (replayer verify names how), delete "
            f"the topic (replayer undo --job {job} -b HOST:PORT), and restore it in another restore, with --name"
        )

    @property
    def is_in_one_folder(self) -> bool:
        """Return whether one folder holds all of it, unlike where its log was truncated."""
        return "~" in self.source


class TopicLeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic that was meant and is not restored."""

    topic: str
    why: str


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A restore: how it is done, and once it is planned its topics; `at` in ms, `replication_factor` null for the
    cluster's default.
    """

    format: str = "blockgz-restore-plan"
    version: Number = 1
    archive_id: str
    at: Number
    at_rule: Rule = "first"
    """How the time was understood; plans of earlier releases do not say it."""
    transactional: bool = True
    replication_factor: Number | None = None
    on_damage: str = "stop"
    partial: bool = False
    """True if what the archive lacks is passed over."""
    topic_config: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Settings that every topic gets instead of its own."""
    omit_topic_config: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Settings that no topic gets."""
    prove: Literal["all", "sample", "none"] = "all"
    prove_share: float = SAMPLE.share
    """The share of a sample, above 0 and at most 1; `prove_seed` chooses it."""
    prove_seed: Number = SAMPLE.seed
    groups: RestoreGroups | None = RestoreGroups()
    create_acls: bool = False
    """True if the topics get their ACLs."""
    follow: WantedTopics | None = None
    """Null for a restore as of one time; else `at` is when following began."""
    topics: tuple[TopicToRestore, ...] = ()
    left_out: tuple[TopicLeftOut, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def restorable(self) -> tuple[TopicToRestore, ...]:
        """The topics that can be restored, the biggest first."""
        return tuple(sorted((each for each in self.topics if each.refused is None), key=lambda each: -each.bytes))

    @property
    def refused(self) -> tuple[TopicToRestore, ...]:
        return tuple(each for each in self.topics if each.refused is not None)

    @property
    def sample(self) -> Sample | None:
        """The sample that is compared, unless everything is."""
        return Sample(self.prove_share, self.prove_seed) if self.prove == "sample" else None

    @property
    def passes(self) -> float:
        """How often records are gone through, the proof included."""
        return 1 + {"all": 1.0, "sample": self.prove_share, "none": 0.0}[self.prove]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.restorable)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.restorable)

    @property
    def acls(self) -> int:
        """Number of the topics' known ACLs."""
        return sum(len(each.acls or ()) for each in self.restorable)

    @property
    def without_acls(self) -> int:
        """The number of topics whose ACLs are unknown."""
        return sum(each.acls is None for each in self.restorable)


_decoder = msgspec.json.Decoder(RestorePlan)


def plan_text(plan: RestorePlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan)) + b"\n"


def parse_plan(body: bytes, file: str) -> RestorePlan:
    """Parse a plan; raise UsageError if it is not one, or cannot be carried out."""
    try:
        plan = _decoder.decode(body)
        if (plan.format, plan.version) != ("blockgz-restore-plan", 1):
            raise ValueError(f"it is {plan.format[:80]!r} of version {plan.version}")
        if not 0 < plan.prove_share <= 1:
            raise ValueError(f"prove_share is {plan.prove_share}, and not above 0 and at most 1")
        if plan.at <= 0:
            raise ValueError(f"at is {plan.at}, and no time")
        if not plan.topics and plan.follow is None:
            raise ValueError("it names no topic")
        map_of(plan.groups.rename if plan.groups else ())
        map_of(plan.follow.rename if plan.follow else ())
        for each in plan.topics:
            check_topic(each.target)
            parse_topic_folder(each.source)
            if any(end < 0 for end in each.cuts.values()):
                raise ValueError(f"the cuts of {each.source} are no offsets")
            if each.partitions < 1:
                raise ValueError(f"topic {each.target} has {each.partitions} partitions")
    except ValueError as error:  # msgspec's errors and BadName among them
        raise UsageError(
            f"{file} is not the plan of a restore",
            why=str(error)[:300],
            remedy="write one with replayer restore --plan FILE, and edit that",
        ) from error
    refuse_twins(plan.topics)
    return plan


def refuse_group_twins(plan: RestorePlan) -> None:
    """Raise UsageError if two groups of one topic would get one name."""
    if plan.groups is None:
        return
    rename = map_of(plan.groups.rename)
    for topic in plan.restorable:
        if found := twins((group, rename(group)) for group in topic.groups):
            first, second, name = found
            raise UsageError(
                f"groups {first} and {second} would both be {name}",
                why=f"both have positions in {topic.source}, and --group-map gives them one name",
                remedy="use other patterns",
            )


def refuse_twins(topics: Sequence[TopicToRestore]) -> None:
    """Raise UsageError if two topics would get one name, or one is restored twice."""
    if found := twins((each.source, each.target) for each in topics):
        first, second, name = found
        raise UsageError(
            f"{first} and {second} would both be restored as {name}",
            why="a topic is the copy of one topic",
            remedy="give them different names with --map, or in the plan's file",
        )
    twice = [source for source, count in Counter(each.source for each in topics).items() if count > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} is to be restored twice", why="the plan names it twice", remedy="remove one of them"
        )


MOST_NAME = 100
HASH_DIGITS = 16


class ChosenIncarnation(NamedTuple):
    """The incarnation that existed at a time; `note` says which part of that is uncertain."""

    folder: TopicFolder
    note: str | None = None
    in_doubt: bool = False
    """It was first seen later: it existed only if it holds records from before."""


def incarnation_at(
    topic: str, held: Collection[TopicFolder], inventory: Inventory | None, at_ms: int
) -> ChosenIncarnation | TopicLeftOut:
    """Return the incarnation of a topic at a time, or why there was none; `held` are the folders of the archive."""
    listed = [each for each in inventory.incarnations if each.topic == topic] if inventory else []
    if not listed:
        newest = max(each for each in held if each.topic == topic)
        return ChosenIncarnation(newest, f"{newest}: the inventory does not tell when it existed: the newest is taken")
    began = [each for each in listed if each.seen_from <= at_ms]
    if not began:
        # Nothing was there before the first one that anybody knows of: it may be older than the archive.
        first = listed[0]
        seen = f"{first.folder} was first seen at {time_text(first.seen_from)}, after the time"
        return ChosenIncarnation(first.folder, seen, in_doubt=True)
    newest_then = began[-1]
    if newest_then.seen_until is not None and newest_then.seen_until <= at_ms:
        return TopicLeftOut(topic, f"it was gone at the time: deleted before {time_text(newest_then.seen_until)}")
    return ChosenIncarnation(newest_then.folder)


def same_topic(folder: TopicFolder, inventory: Inventory | None) -> tuple[TopicFolder, ...]:
    """Return the folder and those right before it that hold the same topic, whose log was truncated; oldest first."""
    known = inventory.incarnations if inventory else ()
    listed = {each.folder: each for each in known if each.topic == folder.topic}
    found = [folder]
    while (this := listed.get(found[0])) is not None and this.topic_id is not None:
        before = listed.get(folder._replace(incarnation=found[0].incarnation - 1))
        if before is None or before.topic_id != this.topic_id:
            break
        found.insert(0, before.folder)
    return tuple(found)


def wanted_topics(wanted: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the topics that names, globs and `~regex`es mean, each once, all without any; raise NotInArchive,
    UsageError.
    """
    known = sorted(set(known))
    found = list[str]()
    for each in wanted:
        if not each.startswith("~") and "~" in each:
            raise UsageError(
                f"{each!r} names an incarnation",
                why="--at says which one is restored",
                remedy=f"write {parse_topic_folder(each).topic}",
            )
        if not is_pattern(each) and each not in known:
            raise NotInArchive(
                f"topic {each} is not in the archive",
                why="neither a folder nor the inventory names it",
                remedy="see replayer ls",
            )
        found += matching(each, known) if is_pattern(each) else [each]
    return list(dict.fromkeys(found)) if wanted else [each for each in known if not each.startswith("__")]


def restore_name(archive_id: str, at_ms: int, topics: Collection[tuple[str, str]], cluster: str) -> str:
    """Return the name of a restore that is given none: another archive, time, cluster, source or target changes it."""
    parts = [archive_id, at_ms, sorted(topics), cluster]
    return f"restore-{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:NAME_DIGITS]}"


def topic_job(restore: str, source: str) -> str:
    """Return the name of the replay job of one topic; raise UsageError for a restore that cannot be called that."""
    check_job_name(restore)
    topic, incarnation = parse_topic_folder(source)
    name = f"{restore}.{topic}-{incarnation}"
    if len(name) <= MOST_NAME:
        return name
    digest = hashlib.sha256(f"{topic}~{incarnation}".encode()).hexdigest()[:HASH_DIGITS]
    name = f"{restore}.{digest}"
    check_job_name(name)
    return name


@stored
class RestoreRecord(Sealed, frozen=True, kw_only=True):
    """The request of a restore; `cluster_id` is the target's, `host` the machine that began it, `begun_at` in ms."""

    file: ClassVar = "restore.json"
    format: str = "blockgz-restore"
    version: int = 1
    name: str
    cluster_id: str | None
    host: str
    begun_at: int
    plan: RestorePlan
    where: str | msgspec.UnsetType = msgspec.UNSET
    """The options of archive, cluster and jobs of the command; records of earlier versions lack it."""

    def command(self, flags: str) -> str:
        """Return the command that continues the restore."""
        where = self.where or "-b HOST:PORT -a ADDRESS"
        return f"replayer restore {flags} --name {self.name} --yes {where}"


class SkippedOffsets(msgspec.Struct, frozen=True):
    """Offsets of a source partition that were passed over at damage; `text` names them for people."""

    partition: Number
    start: Number
    end: Number
    text: str


@stored
class TopicDone(Sealed, frozen=True, kw_only=True):
    """A topic whose records are all there; `verdict` is that of its proof, null without one."""

    file: ClassVar = "topics/{}.json"
    format: str = "blockgz-restore-topic"
    version: int = 1
    source: str
    target: str
    records: Count
    verdict: Verdict | None
    warnings: tuple[str, ...] = ()
    skipped: tuple[SkippedOffsets, ...] | msgspec.UnsetType = msgspec.UNSET
    at: int


@stored
class GroupsDone(Sealed, frozen=True, kw_only=True):
    """The consumer groups that are set; by group, the number of its positions. A later run may add others."""

    file: ClassVar = "groups.json"
    format: str = "blockgz-restore-groups"
    version: int = 1
    groups: dict[str, Count]
    at: int


@stored
class AclsDone(Sealed, frozen=True, kw_only=True):
    """The mark that the ACLs are created; by topic, the number of them."""

    file: ClassVar = "acls.json"
    format: str = "blockgz-restore-acls"
    version: int = 1
    acls: dict[str, Count]
    at: int


@stored
class TopicFollowed(Sealed, frozen=True, kw_only=True):
    """A topic that a standby follows, as it was when that began."""

    file: ClassVar = "followed/{}.json"
    format: str = "blockgz-restore-followed"
    version: int = 1
    topic: TopicToRestore
    at: int


# A topic has all that is archived, or not yet; failed and is tried again; is not followed; or lost its source.
StandState = Literal["following", "behind", "failing", "stopped", "gone"]


class TopicStand(msgspec.Struct, frozen=True):
    """A topic of a standby after a slot; `why` and `do` say what is wrong, `skipped` what was passed over at damage."""

    source: str
    target: str
    state: StandState
    why: str | None = None
    do: str | None = None
    skipped: tuple[str, ...] = ()


@stored
class StandbyReport(Sealed, frozen=True, kw_only=True):
    """The findings of a follower in its last slot, which ended at `slot_at`, in ms; `error` is that of the whole slot.

    `host` is its machine and process; `every` the seconds between its slots.
    """

    file: ClassVar = "standby.json"
    format: str = "blockgz-restore-standby"
    version: int = 1
    state: Literal["following", "ended"]
    host: str
    slot_at: Timestamp
    every: float
    topics: tuple[TopicStand, ...] = ()
    group_notes: tuple[str, ...] = ()
    error: str | None = None


@stored
class SwitchOver(Sealed, frozen=True, kw_only=True):
    """The mark that a standby has ended; `host` is the machine that requested the switch-over."""

    file: ClassVar = "switch-over.json"
    format: str = "blockgz-restore-switch-over"
    version: int = 1
    host: str
    at: int


@stored
class RestoreUndone(Sealed, frozen=True, kw_only=True):
    """The mark that what the restore created was deleted on request; `undone_at` in ms."""

    file: ClassVar = "undone.json"
    format: str = "blockgz-restore-undone"
    version: int = 1
    host: str
    undone_at: int


class RestoreFolder(RecordFolder):
    """One restore's folder in the store of jobs."""

    kind = "restore"

    def __init__(self, store: Store, name: str) -> None:
        """Raise UsageError for a name that no restore can have."""
        check_job_name(name)
        super().__init__(store, name)

    def begin(self, record: RestoreRecord) -> None:
        """Write down what was agreed to; raise ReplayRefused if a restore of that name has begun."""
        if not self.put(record):
            raise self._begun_already()

    def refuse_begun(self) -> None:
        """Raise ReplayRefused if a restore of that name began already."""
        if self.get(RestoreRecord) is not None:
            raise self._begun_already()

    def begun(self) -> RestoreRecord:
        """Return what the restore was begun with; raise UsageError if there is none."""
        found = self.get(RestoreRecord)
        if found is None:
            raise UsageError(
                f"there is no restore {self.name}",
                why=f"{self.address}/restore.json does not exist",
                remedy="see replayer restore ls, check --name and --jobs, or start it without --resume",
            )
        return found

    def followed(self) -> dict[str, TopicToRestore]:
        """Return by source the topics that were followed, in the order in which that began."""
        return {each.topic.source: each.topic for each in sorted(self.all(TopicFollowed), key=lambda each: each.at)}

    def replace(self, record: StandbyReport | GroupsDone) -> None:
        """Replace the last record of its kind; that of another run which writes at the same moment stays."""
        key = self._key(type(record), "")
        found = self._store.get(key)
        self._store.compare_and_swap(key, encode(record), None if found is None else found.etag)

    def _begun_already(self) -> ReplayRefused:
        return ReplayRefused(
            f"restore {self.name} has begun already",
            why=f"{self.address}/restore.json exists",
            remedy="continue it with --resume, or start another one with --name NAME",
        )

"""The folder of a restore, beside those of its jobs: what was agreed to, and what is done. docs/jobs.md specifies it.

Below `{name}/`: `restore.json`, `topics/{job}.json` for each topic that is restored, `groups.json` once groups are set,
`acls.json` once ACLs are created. Each is written once. A warm standby also has `followed/{job}.json` for each topic
that it began to follow, `switch-over.json` once it is told to end, and `standby.json`, which is replaced, with what its
last slot found.
"""

from typing import Literal, TypeVar

import msgspec

from blockgz.archive.damage import Verdict
from blockgz.errors import UsageError
from blockgz.store.writer import Store
from index_format.errors import FormatError
from index_format.objects import Count, Sealed, Timestamp, decode, encode, stored
from replayer.errors import ReplayRefused
from replayer.replay.job import check_job_name
from replayer.restore.document import RestorePlan, TopicToRestore

T = TypeVar("T", bound=msgspec.Struct)


@stored
class RestoreRecord(Sealed, frozen=True, kw_only=True):
    """What a restore was begun with; `cluster_id` is that of its target, `host` who began it, `begun_at` in ms."""

    format: str = "blockgz-restore"
    version: int = 1
    name: str
    cluster_id: str | None
    host: str
    begun_at: int
    plan: RestorePlan


@stored
class TopicDone(Sealed, frozen=True, kw_only=True):
    """A topic whose records are all there; `verdict` is that of its proof, null where none was asked for."""

    format: str = "blockgz-restore-topic"
    version: int = 1
    source: str
    target: str
    records: Count
    verdict: Verdict | None
    warnings: tuple[str, ...] = ()
    at: int


@stored
class GroupsDone(Sealed, frozen=True, kw_only=True):
    """That the consumer groups are set; by group, the number of its positions."""

    format: str = "blockgz-restore-groups"
    version: int = 1
    groups: dict[str, Count]
    at: int


@stored
class AclsDone(Sealed, frozen=True, kw_only=True):
    """That the ACLs are created; by topic, the number of them."""

    format: str = "blockgz-restore-acls"
    version: int = 1
    acls: dict[str, Count]
    at: int


@stored
class TopicFollowed(Sealed, frozen=True, kw_only=True):
    """A topic that a standby follows, as it was when that began."""

    format: str = "blockgz-restore-followed"
    version: int = 1
    topic: TopicToRestore
    at: int


StandState = Literal["following", "behind", "failing", "stopped", "gone"]
"""Of a topic: it had all that was archived; not yet; an error, tried again; it is not followed; its source is gone."""


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
    """What a follower found in its last slot, which ended at `slot_at`, in ms; `error` is that of the whole slot.

    `host` is its machine and process; it looks every so many seconds.
    """

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
    """That a standby is to be followed no more; `host` is who said so."""

    format: str = "blockgz-restore-switch-over"
    version: int = 1
    host: str
    at: int


class RestoreFolder:
    """One restore's folder in the store of jobs; calls block and raise what a store raises."""

    def __init__(self, store: Store, name: str) -> None:
        """Raises UsageError for what no restore can be called."""
        check_job_name(name)
        self._store, self.name = store, name

    def begin(self, record: RestoreRecord) -> None:
        """Writes down what was agreed to; raises ReplayRefused where a restore of that name began already."""
        if not self._store.put_if_absent(f"{self.name}/restore.json", encode(record), record.host):
            raise self._begun_already()

    def refuse_begun(self) -> None:
        """Raises ReplayRefused where a restore of that name began already."""
        if self.record() is not None:
            raise self._begun_already()

    def record(self) -> RestoreRecord | None:
        """What the restore was begun with, None where there is none; raises ReplayRefused for a damaged one."""
        return self._read("restore.json", RestoreRecord)

    def begun(self) -> RestoreRecord:
        """The same; raises UsageError where there is none."""
        found = self.record()
        if found is None:
            raise UsageError(
                f"there is no restore {self.name}",
                why=f"{self._store.url.rstrip('/')}/{self.name}/restore.json does not exist",
                remedy="check --name and --jobs, or start it without --resume",
            )
        return found

    def add_topic(self, job: str, done: TopicDone) -> None:
        """Writes down that a topic is restored; of several times the first one stays."""
        self._store.put_if_absent(f"{self.name}/topics/{job}.json", encode(done), done.source)

    def topic(self, job: str) -> TopicDone | None:
        """That a topic is restored; None where it is not."""
        return self._read(f"topics/{job}.json", TopicDone)

    def add_groups(self, done: GroupsDone) -> None:
        """Writes down that the groups are set."""
        self._store.put_if_absent(f"{self.name}/groups.json", encode(done), self.name)

    def groups(self) -> GroupsDone | None:
        """That the groups are set; None where they are not."""
        return self._read("groups.json", GroupsDone)

    def add_acls(self, done: AclsDone) -> None:
        """Writes down that the ACLs are created."""
        self._store.put_if_absent(f"{self.name}/acls.json", encode(done), self.name)

    def acls(self) -> AclsDone | None:
        """That the ACLs are created; None where they are not."""
        return self._read("acls.json", AclsDone)

    def add_followed(self, job: str, followed: TopicFollowed) -> None:
        """Writes down that a topic is followed, before it is created; of several times the first one stays."""
        self._store.put_if_absent(f"{self.name}/followed/{job}.json", encode(followed), followed.topic.source)

    def followed(self) -> dict[str, TopicToRestore]:
        """By source the topics that were followed, in the order in which that began."""
        prefix = f"{self.name}/followed/"
        names = [each.key.removeprefix(f"{self.name}/") for each in self._store.list(prefix)]
        found = [each for name in names if (each := self._read(name, TopicFollowed)) is not None]
        return {each.topic.source: each.topic for each in sorted(found, key=lambda each: each.at)}

    def report(self, report: StandbyReport) -> None:
        """Replaces the last report; that of another follower who reports at the same moment stays."""
        key = f"{self.name}/standby.json"
        found = self._store.get(key)
        self._store.compare_and_swap(key, encode(report), None if found is None else found.etag)

    def reported(self) -> StandbyReport | None:
        """The last report, None before the first."""
        return self._read("standby.json", StandbyReport)

    def switch_over(self, told: SwitchOver) -> None:
        """Tells whoever follows to end; of several times the first one stays."""
        self._store.put_if_absent(f"{self.name}/switch-over.json", encode(told), told.host)

    def switched_over(self) -> SwitchOver | None:
        """Who told it, None where nobody did."""
        return self._read("switch-over.json", SwitchOver)

    def _begun_already(self) -> ReplayRefused:
        return ReplayRefused(
            f"restore {self.name} has begun already",
            why=f"{self._store.url.rstrip('/')}/{self.name}/restore.json exists",
            remedy="continue it with --resume, or start another one with --name NAME",
        )

    def remove(self) -> None:
        """Deletes the folder; those of the jobs stay."""
        for found in list(self._store.list(f"{self.name}/")):
            self._store.delete(found.key)

    def _read(self, name: str, kind: type[T]) -> T | None:
        key = f"{self.name}/{name}"
        found = self._store.get(key)
        if found is None:
            return None
        try:
            return decode(found.body, kind, key)
        except FormatError as error:
            raise ReplayRefused(
                f"the folder of restore {self.name} cannot be read",
                why=f"{error.what}: {error.why}",
                remedy="restore the object, or start another one with --name NAME",
            ) from error

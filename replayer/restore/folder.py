"""The folder of a restore, next to those of its jobs: its plan, and what is done. docs/jobs.md specifies it.

Below `{name}/`: `restore.json`, `topics/{job}.json` for each topic that is restored, `groups.json` once groups are set,
`acls.json` once ACLs are created. Each is written once. A warm standby also has `followed/{job}.json` for each topic
that it began to follow, `switch-over.json` once a switch-over is requested, and `standby.json`, which is replaced, with
what its last slot found.
"""

from typing import ClassVar, Literal

import msgspec

from blockgz.errors import UsageError, Verdict
from blockgz.store.writer import Store
from index_format.objects import Count, Sealed, Timestamp, encode, stored
from replayer.errors import ReplayRefused
from replayer.replay.job import check_job_name
from replayer.replay.jobs.folder import RecordFolder
from replayer.restore.document import RestorePlan, TopicToRestore


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
    at: int


@stored
class GroupsDone(Sealed, frozen=True, kw_only=True):
    """The mark that the consumer groups are set; by group, the number of its positions."""

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


StandState = Literal["following", "behind", "failing", "stopped", "gone"]
"""A topic has all that is archived, or not yet; failed and is tried again; is not followed; or lost its source."""


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


class RestoreFolder(RecordFolder):
    """One restore's folder in the store of jobs."""

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
                remedy="check --name and --jobs, or start it without --resume",
            )
        return found

    def followed(self) -> dict[str, TopicToRestore]:
        """Return by source the topics that were followed, in the order in which that began."""
        prefix = f"{self.name}/followed/"
        names = [each.key.removeprefix(prefix).removesuffix(".json") for each in self._store.list(prefix)]
        found = [each for name in names if (each := self.get(TopicFollowed, name)) is not None]
        return {each.topic.source: each.topic for each in sorted(found, key=lambda each: each.at)}

    def report(self, report: StandbyReport) -> None:
        """Replace the last report; that of another follower who reports at the same moment stays."""
        key = f"{self.name}/standby.json"
        found = self._store.get(key)
        self._store.compare_and_swap(key, encode(report), None if found is None else found.etag)

    def _begun_already(self) -> ReplayRefused:
        return ReplayRefused(
            f"restore {self.name} has begun already",
            why=f"{self.address}/restore.json exists",
            remedy="continue it with --resume, or start another one with --name NAME",
        )

    def remove(self) -> None:
        """Delete the folder; those of the jobs stay."""
        for found in list(self._store.list(f"{self.name}/")):
            self._store.delete(found.key)

    def _unreadable(self, why: str) -> ReplayRefused:
        return ReplayRefused(
            f"the folder of restore {self.name} cannot be read",
            why=why,
            remedy="restore the object, or start another one with --name NAME",
        )

"""The folder of a restore, beside those of its jobs: what was agreed to, and what is done. docs/jobs.md specifies it.

Below `{name}/`: `restore.json`, `topics/{job}.json` for each topic that is restored, `groups.json` once groups are set,
`acls.json` once ACLs are created. Each is written once.
"""

from typing import TypeVar

import msgspec

from blockgz_runtime.errors import UsageError
from blockgz_runtime.store.writer import Store
from index_format.errors import FormatError
from index_format.objects import Count, Sealed, decode, encode, stored
from replayer.errors import ReplayRefused
from replayer.replay.job import check_job_name
from replayer.restore.document import RestorePlan

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
    verdict: str | None
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

"""The surroundings of a replay: the archive, the cluster, and the folders of jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import Budget
from blockgz.store.writer import Store
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.replay.pace import PATIENCE_SECONDS, Slowest


@dataclass(frozen=True)
class Surroundings:
    """The stores and clients of replays; pace, patience and budget are those of all topics of a restore together.

    `properties` are librdkafka's, `jobs` holds the folders of jobs and of restores.
    """

    archive: ArchiveReader
    properties: Mapping[str, str]
    jobs: Store
    pace: Slowest = field(default_factory=Slowest)
    patience: float = PATIENCE_SECONDS
    budget: Budget = field(default_factory=Budget)
    """The budget for finding the cuts of all topics."""

    # Made late: a client asks for tokens at once, and what the archive alone can refuse must come before that.
    @cached_property
    def admin(self) -> KafkaAdmin:
        """Return the client of the cluster, made at the first call, which blocks. Raise as KafkaAdmin does."""
        return KafkaAdmin(self.properties)

    @cached_property
    def changes(self) -> TopicChanges:
        """Return the client for changes, made at the first call."""
        return TopicChanges(self.properties)

    def refresh_admin(self) -> KafkaAdmin:
        """Return the client of the cluster with the current topics; it blocks. Raise as KafkaAdmin does."""
        return self.admin.again() if "admin" in vars(self) else self.admin

    def refreshed(self) -> "Surroundings":
        """Return a copy whose client of the cluster has the current topics; it blocks."""
        same = self.reading(self.archive)
        vars(same)["admin"] = self.refresh_admin()
        return same

    def reading(self, archive: ArchiveReader) -> "Surroundings":
        """Return a copy with another view of the archive; it keeps the clients that were made."""
        same = replace(self, archive=archive)
        vars(same).update({name: made for name, made in vars(self).items() if name in ("admin", "changes")})
        return same

"""Who an archive and a topic folder belong to, and what the topic was like (FORMAT.md, "Objects")."""

from typing import Annotated

import msgspec

from index_format import objects
from index_format.acls import Acl
from index_format.objects import Count, Name, Sealed, Timestamp, Word

FORMER_GROUP = "blockgz-archiver"
"""The group of archives that name none."""

Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
"""The first digits of a key's SHA-256."""


@objects.stored
class ArchiveInfo(Sealed, frozen=True, kw_only=True):
    """`_archive.json`, write-once: one cluster an archive; null where the broker did not tell its id."""

    format: str = "block-gzip-archive"
    version: int = objects.VERSION
    archive_id: Name
    cluster_id: str | None
    layout: Word
    group_id: Name | msgspec.UnsetType | None = msgspec.UNSET
    """The consumer group of its writers; archives of earlier writers do not name it."""
    inventory: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether there is an `_inventory.json`, whose absence is a loss; archives of earlier writers do not say so."""

    customer_key: Fingerprint | msgspec.UnsetType = msgspec.UNSET
    """Of the key that S3 encrypts all other objects with (SSE-C), in archives that have one."""

    def group(self, chosen: str | None = None) -> str:
        """The consumer group in force: the one that was chosen, or the archive's own."""
        return chosen or self.group_id or FORMER_GROUP


@objects.stored
class TopicInfo(Sealed, frozen=True, kw_only=True):
    """`_topic.json`, write-once: which topic id lives in this folder; null where the broker did not tell it."""

    format: str = "block-gzip-topic"
    version: int = objects.VERSION
    topic: Name
    topic_id: str | None
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


@objects.stored
class TopicConfig(Sealed, frozen=True, kw_only=True):
    """`_topic_config.json`: the topic as last seen, to make it again; null where the broker did not tell.

    `_configs/` has a copy of each version, dated.
    """

    format: str = "block-gzip-topic-config"
    version: int = objects.VERSION
    topic: Name
    topic_id: str | None
    partitions: Count
    replication_factor: Count | None
    config: dict[str, str] | None
    """What was set for the topic itself."""
    defaults: dict[str, str] | None
    """What is in effect beyond that: the cluster's and Kafka's own defaults."""
    acls: tuple[Acl, ...] | msgspec.UnsetType = msgspec.UNSET
    """Those that concern the topic, in order; not there where the broker did not tell, and of earlier writers."""
    seen_at: Timestamp | msgspec.UnsetType = msgspec.UNSET
    """When it was first seen like that, in ms; in the copies below `_configs/`."""

"""Who an archive and a topic folder belong to: write-once objects (FORMAT.md, "Objects")."""

from typing import Annotated

import msgspec

from . import objects
from .objects import Name, Word


class ArchiveInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`_archive.json`: one cluster an archive; null where the broker did not tell its id."""

    format: str = "block-gzip-archive"
    version: int = objects.VERSION
    archive_id: Name
    cluster_id: str | None
    layout: Word


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`_topic.json`: which topic id lives in this folder; null where the broker did not tell it."""

    format: str = "block-gzip-topic"
    version: int = objects.VERSION
    topic: Name
    topic_id: str | None
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]

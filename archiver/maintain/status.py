"""How far an archive is: told by its markers alone, and set against the cluster where one is given."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import replace

from archiver.commit.archive import archive_info, claimed_partitions, layout_of
from archiver.ingest.kafka_cluster import LogView
from archiver.ingest.kafka_source import Partition
from archiver.maintain.planned import check_names
from blockgz.store.writer import StoredObject, ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format import marker as markers
from index_format.errors import BlockgzError
from index_format.keys import (
    ARCHIVE_OBJECT,
    PartitionKeys,
    TopicFolder,
    archive_key,
    partition_folders,
    topic_folders,
    topic_home,
)

REQUESTS_AT_ONCE = 16
MISSING = "it was archived once, but all of it is gone"


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of the archive. Offsets are null until the first commit, nearly all where the marker is damaged."""

    topic: str
    incarnation: int
    partition: int
    epoch: int | None = None
    writer: str | None = None
    group_id: str | None = None
    start_offset: int | None = None
    next_offset: int | None = None
    records: int = 0
    chunks: int = 0
    bytes: int = 0
    """Of the chunks' data, as stored."""
    gaps: int = 0
    """Those that the marker lists; of more than 256 older ones fold into catalogs."""
    pruned_before: int = 0
    """Below it nothing is archived any more."""
    rewriting: str | None = None
    """The kind of the rewrite under way: prune, merge, convert or erase."""
    retired: int = 0
    """Rewrites whose replaced objects are kept for readers until their grace is over."""
    retired_chunks: int = 0
    """Of what these replaced, at most; what stayed in place counts too."""
    retired_bytes: int = 0
    """The same, of these chunks' data as stored."""
    newest_ms: int | None = None
    """The highest timestamp in the newest chunk."""
    successor: str | None = None
    """The incarnation that came after: nothing more is archived here."""
    high_watermark: int | None = None
    lag: int | None = None
    """Offsets from next_offset to the high watermark; null where no cluster told it."""
    unstable: int | None = None
    """Offsets from the last stable one to the high watermark: open transactions hold them back."""
    error: str | None = None

    @property
    def folder(self) -> TopicFolder:
        return TopicFolder(self.topic, self.incarnation)

    @property
    def is_current(self) -> bool:
        """Whether the partition is still archived, as far as its marker tells."""
        return self.successor is None and self.error is None


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An archive and its partitions, in order."""

    archive: str
    archive_id: str
    cluster_id: str | None
    layout: str
    partitions: tuple[PartitionStatus, ...]


def read_status(store: ToolStore, selection: TopicSelection | None) -> ArchiveStatus:
    """The selected topics' partitions, or all; a damaged marker is an error of its partition.

    Raises NoArchiveThere, NotInArchive for a topic that is named in full and missing, and the store's errors.
    """
    layout = layout_of(store)
    info = archive_info(store, layout)
    claimed = claimed_partitions(store, layout)
    folders = topic_folders(store.folders(archive_key(layout).removesuffix(ARCHIVE_OBJECT)))
    if selection is not None:
        topics = {folder.topic for folder in (*folders, *claimed)}
        check_names(selection, topics, store.url)
        selected = set(selection(topics))
        folders = [folder for folder in folders if folder.topic in selected]
        claimed = {folder: numbers for folder, numbers in claimed.items() if folder.topic in selected}
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="status") as pool:

        def partitions_of(folder: TopicFolder) -> list[PartitionKeys]:
            return partition_folders(layout, folder, store.folders(topic_home(layout, folder)))

        keys = [each for found in pool.map(partitions_of, folders) for each in found]
        stored = pool.map(lambda each: store.get(each.marker), keys)
        partitions = [partition_status(each, found) for each, found in zip(keys, stored, strict=True)]
    held = {(each.folder, each.partition) for each in keys}
    partitions += [
        PartitionStatus(topic=folder.topic, incarnation=folder.incarnation, partition=number, error=MISSING)
        for folder, numbers in claimed.items()
        for number in numbers
        if (folder, number) not in held
    ]
    return ArchiveStatus(
        archive=store.url,
        archive_id=info.archive_id,
        cluster_id=info.cluster_id,
        layout=layout,
        partitions=tuple(sorted(partitions, key=lambda each: (each.folder, each.partition))),
    )


def partition_status(keys: PartitionKeys, stored: StoredObject | None) -> PartitionStatus:
    topic, incarnation = keys.folder
    status = PartitionStatus(topic=topic, incarnation=incarnation, partition=keys.partition)
    if stored is None:
        return replace(status, error="there is no marker")
    try:
        marker = markers.decode_marker(stored.body, keys.marker)
    except BlockgzError as error:
        return replace(status, error=f"{error.what}: {error.why}")
    rewriting = marker.maintenance.rewriting if marker.maintenance else None
    return replace(
        status,
        epoch=marker.epoch,
        writer=marker.writer,
        group_id=marker.group_id,
        start_offset=marker.start_offset,
        next_offset=marker.next_offset,
        gaps=len(marker.gaps),
        records=marker.num_records,
        chunks=marker.num_chunks,
        bytes=marker.num_bytes,
        pruned_before=marker.pruned_before,
        rewriting=rewriting.kind if rewriting else None,
        retired=len(marker.retired),
        retired_chunks=sum(each.num_chunks for each in marker.retired),
        retired_bytes=sum(each.num_bytes for each in marker.retired),
        newest_ms=marker.newest_timestamp,
        successor=marker.successor,
    )


def with_lag(
    status: ArchiveStatus, ask: Callable[[Collection[Partition]], Mapping[Partition, LogView]]
) -> ArchiveStatus:
    """The same with the high watermarks of the partitions that are still archived.

    `ask` tells where logs end, up to the last stable offset.
    """
    current = [(each.topic, each.partition) for each in status.partitions if each.is_current]
    ends = ask(current)

    def measured(each: PartitionStatus) -> PartitionStatus:
        known = ends.get((each.topic, each.partition)) if each.is_current else None
        if known is None or known.bounds is None or known.high_watermark is None:
            return each
        high, start = known.high_watermark, known.bounds.low if each.next_offset is None else each.next_offset
        return replace(each, high_watermark=high, lag=max(0, high - start), unstable=max(0, high - known.bounds.high))

    return replace(status, partitions=tuple(measured(each) for each in status.partitions))

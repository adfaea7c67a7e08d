"""Read the progress of an archive from its markers, and compare it with the cluster if one is given."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import replace

from archiver.commit.archive import archive_info, claimed_partitions, layout_of
from archiver.ingest.kafka_cluster import LogView
from archiver.ingest.kafka_source import Partition
from archiver.maintain.planned import archived_partitions
from blockgz.errors import BlockgzError, marker_remedy
from blockgz.store.writer import StoredObject, ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format import marker as markers
from index_format.keys import PartitionKeys, TopicFolder, partition_folders, topic_home

REQUESTS_AT_ONCE = 16
MISSING = "it was archived once, but all of it is gone"


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a partition; offsets are null until the first commit, most fields if the marker is damaged."""

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
    """Bytes of the chunks' data, as stored."""
    gaps: int = 0
    """Gaps in the marker; if there are more than 256, older ones are in catalogs."""
    pruned_before: int = 0
    """The floor: nothing is archived below it."""
    rewriting: str | None = None
    """The kind of the rewrite in progress: prune, merge, convert or erase."""
    retired: int = 0
    """Rewrites whose replaced objects are kept for readers until their grace is over."""
    retired_chunks: int = 0
    """Chunks of the catalogs that these replaced, including chunks that stayed."""
    retired_bytes: int = 0
    """Bytes of these chunks' data, as stored."""
    newest_ms: int | None = None
    """The highest timestamp in the newest chunk."""
    successor: str | None = None
    """The next incarnation: nothing more is archived here."""
    high_watermark: int | None = None
    lag: int | None = None
    """Offsets from next_offset to the high watermark; null if no cluster is known."""
    unstable: int | None = None
    """Offsets from the last stable one to the high watermark: open transactions hold them back."""
    error: str | None = None

    @property
    def folder(self) -> TopicFolder:
        return TopicFolder(self.topic, self.incarnation)

    @property
    def is_current(self) -> bool:
        """True if the partition is still archived, as far as its marker shows."""
        return self.successor is None and self.error is None


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An archive and its partitions, in order."""

    archive: str
    archive_id: str
    cluster_id: str | None
    layout: str
    partitions: tuple[PartitionStatus, ...]


def read_status(store: ToolStore, selection: TopicSelection | None) -> ArchiveStatus:
    """Return the status of the selected topics' partitions, or all; a damaged marker is an error of its partition."""
    layout = layout_of(store)
    info = archive_info(store, layout)
    keys = archived_partitions(store, selection)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="status") as pool:
        stored = pool.map(lambda each: store.get(each.marker), keys)
        partitions = [partition_status(store, each, found) for each, found in zip(keys, stored, strict=True)]
    return ArchiveStatus(
        archive=store.url,
        archive_id=info.archive_id,
        cluster_id=info.cluster_id,
        layout=layout,
        partitions=tuple(partitions),
    )


def partition_status(store: ToolStore, keys: PartitionKeys, stored: StoredObject | None) -> PartitionStatus:
    """Return what the stored marker of a partition shows."""
    topic, incarnation = keys.folder
    status = PartitionStatus(topic=topic, incarnation=incarnation, partition=keys.partition)
    if stored is None:
        layout, folder, number = keys.layout, keys.folder, keys.partition
        stored_here = partition_folders(layout, folder, store.folders(topic_home(layout, folder)))
        is_claimed = number in claimed_partitions(store, layout).get(folder, ())
        is_gone = is_claimed and number not in {each.partition for each in stored_here}
        return replace(status, error=MISSING if is_gone else f"there is no marker; {marker_remedy(keys)}")
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
    """Return the status with the high watermarks of the partitions that are still archived.

    `ask` returns the ends of logs, up to the last stable offset.
    """
    current = [(each.topic, each.partition) for each in status.partitions if each.is_current]
    ends = ask(current)

    def measured(each: PartitionStatus) -> PartitionStatus:
        known = ends.get((each.topic, each.partition)) if each.is_current else None
        if known is None or known.bounds is None or known.high_watermark is None:
            return each
        high, start = known.high_watermark, known.bounds.low if each.next_offset is None else each.next_offset
        return replace(each, high_watermark=high, lag=max(0, high - start), unstable=max(0, high - known.bounds.end))

    return replace(status, partitions=tuple(measured(each) for each in status.partitions))

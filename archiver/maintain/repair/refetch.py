"""Records of a lost block, read from Kafka again, if the log still has exactly these."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from archiver.commit.archive import archive_info
from archiver.errors import RefetchRefused
from archiver.ingest.kafka_cluster import KafkaCluster, read_records
from archiver.ingest.kafka_source import CLIENT_ID
from archiver.maintain.repair.diverged import READS_FOR_REPAIR
from archiver.maintain.rewrite.chunks import OffsetRanges, OldChunk
from blockgz.errors import UsageError
from blockgz.kafka.connection import client_settings
from blockgz.store.writer import Store
from index_format.blocks import BlockBuilder, RawBlock
from index_format.key_filter import bits_of
from index_format.keys import PartitionKeys, is_rewritten
from index_format.marker import Marker
from index_format.objects import BlockEntry, ChunkIndex
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS

# Bytes of a new block where the lost index does not say how the chunk was cut.
BLOCK_BYTES = 1 << 20
WHOLE_BLOCK_BYTES = 2**62

# Yield the records of a topic's partition at offsets [start, end) under an isolation level, as far as there are any.
ReadLog = Callable[[str, int, str, int, int], Iterator[pa.RecordBatch]]


class RefetchSource(NamedTuple):
    """The cluster, as lost records are read from it."""

    cluster_id: Callable[[], str | None]
    topic_id: Callable[[str], str | None]
    """None if the cluster has no such topic, or does not report its id."""
    read: ReadLog


class NotTheSame(Exception):
    """The log no longer has what the block held; the argument says why."""


class RefetchLog:
    """The log of one partition, if it is the one that was archived."""

    def __init__(self, store: Store, keys: PartitionKeys, marker: Marker, source: RefetchSource) -> None:
        """Raise RefetchRefused for another cluster, or if it is unknown whether it is the same.

        `is_same_topic` is False if the topic is gone, or was created again.
        """
        archived, found = archive_info(store, keys.layout).cluster_id, source.cluster_id()
        if archived is None or archived != found:
            raise RefetchRefused(
                f"{keys} cannot be compared with Kafka",
                why=f"the archive is of cluster {archived or 'unknown'}, this one is {found or 'unknown'}",
                remedy="give -b of the cluster that was archived",
            )
        self._keys, self._read = keys, source.read
        topic_id = source.topic_id(keys.folder.topic)
        self.is_same_topic = topic_id is not None and topic_id == marker.topic_id
        # The topic's log may have lost these offsets, and hold others there.
        self._is_closed = marker.successor is not None
        self._is_encrypted = bool(marker.tail_key)

    def blocks(self, chunk: OldChunk, number: int, *, has_index: bool) -> Iterator[RawBlock]:
        """Yield a block as it was, or the blocks of a whole chunk without an index.

        Raises NotTheSame after the last one if they do not hold what the block's entry says.
        """
        index, entry = chunk.index, chunk.index.blocks[number]
        if not self.is_same_topic:
            raise NotTheSame("Kafka has no such topic any longer, or another one of that name")
        is_proved = is_provable(index, has_index=has_index)
        if self._is_closed and not is_proved:
            raise NotTheSame("the log was truncated, and nothing proves that it holds the same records again")
        if not has_index and is_rewritten(chunk.entry.name):
            raise NotTheSame("without its index, it is unknown which records Kafka must not bring back")
        if not has_index and self._is_encrypted and not index.encryption:
            raise NotTheSame("no index of a neighbour says how it was encrypted")
        builder = BlockBuilder(
            record_format(index.record_format),
            TIMESTAMP_TYPE_IDS[index.timestamp_type],
            WHOLE_BLOCK_BYTES if has_index else BLOCK_BYTES,
            bits_of(entry.key_filter),
        )
        made = list[BlockEntry]()
        crc32 = entry.crc32 if is_proved else None
        for raw in self._encoded(builder, index, entry):
            made.append(raw.entry(0, 1))
            yield raw
        if not made or facts(made) != facts([entry]):
            raise NotTheSame("compaction or retention has removed records, or the log holds others")
        if crc32 is not None and [each.crc32 for each in made] != [crc32]:
            raise NotTheSame("the log holds other records at these offsets")

    def _encoded(self, builder: BlockBuilder, index: ChunkIndex, entry: BlockEntry) -> Iterator[RawBlock]:
        erased = OffsetRanges(index.erased or ())
        start, end = entry.first_record_offset, entry.last_record_offset + 1
        for batch in self._read(self._keys.folder.topic, self._keys.partition, index.isolation_level, start, end):
            mask = erased.mask(batch.column("offset").to_numpy())
            yield from builder.add(batch.filter(pa.array(~mask)))
        if (last := builder.finish()) is not None:
            yield last


def is_provable(index: ChunkIndex, *, has_index: bool) -> bool:
    """Return whether the checksum in the index is that of the bytes that the same records give."""
    # Arrow's own bytes may differ from release to release.
    return has_index and not index.encryption and index.record_format != "arrow"


def facts(blocks: list[BlockEntry]) -> tuple[int, ...]:
    """Return the number of records of blocks, and the bounds of their offsets and timestamps."""
    return (
        sum(each.num_records for each in blocks),
        *(blocks[0].first_record_offset, blocks[-1].last_record_offset),
        *(min(each.min_timestamp for each in blocks), max(each.max_timestamp for each in blocks)),
    )


@contextmanager
def refetch_source(kafka: Mapping[str, str]) -> Iterator[RefetchSource]:
    """Open the cluster that librdkafka's settings name; raises UsageError if they name none."""
    if "bootstrap.servers" not in kafka:
        raise UsageError("no cluster is given", why="the partition's log must be read", remedy="give -b HOST:PORT")
    settings = client_settings(kafka, CLIENT_ID)

    @cache
    def cluster() -> KafkaCluster:
        return KafkaCluster(settings)

    def cluster_id() -> str | None:
        cluster().topics()  # raises if no broker answers or none lets this user in
        return cluster().cluster_id()

    def read(topic: str, partition: int, level: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return read_records(settings | READS_FOR_REPAIR | {"isolation.level": level}, (topic, partition), start, end)

    yield RefetchSource(cluster_id, lambda topic: cluster().topic_ids([topic]).ids.get(topic), read)

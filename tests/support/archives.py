"""Writes archives straight into a directory, with nothing but the format: what a committed chain looks like."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from index_format import objects
from index_format.blocks import IsalCompressor
from index_format.keys import (
    INDEX_SUFFIX,
    LAYOUTS,
    TOPIC_CONFIG_OBJECT,
    ChunkStart,
    Conflict,
    PartitionKeys,
    TopicFolder,
    archive_key,
    data_suffix,
    inventory_key,
    topic_home,
)
from index_format.marker import Continues, Marker, advanced, appended, claimed, encode, entry_of, folded
from index_format.objects import (
    Acl,
    ArchiveInfo,
    BlockEntry,
    ChunkIndex,
    Gap,
    Incarnation,
    Inventory,
    TopicConfig,
    TopicInfo,
    ancestor_index,
    united,
)
from index_format.records import TIMESTAMP_TYPES, Record, record_hash
from tests.support.format_objects import chunk_entry, cut, index_of, marker_of

ARCHIVE_ID = "archive-1"
CREATE_TIME = 0
CLAIMED_MS = 1_760_000_000_000
COMPRESSOR = IsalCompressor(1)


def records(offsets: Iterable[int], *, timestamps: Sequence[int] | None = None, value_bytes: int = 20) -> list[Record]:
    """Records at those offsets: lifelike, with a null key here and a null value there."""
    made = []
    for row, offset in enumerate(offsets):
        timestamp = 1_760_000_000_000 + offset if timestamps is None else timestamps[row]
        value = None if offset % 7 == 3 else (f"value of {offset} " + "x" * value_bytes).encode()
        headers = (("h", b"v"), ("h", None)) if offset % 5 == 0 else ()
        made.append(Record(offset, timestamp, CREATE_TIME, None if offset % 3 == 0 else b"%d" % offset, value, headers))
    return made


@dataclass
class ArchiveWriter:
    """One archive in a directory."""

    root: Path
    layout: str = "topic"
    topics: set[TopicFolder] = field(default_factory=set)
    has_inventory: bool = True
    inventory: Inventory = field(default_factory=Inventory)
    customer_key: str | None = None

    def __post_init__(self) -> None:
        info = ArchiveInfo(archive_id=ARCHIVE_ID, cluster_id=None, layout=self.layout)
        if self.customer_key is not None:
            info = replace(info, customer_key=self.customer_key)
        self.put(
            archive_key(self.layout), objects.encode(replace(info, inventory=True) if self.has_inventory else info)
        )
        self._list_claims()

    def _list_claims(self, *claims: Incarnation) -> None:
        if self.has_inventory:
            self.inventory = united(self.inventory, claims)
            self.put(inventory_key(self.layout), objects.encode(self.inventory))

    def put(self, key: str, body: bytes) -> None:
        """Stores an object; who reads meanwhile finds it whole or not at all."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.root / f".{path.name}.unfinished"
        unfinished.write_bytes(body)
        unfinished.replace(path)

    def stored(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def remove(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def partition(
        self, topic: str, partition: int, *, incarnation: int = 1, record_format: str = "json"
    ) -> "PartitionWriter":
        folder = TopicFolder(topic, incarnation)
        if folder not in self.topics:
            self.topics.add(folder)
            info = TopicInfo(topic=topic, topic_id=f"id-{incarnation}", incarnation=incarnation)
            self.put(topic_home(self.layout, folder) + "_topic.json", objects.encode(info))
        writer = PartitionWriter(self, LAYOUTS[self.layout](folder, partition), record_format)
        writer.store_marker()
        self._list_claims(Incarnation(topic, incarnation, f"id-{incarnation}", CLAIMED_MS, None, (partition,)))
        return writer


@dataclass
class MemoryArchiveWriter(ArchiveWriter):
    """The same in memory."""

    root: Path = Path()
    objects: dict[str, bytes] = field(default_factory=dict)

    def put(self, key: str, body: bytes) -> None:
        self.objects[key] = body

    def stored(self, key: str) -> bytes:
        return self.objects[key]

    def remove(self, key: str) -> None:
        self.objects.pop(key, None)


def topic_config(
    topic: str,
    partitions: int,
    config: dict[str, str] | None,
    defaults: dict[str, str] | None,
    *,
    topic_id: str | None = None,
    acls: tuple[Acl, ...] | UnsetType = UNSET,
) -> TopicConfig:
    """A topic as a cluster describes it, each partition on one broker."""
    return TopicConfig(
        topic=topic,
        topic_id=topic_id,
        partitions=partitions,
        replication_factor=1,
        config=config,
        defaults=defaults,
        acls=acls,
    )


def put_topic_config(
    archive: ArchiveWriter, topic: str, partitions: int, config: dict[str, str], incarnation: int = 1
) -> None:
    """Stores what a topic was like, with no default of its cluster."""
    seen = topic_config(topic, partitions, config, {}, topic_id=f"id-{incarnation}")
    home = topic_home(archive.layout, TopicFolder(topic, incarnation))
    archive.put(home + TOPIC_CONFIG_OBJECT, objects.encode(seen))


@dataclass
class PartitionWriter:
    """Commits chunks to one partition."""

    archive: ArchiveWriter
    keys: PartitionKeys
    record_format: str
    marker: Marker = field(init=False)
    records: list[Record] = field(default_factory=list)
    """Everything committed so far."""
    indexes: list[ChunkIndex] = field(default_factory=list)
    key_filter_bits: int | None = None

    def __post_init__(self) -> None:
        folder = self.keys.folder
        topic = {"topic": folder.topic, "topic_id": f"id-{folder.incarnation}", "partition": self.keys.partition}
        self.marker = marker_of(**topic, nonce="nonce-1")

    def store_marker(self) -> None:
        """Stores the marker as it is."""
        self.archive.put(self.keys.marker, encode(self.marker))

    def commit(
        self,
        chunk: Sequence[Record],
        *,
        next_offset: int | None = None,
        block_bytes: int = 200,
        gaps: Sequence[Gap] = (),
        conflict: Conflict | None = None,
    ) -> ChunkIndex:
        """Writes a chunk as the archiver would: data, index, catalogs, marker."""
        self.marker, pending = folded(self.marker)
        for catalog in pending:
            self.archive.put(self.keys.home + catalog.reference.name, catalog.body)
        before = self.marker.gaps[-1:] if self.marker.spans or self.marker.gaps else ()
        recorded = [gap for gap in before if gap.end == self.marker.chain_end and gap.end > self._last_end()]
        position = self.marker.chain_end if self.marker.chain_end is not None else chunk[0].offset
        index, data = self._chunk(chunk, position, next_offset or chunk[-1].offset + 1, (*recorded, *gaps), block_bytes)
        start = ChunkStart(position, chunk[0].offset, chunk[0].timestamp)
        suffix = data_suffix(self.record_format, "gzip")
        name = self.keys.data_name(start, suffix, conflict)
        index = replace(index, data=replace(index.data, name=name))
        self.archive.put(self.keys.chunks + name, data)
        body = objects.encode(index)
        index_name = self.keys.index_name(start, conflict)
        self.archive.put(self.keys.chunks + index_name, body)
        if self.keys.layout == "seed":
            ancestors = name.removesuffix(".gz") + INDEX_SUFFIX
            self.archive.put(self.keys.chunks + ancestors, ancestor_index(index.blocks))
            self.archive.put(self.keys.ancestor_marker, ancestors.encode())
        self.marker = appended(
            self.marker,
            entry_of(index, index_name, body),
            gaps,
            nonce=f"nonce-{index.next_offset}",
            leader_epoch=0,
            tail_hash=record_hash(chunk[-1]),
        )
        self.records += chunk
        self.indexes.append(index)
        self.store_marker()
        return index

    def pretend(self, offsets: Iterable[int]) -> None:
        """Commits a chunk of one record for each offset to the chain alone: index and data are never written."""
        for offset in offsets:
            self.marker, pending = folded(self.marker)
            for catalog in pending:
                self.archive.put(self.keys.home + catalog.reference.name, catalog.body)
            name = self.keys.index_name(ChunkStart(offset, offset, offset))
            fields = {"raw_bytes": 100, "max_timestamp": offset, "sha256": "0" * 64}
            entry = chunk_entry(offset, offset + 1, name=name, **fields)
            self.marker = appended(self.marker, entry, (), nonce=f"nonce-{offset}", leader_epoch=0, tail_hash="0" * 64)
        self.store_marker()

    def lose(self, end: int, reason: str = "retention") -> None:
        """Records a gap from next_offset to `end`, as a claim does that finds records gone."""
        assert self.marker.next_offset is not None
        gap = Gap(self.marker.next_offset, end, reason)
        level = self.marker.isolation_level
        self.marker = claimed(
            self.marker, writer="writer-2", nonce=f"claim-{end}", group_id="blockgz", isolation_level=level, gap=gap
        )
        self.store_marker()

    def advance(self, next_offset: int) -> None:
        """Progress without records."""
        self.marker = advanced(self.marker, next_offset, nonce=f"advance-{next_offset}", leader_epoch=0)
        self.store_marker()

    def hand_over(self, successor: str) -> None:
        """The last swap of an old incarnation's marker."""
        self.marker = replace(self.marker, successor=successor)
        self.store_marker()

    def truncated(self, offset: int) -> "PartitionWriter":
        """A writer of the next folder, where the partition goes on from `offset`, its log having been truncated."""
        number = self.keys.folder.incarnation + 1
        newer = self.archive.partition(self.keys.folder.topic, self.keys.partition, incarnation=number)
        folder, topic_id = newer.keys.folder, self.marker.topic_id
        info = TopicInfo(topic=folder.topic, topic_id=topic_id, incarnation=number)
        self.archive.put(topic_home(self.keys.layout, folder) + "_topic.json", objects.encode(info))
        newer.marker = replace(
            newer.marker,
            topic_id=topic_id,
            continues=Continues(str(self.keys.folder), offset),
            start_offset=offset,
            next_offset=offset,
        )
        newer.store_marker()
        self.hand_over(str(newer.keys.folder))
        return newer

    def _last_end(self) -> int:
        spans = self.marker.spans
        return spans[-1].next_offset if spans else 0

    def _chunk(
        self, chunk: Sequence[Record], position: int, next_offset: int, gaps: Sequence[Gap], block_bytes: int
    ) -> tuple[ChunkIndex, bytes]:
        blocks: list[BlockEntry] = []
        data = b""
        for block in cut(chunk, self.record_format, block_bytes, filter_bits=self.key_filter_bits):
            member = COMPRESSOR.compress(block.raw)
            blocks.append(block.entry(len(data), len(member)))
            data += member
        fields = {"topic": self.keys.folder.topic, "topic_id": self.marker.topic_id, "partition": self.keys.partition}
        fields |= {"epoch": self.marker.epoch, "record_format": self.record_format, "gaps": tuple(gaps)}
        fields |= {"start_offset": position, "next_offset": next_offset, "previous": self.marker.last_chunk_index}
        # A line has a type of its own only if it differs from the index's.
        fields |= {"timestamp_type": TIMESTAMP_TYPES[chunk[0].timestamp_type] if chunk else "CreateTime"}
        return index_of(blocks, data, **fields), data

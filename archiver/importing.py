"""Turning an old archive into a current one, partition by partition, through the same commits as the archiver's."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from archiver.commit.archive import find_incarnation, open_archive
from archiver.commit.commit import Held, PartitionIdentity, commit_chunk, commit_progress
from archiver.commit.operations import BackOff, Driver
from archiver.commit.recovery import Claimed, ClaimList, TakeoverPolicy, take_over
from archiver.ingest.chunk_builder import BufferFolder, ChunkBuilder, ChunkSettings, RollLimits, is_due
from blockgz.errors import BlockgzError, NoArchiveThere, NotInArchive, UsageError
from blockgz.kafka import LogBounds
from blockgz.store.probe import probe
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format import old_files
from index_format.blocks import COMPRESSORS, Compressor
from index_format.keys import LAYOUTS, TopicPartition
from index_format.objects import UNVERIFIED, ArchiveInfo, Gap
from index_format.old_objects import OldFormat, group_by_partition, has_current_objects
from index_format.record_formats import record_format
from index_format.records import Record, record_at


@dataclass(frozen=True)
class OldReader:
    """An old archive, and what its operator knows of its format."""

    store: ToolStore
    old_format: OldFormat
    max_block_bytes: int

    def run(self, fetching: old_files.Fetching[old_files.R]) -> old_files.R:
        """Run a generator of fetches on the store, and return its result."""
        step = old_files.advance(fetching, None)
        while isinstance(step, old_files.Fetch):
            step = old_files.advance(fetching, self._fetched(step))
        return step

    def records(self, partition: old_files.OldPartition, position: int) -> Iterator[pa.RecordBatch | old_files.Unsure]:
        """Yield the records at or above `position` in offset order, with uncertain offsets in their places."""
        for piece in partition.pieces:
            if position >= piece.end:
                continue
            if position < piece.start and piece is not partition.pieces[0]:
                yield old_files.Unsure(position, piece.start, "no file holds them", is_damage=True)
            data = (self._fetched(part) or b"" for part in old_files.parts_of(piece.file.key, piece.file.size))
            yield from old_files.records_of(piece, data, self.old_format, self.max_block_bytes, position)
            position = piece.end

    def _fetched(self, fetch: old_files.Fetch) -> bytes | None:
        if fetch.end is not None:
            return self.store.get_range(fetch.key, fetch.start, fetch.end)
        stored = self.store.get(fetch.key)
        return None if stored is None else stored.body


def survey(reader: OldReader, topics: Sequence[str] = ()) -> list[old_files.OldPartition]:
    """Return the partitions of an old archive, or of the selected topics; data is read only if no index can be used."""
    selection = TopicSelection(topics) if topics else None
    sizes = {listed.key: listed.size for listed in reader.store.list("")}
    if has_current_objects(sizes):
        raise UsageError(
            f"{reader.store.url} is already an archive of this program", why="it has an _archive.json or its folders"
        )
    found = group_by_partition(sizes)
    if not found:
        raise NoArchiveThere(
            f"there is no old archive at {reader.store.url}",
            why="no key looks like 2016-02-24/topic-00000-000000000000.gz",
            remedy="give the address of the folder that holds the date folders, including the prefix",
        )
    partitions = []
    for place, each in found.items():
        if selection is None or selection([place.topic]):
            files = [
                reader.run(old_files.read_file(data, sizes[data.key], reader.old_format, reader.max_block_bytes))
                for data in each.data
            ]
            marker = reader.store.get(each.marker_key) if each.marker_key else None
            partitions.append(old_files.OldPartition.of(place, each, files, marker.body if marker else None))
    missing = (selection.names if selection else frozenset()) - {each.place.topic for each in partitions}
    if missing or not partitions:
        raise NotInArchive(
            f"topic {', '.join(sorted(missing)) or ' '.join(topics)} is not in {reader.store.url}",
            why="no file has this name",
            remedy="run it with --dry-run and without topics to see what there is",
        )
    return partitions


# The group of imported markers: `archiver run` takes such a partition over only when told to.
IMPORT_GROUP = "blockgz-import"


@dataclass(frozen=True)
class ImportTarget:
    """The archive that is written, and the form of its chunks."""

    store: ToolStore
    archive: ArchiveInfo
    claims: ClaimList
    record_format: str
    block_bytes: int
    chunk_bytes: int
    encrypt: str | None = None
    """The setting that says where the keys to encrypt chunks are."""
    compressor: Compressor = field(default_factory=lambda: COMPRESSORS["isal"](1))

    @classmethod
    def opened(cls, store: ToolStore, customer_key: str | None, *, layout: str, **form: Any) -> "ImportTarget":
        """Open or create the archive; `customer_key` is a fingerprint, `form` the rest of the fields."""
        archive = open_archive(store, layout=layout, cluster_id=None, customer_key=customer_key)
        return cls(store, archive, ClaimList(store, archive), **form)

    def identity(self, place: TopicPartition) -> PartitionIdentity:
        """Return what the objects of a partition have in common."""
        layout = self.archive.layout
        folder = find_incarnation(self.store, layout=layout, topic=place.topic, topic_id=None)
        return PartitionIdentity(
            keys=LAYOUTS[layout](folder, place.partition),
            archive_id=self.archive.archive_id,
            topic_id=None,
            group_id=IMPORT_GROUP,
            record_format=self.record_format,
            codec="gzip",
            # The ancestor's consumers read everything, aborted transactions included.
            isolation_level="read_uncommitted",
            key_prefix=self.store.prefix,
            encrypt=self.encrypt,
        )


@dataclass
class ImportReport:
    """The result for one partition."""

    partition: old_files.OldPartition
    records: int = 0
    chunks: int = 0
    position: int = 0
    """The offset where this run began: the end of what an earlier run imported."""
    next_offset: int | None = None
    unsure: list[old_files.Unsure] = field(default_factory=list)
    """Offsets whose records were not imported; each is in a recorded gap."""
    failure: BlockgzError | None = None
    lines: int = 0
    delimited: int = 0
    """Records that this run read, and those of them from lines with the key delimiter."""


class OldLog:
    """A log that is an old partition: a resumed import compares its archive with it."""

    def __init__(self, reader: OldReader, partition: old_files.OldPartition) -> None:
        self._reader = reader
        self._partition = partition

    def bounds(self, at_least: int = 0) -> LogBounds:  # noqa: ARG002
        return LogBounds(self._partition.start_offset, self._partition.next_offset)

    def record_at(self, offset: int) -> Record | None:
        found = next(self._reader.records(self._partition, offset), None)
        if found is None or isinstance(found, old_files.Unsure):
            return None
        record = record_at(found, 0)
        return record if record.offset == offset else None

    def first_record(self, offset: int) -> int | None:  # noqa: ARG002
        """Return None: an old archive never gets new records."""
        return None

    def confirm(self, topic_id: str) -> None:
        """Accept any id: old archives have none."""


def check_target(reader: OldReader, target: ToolStore, *, single_writer: bool) -> None:
    """Raise UsageError for the source itself, StoreUnfit for a store that does not keep two writers apart."""
    if target.url == reader.store.url:
        raise UsageError(
            "SOURCE and --archive are the same",
            why="the import writes a separate archive",
            remedy="choose another --archive",
        )
    if not single_writer:
        # A store without conditional writes would let two writers overwrite each other.
        probe(target, multipart=target.url.startswith("s3:"))


def import_partition(
    reader: OldReader,
    partition: old_files.OldPartition,
    target: ImportTarget,
    buffer: BufferFolder,
    on_records: Callable[[int], None],
    wait: BackOff | None = None,
) -> ImportReport:
    """Import what the target does not hold yet; `on_records` gets how many more are committed.

    A failure is part of the report: what was committed before it stays, and another run resumes there.
    """
    report = ImportReport(partition)
    driver = Driver(target.store, OldLog(reader, partition), wait)
    try:
        identity = target.identity(partition.place)
        policy = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)
        claimed = driver.run(take_over(identity, str(uuid.uuid4()), policy))
        target.claims.add(identity.keys, None)
        target.claims.settle(identity.keys, driver.wait)
        report.position = claimed.position
        importer = _Importer(identity, claimed, target, buffer, driver, report, on_records)
        try:
            for found in reader.records(partition, claimed.position):
                importer.take(found)
                if not isinstance(found, old_files.Unsure):
                    report.lines += found.num_rows
                    report.delimited += old_files.delimited_lines(found, reader.old_format)
            importer.end()
        finally:
            importer.discard()
    except BlockgzError as error:
        report.failure = error
    return report


class _Importer:
    def __init__(
        self,
        identity: PartitionIdentity,
        claimed: Claimed,
        target: ImportTarget,
        buffer: BufferFolder,
        driver: Driver,
        report: ImportReport,
        on_records: Callable[[int], None],
    ) -> None:
        self._identity, self._buffer, self._driver = identity, buffer, driver
        self._report, self._on_records = report, on_records
        limits = RollLimits(chunk_bytes=target.chunk_bytes, chunk_interval_seconds=float("inf"))
        form = record_format(target.record_format)
        self._chunks = ChunkSettings(form, target.compressor, target.block_bytes, limits)
        self._held: Held = claimed.held
        self._position = claimed.position
        self._gap: Gap | None = None
        self._chunk: ChunkBuilder | None = None
        report.next_offset = claimed.held.marker.next_offset

    def take(self, found: pa.RecordBatch | old_files.Unsure) -> None:
        if isinstance(found, old_files.Unsure):
            self._report.unsure.append(found)
            if self._gap is None or self._gap.end != found.start:
                self.end()
                self._gap = found.gap()
            else:
                self._gap = Gap(self._gap.start, found.end, UNVERIFIED)
            return
        self._record_gap()
        chunk = self._open_chunk()
        chunk.add(found, None, 0.0)
        if chunk.full is not None:
            raise chunk.full
        self._position = found.column("offset")[found.num_rows - 1].as_py() + 1
        if is_due(chunk, self._chunks.limits, 0.0):
            self._commit_chunk()

    def end(self) -> None:
        if self._chunk is not None:
            self._commit_chunk()
        self._record_gap()

    def discard(self) -> None:
        if self._chunk is not None:
            self._chunk.discard()
            self._chunk = None

    def _open_chunk(self) -> ChunkBuilder:
        if self._chunk is None:
            chain_end = self._held.marker.chain_end
            start_offset = self._position if chain_end is None else chain_end
            sealing = self._identity.sealing
            self._chunk = ChunkBuilder(self._chunks, self._buffer.new_file(), start_offset, sealing=sealing)
        return self._chunk

    def _commit_chunk(self) -> None:
        assert self._chunk is not None
        finished = self._chunk.finish(self._position)
        self._held = self._driver.run(commit_chunk(self._identity, self._held, finished))
        self.discard()
        self._report.chunks += 1
        self._report.records += self._held.marker.tail[-1].num_records
        self._report.next_offset = self._held.marker.next_offset
        self._on_records(self._held.marker.tail[-1].num_records)

    def _record_gap(self) -> None:
        if self._gap is None:
            return
        gap, self._gap = self._gap, None
        self._held = self._driver.run(commit_progress(self._identity, self._held, gap.end, (gap,)))
        self._position = gap.end
        self._report.next_offset = gap.end

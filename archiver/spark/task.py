"""A task of a write: it stores its sorted records as the data of chunks, and commits none."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from archiver.commit.batch import ChainEnd
from archiver.commit.commit import Held, PartitionIdentity, StoredChunk, store_data
from archiver.commit.operations import Driver
from archiver.commit.recovery import read_own
from archiver.errors import Diverged, UnencodableRecord
from archiver.ingest.chunk_builder import BufferFolder, ChunkBuilder, ChunkSettings, is_due, largest, rows_that_fit
from archiver.spark.context import WriteContext
from archiver.spark.rows import BatchRefused, sorted_runs
from blockgz.archive.lookup import FoundRecord, look_up
from blockgz.archive.partition import ArchivedPartition
from blockgz.encryption.keyring import keyring_of
from blockgz.store.address import parse_address
from blockgz.store.opening import default_buffer_root, open_reader
from index_format.keys import TopicPartition
from index_format.marker import Marker
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES, UNVERIFIED, Gap
from index_format.records import Record, record_at, record_hash

# The share of a task's memory for blocks that are not full, in addition to the records that wait to be sorted.
OPEN_BLOCKS_SHARE = 0.25

# Bytes of records that are encoded at once, which takes several times as much memory; a chunk may end after each.
PIECE_BYTES = 4 * 1024 * 1024

# Most gaps of a chunk: a marker with more folds them into a catalog.
MOST_GAPS = 256

SORT_REMEDY = (
    'write df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset"), '
    "or raise memory so that a task can sort what it holds"
)


@dataclass(frozen=True)
class PartitionBatch:
    """Chunks of one partition that a task stored, or all tasks of a batch, by rising offset."""

    identity: PartitionIdentity
    ends: frozenset[ChainEnd]
    """Ends of the archive, as the chunks were cut."""
    chunks: tuple[StoredChunk, ...]
    dropped: int
    """Records that the archive held already."""
    too_late: int
    """Records that the archive does not hold, and has passed: below its start, or inside gaps of its marker."""

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.identity.topic, self.identity.keys.partition)


def write_task(batches: Iterable[pa.RecordBatch], context: WriteContext) -> tuple[PartitionBatch, ...]:
    """Store the records of `rows.ROWS` batches; raises BatchRefused and what the store raises."""
    # What a task that fails has stored stays behind as orphans.
    config = context.config
    buffer = BufferFolder(config.buffer_dir or default_buffer_root(config.archive))
    writers: dict[TopicPartition, PartitionWriter] = {}
    done: dict[TopicPartition, PartitionBatch] = {}
    try:
        for partition, records, is_last in sorted_runs(batches, config.memory):
            if partition not in writers:
                writers[partition] = PartitionWriter(partition, context, buffer)
            writers[partition].take(records)
            if is_last:
                done[partition] = writers.pop(partition).finish()
            else:
                sizes = {each: writer.open_block_bytes for each, writer in writers.items()}
                for large in largest(sizes, int(config.memory * OPEN_BLOCKS_SHARE)):
                    writers[large].end_block()
        done |= {partition: writer.finish() for partition, writer in writers.items()}
    finally:
        buffer.close()
    return tuple(done.values())


class PartitionWriter:
    """One partition within a task: an open chunk, stored when it is full."""

    def __init__(self, partition: TopicPartition, context: WriteContext, buffer: BufferFolder) -> None:
        """Read the marker; raises what `read_own` raises."""
        self._partition = partition
        self._context = context
        self._buffer = buffer
        self._identity = context.identity(partition)
        self._driver: Driver = context.driver()
        self._held: Held | None = self._driver.run(read_own(self._identity, context.policy))
        self._end = ChainEnd.of(self._held)
        self._position = self._end.next_offset or 0
        settings = ChunkSettings.of(context.config)
        self._limits = replace(settings.limits, chunk_interval_seconds=float("inf"), chunk_idle_seconds=None)
        self._settings = replace(settings, bad_records_are_skipped=False)
        # Gaps of the open chunk: offsets between its records that may be missing.
        self._gaps: list[Gap] = []
        self._chunk: ChunkBuilder | None = None
        self._stored: list[StoredChunk] = []
        self._dropped = 0
        self._too_late = 0

    @property
    def open_block_bytes(self) -> int:
        """Encoded bytes that wait in memory for their block to fill."""
        return self._chunk.open_block_bytes if self._chunk else 0

    def end_block(self) -> None:
        """Move the open block out of memory, regardless of its size."""
        if self._chunk is not None:
            self._chunk.end_block()

    def take(self, records: pa.RecordBatch) -> None:
        """Add records; raises BatchRefused for an offset that comes twice or after a higher one."""
        batch = self._new(records)
        while batch.num_rows:
            if self._chunk is None:
                start_offset = self._end.start_of(batch.column("offset")[0].as_py())
                sealing = self._identity.sealing
                self._chunk = ChunkBuilder(self._settings, self._buffer.new_file(), start_offset, sealing=sealing)
                self._gaps = []
                self._position = batch.column("offset")[0].as_py()
            chunk = self._chunk
            missing = self._missing(batch)
            timestamps = batch.column("timestamp").to_numpy()
            fitting = rows_that_fit(timestamps, chunk.num_records, chunk.first_timestamp, self._limits)
            if len(self._gaps) + len(missing) > MOST_GAPS:
                fitting = min(fitting, missing[MOST_GAPS - len(self._gaps)][0])
            taken = min(fitting, max(1, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes)))
            if taken:
                self._add(chunk, batch.slice(0, taken))
                self._gaps += [gap for row, gap in missing if row < taken]
                batch = batch.slice(taken)
            is_cut = taken == fitting < len(timestamps) and chunk.num_records > 0
            if is_cut or is_due(chunk, self._limits, 0.0):
                self._store(chunk)

    def finish(self) -> PartitionBatch:
        if self._chunk is not None:
            self._store(self._chunk)
        ends = frozenset([self._end] if self._stored else [])
        return PartitionBatch(self._identity, ends, tuple(self._stored), self._dropped, self._too_late)

    def _missing(self, batch: pa.RecordBatch) -> list[tuple[int, Gap]]:
        """Return gaps before rows of a batch, by row number, if the options say that records may be missing."""
        if not self._context.options.missing_are_unverified:
            return []
        offsets = np.concatenate([[self._position - 1], batch.column("offset").to_numpy()])
        rows = np.flatnonzero(np.diff(offsets) > 1).tolist()
        return [(row, Gap(int(offsets[row]) + 1, int(offsets[row + 1]), UNVERIFIED)) for row in rows]

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that the archive does not hold yet, checked for their order."""
        offsets = batch.column("offset").to_numpy()
        known = int(np.searchsorted(offsets, self._end.next_offset)) if self._end.next_offset is not None else 0
        if known and self._held is not None:
            self._leave_out(self._held.marker, batch.slice(0, known))
            batch, offsets = batch.slice(known), offsets[known:]
        twice = np.flatnonzero(np.diff(offsets) == 0)
        if len(twice):
            raise BatchRefused(
                f"{self._partition}: offset {int(offsets[twice[0]])} occurs twice in a task",
                why="an offset has one record, and it is unknown which of the two is right",
                remedy='write each record once: dropDuplicates(["topic", "partition", "offset"])',
            )
        if len(offsets) and offsets[0] < self._position:
            raise BatchRefused(
                f"{self._partition}: offset {int(offsets[0])} came after offset {self._position - 1}",
                why="the task's records are not in order, and too large to sort in its memory",
                remedy=SORT_REMEDY,
            )
        return batch

    def _leave_out(self, marker: Marker, passed: pa.RecordBatch) -> None:
        """Count records below the archive's end: those that it holds, and those that come too late to be."""
        late = too_late(marker, passed.column("offset").to_numpy())
        held = passed.filter(pa.array(~late))
        if held.num_rows and not self._dropped:
            self._compare(marker, held)
        self._dropped += held.num_rows
        self._too_late += passed.num_rows - held.num_rows

    def _compare(self, marker: Marker, known: pa.RecordBatch) -> None:
        """Raise Diverged if the newest record is not the archived one: the topic of that name may be another one."""
        newest = record_at(known, known.num_rows - 1)

        async def is_other() -> bool:
            config, keys = self._context.config, self._identity.keys
            async with open_reader(parse_address(config.archive), config.s3) as reader:
                keyring = keyring_of(self._identity.encrypt)
                partition = ArchivedPartition(reader, keys, marker, DEFAULT_MAX_BLOCK_BYTES, keyring=keyring)
                return await differs(partition, newest)

        if asyncio.run(is_other()):
            raise Diverged(
                f"{self._partition}: the record at offset {newest.offset} is not the one that was archived",
                why="the topic was created again, or its records were changed in transit",
                remedy="archive into another --archive, or name the new topic with topicIds; nothing was changed",
            )

    def _add(self, chunk: ChunkBuilder, batch: pa.RecordBatch) -> None:
        try:
            chunk.add(batch, None, 0.0)
        except UnencodableRecord as error:
            raise BatchRefused(
                f"{self._partition}: {error.what}",
                why=error.why,
                remedy="use recordFormat json, which holds every record",
            ) from error
        if chunk.full is not None:
            raise chunk.full
        self._position = batch.column("offset")[batch.num_rows - 1].as_py() + 1

    def _store(self, chunk: ChunkBuilder) -> None:
        self._chunk = None
        finished = chunk.finish(self._position)._replace(gaps=tuple(self._gaps))
        epoch = self._held.marker.epoch + 1 if self._held else 1
        self._stored.append(self._driver.run(store_data(self._identity, finished, epoch)))
        chunk.discard()


def too_late(marker: Marker, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which offsets, all below the marker's next one, the archive passed without their records."""
    # Gaps that moved into catalogs, as more than 256 had gathered, are not asked for.
    late: NDArray[np.bool_] = offsets < (marker.start_offset or 0)
    for gap in marker.gaps:
        late[np.searchsorted(offsets, gap.start) : np.searchsorted(offsets, gap.end)] = True
    return late


async def differs(partition: ArchivedPartition, record: Record) -> bool:
    """Return whether the archive holds another record at that offset; False if it holds none there."""
    found = await look_up(partition, record.offset)
    entry = await partition.chunk_at_or_after(record.offset)
    if not isinstance(found, FoundRecord) or entry is None:
        return False
    # Record format `text` keeps values, so no more can be compared.
    if (await partition.chunk(entry)).index.record_format == "text":
        return found.record.value != record.value
    return record_hash(found.record) != record_hash(record)

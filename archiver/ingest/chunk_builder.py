"""An open chunk: batches go in, blocks go into its buffer file, a finished chunk comes out; and when it ends.

The folder of buffer files is disposable. No recovery reads it; each process has a locked sub-folder of its own, and
removes only those of dead processes.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import threading
import uuid
from array import array
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.commit.commit import FinishedChunk
from archiver.errors import UnencodableRecord
from archiver.logs import LogEvent, log
from blockgz.atomic_file import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import Sealing
from blockgz.errors import BufferFailed, BufferFull
from blockgz.store.writer import FileBody
from blockgz.units import time_text
from index_format.blocks import COMPRESSORS, BlockBuilder, Compressor, RawBlock, decode_block
from index_format.keys import ChunkStart
from index_format.objects import AUTHENTICATED, BlockEntry, Encryption, Gap, Stored
from index_format.record_formats import RecordFormat, record_format
from index_format.records import TIMESTAMP_TYPES, record_at, record_hash

LOCK = ".lock"
# Prefix of the sub-folders. Nothing else in the folder, which the operator chose, is ever touched.
PREFIX = "blockgz-buffer-"


class BufferFile:
    """The bytes of one open chunk, appended block by block."""

    def __init__(self, path: Path, folder: "BufferFolder") -> None:
        self._path = path
        self._folder = folder
        self._hash = hashlib.sha256()
        self._is_torn = False
        self.size = 0

    def append(self, block: bytes | memoryview) -> None:
        """Add one block; raises BufferFull where the disk does not take it, after which the same may be tried again."""
        with buffer_errors(self._path, BufferFull):
            self._cut()
            try:
                # Opened for each block: thousands of open chunks would need as many file descriptors.
                with self._path.open("ab") as file:
                    file.write(block)
            except OSError:
                self._is_torn = True
                with suppress(OSError):
                    self._cut()
                raise
        self._hash.update(block)
        self.size += len(block)
        self._folder.account(len(block))

    def _cut(self) -> None:
        """Take away what was written of a block that did not fit."""
        if self._is_torn and self._path.exists():
            os.truncate(self._path, self.size)
        self._is_torn = False

    def finish(self) -> FileBody:
        """Return the whole file, written through to the operating system. Raises BufferFailed if bytes are missing."""
        with buffer_errors(self._path):
            self._cut()
            stored = self._path.stat().st_size
        if stored != self.size:
            raise BufferFailed(f"the buffer file {self._path} has {stored} bytes", why=f"{self.size} were written")
        return FileBody(self._path, self.size, self._hash.hexdigest())

    def discard(self) -> None:
        """Give the space back; safe to call twice."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._folder.account(-self.size)
        self.size = 0


class BufferFolder:
    def __init__(self, root: Path) -> None:
        """Create a locked sub-folder of `root`; log and remove those of dead processes. Raises BufferFailed."""
        self._bytes = 0
        self._is_closed = False
        self._guard = threading.Lock()
        with buffer_errors(root):
            make_private_folder(root)
            with _locked(root / LOCK):
                _remove_dead(root)
                self._folder = root / f"{PREFIX}{uuid.uuid4().hex}"
                self._folder.mkdir(PRIVATE_FOLDER)
                self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(OSError):  # a full disk is reported by the first block, and waited for
                    os.write(self._lock, b"%d" % os.getpid())

    @property
    def used_bytes(self) -> int:
        with self._guard:
            return self._bytes

    def new_file(self) -> BufferFile:
        return BufferFile(self._folder / f"{uuid.uuid4().hex}.chunk", self)

    def account(self, num_bytes: int) -> None:
        """Note bytes written, or given back when negative."""
        with self._guard:
            self._bytes += num_bytes

    def mark_alive(self) -> None:
        """Note that the process lives, for the process that finds the folder after its death."""
        with suppress(OSError):
            os.utime(self._lock)

    def close(self) -> None:
        """Remove the sub-folder with all that is left in it; safe to call twice."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _remove_dead(root: Path) -> None:
    """Remove the sub-folders of dead processes. The caller holds the root's lock, under which new ones get theirs."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            with suppress(OSError):
                _log_death(folder, lock)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _log_death(folder: Path, lock: int) -> None:
    """Log that the folder's process ended without closing it: after a fault in librdkafka nothing else says so."""
    files = [file.stat() for file in folder.glob("*.chunk")]
    seen = max(os.fstat(lock).st_mtime, *(file.st_mtime for file in files), 0.0)
    log.warning(
        LogEvent.PROCESS_DIED,
        pid=os.read(lock, 20).decode("ascii", "replace") or None,
        last_seen=time_text(int(seen) * 1000),
        bytes=sum(file.st_size for file in files),
        folder=str(folder),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def buffer_errors(path: Path, kind: type[BufferFailed] = BufferFailed) -> Iterator[None]:
    """Raise errors of a file system as one of ours."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"the buffer file {path} cannot be written",
            why=error.strerror or str(error),
            remedy="free space, or set another --buffer-dir",
        ) from error


# A chunk with more would have an index that readers refuse: small blocks, or a text block at every hole of a log.
MAX_BLOCKS = 100_000
# A chunk with more ends: its index and the marker list each.
MAX_GAPS = 1000


# The share of the buffer that open chunks may use; the rest is for chunks that wait for their commit.
BUFFER_SHARE_OF_OPEN_CHUNKS = 0.8

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class RollLimits:
    """Bounds of one chunk: compressed bytes, records, seconds since its first record, ms of record time.

    None: no bound. A chunk that got no record for `chunk_idle_seconds` ends too, unless it is tiny: a partition with a
    record now and then gets a chunk every `chunk_interval_seconds`, not one a record.
    """

    chunk_bytes: int
    chunk_interval_seconds: float
    chunk_records: int | None = None
    chunk_idle_seconds: float | None = None
    chunk_span_ms: int | None = None
    tiny_bytes: int = 1024 * 1024
    """Encoded bytes below which idling ends no chunk."""


def is_due(chunk: "ChunkBuilder", limits: RollLimits, now: float) -> bool:
    """Return whether an open chunk should end now; `now` is of the clock that it was opened by."""
    idle_seconds = limits.chunk_idle_seconds
    return chunk.num_records > 0 and (
        chunk.compressed_bytes >= limits.chunk_bytes
        or chunk.num_blocks >= MAX_BLOCKS
        or chunk.num_gaps >= MAX_GAPS
        or (limits.chunk_records is not None and chunk.num_records >= limits.chunk_records)
        or now - chunk.opened_at >= limits.chunk_interval_seconds
        or (
            idle_seconds is not None
            and now - chunk.last_record_at >= idle_seconds
            and chunk.encoded_bytes >= limits.tiny_bytes
        )
    )


def rows_that_fit(
    timestamps: npt.NDArray[np.int64], num_records: int, first_timestamp: int | None, limits: RollLimits
) -> int:
    """Return how many of the next records the chunk takes before it must end by count or by record time; may be 0.

    `timestamps` in ms are those of the records in order; `first_timestamp` is the chunk's, None while it is empty.
    """
    fitting = len(timestamps)
    if limits.chunk_records is not None:
        fitting = min(fitting, max(0, limits.chunk_records - num_records))
    if limits.chunk_span_ms is not None and fitting:
        start = int(timestamps[0]) if first_timestamp is None else first_timestamp
        beyond = np.flatnonzero(timestamps[:fitting] - start >= limits.chunk_span_ms)
        fitting = int(beyond[0]) if len(beyond) else fitting
    return fitting


def largest(sizes: Mapping[K, int], budget: float, kept: Collection[K] = ()) -> list[K]:
    """Return what should end early so that the rest stays below the budget: the largest first, nothing that is kept."""
    # If what is kept fills the budget, ending more of the others frees nothing.
    excess = sum(sizes.values()) - budget
    ending: list[K] = []
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if excess < 0 or not sizes[key]:
            break
        if key not in kept:
            ending.append(key)
            excess -= sizes[key]
    return ending


# The fields of an entry that are numbers: all but the key filter.
NUMBERS = BlockEntry.__struct_fields__[:-1]
# Bytes that a finished block of an open chunk takes in memory, without its key filter.
ENTRY_BYTES = 8 * len(NUMBERS)
# Bytes of key filters after which the later blocks of a chunk have none: its index is read as a whole.
MAX_KEY_FILTERS = 4 * 1024 * 1024


@dataclass(frozen=True)
class ChunkSettings:
    """How chunks of every partition are made."""

    record_format: RecordFormat
    compressor: Compressor
    block_bytes: int
    limits: RollLimits
    bad_records_are_skipped: bool = False
    key_filter_bits: int | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "ChunkSettings":
        limits = RollLimits(
            chunk_bytes=config.chunk_bytes,
            chunk_interval_seconds=config.chunk_interval,
            chunk_records=config.chunk_records,
            chunk_idle_seconds=config.chunk_idle,
            chunk_span_ms=None if config.chunk_span is None else round(config.chunk_span * 1000),
        )
        compressor = COMPRESSORS[config.compression_library](config.compression_level)
        skips = config.on_bad_record != "stop"
        encoding = record_format(config.record_format)
        return cls(encoding, compressor, config.block_bytes, limits, skips, config.key_filter)


class RecordMark(NamedTuple):
    """The facts of a record at which a chunk may have to end or to begin."""

    offset: int
    timestamp: int
    tail_hash: str
    leader_epoch: int | None

    @classmethod
    def of(cls, batch: pa.RecordBatch, row: int, leader_epoch: int | None, secret: bytes | None = None) -> "RecordMark":
        """Return the mark of a row; with `secret`, its hash is an HMAC."""
        record = record_at(batch, row)
        return cls(record.offset, record.timestamp, record_hash(record, secret), leader_epoch)


class WaitingBlock(NamedTuple):
    """A block that the buffer did not take yet."""

    member: bytes
    """Not encrypted yet: with what, depends on the chunk that it becomes part of."""
    entry: BlockEntry
    """Its place in the data is set once it is written."""
    first: tuple[int, int]
    """Offset and timestamp of its first record."""
    last: RecordMark


class ChunkBuilder:
    """Builds one chunk from consecutive records of a partition. Not safe for use by two threads at once."""

    def __init__(
        self,
        settings: ChunkSettings,
        buffer: BufferFile,
        start_offset: int,
        opened_at: float = 0.0,
        sealing: Sealing | None = None,
    ) -> None:
        """`start_offset` is where the chain so far ends; `opened_at` in seconds of a monotonic clock.

        `sealing` encrypts the chunk, what is in its buffer included.
        """
        self._settings = settings
        self._sealing = sealing
        self._seal = sealing.of_chunk(start_offset) if sealing else None
        self._format = settings.record_format
        self._buffer = buffer
        self._start_offset = start_offset
        self.opened_at = opened_at
        self._builder: BlockBuilder | None = None
        # The entries of finished blocks, flat: as objects they would take six times as much.
        self._blocks = array("q")
        # Key filters of the first of these blocks.
        self._key_filters: list[bytes] = []
        self._key_filter_bytes = 0
        self._gaps: list[Gap] = []
        # True if the newest offset of all was skipped.
        self._ends_in_gap = False
        # Records left out because the record format cannot hold them.
        self.skipped = 0
        self._timestamp_type = 0
        self._first: tuple[int, int] | None = None
        # Offset and timestamp of the open block's first record.
        self._open_first: tuple[int, int] = (0, 0)
        # The mark of the last record; the record itself may be large, and thousands of chunks are open.
        self._last: RecordMark | None = None
        self._waiting: list[WaitingBlock] = []
        # The last record of the blocks in the buffer.
        self._written_to: RecordMark | None = None
        # Why blocks wait in memory for space in the buffer; None while none does.
        self.full: BufferFull | None = None
        self.num_records = 0
        self._encoded_bytes = 0
        self.last_record_at = opened_at

    @property
    def compressed_bytes(self) -> int:
        return self._buffer.size

    @property
    def encoded_bytes(self) -> int:
        """Return the bytes of all records before compression."""
        return self._encoded_bytes + self.open_block_bytes

    @property
    def num_blocks(self) -> int:
        """Return the number of finished blocks in the buffer."""
        return len(self._blocks) // len(NUMBERS)

    @property
    def num_gaps(self) -> int:
        """Return the number of gaps between its records."""
        return len(self._gaps)

    @property
    def open_index_bytes(self) -> int:
        """Return the bytes in memory that describe the finished blocks."""
        return self.num_blocks * ENTRY_BYTES + self._key_filter_bytes

    @property
    def open_block_bytes(self) -> int:
        """Return the bytes in memory of the open block, and of blocks that wait for space."""
        waiting = sum(len(block.member) for block in self._waiting)
        return waiting + (self._builder.open_bytes if self._builder else 0)

    @property
    def first_timestamp(self) -> int | None:
        """Return the timestamp of the first record in ms; None while there is none."""
        return self._first[1] if self._first else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(self._gaps)

    def add(self, batch: pa.RecordBatch, leader_epoch: int | None, now: float) -> None:
        """Append records that came `now`; all are taken, also where the buffer is `full`.

        Raises UnencodableRecord, unless bad ones are skipped, once the records before the first bad one are taken.
        """
        objections = self._format.objections(batch)
        offsets = batch.column("offset").to_pylist() if objections else []
        if objections and not self._settings.bad_records_are_skipped:
            row, reason = next(iter(objections.items()))
            self._append(batch.slice(0, row), leader_epoch, now)
            raise UnencodableRecord(offsets[row], f"record format {self._format.name} {reason}")
        for row in objections:
            self._ends_in_gap = row - 1 in objections if row else self._ends_in_gap
            self.skip(offsets[row])
        self._ends_in_gap = batch.num_rows - 1 in objections
        if objections:
            batch = batch.filter(pa.array([row not in objections for row in range(batch.num_rows)]))
        self._append(batch, leader_epoch, now)

    def _append(self, batch: pa.RecordBatch, leader_epoch: int | None, now: float) -> None:
        if batch.num_rows == 0:
            return
        if self._builder is None:
            self._timestamp_type = batch.column("timestamp_type")[0].as_py()
            settings = self._settings
            self._builder = BlockBuilder(
                self._format, self._timestamp_type, settings.block_bytes, settings.key_filter_bits
            )
        offsets, timestamps = batch.column("offset"), batch.column("timestamp")
        if not self._builder.open_bytes:
            self._open_first = (offsets[0].as_py(), timestamps[0].as_py())
        self._first = self._first or self._open_first
        for block in self._builder.add(batch):
            end = int(np.searchsorted(offsets.to_numpy(), block.last_offset, side="right"))
            last = self._mark(batch, end - 1, leader_epoch) if end else self._last
            assert last is not None
            self._write(block, last)
            if end < batch.num_rows:
                self._open_first = (offsets[end].as_py(), timestamps[end].as_py())
        self._last = self._mark(batch, batch.num_rows - 1, leader_epoch)
        self.num_records += batch.num_rows
        self.last_record_at = now

    def _mark(self, batch: pa.RecordBatch, row: int, leader_epoch: int | None) -> RecordMark:
        return RecordMark.of(batch, row, leader_epoch, self._seal.tail_secret if self._seal else None)

    def skip(self, offset: int) -> None:
        """Note an offset that is left out; those with no record between them become one gap."""
        start = self._gaps.pop().start if self._ends_in_gap else offset
        self._gaps.append(Gap(start, offset + 1, "skipped"))
        self._ends_in_gap = True
        self.skipped += 1

    def end_block(self) -> None:
        """Move what waits in memory into the buffer, as a block that is smaller than it could be."""
        block = self._builder.finish() if self._builder else None
        if block is not None and self._last is not None:
            self._write(block, self._last)

    def finish(self, next_offset: int) -> FinishedChunk:
        """Return the complete chunk, which holds a record. Raises BufferFull if it is `full`, or BufferFailed."""
        if self._last is None:
            raise ValueError("a chunk without records cannot be finished")
        self.end_block()
        if self.full is not None:
            raise self.full
        return self._finished(next_offset, self._last)

    def cut(self, buffer: BufferFile) -> "tuple[FinishedChunk, ChunkBuilder] | None":
        """Return the blocks in the buffer as a complete chunk, and the rest as an open one; None if none is there."""
        end = self._written_to
        if end is None or not self._waiting:
            return None
        rest = ChunkBuilder(self._settings, buffer, end.offset + 1, self.opened_at, self._sealing)
        rest._builder, self._builder = self._builder, None
        rest._waiting, self._waiting = self._waiting, rest._waiting
        rest.full, self.full = self.full, None
        rest._timestamp_type, rest._first = self._timestamp_type, rest._waiting[0].first
        rest._open_first, rest._last, rest.last_record_at = self._open_first, self._last, self.last_record_at
        rest._gaps = [gap for gap in self._gaps if gap.start > end.offset]
        rest._ends_in_gap = self._ends_in_gap and bool(rest._gaps)
        self._gaps = self._gaps[: len(self._gaps) - len(rest._gaps)]
        finished = self._finished(end.offset + 1, end)
        written = sum(block.num_records for block in finished.blocks)
        rest.num_records, self.num_records = self.num_records - written, written
        return finished, rest

    def _finished(self, next_offset: int, last: RecordMark) -> FinishedChunk:
        assert self._first is not None
        first_offset, first_timestamp = self._first
        return FinishedChunk(
            body=self._buffer.finish(),
            start=ChunkStart(self._start_offset, first_offset, first_timestamp),
            next_offset=next_offset,
            blocks=tuple(self._entries()),
            gaps=tuple(self._gaps),
            timestamp_type=TIMESTAMP_TYPES[self._timestamp_type],
            leader_epoch=last.leader_epoch,
            tail_hash=last.tail_hash,
            encryption=self._seal.encryption if self._seal else msgspec.UNSET,
            tail_key=self._seal.tail_key if self._seal else msgspec.UNSET,
        )

    def _entries(self) -> Iterator[BlockEntry]:
        filters = iter(self._key_filters)
        for at in range(0, len(self._blocks), len(NUMBERS)):
            numbers = dict(zip(NUMBERS, self._blocks[at : at + len(NUMBERS)], strict=True))
            yield BlockEntry(**numbers, key_filter=next(filters, msgspec.UNSET))

    def discard(self) -> None:
        self._buffer.discard()

    def _write(self, block: RawBlock, last: RecordMark) -> None:
        member = self._settings.compressor.compress(block.raw)
        crc32 = AUTHENTICATED if self._seal else None  # until it is that of the encrypted bytes
        self._waiting.append(WaitingBlock(member, block.entry(0, len(member), crc32), self._open_first, last))
        if self.full is None:
            self.write_again()

    def write_again(self) -> None:
        """Write the blocks that wait; those that the buffer does not take wait on, see `full`."""
        self.full = None
        while self._waiting:
            member, entry, _, last = self._waiting[0]
            at = self._buffer.size
            if self._seal:
                member, entry = self._seal.sealed(self.num_blocks, member, entry)
            try:
                self._buffer.append(member)
            except BufferFull as error:
                self.full = error
                return
            *numbers, keys = msgspec.structs.astuple(msgspec.structs.replace(entry, byte_offset=at))
            has_room = len(self._key_filters) == self.num_blocks and self._key_filter_bytes < MAX_KEY_FILTERS
            if has_room and keys is not msgspec.UNSET:
                self._key_filters.append(keys)
                self._key_filter_bytes += len(keys)
            self._blocks.extend(numbers)
            self._encoded_bytes += entry.byte_length_uncompressed
            self._written_to = last
            del self._waiting[0]


class FinishedEncoding(NamedTuple):
    """How the blocks of a chunk are encoded (see index_format.blocks.Encoding)."""

    record_format: str
    codec: str
    timestamp_type: str
    encryption: Encryption | msgspec.UnsetType = msgspec.UNSET


def part_below(
    end: int,
    finished: FinishedChunk,
    codec: str,
    settings: ChunkSettings,
    buffer: BufferFile,
    sealing: Sealing | None = None,
) -> tuple[ChunkBuilder, FinishedChunk] | None:
    """Return the records of a finished chunk below offset `end` as a chunk of their own; None if there are none.

    Its blocks are encoded again, in `buffer`, which the builder holds. Raises BufferFailed.
    """
    encoding = FinishedEncoding(settings.record_format.name, codec, finished.timestamp_type)
    part = ChunkBuilder(settings, buffer, finished.start.position, sealing=sealing)
    opened = sealing.opener(finished.start.position, finished.encryption) if sealing and finished.encryption else None
    with finished.body.reading(), finished.body.path.open("rb") as file:
        for number, entry in enumerate(finished.blocks):
            if entry.first_record_offset >= end:
                break
            member: Stored = file.read(entry.byte_length)
            if opened is not None:
                member, entry = opened(number, member, entry)  # noqa: PLW2901 - the block as it was compressed
            batch = decode_block(member, entry, encoding, sys.maxsize)
            below = int(np.searchsorted(batch.column("offset").to_numpy(), end))
            part.add(batch.slice(0, below), finished.leader_epoch, 0.0)
    if not part.num_records:
        part.discard()
        return None
    gaps = tuple(Gap(gap.start, min(gap.end, end), gap.reason) for gap in finished.gaps if gap.start < end)
    return part, part.finish(end)._replace(gaps=gaps)

"""The job of a replay, which can be interrupted and resumed: its name, what was requested, and its positions."""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from blockgz.archive.damage import STOP, DamagePolicy
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, chosen_entries
from blockgz.errors import UsageError
from index_format.marker import ChunkEntry
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import Pipeline, RoutedBatch

VERSION = 1
MAX_METADATA_BYTES = 4096
"""Kafka's default offset.metadata.max.bytes; what is longer is refused by the broker."""


class Position(Protocol):
    """The position of a job, stored with its records: their number, and text that says what they cover."""

    @property
    def written(self) -> int:
        """Records of the job so far."""

    def encoded(self) -> str:
        """The rest, as it is stored with a committed offset; at most `MAX_METADATA_BYTES`."""


class SourceProgress(NamedTuple):
    """Offsets [start, end) of one source partition are the job's; those below `next` are done in this lane."""

    start: int
    next: int
    end: int


@dataclass(frozen=True)
class LanePosition:
    """The position of a job in a lane: `written` records, and by source partition the offsets that they cover.

    `selection` and `history` are hashes of the request and of the chunks that it selects.
    """

    selection: str
    history: str
    written: int
    sources: Mapping[int, SourceProgress]

    def __post_init__(self) -> None:
        """Raise ValueError for malformed hashes and offsets outside their range."""
        if not all(re.fullmatch("[0-9a-f]{16}", digest) for digest in (self.selection, self.history)):
            raise ValueError("a hash is 16 digits of lower-case hex")
        if self.written < 0 or not all(0 <= start <= done <= end for start, done, end in self.sources.values()):
            raise ValueError("a position lies outside its range")

    @property
    def complete(self) -> bool:
        return all(source.next == source.end for source in self.sources.values())

    def advanced(self, records: int, nexts: Mapping[int, int]) -> "LanePosition":
        """Return the position `records` later, with these next offsets."""
        moved = {number: progress._replace(next=nexts[number]) for number, progress in self.sources.items()}
        return replace(self, written=self.written + records, sources=moved)

    def up_to(self, wanted: "LanePosition") -> "LanePosition":
        """Return the position with the ends of another one of the same job, if these are higher."""
        ends = {number: progress.end for number, progress in wanted.sources.items()}
        moved = {
            number: progress._replace(end=max(progress.end, ends.get(number, 0)))
            for number, progress in self.sources.items()
        }
        return replace(self, sources=moved)

    def encoded(self) -> str:
        """The position as the JSON that is stored with a committed offset."""
        sources = {str(number): tuple(progress) for number, progress in sorted(self.sources.items())}
        fields = {"v": VERSION, "selection": self.selection, "history": self.history, "sources": sources}
        return msgspec.json.encode(fields).decode()

    def same_job(self, other: "LanePosition") -> bool:
        """Return whether both are positions of the same selection of the same history."""
        return (self.selection, self.history, _ranges(self)) == (other.selection, other.history, _ranges(other))


def decode_position(written: int, metadata: str) -> LanePosition:
    """Parse what `LanePosition.encoded` returned; raises ReplayRefused for text that this program did not write."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(metadata)
        if fields["v"] != VERSION:
            raise ValueError(f"its version is {fields['v']}")
        sources = {int(number): SourceProgress(*map(int, ends)) for number, ends in fields["sources"].items()}
        return LanePosition(fields["selection"], fields["history"], written, sources)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReplayRefused(
            "the job's recorded position cannot be read",
            why=f"{metadata[:80]!r}: {error or type(error).__name__}",
            remedy="choose another name with --job, or use the version that started it",
        ) from error


def refuse_long_metadata(positions: Mapping[int, LanePosition]) -> None:
    """Raise ReplayRefused if a lane draws from more source partitions than one position can hold."""
    for lane, position in positions.items():
        ends = {number: progress.end for number, progress in position.sources.items()}
        size = len(position.advanced(0, ends).encoded())
        if size > MAX_METADATA_BYTES:
            raise ReplayRefused(
                f"target partition {lane} has too many source partitions for one transaction",
                why=f"the position of {len(ends)} partitions takes {size} bytes, Kafka stores {MAX_METADATA_BYTES}",
                remedy="replay them in several jobs with --partitions, or without --transactional",
            )


def _ranges(position: LanePosition) -> dict[int, tuple[int, int]]:
    return {number: (progress.start, progress.end) for number, progress in position.sources.items()}


HASH_DIGITS = 16
NAME_DIGITS = 12


def is_job_name(name: str) -> bool:
    """Return whether a job can have this name."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) is not None and name.strip(".") != ""


def check_job_name(name: str) -> None:
    """Raise UsageError for a name that no job can have."""
    if not is_job_name(name):
        raise UsageError(
            f"{name[:120]!r} is not a job name",
            why="it becomes part of names in Kafka and of file names",
            remedy="use up to 100 letters, digits, dots, dashes and underscores",
        )


@dataclass(frozen=True)
class Job:
    """The names of a job in the cluster; `selection` is the hash of everything that was requested."""

    name: str
    target: str
    selection: str

    def __post_init__(self) -> None:
        """Raise UsageError."""
        check_job_name(self.name)

    @property
    def group_id(self) -> str:
        """The group whose committed offsets are the job's positions."""
        return f"blockgz-{self.name}"

    def transactional_id(self, lane: int) -> str:
        """Return the id that writes to a target partition; a second writer with it fences the first."""
        return f"blockgz-{self.name}-{self.target}-{lane}"


def make_job(
    name: str | None, archive_id: str, folder: str, target: str, asked: Sequence[str], pipeline: Pipeline
) -> Job:
    """Return the job of a request. `asked` are partitions and positions as they were given, `folder` the topic's
    incarnation.

    Without a name it gets one that any other request, archive or target would change.
    """
    parts = [archive_id, folder, target, *asked, pipeline.fingerprint]
    digest = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
    return Job(name or digest[:NAME_DIGITS], target, digest[:HASH_DIGITS])


async def chain_hash(partition: ArchivedPartition, offsets: OffsetRange, on_damage: DamagePolicy = STOP) -> str:
    """Return a hash of the committed chunks at these offsets: it changes if any chunk is changed or deleted.

    Raises a FormatError or ObjectMissing for a catalog that cannot be read; one that is passed over is hashed as such.
    """
    digest = hashlib.sha256(partition.marker.archive_id.encode())
    async for found in chosen_entries(partition, *offsets):
        if isinstance(found, ChunkEntry):
            digest.update(f"\n{found.name} {found.sha256}".encode())
        else:
            on_damage.meet(found)
            digest.update(f"\n{found.key} cannot be read".encode())
    return digest.hexdigest()


def first_positions(
    job: Job, ranges: Mapping[int, OffsetRange], histories: Mapping[int, str], pipeline: Pipeline
) -> dict[int, LanePosition]:
    """Return the position of each lane before the first record; `ranges` and `histories` are by source partition."""
    positions = {}
    for lane, sources in sorted(pipeline.feeding(ranges).items()):
        history = hashlib.sha256("\n".join(histories[source] for source in sources).encode()).hexdigest()
        progress = {source: SourceProgress(ranges[source].start, *ranges[source]) for source in sources}
        positions[lane] = LanePosition(job.selection, history[:HASH_DIGITS], 0, progress)
    return positions


def rewritten_since(
    first: Mapping[int, LanePosition], recorded: Mapping[int, LanePosition], maintained: Container[int]
) -> dict[int, LanePosition]:
    """Return the first position of each lane, with the recorded history for partitions that maintenance rewrites.

    They rewrite chunks, and leave the records at their offsets: the chunks do not show whether it is the same archive.
    """
    return {
        lane: replace(position, history=recorded[lane].history)
        if lane in recorded and any(source in maintained for source in position.sources)
        else position
        for lane, position in first.items()
    }


def followed_positions(job: Job, selections: Sequence[Selection], pipeline: Pipeline) -> dict[int, LanePosition]:
    """Return the first positions of a job that follows its archive, up to where these selections end.

    Its history is the incarnation alone: chunks come, and old ones may be merged or pruned.
    """
    ranges = {each.partition.partition: each.offsets for each in selections}
    histories = {
        each.partition.partition: f"{each.partition.marker.archive_id} {each.partition.keys.folder}"
        for each in selections
    }
    return first_positions(job, ranges, histories, pipeline)


def followed(selections: Sequence[Selection], recorded: Mapping[int, LanePosition]) -> list[Selection]:
    """Return the selections of a job that follows its archive, from its first offsets to the present ends."""
    starts = {source: each.start for position in recorded.values() for source, each in position.sources.items()}
    return [
        each._replace(offsets=OffsetRange(starts.get(each.partition.partition, each.offsets.start), each.offsets.end))
        for each in selections
    ]


def continued(recorded: Mapping[int, LanePosition], first: Mapping[int, LanePosition]) -> dict[int, LanePosition]:
    """Return the recorded positions of a job that follows its archive, extended to where its ranges end now."""
    return {lane: position.up_to(first[lane]) if lane in first else position for lane, position in recorded.items()}


def pinned(selections: Sequence[Selection], recorded: Mapping[int, LanePosition]) -> list[Selection]:
    """Return the selections with the ranges that the job recorded when it began: the archive may have grown since."""
    ranges = {
        source: OffsetRange(progress.start, progress.end)
        for position in recorded.values()
        for source, progress in position.sources.items()
    }
    # The recorded ranges replace ends that were just computed again from a time.
    return [
        Selection(each.partition, ranges[each.partition.partition]) if each.partition.partition in ranges else each
        for each in selections
    ]


def refuse_other_job(recorded: Mapping[int, LanePosition], first: Mapping[int, LanePosition]) -> None:
    """Raise ReplayRefused if a recorded position is not one of the job that begins at `first`."""
    for lane, position in recorded.items():
        wanted = first.get(lane)
        if wanted is None or position.selection != wanted.selection:
            raise ReplayRefused(
                "this is not the replay that the job started with",
                why="it started with other partitions, positions, filters, routing, archive or topic",
                remedy="repeat the first command with --resume, or start another job with --job NAME",
            )
        if not position.same_job(wanted):
            raise ReplayRefused(
                "the archive is not the one that the job started with",
                why=f"the chunks that it recorded for target partition {lane} have changed or are gone",
                remedy="start another job with --job NAME, with --from where this one stopped",
            )


class Ledger:
    """Progress of each lane: begins at the committed positions. A source is read from the lowest position of the lanes
    that it feeds.

    Per lane and source, everything below a running offset was offered to the lane. `positions` are what to commit
    together with all records accepted so far; `committed` says that it was done.
    """

    def __init__(self, committed: Mapping[int, LanePosition]) -> None:
        self._committed = dict(committed)
        self._nexts = {
            lane: {source: progress.next for source, progress in position.sources.items()}
            for lane, position in committed.items()
        }
        self._records = dict.fromkeys(committed, 0)

    def start_of(self, source: int) -> int | None:
        """Return the lowest offset of a source partition that a lane still needs; None if all lanes have everything."""
        needed = [
            nexts[source]
            for lane, nexts in self._nexts.items()
            if source in nexts and nexts[source] < self._committed[lane].sources[source].end
        ]
        return min(needed, default=None)

    def accept(self, source: int, piece: RoutedBatch) -> pa.RecordBatch:
        """Return the records of a piece that its lane does not have yet; they count as written from now on."""
        offsets = piece.records.column("offset").to_numpy()
        fresh = piece.records.slice(int(np.searchsorted(offsets, self._nexts[piece.target][source])))
        self._records[piece.target] += fresh.num_rows
        return fresh

    def passed(self, source: int, next_offset: int) -> None:
        """Note that all records of a source below `next_offset` were accepted by a lane, or dropped by a stage."""
        for nexts in self._nexts.values():
            if source in nexts:
                nexts[source] = max(nexts[source], next_offset)

    def positions(self) -> dict[int, LanePosition]:
        """Return the new position of every lane that moved since its last commit."""
        now = {lane: last.advanced(self._records[lane], self._nexts[lane]) for lane, last in self._committed.items()}
        return {lane: position for lane, position in now.items() if position != self._committed[lane]}

    def committed(self, positions: Mapping[int, LanePosition]) -> None:
        """Note that these positions, which `positions` returned earlier, are committed."""
        for lane, position in positions.items():
            self._records[lane] -= position.written - self._committed[lane].written
            self._committed[lane] = position

    @property
    def last(self) -> Mapping[int, LanePosition]:
        """The committed position of every lane."""
        return self._committed

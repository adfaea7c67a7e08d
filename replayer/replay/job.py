"""The job of a replay, which can be interrupted and resumed: its name, its positions, and its run map."""

import hashlib
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from blockgz.archive.partition import STOP, ArchivedPartition, DamagePolicy
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, chosen_entries
from blockgz.errors import UsageError
from index_format.marker import ChunkEntry
from replayer.errors import ReplayRefused
from replayer.replay.pipeline import Pipeline, RoutedBatch

VERSION = 1
# Kafka's default offset.metadata.max.bytes; what is longer is refused by the broker.
MAX_METADATA_BYTES = 4096


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
        ours, theirs = (
            (each.selection, each.history, {number: (start, end) for number, (start, _, end) in each.sources.items()})
            for each in (self, other)
        )
        return ours == theirs


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
    job: Job, selections: Sequence[Selection], histories: Mapping[int, str], pipeline: Pipeline
) -> dict[int, LanePosition]:
    """Return the position of each lane before the first record; `histories` are by source partition."""
    positions, ranges = {}, {each.partition.partition: each.offsets for each in selections}
    for lane, sources in sorted(pipeline.feeding(ranges).items()):
        history = hashlib.sha256("\n".join(histories[source] for source in sources).encode()).hexdigest()
        progress = {source: SourceProgress(ranges[source].start, *ranges[source]) for source in sources}
        positions[lane] = LanePosition(job.selection, history[:HASH_DIGITS], 0, progress)
    return positions


def rewritten_since(
    first: Mapping[int, LanePosition], recorded: Mapping[int, LanePosition], maintained: Container[int]
) -> dict[int, LanePosition]:
    """Return the first position of each lane, with the recorded history for partitions that maintenance rewrites."""
    # It rewrites chunks, and leaves the records at their offsets: chunks do not show whether the archive is the same.
    return {
        lane: replace(position, history=recorded[lane].history)
        if lane in recorded and any(source in maintained for source in position.sources)
        else position
        for lane, position in first.items()
    }


def followed_positions(job: Job, selections: Sequence[Selection], pipeline: Pipeline) -> dict[int, LanePosition]:
    """Return the first positions of a job that follows its archive, up to where these selections end."""
    # Its history is the incarnation alone: chunks come, and old ones may be merged or pruned.
    histories = {
        each.partition.partition: f"{each.partition.marker.archive_id} {each.partition.keys.folder}"
        for each in selections
    }
    return first_positions(job, selections, histories, pipeline)


def continued(recorded: Mapping[int, LanePosition], first: Mapping[int, LanePosition]) -> dict[int, LanePosition]:
    """Return the recorded positions of a job that follows its archive, extended to where its ranges end now."""
    return {lane: position.up_to(first[lane]) if lane in first else position for lane, position in recorded.items()}


def recorded_ranges(
    selections: Sequence[Selection], recorded: Mapping[int, LanePosition], *, follows: bool = False
) -> list[Selection]:
    """Return the selections with the ranges that the job recorded when it began: the archive may have grown since.

    If it follows its archive, they still end where they end now.
    """
    ranges = {source: progress for position in recorded.values() for source, progress in position.sources.items()}
    found = []
    for each in selections:
        if (known := ranges.get(each.partition.partition)) is None:
            found.append(each)
        else:
            # The recorded end replaces one that was just computed again from a time.
            end = each.offsets.end if follows else known.end
            found.append(Selection(each.partition, OffsetRange(known.start, end)))
    return found


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


M = TypeVar("M")

# Target offsets of records by lane, as int64 arrays in the order in which they were sent.
Acknowledged = Mapping[int, Any]


class Run(NamedTuple):
    """A run of records: offsets [start, end) of a source partition are in `lane` from `target_start` on.

    Fewer records than offsets where routing, filters or the log left some out. `end` is that of the last record.
    """

    source: int
    start: int
    end: int
    lane: int
    target_start: int
    records: int

    @property
    def target_end(self) -> int:
        """The target offset after the last record."""
        return self.target_start + self.records


@dataclass
class _Lane:
    """Records of one lane that were handed over, and of those the offsets that the cluster gave them."""

    sent: int = 0
    taken: int = 0
    mapped: int = 0
    """Records taken that are in runs returned already."""
    pieces: deque[tuple[int, Any]] = field(default_factory=deque)
    """Source partition and source offsets of records that are not mapped yet."""
    offsets: deque[Any] = field(default_factory=deque)
    """Target offsets of what is taken and not mapped yet."""


class Outstanding(Generic[M]):
    """Records that were handed over and are not committed, with the marks at which a commit is possible.

    A mark of all that was handed over before it is due once the cluster took all of that.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        # Records of each lane, counted from the first, and what is true once the cluster has taken so many.
        self._marks: deque[tuple[Mapping[int, int], M]] = deque()

    def sent(self, lane: int, source: int, offsets: Any) -> None:
        """Note records of a source partition that were handed over for a lane; `offsets` are their own, an int64
        array.
        """
        known = self._lanes.setdefault(lane, _Lane())
        known.sent += len(offsets)
        known.pieces.append((source, offsets))

    def mark(self, content: M) -> None:
        """Add a mark: `content` holds once all records that were handed over so far are taken."""
        self._marks.append(({number: lane.sent for number, lane in self._lanes.items()}, content))

    def took(self, acknowledged: Acknowledged | None) -> None:
        """Note records that the cluster took since; None: all that were handed over, at unknown offsets."""
        if acknowledged is None:
            for lane in self._lanes.values():
                lane.taken = lane.mapped = lane.sent
                lane.pieces.clear()
            return
        for number, offsets in acknowledged.items():
            if len(offsets):
                lane = self._lanes[number]
                lane.taken += len(offsets)
                lane.offsets.append(offsets)

    def due(self) -> tuple[list[Run], M | None]:
        """Return the runs up to the newest mark that is due, and its content; each mark is returned once."""
        needed: Mapping[int, int] = {}
        content: M | None = None
        while self._marks and all(self._lanes[number].taken >= least for number, least in self._marks[0][0].items()):
            needed, content = self._marks.popleft()
        return [run for number, upto in needed.items() for run in self._mapped(number, upto)], content

    def rest(self) -> list[Run]:
        """Return the runs of all taken records that no earlier call returned, regardless of marks."""
        return [run for number, lane in self._lanes.items() for run in self._mapped(number, lane.taken)]

    def _mapped(self, number: int, upto: int) -> Iterator[Run]:
        lane = self._lanes[number]
        count = upto - lane.mapped
        if count <= 0:
            return
        lane.mapped = upto
        targets = _first(lane.offsets, count)
        pieces = []
        while count:
            source, offsets = lane.pieces.popleft()
            if len(offsets) > count:
                lane.pieces.appendleft((source, offsets[count:]))
                offsets = offsets[:count]
            pieces.append((source, offsets))
            count -= len(offsets)
        yield from runs_of(number, pieces, targets)


def runs_of(lane: int, pieces: Sequence[tuple[int, Any]], targets: Any) -> Iterator[Run]:
    """Yield the runs of pieces (source partition and source offsets), whose records are at `targets`, in order."""
    breaks = set((np.flatnonzero(np.diff(targets) != 1) + 1).tolist())
    begins = 0
    for _, offsets in pieces:
        breaks.add(begins)
        begins += len(offsets)
    edges = sorted({*breaks, begins})
    sources = np.repeat([source for source, _ in pieces], [len(offsets) for _, offsets in pieces])
    offsets = np.concatenate([offsets for _, offsets in pieces])
    parts = (
        Run(int(sources[a]), int(offsets[a]), int(offsets[b - 1]) + 1, lane, int(targets[a]), b - a)
        for a, b in pairwise(edges)
    )
    return joined(parts)


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Join neighbouring runs of one lane and source partition."""
    last: Run | None = None
    for run in runs:
        if last is not None and _continues(last, run):
            last = last._replace(end=run.end, records=last.records + run.records)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _continues(last: Run, run: Run) -> bool:
    return (last.source, last.lane, last.target_end) == (
        run.source,
        run.lane,
        run.target_start,
    ) and last.end <= run.start


def _first(parts: deque[Any], count: int) -> Any:
    """Remove and return the first `count` numbers of arrays."""
    taken = []
    while count:
        part = parts.popleft()
        if len(part) > count:
            parts.appendleft(part[count:])
            part = part[:count]
        taken.append(part)
        count -= len(part)
    return np.concatenate(taken)

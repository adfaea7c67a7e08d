"""How far a job has come in each lane: its positions as they are stored, and the ledger of a running job.

Pure: no clock, no Kafka.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from replayer.errors import ReplayRefused
from replayer.replay.pipeline import RoutedBatch

VERSION = 1
MAX_METADATA_BYTES = 4096
"""Kafka's default offset.metadata.max.bytes; what is longer is refused by the broker."""


class Position(Protocol):
    """What a job records with its records: how many there are, and text that says what they cover."""

    @property
    def written(self) -> int:
        """Records of the job so far."""

    def encoded(self) -> str:
        """The rest, as it is stored with a committed offset; at most `MAX_METADATA_BYTES`."""


class SourceProgress(NamedTuple):
    """Offsets [start, end) of one source partition are the job's; what lies below `next` is done in this lane."""

    start: int
    next: int
    end: int


@dataclass(frozen=True)
class LanePosition:
    """`written` records of the job stand in the lane; `sources` says, per source partition, what they cover.

    `selection` and `history` are hashes: of what was asked for, and of the chunks that it means.
    """

    selection: str
    history: str
    written: int
    sources: Mapping[int, SourceProgress]

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not all(re.fullmatch("[0-9a-f]{16}", digest) for digest in (self.selection, self.history)):
            raise ValueError("a hash is 16 digits of lower-case hex")
        if self.written < 0 or not all(0 <= start <= done <= end for start, done, end in self.sources.values()):
            raise ValueError("a position lies outside its range")

    @property
    def complete(self) -> bool:
        return all(source.next == source.end for source in self.sources.values())

    def advanced(self, records: int, nexts: Mapping[int, int]) -> "LanePosition":
        """The position `records` later, with these next offsets."""
        moved = {number: progress._replace(next=nexts[number]) for number, progress in self.sources.items()}
        return replace(self, written=self.written + records, sources=moved)

    def up_to(self, wanted: "LanePosition") -> "LanePosition":
        """The position with the ends of another one of the same job, where these lie higher."""
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
        """Whether both are positions of the same selection of the same history."""
        return (self.selection, self.history, _ranges(self)) == (other.selection, other.history, _ranges(other))


def decode_position(written: int, metadata: str) -> LanePosition:
    """The reverse of `encoded`; raises ReplayRefused for what this program did not write."""
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
    """Raises ReplayRefused where a lane draws from more source partitions than one position can hold."""
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


class Ledger:
    """Begins at the committed positions; sources are read again from the lowest one of the lanes they feed.

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
        """The lowest offset of a source partition that a lane still needs; None where all have everything."""
        needed = [
            nexts[source]
            for lane, nexts in self._nexts.items()
            if source in nexts and nexts[source] < self._committed[lane].sources[source].end
        ]
        return min(needed, default=None)

    def accept(self, source: int, piece: RoutedBatch) -> pa.RecordBatch:
        """The records of a piece that its lane does not have yet; they count as written from now on."""
        offsets = piece.records.column("offset").to_numpy()
        fresh = piece.records.slice(int(np.searchsorted(offsets, self._nexts[piece.target][source])))
        self._records[piece.target] += fresh.num_rows
        return fresh

    def passed(self, source: int, next_offset: int) -> None:
        """All records of a source below `next_offset` were accepted, wherever they went, or dropped by a stage."""
        for nexts in self._nexts.values():
            if source in nexts:
                nexts[source] = max(nexts[source], next_offset)

    def positions(self) -> dict[int, LanePosition]:
        """The new position of every lane that moved since its last commit."""
        now = {lane: last.advanced(self._records[lane], self._nexts[lane]) for lane, last in self._committed.items()}
        return {lane: position for lane, position in now.items() if position != self._committed[lane]}

    def committed(self, positions: Mapping[int, LanePosition]) -> None:
        """These positions, as `positions` once gave them, stand."""
        for lane, position in positions.items():
            self._records[lane] -= position.written - self._committed[lane].written
            self._committed[lane] = position

    @property
    def last(self) -> Mapping[int, LanePosition]:
        """The committed position of every lane."""
        return self._committed

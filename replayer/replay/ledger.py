"""What a running job has done in each lane, and what it must not do again. Pure: no clock, no Kafka."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from replayer.replay.lane_position import LanePosition
from replayer.replay.pipeline import RoutedBatch


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
        """These positions, as `positions` gave them, stand."""
        for lane, position in positions.items():
            self._committed[lane] = position
            self._records[lane] = 0

    @property
    def last(self) -> Mapping[int, LanePosition]:
        """The committed position of every lane."""
        return self._committed

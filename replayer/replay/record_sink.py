"""Where replayed records go, as the replay sees it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from replayer.replay.lane_position import LanePosition


class Delivered(NamedTuple):
    """Offsets of the first and the newest record that a target partition took; None before the first."""

    first_offset: int | None
    last_offset: int | None


class RecordSink(Protocol):
    """Takes records and positions; all but `stop` block and are called by one thread at a time.

    After an error that `is_lost` calls a lost commit, `begin` may be called again and says what stands.
    """

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """Takes these target partitions over: whoever wrote to them for this job can do so no more.

        What they have committed, by lane; a lane without a position is missing. What was sent and not committed counts
        as not written from now on.
        """

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Takes the batch, in order; raises a BlockgzError once it is known that a record was not taken."""

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Makes what was sent to these lanes last, and these positions with it."""

    def delivered(self) -> Mapping[int, Delivered]:
        """What is known to be written by now, committed where there are transactions."""

    def stop(self) -> None:
        """Gives up: a call under way ends soon. May be called from any thread."""

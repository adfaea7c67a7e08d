"""What a running replay stands on: the sink that takes its records, the job's log, and the target it began with."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from replayer.replay.ledger import LanePosition
from replayer.replay.run_map import Acknowledged, Run

PATIENCE_SECONDS = 300.0
"""So long without any progress ends a replay whose commits are lost."""


class RecordSink(Protocol):
    """Takes records and positions; all but `stop` block and are called by one thread at a time.

    After CommitLost `begin` may be called again, and says what stands.
    """

    rolls_back: bool
    """Whether what was sent and not committed does not count as written."""

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """Takes these target partitions over: whoever wrote to them for this job can do so no more.

        What they have committed, by lane; a lane without a position is missing. What was sent and not committed counts
        as not written from now on.
        """

    def stand_at(self, ends: Mapping[int, int]) -> None:
        """After `begin`: where the lanes end before the first record."""

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Takes the batch, in order; raises a BlockgzError once it is known that a record was not taken."""

    def acknowledged(self, *, wait: bool) -> Acknowledged | None:
        """What the cluster took since the last call; with `wait`, all that was sent. None: all of it, who knows where.

        Raises as `send` does.
        """

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Makes what was sent to these lanes, and is acknowledged, last, and these positions with it."""

    def stop(self) -> None:
        """Gives up: a call under way ends soon. May be called from any thread."""


class JobLog(Protocol):
    """Where a job writes down what it does, before it does it; its calls block."""

    def claim(self) -> None:
        """From now on the job's newest run is this one; called before lanes are taken over. Raises JobTakenOver."""

    def is_ours(self) -> bool | None:
        """Whether no other run has claimed the job since; None where that cannot be told."""

    def written_ends(self, positions: Mapping[int, LanePosition]) -> Mapping[int, int]:
        """By lane, the target's offset behind the last record that these positions cover.

        Raises ReplayRefused where the log ends below the positions.
        """

    def begun(self, positions: Mapping[int, LanePosition], ends: Mapping[int, int]) -> None:
        """The job goes on from these positions, while the lanes end there; other runs above them do not count."""

    def note(self, runs: Sequence[Run]) -> None:
        """The cluster took these; they last when the call returns. Raises JobTakenOver or a StoreError."""

    def complete(self) -> None:
        """Note that the job is complete."""


class NoLog:
    """For a job that keeps no log."""

    def claim(self) -> None: ...

    def is_ours(self) -> None:
        """Nobody knows."""

    def written_ends(self, _: Mapping[int, LanePosition]) -> Mapping[int, int]:
        return {}

    def begun(self, *_: Mapping[int, object]) -> None: ...

    def note(self, _: Sequence[Run]) -> None: ...

    def complete(self) -> None: ...


class TargetPin(Protocol):
    """Knows the topic that a job began to write to."""

    def check(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Where these lanes end now.

        Raises TargetChanged where the topic is another one, or a lane ends below its offset in `ends`, and
        BrokerUnreachable or PartitionUnavailable where that cannot be asked.
        """


class NoPin:
    """For a target that may be any."""

    def check(self, _: Mapping[int, int]) -> Mapping[int, int]:
        return {}


class Keeping(NamedTuple):
    """What keeps a replay from falling short: the job's log, the target that it began with, and patience in seconds."""

    log: JobLog = NoLog()
    pin: TargetPin = NoPin()
    patience: float = PATIENCE_SECONDS


NOTHING_KEPT = Keeping()

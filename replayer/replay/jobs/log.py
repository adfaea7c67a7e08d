"""The log of one run of a job, in the job's folder: its attempt, where lanes stood, and the run map as it grows."""

import os
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.jobs.folder import Attempt, JobComplete, JobFolder, LaneBegin, Segment, runs_in
from replayer.replay.ledger import LanePosition
from replayer.replay.run_map import Run


class _Tail(NamedTuple):
    """Records of a lane that are in the run map, and the target's offset behind the last one."""

    records: int = 0
    end: int = 0


class FolderLog:
    """A JobLog (replayer.replay.seams) in a folder; used by one thread at a time, `is_ours` by any."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._attempt: Attempt | None = None
        self._segments = 0
        self._tails: dict[int, _Tail] = {}
        """Of all lanes, where the job last went on."""
        self._since: dict[int, list[_Tail]] = {}
        """Of each lane the tail after every run since."""

    def claim(self) -> None:
        """Adds this run's attempt; a second call looks whether it is the newest still. Raises JobTakenOver."""
        if self._attempt is not None:
            if not self.is_ours():
                raise self._taken_over()
            return
        number = self._folder.newest_attempt() + 1
        attempt = Attempt(number=number, id=uuid.uuid4().hex, host=this_process(), begun_at=_now_ms())
        if not self._folder.add_attempt(attempt):
            raise self._taken_over()
        self._attempt = attempt
        self._folder.positions.attempt = attempt.id

    def is_ours(self) -> bool | None:
        """Whether no later run began; None before `claim`."""
        return None if self._attempt is None else not self._folder.has_attempt(self._attempt.number + 1)

    def written_ends(self, positions: Mapping[int, LanePosition]) -> Mapping[int, int]:
        """See JobLog: also forgets runs above the positions, which were rolled back or will be sent again.

        Raises JobTakenOver where a later run began.
        """
        if not self.is_ours():
            raise self._taken_over()
        if self._segments == 0:
            # Not before: until the lanes were taken over, the run before this one went on.
            self._load()
            self._refuse_lost(positions.keys())
        tails = {}
        for lane, tail in self._tails.items():
            tails[lane] = self._tail_at(lane, tail, positions[lane].written if lane in positions else 0)
        for lane, position in positions.items():
            if lane not in tails:
                tails[lane] = self._tail_at(lane, _Tail(), position.written)
        self._tails, self._since = tails, {}
        return {lane: tail.end for lane, tail in tails.items()}

    def begun(self, positions: Mapping[int, LanePosition], ends: Mapping[int, int]) -> None:
        """Stores a segment that says where the job goes on."""
        lanes = {
            lane: LaneBegin(positions[lane].written if lane in positions else 0, end)
            for lane, end in sorted(ends.items())
        }
        assert self._attempt is not None
        earlier = None
        if self._segments == 0:
            counts = self._folder.segment_counts()
            earlier = max((part for part in counts.items() if part[0] < self._attempt.number), default=None)
        self._add(Segment(attempt=self._attempt.id, lanes=lanes, earlier=earlier))

    def note(self, runs: Sequence[Run]) -> None:
        """Stores a segment with these runs."""
        assert self._attempt is not None
        self._add(Segment(attempt=self._attempt.id, runs=tuple(runs)))
        self._remember(runs)

    def complete(self) -> None:
        """See JobLog: only the cluster knows the positions of a job with transactions, and forgets them."""
        self._folder.add_complete(JobComplete(host=this_process(), completed_at=_now_ms()))

    def _add(self, segment: Segment) -> None:
        assert self._attempt is not None
        self._folder.add_segment(self._attempt.number, self._segments, segment)
        self._segments += 1

    def _remember(self, runs: Sequence[Run]) -> None:
        for run in runs:
            since = self._since.setdefault(run.lane, [])
            before = since[-1] if since else self._tails.get(run.lane, _Tail())
            since.append(_Tail(before.records + run.records, run.target_end))

    def _load(self) -> None:
        """Takes in what earlier runs noted, each cut where the job went on after it."""
        self._tails, self._since = {}, {}
        for _, segment in self._folder.segments():
            if segment.lanes is not None:
                lanes = self._tails.keys() | self._since.keys() | segment.lanes.keys()
                self._tails = {
                    lane: self._tail_at(lane, self._tails.get(lane, _Tail()), begin.written)
                    for lane in lanes
                    if (begin := segment.lanes.get(lane)) is not None
                }
                self._since = {}
            self._remember(list(runs_in(segment)))

    def _refuse_lost(self, committed: Collection[int]) -> None:
        """A run commits a position for every lane before its first record: one that is missing was lost."""
        for lane in sorted(self._tails.keys() | self._since.keys()):
            records = [self._tails.get(lane, _Tail()), *self._since.get(lane, ())][-1].records
            if records and lane not in committed:
                raise ReplayRefused(
                    f"the position of job {self._folder.job} in target partition {lane} is gone",
                    why=f"{self._folder.address} has {records} records there: the cluster forgets positions after "
                    "offsets.retention.minutes",
                    remedy="check what is there with replayer verify --job; start another job with --job NAME, into "
                    "another topic or from where this one ended",
                )

    def _tail_at(self, lane: int, tail: _Tail, written: int) -> _Tail:
        """The lane's tail after so many records; raises ReplayRefused where the run map does not reach there."""
        known: list[_Tail] = [tail, *self._since.get(lane, ())]
        for each in known:
            if each.records == written:
                return each
        raise ReplayRefused(
            f"the folder of job {self._folder.job} does not say where all its records are",
            why=f"{written} records of target partition {lane} are committed, and {self._folder.address} knows of "
            f"{known[-1].records}",
            remedy="set --jobs to the right folder, or start another job with --job NAME",
        )

    def _taken_over(self) -> JobTakenOver:
        return JobTakenOver(
            "another run of the same job has started",
            why=f"the folder of job {self._folder.job}, {self._folder.address}, has its run",
            remedy="let it finish; if there is none, run this again with --resume",
        )


def this_process() -> str:
    """The machine's name and the process's number, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _now_ms() -> int:
    return int(time.time() * 1000)

"""The folder of a replay job: its request, its runs, and the run map. docs/jobs.md specifies it.

Below `{job}/` in a store: `request.json`, `attempts/{n}.json`, `runs/{n}-{k}.json`, without transactions
`positions.json`, `complete.json` once the job is complete, and `undone.json` once its target was deleted on request.
Nothing but the positions is ever written twice. The objects that steer a run are in the module `control`.
"""

import os
import socket
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import FormatError, NoArchiveThere, UsageError
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store, open_store
from blockgz.store.writer import ContentTag, Store, ToolStore
from blockgz.units import wall_clock
from index_format.objects import Count, Offset, Sealed, decode, encode, stored
from replayer.errors import JobTakenOver, ReplayRefused, TargetChanged
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import Job, LanePosition, Run, decode_position, is_job_name
from replayer.replay.run import JobLog
from replayer.replay.target_topic import state_folder

T = TypeVar("T", bound=msgspec.Struct)


@stored
class JobRequest(Sealed, frozen=True, kw_only=True):
    """The request that a job was begun with; all its runs keep to it.

    `folder` is the incarnation of the source topic, `ranges` the offsets of its partitions, `asked` the options that
    decide which records are written, where and how, as they were given. `created` says whether the job made its target;
    requests of earlier versions do not. With `follows`, the ends of the ranges move with the archive: its positions
    have them.
    """

    file: ClassVar = "request.json"
    format: str = "blockgz-replay-job"
    version: int = 1
    job: str
    selection: str
    archive_id: str
    folder: str
    source_topic_id: str | None
    target: str
    target_topic_id: str | None
    transactional: bool
    producers: int
    begun_at: int
    ranges: dict[int, tuple[Offset, Offset]]
    asked: dict[str, Any]
    created: bool | msgspec.UnsetType = msgspec.UNSET
    follows: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def names(self) -> Job:
        """The names of the job in the cluster."""
        return Job(self.job, self.target, self.selection)

    @property
    def isolation_level(self) -> str:
        """The isolation level for reading the target: without transactions, no record waits for a decision."""
        return "read_committed" if self.transactional else "read_uncommitted"


@stored
class JobUndone(Sealed, frozen=True, kw_only=True):
    """A note that the job's target was deleted on request, with this many records of the job; `undone_at` in ms."""

    file: ClassVar = "undone.json"
    format: str = "blockgz-replay-undone"
    version: int = 1
    target: str
    target_topic_id: str
    records: Count
    host: str
    undone_at: int


@stored
class JobComplete(Sealed, frozen=True, kw_only=True):
    """A note that every record of the job is written; jobs of earlier versions and those that follow have none."""

    file: ClassVar = "complete.json"
    format: str = "blockgz-replay-complete"
    version: int = 1
    host: str
    completed_at: int


@stored
class JobSkipped(Sealed, frozen=True, kw_only=True):
    """Offsets of a source partition that a run passed over at damage, noted before a position behind them."""

    file: ClassVar = "skipped/{}.json"
    format: str = "blockgz-replay-skipped"
    version: int = 1
    partition: int
    start: Offset
    end: Offset
    reason: str


@stored
class Attempt(Sealed, frozen=True, kw_only=True):
    """One run of the job; only that run knows `id`."""

    file: ClassVar = "attempts/{}.json"
    format: str = "blockgz-replay-attempt"
    version: int = 1
    number: int
    id: str
    host: str
    begun_at: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """The records of a lane that count, and the target's offset behind them."""

    written: Count = 0
    end: Offset = 0


@stored
class Segment(Sealed, frozen=True, kw_only=True):
    """A part of the run map. With `lanes` the job continued at those positions; earlier runs above them are void.

    `earlier`, of an attempt's first segment, is the newest attempt before it that had segments then, and how many: what
    that or any other one added later does not count.
    """

    file: ClassVar = "runs/{}.json"
    format: str = "blockgz-replay-runs"
    version: int = 1
    attempt: str
    lanes: dict[int, LaneEnd] | None = None
    earlier: tuple[Count, Count] | None = None
    runs: tuple[tuple[int, Offset, Offset, int, Offset, Count], ...] = ()


class _StoredLane(msgspec.Struct, frozen=True):
    written: Count
    position: str


@stored
class _JobPositions(Sealed, frozen=True, kw_only=True):
    format: str = "blockgz-replay-positions"
    version: int = 1
    attempt: str
    lanes: dict[int, _StoredLane]


def refuse_changed_target(kept: JobRequest, facts: TopicFacts | None) -> None:
    """Raise TargetChanged if the job's target is gone, or another topic has its name now."""
    found = facts.topic_id if facts else None
    if facts is not None and (found is None or kept.target_topic_id in (None, found)):
        return
    now = f"the topic with that name has id {found}" if facts else "the topic no longer exists"
    raise TargetChanged(
        f"topic {kept.target} is not the one that job {kept.job} wrote to",
        why=f"that had id {kept.target_topic_id}, {now}: what the job wrote is gone",
        remedy=f"start another job with --job NAME, or remove this one with replayer jobs rm {kept.job}",
    )


def refuse_other_folder(kept: JobRequest, asked: JobRequest, facts: TopicFacts | None, address: str) -> None:
    """Raise ReplayRefused if a job of that name is another one, and TargetChanged; `facts` are the target's."""
    if kept.target == asked.target:
        # First, as the target has a say in the routing.
        refuse_changed_target(kept, facts)
    names = ("selection", "archive_id", "folder", "target", "transactional")
    other = [name for name in names if getattr(kept, name) != getattr(asked, name)]
    if other:
        told = {"selection": "other partitions, positions, filters or routing", "archive_id": "another archive"}
        raise ReplayRefused(
            "this is not the replay that the job started with",
            why=f"job {kept.job} was started into {kept.target} with "
            + ", ".join(told.get(name, f"{name} {getattr(kept, name)}") for name in other),
            remedy="repeat the first command with --resume, start another job with --job NAME, or forget the first one "
            f"with replayer jobs rm {kept.job} ({address})",
        )


def jobs_place(jobs: str | None) -> str:
    """Return the address of the folders of jobs; by default a folder of this machine."""
    return jobs or str(state_folder() / "jobs")


class RecordFolder:
    """A folder of records, each written once; calls block, and raise StoreUnavailable, AccessDenied or StoreError."""

    kind: ClassVar = "job"

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name

    @property
    def address(self) -> str:
        """Location of the folder, for people."""
        return f"{self._store.url.rstrip('/')}/{self.name}"

    def put(self, record: msgspec.Struct, name: str = "", holder: str | None = None) -> bool:
        """Store a record, unless there is one of its kind and name: the first write wins. Return whether this one did.

        `holder` identifies the writer in a request that the store may have received twice.
        """
        holder = holder or str(getattr(record, "host", self.name))
        return self._store.put_if_absent(self._key(type(record), name), encode(record), holder)

    def get(self, kind: type[T], name: str = "") -> T | None:
        """Return the record of a kind, None if there is none; raises ReplayRefused if it is damaged."""
        key = self._key(kind, name)
        found = self._store.get(key)
        if found is None:
            return None
        try:
            return decode(found.body, kind, key)
        except FormatError as error:
            raise self._unreadable(f"{error.what}: {error.why}") from error

    def names(self, kind: type[msgspec.Struct]) -> list[str]:
        """Return the names of the records of a kind."""
        prefix, suffix = self._key(kind, "{}").split("{}")
        return [each.key.removeprefix(prefix).removesuffix(suffix) for each in self._store.list(prefix)]

    def all(self, kind: type[T]) -> list[T]:
        """Return the records of a kind in order of their names; raise ReplayRefused if one is damaged."""
        return [each for name in self.names(kind) if (each := self.get(kind, name)) is not None]

    def remove(self, *, kept: Collection[str] = ()) -> None:
        """Delete the folder; objects of these names are `kept`."""
        # The request goes last, so that an interrupted removal can be repeated.
        last = f"{self.name}/request.json"
        for found in list(self._store.list(f"{self.name}/")):
            if found.key not in (last, *(f"{self.name}/{name}" for name in kept)):
                self._store.delete(found.key)
        self._store.delete(last)

    def _key(self, kind: type[msgspec.Struct], name: str) -> str:
        return f"{self.name}/{kind.file.format(name)}"  # type: ignore[attr-defined]

    def _unreadable(self, why: str) -> ReplayRefused:
        return unreadable(self.name, why, self.kind)


class JobFolder(RecordFolder):
    """One job's folder in a store."""

    def __init__(self, store: Store, job: str) -> None:
        super().__init__(store, job)
        self.job = job
        self.positions = PositionsFile(store, f"{job}/positions.json", job)

    def request(self) -> JobRequest | None:
        """Return the request that the job was begun with, None if the job does not exist; raises ReplayRefused for a
        damaged one.
        """
        return self.get(JobRequest)

    def create(self, request: JobRequest) -> None:
        """Begin the job; raises JobTakenOver if somebody else just did."""
        if not self.put(request, holder=request.job):
            found = self.request()
            if found != request:
                raise JobTakenOver(
                    f"job {self.job} was started by another run just now",
                    why=f"{self.address} already exists",
                    remedy="let it finish, or start another job with --job NAME",
                )

    def refuse_undone(self) -> None:
        """Raise ReplayRefused if the job was undone."""
        undone = self.get(JobUndone)
        if undone is not None:
            raise ReplayRefused(
                f"job {self.job} was undone",
                why=f"replayer undo deleted topic {undone.target}, with {undone.records} records of the job",
                remedy=f"start another job with --job NAME, or remove this one with replayer jobs rm {self.job}",
            )

    def newest_attempt(self) -> int:
        """Return the number of the newest run, 0 before the first."""
        return max(self._numbers("attempts/"), default=0)

    def add_attempt(self, attempt: Attempt) -> bool:
        """Store an attempt; return whether it is the first with its number."""
        name = f"{attempt.number:06d}"
        return self.put(attempt, name, attempt.id) or self.get(Attempt, name) == attempt

    def attempt(self, number: int) -> Attempt | None:
        """Return the run of that number; raises ReplayRefused for a damaged one."""
        return self.get(Attempt, f"{number:06d}")

    def has_attempt(self, number: int) -> bool:
        return self._store.head(f"{self.job}/attempts/{number:06d}.json") is not None

    def add_segment(self, attempt: int, number: int, segment: Segment) -> None:
        """Store the attempt's next segment, which lasts when the call returns; raises JobTakenOver."""
        name = f"{attempt:06d}-{number:08d}"
        if not self.put(segment, name, segment.attempt) and self.get(Segment, name) != segment:
            raise JobTakenOver(
                f"another run of job {self.job} writes its run map",
                why=f"{self.job}/runs/{name}.json already exists",
                remedy="let it finish",
            )

    def segment_counts(self) -> dict[int, int]:
        """Return the number of segments of each attempt."""
        counts: dict[int, int] = {}
        for number in self._numbers("runs/"):
            counts[number] = counts.get(number, 0) + 1
        return counts

    def segments(self) -> Iterator[tuple[int, Segment]]:
        """Return every segment that counts, oldest first, with the number of its attempt; raises ReplayRefused."""
        counts = self.segment_counts()
        parts: list[tuple[int, int]] = []
        part: tuple[int, int] | None = max(counts.items(), default=None)
        while part is not None:
            parts.append(part)
            part = self._segment(part[0], 0).earlier
        for attempt, count in reversed(parts):
            for number in range(count):
                yield attempt, self._segment(attempt, number)

    def _segment(self, attempt: int, number: int) -> Segment:
        name = f"{attempt:06d}-{number:08d}"
        segment = self.get(Segment, name)
        if segment is None:
            raise unreadable(self.job, f"{self.job}/runs/{name}.json is missing")
        return segment

    def _numbers(self, below: str) -> Iterator[int]:
        prefix = f"{self.job}/{below}"
        for found in self._store.list(prefix):
            digits = found.key.removeprefix(prefix)[:6]
            if digits.isdigit():
                yield int(digits)


class PositionsFile:
    """The positions of a job without transactions, replaced by compare-and-swap."""

    def __init__(self, store: Store, key: str, job: str) -> None:
        self._store = store
        self._key = key
        self._job = job
        self._tag: ContentTag | None = None
        self._lanes: Mapping[int, _StoredLane] = {}
        # The id of the attempt that writes.
        self.attempt = ""

    def read(self, _lanes: Sequence[int] = ()) -> dict[int, LanePosition]:
        """Return the positions of all lanes, empty before the first; raises ReplayRefused for unreadable ones."""
        found = self._store.get(self._key)
        self._tag = found.etag if found else None
        if found is None:
            return {}
        try:
            content = decode(found.body, _JobPositions, self._key)
        except FormatError as error:
            raise unreadable(self._job, f"{error.what}: {error.why}") from error
        self._lanes = content.lanes
        return {number: decode_position(lane.written, lane.position) for number, lane in content.lanes.items()}

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replace the positions of these lanes; raises JobTakenOver if another run wrote since `read`."""
        new = {number: _StoredLane(each.written, each.encoded()) for number, each in positions.items()}
        lanes = dict(sorted({**self._lanes, **new}.items()))
        body = encode(_JobPositions(attempt=self.attempt, lanes=lanes))
        tag = self._store.compare_and_swap(self._key, body, self._tag)
        if tag is None:
            # An answer may have been lost: what is there may be what was to be written.
            found = self._store.get(self._key)
            if found is None or found.body != body:
                raise JobTakenOver(
                    f"another run of job {self._job} continues it",
                    why=f"{self._key} has changed since this run wrote it",
                    remedy="let the other run finish; if there is none, run this again with --resume",
                )
            tag = found.etag
        self._tag, self._lanes = tag, lanes


def unreadable(name: str, why: str, kind: str = "job") -> ReplayRefused:
    """Return the error for a folder whose job's or restore's state cannot be read."""
    return ReplayRefused(
        f"the folder of {kind} {name} cannot be read", why=why, remedy="restore it, or start another one"
    )


def job_names(store: ToolStore) -> list[str]:
    """The folders that may be those of jobs, in order; what a job cannot be called is another's."""
    return sorted(name for name in store.folders("") if is_job_name(name))


def runs_in(segment: Segment) -> Iterator[Run]:
    return (Run(*each) for each in segment.runs)


class FolderLog(JobLog):
    """A log of a job in its folder; used by one thread at a time, `is_ours` by any."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._attempt: Attempt | None = None
        self._segments = 0
        # The tail of each lane when the job last continued.
        self._tails: dict[int, LaneEnd] = {}
        # The tail of each lane after every run since then.
        self._since: dict[int, list[LaneEnd]] = {}

    def claim(self) -> None:
        """Add this run's attempt; a second call looks whether it is the newest still. Raises JobTakenOver."""
        if self._attempt is not None:
            if not self.is_ours():
                raise self._taken_over()
            return
        number = self._folder.newest_attempt() + 1
        attempt = Attempt(number=number, id=uuid.uuid4().hex, host=this_process(), begun_at=wall_clock())
        if not self._folder.add_attempt(attempt):
            raise self._taken_over()
        self._attempt = attempt
        self._folder.positions.attempt = attempt.id

    def is_ours(self) -> bool | None:
        """Return whether no later run began; None before `claim`."""
        return None if self._attempt is None else not self._folder.has_attempt(self._attempt.number + 1)

    def written_ends(self, positions: Mapping[int, LanePosition]) -> Mapping[int, int]:
        """Return the ends as JobLog does; raise JobTakenOver if a later run began."""
        if not self.is_ours():
            raise self._taken_over()
        if self._segments == 0:
            # Not earlier: until the lanes were taken over, the run before this one still wrote.
            self._load()
            self._refuse_lost(positions.keys())
        tails = {}
        for lane, tail in self._tails.items():
            tails[lane] = self._tail_at(lane, tail, positions[lane].written if lane in positions else 0)
        for lane, position in positions.items():
            if lane not in tails:
                tails[lane] = self._tail_at(lane, LaneEnd(), position.written)
        # Runs above the positions are forgotten: they were rolled back, or will be sent again.
        self._tails, self._since = tails, {}
        return {lane: tail.end for lane, tail in tails.items()}

    def begun(self, positions: Mapping[int, LanePosition], ends: Mapping[int, int]) -> None:
        """Store a segment with the positions from which the job continues."""
        lanes = {
            lane: LaneEnd(positions[lane].written if lane in positions else 0, end)
            for lane, end in sorted(ends.items())
        }
        assert self._attempt is not None
        earlier = None
        if self._segments == 0:
            counts = self._folder.segment_counts()
            earlier = max((part for part in counts.items() if part[0] < self._attempt.number), default=None)
        self._add(Segment(attempt=self._attempt.id, lanes=lanes, earlier=earlier))

    def note(self, runs: Sequence[Run]) -> None:
        assert self._attempt is not None
        self._add(Segment(attempt=self._attempt.id, runs=tuple(runs)))
        self._remember(runs)

    def _add(self, segment: Segment) -> None:
        assert self._attempt is not None
        self._folder.add_segment(self._attempt.number, self._segments, segment)
        self._segments += 1

    def _remember(self, runs: Sequence[Run]) -> None:
        for run in runs:
            since = self._since.setdefault(run.lane, [])
            before = since[-1] if since else self._tails.get(run.lane, LaneEnd())
            since.append(LaneEnd(before.written + run.records, run.target_end))

    def _load(self) -> None:
        """Load what earlier runs noted, each cut where the job continued."""
        self._tails, self._since = {}, {}
        for _, segment in self._folder.segments():
            if segment.lanes is not None:
                lanes = self._tails.keys() | self._since.keys() | segment.lanes.keys()
                self._tails = {
                    lane: self._tail_at(lane, self._tails.get(lane, LaneEnd()), begin.written)
                    for lane in lanes
                    if (begin := segment.lanes.get(lane)) is not None
                }
                self._since = {}
            self._remember(list(runs_in(segment)))

    def _refuse_lost(self, committed: Collection[int]) -> None:
        """Raise ReplayRefused if a position is missing."""
        # A run commits a position for every lane before its first record.
        for lane in sorted(self._tails.keys() | self._since.keys()):
            records = [self._tails.get(lane, LaneEnd()), *self._since.get(lane, ())][-1].written
            if records and lane not in committed:
                raise ReplayRefused(
                    f"the position of job {self._folder.job} in target partition {lane} is gone",
                    why=f"{self._folder.address} has {records} records there: the cluster forgets positions after "
                    "offsets.retention.minutes",
                    remedy="check what is there with replayer verify --job; start another job with --job NAME, into "
                    "another topic or from where this one ended",
                )

    def _tail_at(self, lane: int, tail: LaneEnd, written: int) -> LaneEnd:
        """Return the lane's tail after `written` records; raises ReplayRefused if the run map does not reach there."""
        known: list[LaneEnd] = [tail, *self._since.get(lane, ())]
        for each in known:
            if each.written == written:
                return each
        raise ReplayRefused(
            f"the folder of job {self._folder.job} does not say where all its records are",
            why=f"{written} records of target partition {lane} are committed, and {self._folder.address} knows of "
            f"{known[-1].written}",
            remedy="set --jobs to the right folder, or start another job with --job NAME",
        )

    def _taken_over(self) -> JobTakenOver:
        return JobTakenOver(
            "another run of the same job has started",
            why=f"the folder of job {self._folder.job}, {self._folder.address}, has its run",
            remedy="let it finish; if there is none, run this again with --resume",
        )


def this_process() -> str:
    """Return the machine's name and the process's number, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def open_jobs(jobs: str | None, archive: ArchivePlace) -> Store:
    """Open the store at `jobs`, on S3 with the archive's settings."""
    return open_store(jobs_place(jobs), archive.s3)


def existing_jobs(jobs: str | None, s3: S3Settings) -> ToolStore | None:
    """The folder of jobs; None if the default one is not there yet. Raises UsageError for another that is not."""
    try:
        return open_existing_store(jobs_place(jobs), s3)
    except NoArchiveThere as error:
        if jobs is None:
            return None
        raise UsageError(f"there are no jobs at {jobs}", why=error.why, remedy="check --jobs") from error


def jobs_with(name: str, jobs: str | None, s3: S3Settings) -> ToolStore:
    """The folder of jobs, in which there is one of that name; raises UsageError."""
    store = existing_jobs(jobs, s3)
    if store is None or name not in job_names(store):
        raise no_such_job(name, store.url if store is not None else jobs_place(jobs))
    return store


def no_such_job(name: str, place: str) -> UsageError:
    """Return the error for a name that no folder at `place` has."""
    return UsageError(
        f"there is no job {name[:120]}",
        why=f"no folder of {place} has that name; without --jobs, every user on every machine has a place of their own",
        remedy="see replayer jobs, or give the place where the job was started: --jobs DIR or --jobs s3://BUCKET/PREFIX",
    )

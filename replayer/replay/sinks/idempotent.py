"""Producing without transactions: idempotent, so nothing is doubled unless the process dies.

The positions stand in a JSON file that is replaced whole, with a lock beside it.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa

from blockgz_runtime.atomic_file import replace_file
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.job import Job
from replayer.replay.ledger import LanePosition, decode_position
from replayer.replay.pipeline import KeepPartitions, Router, ScannedBatch
from replayer.replay.result import Delivered
from replayer.replay.sinks.producer import TopicProducer, producer_settings


class _StoredLane(msgspec.Struct, frozen=True):
    written: int
    position: str


class _Content(msgspec.Struct, frozen=True):
    job: str
    target: str
    lanes: dict[int, _StoredLane]


class JobFile:
    """The file of one job; readers see the old content or the new one."""

    def __init__(self, path: Path, job: Job) -> None:
        self._path = path
        self._lock_path = path.with_name(f".{path.name}.lock")
        self._job = job

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts no other run of the job writes; raises JobTakenOver where one does already."""
        with self._locked():
            try:
                yield
            finally:
                if not self._path.exists():
                    self._lock_path.unlink(missing_ok=True)

    def read(self) -> dict[int, LanePosition]:
        """The positions of all lanes, none where there is no file; raises ReplayRefused for what is not this job's."""
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(str(error)) from error
        except msgspec.DecodeError as error:
            raise self._refused(f"it is no file of a job: {error}") from error
        if (content.job, content.target) != (self._job.name, self._job.target):
            raise self._refused(f"it is job {content.job[:120]!r} into {content.target[:260]!r}")
        return {number: decode_position(lane.written, lane.position) for number, lane in content.lanes.items()}

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replaces the positions of these lanes, on the disk when the call returns."""
        merged = {**self.read(), **positions}
        lanes = {number: _StoredLane(each.written, each.encoded()) for number, each in sorted(merged.items())}
        replace_file(self._path, msgspec.json.encode(_Content(self._job.name, self._job.target, lanes)))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _locked(self) -> BinaryIO:
        """The lock, held until it is closed."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                lock = self._lock_path.open("ab")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._is_named(lock):
                        return lock
                except BaseException:
                    lock.close()
                    raise
                lock.close()
        except BlockingIOError as error:
            raise JobTakenOver(
                f"job {self._job.name} is being run already",
                why=f"another process holds {self._path}",
                remedy="wait for it, or begin another job with --job NAME",
            ) from error
        except OSError as error:
            raise self._refused(str(error)) from error

    def _is_named(self, lock: BinaryIO) -> bool:
        """Whether the lock is the file of that name still: a run that ended may just have taken it away."""
        try:
            return os.path.samestat(os.fstat(lock.fileno()), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _refused(self, why: str) -> ReplayRefused:
        return ReplayRefused(
            f"{self._path} does not tell where job {self._job.name} stands",
            why=why,
            remedy="name another file with --job-file, or remove this one to begin again",
        )


MESSAGE_TIMEOUT_MS = 120_000


class PositionStore(Protocol):
    """Where positions last, if anywhere."""

    def read(self) -> Mapping[int, LanePosition]:
        """The last ones that were written, none where there are none."""

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replaces those of these lanes."""


class KafkaSink:
    """One producer for all lanes. A commit waits until everything is written, then notes the positions."""

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        store: PositionStore,
        max_message_bytes: int | None = None,
        router: Router | None = None,
    ) -> None:
        """`max_message_bytes` and `router` as for TransactionalSink. Raises UsageError."""
        settings = {"message.timeout.ms": MESSAGE_TIMEOUT_MS, **producer_settings(properties, max_message_bytes)}
        self._producer = TopicProducer(settings, topic)
        self._store = store
        self._router = router or KeepPartitions()

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        recorded = self._store.read()
        return {lane: recorded[lane] for lane in lanes if lane in recorded}

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        for target, records in self._router.route(ScannedBatch(lane, batch)):
            self._producer.send(target, records)

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Waits for everything and notes the positions; raises as `send` does, and what the store raises."""
        self._producer.flush()
        self._store.write(positions)

    def delivered(self) -> dict[int, Delivered]:
        return self._producer.delivered()

    def stop(self) -> None:
        self._producer.stop()

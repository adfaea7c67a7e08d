"""Verifications that are begun from the page, and the history of reports in a folder."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from blockgz_runtime.errors import NotInArchive
from blockgz_runtime.signing import is_signed_by, signature_of
from index_format.errors import BlockgzError
from replayer.read.archive import Archive
from replayer.read.topics import TopicPartitions
from replayer.serve.settings import ServeSettings
from replayer.serve.tasks import Task
from replayer.verify.chunk_checks import ChunkChoice, Depth
from replayer.verify.report import verification_document
from replayer.verify.report_files import ReportFiles
from replayer.verify.verifying import VerifyWork, verify_archive

MAX_REPORT_BYTES = 64 * 1024 * 1024
MOST_REPORTS = 500
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json")
DEPTHS = {"structure": Depth.STRUCTURE, "blocks": Depth.BLOCKS, "records": Depth.RECORDS}


class LostRange(NamedTuple):
    """Offsets [start, end) of a partition that a report calls lost."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


class _Range(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    start: int
    end: int
    reason: str = ""


class _Damage(msgspec.Struct, frozen=True):
    object: str
    reason: str


class _Partition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    verdict: str
    records: int
    lost: tuple[_Range, ...] = ()
    gaps: tuple[_Range, ...] = ()
    chunks: int = 0
    checked_chunks: int = 0


class Report(msgspec.Struct, frozen=True):
    """What is shown of a report of any kind."""

    verdict: str
    created: str
    archive: str
    archive_id: str | None = None
    depth: str = "comparison"
    partitions: tuple[_Partition, ...] = ()
    damage: tuple[_Damage, ...] = ()
    warnings: tuple[str, ...] = ()


class KnownReport(NamedTuple):
    """A report in the folder; `signature` is `good`, `wrong`, `none` or `not checked`."""

    name: str
    created: str
    verdict: str
    depth: str
    archive: str
    num_partitions: int
    signature: str
    lost: tuple[LostRange, ...]
    chunks: int
    checked_chunks: int
    """Fewer where only a share was verified."""
    archive_id: str | None
    whole: frozenset[tuple[str, int]]
    """Topics and partitions of which the data of all chunks was checked."""

    @property
    def document(self) -> dict[str, Any]:
        """As the API gives it."""
        return {name: fact for name, fact in self._asdict().items() if name != "whole"} | {"lost": len(self.lost)}


class Reports:
    """The reports in a folder, newest first; those that did not change are not read again."""

    def __init__(self, folder: Path | None, key: Path | None) -> None:
        self._folder, self._key = folder, key
        self._known: dict[str, tuple[tuple[int, int], KnownReport | None]] = {}

    def all(self) -> list[KnownReport]:
        """Those that can be read as reports."""
        if self._folder is None or not self._folder.is_dir():
            return []
        files = [path for path in self._folder.glob("*.json") if NAME.fullmatch(path.name)]
        found = [self._report(path) for path in files]
        return sorted((each for each in found if each), key=lambda each: each.created, reverse=True)[:MOST_REPORTS]

    def body(self, name: str) -> bytes:
        """A report as it was written; raises NotInArchive for what is none."""
        if self._folder is not None and NAME.fullmatch(name):
            try:
                body = (self._folder / name).read_bytes()
                msgspec.json.decode(body, type=Report)
                return body
            except (OSError, msgspec.MsgspecError):
                pass
        raise NotInArchive(f"there is no report {name[:80]}", why="the folder of reports does not hold it")

    def report(self, name: str) -> Report:
        """What is shown of it; raises as `body`."""
        return msgspec.json.decode(self.body(name), type=Report)

    def of_archive(self, archive_id: str | None) -> list[KnownReport]:
        """Verifications of an archive, None for one whose id is not known; comparisons with topics are none."""
        return [
            each
            for each in self.all()
            if each.depth != "comparison" and (None in (archive_id, each.archive_id) or archive_id == each.archive_id)
        ]

    def lost(self, archive_id: str | None, topic: str) -> list[LostRange]:
        """What is known to be lost of a topic: of each partition, since the newest verification of all its chunks."""
        found: list[LostRange] = []
        settled: set[int] = set()
        for report in self.of_archive(archive_id):
            found += [each for each in report.lost if each.topic == topic and each.partition not in settled]
            settled |= {partition for name, partition in report.whole if name == topic}
        return list(dict.fromkeys(found))

    def _report(self, path: Path) -> KnownReport | None:
        try:
            stat = path.stat()
            state = stat.st_mtime_ns, stat.st_size
            if path.name not in self._known or self._known[path.name][0] != state:
                self._known[path.name] = state, self._read(path) if stat.st_size <= MAX_REPORT_BYTES else None
        except OSError:
            return None
        return self._known[path.name][1]

    def _read(self, path: Path) -> KnownReport | None:
        body = path.read_bytes()
        try:
            report = msgspec.json.decode(body, type=Report)
        except msgspec.MsgspecError:
            return None
        lost = tuple(
            LostRange(each.topic, each.partition, lost.start, lost.end, lost.reason)
            for each in report.partitions
            for lost in each.lost
        )
        return KnownReport(
            path.name,
            report.created,
            report.verdict,
            report.depth,
            report.archive,
            len(report.partitions),
            self._signature(path, body),
            lost,
            sum(each.chunks for each in report.partitions),
            sum(each.checked_chunks for each in report.partitions),
            report.archive_id,
            frozenset(
                (each.topic, each.partition)
                for each in report.partitions
                if report.depth != "structure" and each.checked_chunks == each.chunks
            ),
        )

    def _signature(self, path: Path, body: bytes) -> str:
        try:
            signature = signature_of(path).read_bytes()
        except FileNotFoundError:
            return "none"
        if self._key is None:
            return "not checked"
        try:
            return "good" if is_signed_by(body, signature, self._key) else "wrong"
        except BlockgzError:
            return "not checked"


async def verify(
    task: Task, archive: Archive, settings: ServeSettings, wanted: list[TopicPartitions], depth: Depth, share: float
) -> None:
    """Verifies, and writes the report where there is a folder for it."""

    @contextmanager
    def watched(work: VerifyWork) -> Iterator[Callable[[], None]]:
        def advanced() -> None:
            task.done, task.all = work.done, work.bytes
            task.changed()

        advanced()
        yield advanced

    choice = ChunkChoice(None, share, random.randrange(2**32))
    report = await verify_archive(archive, wanted, depth, choice=choice, watched=watched)
    document = verification_document(report, archive.reader.address, depth)
    name = None
    if settings.reports is not None:
        name = f"verify-{datetime.now(UTC):%Y%m%dT%H%M%S}-{task.id[-6:]}.json"
        ReportFiles((settings.reports / name,), settings.sign_key).write(document)
    lost = [each for partition in document["partitions"] for each in partition["lost"]]
    records = sum(partition["records"] for partition in document["partitions"])
    task.result = {
        "verdict": document["verdict"],
        "report": name,
        "records": records,
        "partitions": len(document["partitions"]),
        "chunks": sum(partition["chunks"] for partition in document["partitions"]),
        "checked_chunks": sum(partition["checked_chunks"] for partition in document["partitions"]),
        "lost_ranges": len(lost),
        "warnings": document["warnings"],
    }

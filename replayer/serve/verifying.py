"""Verifications that are begun from the page, and the history of reports in a folder."""

import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.errors import BadName, BlockgzError, NotInArchive, StoreBusy, Verdict
from blockgz.signing import is_signed_by, signature_of
from blockgz.store.writer import ContentTag, ToolStore
from index_format.keys import topic_of
from index_format.objects import Sealed, decode, encode, stored
from replayer.replay.jobs.control import TRIES
from replayer.serve.settings import ServeSettings
from replayer.serve.tasks import Task
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.report import Depth, ReportFiles, StoredRange, StoredReport, created_now, verification_document
from replayer.verify.verifying import VerifyWork, verify_archive

MAX_REPORT_BYTES = 64 * 1024 * 1024
MOST_REPORTS = 500
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json")
DEPTHS = {"structure": Depth.STRUCTURE, "blocks": Depth.BLOCKS, "records": Depth.RECORDS}
# Open damage of an archive, at most.
MOST_KEPT = 100_000


class OpenDamage(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """Damage that a report named and no later one found repaired: offsets [start, end), or a whole object.

    `folder` is a topic's incarnation, empty for objects of the archive; `partition` is None for those of a topic.
    """

    folder: str
    partition: int | None
    start: int | None
    end: int | None
    reason: str
    depth: str
    """The depth of the report: a verification that reads less cannot find the damage."""
    found: str
    """The time of the report."""

    @property
    def place(self) -> tuple[Any, ...]:
        """The place and the kind of the damage, equal each time it is found."""
        return self.folder, self.partition, self.start, self.end, self.reason


@stored
class KeptDamage(Sealed, frozen=True, kw_only=True):
    """The open damage of one archive, next to the folders of jobs: `~damage/{archive}.json`."""

    format: str = "blockgz-open-damage"
    version: int = 1
    damage: tuple[OpenDamage, ...] = ()


class KnownReport(NamedTuple):
    """A report in the folder; `signature` is `good`, `wrong`, `none` or `not checked`."""

    name: str
    created: str
    verdict: Verdict
    depth: str
    archive: str
    num_partitions: int
    signature: str
    lost: int
    """The number of lost ranges."""
    chunks: int
    checked_chunks: int
    """Fewer where only a share was verified."""
    archive_id: str | None
    damage: tuple[OpenDamage, ...]
    checked: dict[tuple[str, int], tuple[StoredRange, ...]]
    """The offsets of the checked chunks, by incarnation and partition."""

    @property
    def document(self) -> dict[str, Any]:
        """The document that the API returns."""
        return {name: fact for name, fact in self._asdict().items() if name not in ("damage", "checked")}

    def settles(self, damage: OpenDamage) -> bool:
        """Return whether this verification read what was damaged, so that it would name it again."""
        depth, least = (DEPTHS.get(name, Depth.STRUCTURE) for name in (self.depth, damage.depth))
        if self.signature == "wrong" or depth < least or self.created < damage.found:
            return False
        if damage.partition is None:
            return not damage.folder or damage.folder in {folder for folder, _ in self.checked}
        ranges, start, end = self.checked.get((damage.folder, damage.partition)), damage.start, damage.end
        if ranges is None or start is None or end is None:
            return ranges is not None
        return any(each.start <= start and end <= each.end for each in ranges)


def after(damage: Iterable[OpenDamage], report: KnownReport) -> list[OpenDamage]:
    """Return the damage that is open after a report: what it names, and earlier damage that it does not settle."""
    left = [each for each in damage if not report.settles(each)]
    return list({each.place: each for each in (*report.damage, *left)}.values())


class Reports:
    """The reports in a folder, newest first, and the damage still open after them; unchanged files are read once.

    Open damage is also kept in the `store` of the jobs' damage, because reports may be deleted or never be written.
    """

    def __init__(self, folder: Path | None, key: Path | None, store: Callable[[], ToolStore]) -> None:
        self._folder, self._key, self._store = folder, key, store
        # None until it is read.
        self.kept: tuple[OpenDamage, ...] | None = None
        self._known: dict[str, tuple[tuple[int, int], KnownReport | None]] = {}

    def all(self) -> list[KnownReport]:
        """Return the files that can be read as reports."""
        if self._folder is None or not self._folder.is_dir():
            return []
        files = [path for path in self._folder.glob("*.json") if NAME.fullmatch(path.name)]
        found = [self._report(path) for path in files]
        known = sorted((each for each in found if each), key=lambda each: (each.created, self._known[each.name][0]))
        return known[::-1][:MOST_REPORTS]

    def body(self, name: str) -> bytes:
        """Return a report as it was written; raise NotInArchive if it does not exist."""
        if self._folder is not None and NAME.fullmatch(name):
            try:
                body = (self._folder / name).read_bytes()
                msgspec.json.decode(body, type=StoredReport)
                return body
            except (OSError, msgspec.MsgspecError):
                pass
        raise NotInArchive(f"there is no report {name[:80]}", why="the folder of reports does not hold it")

    def report(self, name: str) -> StoredReport:
        """Return the report as it is shown; raise as `body`."""
        return msgspec.json.decode(self.body(name), type=StoredReport)

    def of_archive(self, archive_id: str | None) -> list[KnownReport]:
        """Return the reports of verifications of an archive, without comparisons; of all archives for None."""
        return [
            each
            for each in self.all()
            if each.depth != "comparison" and (None in (archive_id, each.archive_id) or archive_id == each.archive_id)
        ]

    def read_kept(self, archive_id: str | None, address: str) -> None:
        """Read the kept damage of an archive again; raise what the store raises."""
        self.kept = self._kept(_kept_key(archive_id, address))[0]

    def open_damage(self, archive_id: str | None) -> list[OpenDamage]:
        """Return what is kept, and what reports of an archive name, unless a later report settles it."""
        found = list(self.kept or ())
        for report in reversed(self.of_archive(archive_id)):
            found = after(found, report)
        return found

    def keep(self, document: dict[str, Any]) -> None:
        """Keep the damage that is open after a verification has ended; writes only if it changed."""
        report = self._parsed("", msgspec.json.encode({"created": created_now(), **document}), "none")
        key = _kept_key(report.archive_id, report.archive)
        for _ in range(TRIES):
            kept, tag = self._kept(key)
            self.kept = kept
            found = tuple(after(self.open_damage(report.archive_id), report)[:MOST_KEPT])
            body = encode(KeptDamage(damage=found))
            if found == kept or self._store().compare_and_swap(key, body, tag) is not None:
                self.kept = found
                return
        raise StoreBusy(f"{key} cannot be changed", why=f"others changed it {TRIES} times meanwhile")

    def _kept(self, key: str) -> tuple[tuple[OpenDamage, ...], ContentTag | None]:
        found = self._store().get(key)
        return (decode(found.body, KeptDamage, key).damage, found.etag) if found else ((), None)

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
            return self._parsed(path.name, body, self._signature(path, body))
        except (msgspec.MsgspecError, BadName):
            return None

    def _parsed(self, name: str, body: bytes, signature: str) -> KnownReport:
        report = msgspec.json.decode(body, type=StoredReport)
        above = [(topic_of(each.object) or "", None, each) for each in report.damage]
        found = [(str(part.folder), part.partition, each) for part in report.partitions for each in part.found]
        damage = (
            OpenDamage(folder, number, each.start, each.end, each.text, report.depth, report.created)
            for folder, number, each in (*above, *found)
        )
        chunks = sum(each.chunks for each in report.partitions)
        checked = sum(each.num_checked for each in report.partitions)
        return KnownReport(
            name,
            report.created,
            report.own_verdict,
            report.depth,
            report.archive,
            len(report.partitions),
            signature,
            sum(len(each.lost) for each in report.partitions),
            chunks,
            checked,
            report.archive_id,
            tuple(damage),
            {(str(each.folder), each.partition): each.checked_offsets for each in report.partitions},
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


def _kept_key(archive_id: str | None, address: str) -> str:
    # No job can have such a name, so lists of jobs leave it out.
    return f"~damage/{archive_id or hashlib.sha256(address.encode()).hexdigest()[:32]}.json"


async def verify(
    task: Task,
    archive: ArchiveReader,
    settings: ServeSettings,
    keep: Callable[[dict[str, Any]], Awaitable[None]],
    wanted: list[TopicPartitions],
    depth: Depth,
    share: float,
) -> None:
    """Verify, write the report if there is a folder for it, and `keep` what is damaged."""

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
    task.result = {
        "verdict": document["verdict"],
        "report": name,
        "records": sum(each.records for each in report.partitions),
        "partitions": len(report.partitions),
        "chunks": report.chunks,
        "checked_chunks": report.checked_chunks,
        "lost_ranges": sum(len(each.lost) for each in report.partitions),
        "warnings": document["warnings"],
    }
    task.all = task.done
    await keep(document)

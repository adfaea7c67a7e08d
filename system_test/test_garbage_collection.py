"""`archiver gc` on whole archives: every kind of orphan goes, nothing else, and the archive still reads fully."""

import asyncio
import gzip
import importlib
import os
import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from archiver.cli import main
from archiver.maintain.gc import PlannedSweep, plan_sweep
from blockgz.archive.archive import ArchiveReader
from blockgz.errors import NoArchiveThere, NotInArchive, Verdict
from blockgz.store.address import LocalAddress, S3Address, S3Settings
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_writer import S3Store
from blockgz.store.writer import ToolStore
from index_format import objects
from index_format.keys import ChunkStart, Conflict, ObjectKey, ObjectKind, catalog_name, parse_key
from index_format.marker import CatalogReference, ChunkCatalog, ReferenceCatalog, encode
from index_format.objects import ancestor_index
from replayer.verify.report import Depth
from replayer.verify.verifying import verify_partition
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server
from tests.support.sampling import mostly_long

GRACE = 7 * 24 * 3600.0
DEAD = Conflict(3, "deadbeef")
CHUNKS = 70
"""So many that 64 are in a catalog."""


def keys(root: Path) -> set[str]:
    return {found.key for found in LocalStore(root).list("")}


def verdict(root: Path, topic: str) -> Verdict:
    reader = LocalReader(LocalAddress(str(root)))
    report = asyncio.run(verify_partition(ArchiveReader(reader), topic, 0, Depth.RECORDS, lambda *_: None))
    assert not report.lost
    return report.verdict


class Ahead:
    """A store whose clock is eight days ahead: everything in it is old."""

    def __init__(self, store: ToolStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clock(self) -> float:
        return self._store.clock() + GRACE + 24 * 3600


def swept(root: Path, *patterns: str) -> PlannedSweep:
    """What a collector would delete eight days from now."""
    return plan_sweep(Ahead(LocalStore(root)), patterns, GRACE)  # type: ignore[arg-type]


class Orphanage:
    """An archive of one topic with a committed chain, and orphans of every kind."""

    def __init__(self, root: Path, layout: str = "topic") -> None:
        self.writer = ArchiveWriter(root, layout)
        self.partition = self.writer.partition("orders", 0, record_format="text" if layout == "seed" else "json")
        self.keys = self.partition.keys
        self.orphans: set[str] = set()
        self.spared: set[str] = set()
        self._commit()
        self._abandon()

    def _commit(self) -> None:
        partition = self.partition
        for number in range(CHUNKS):
            conflict = Conflict(2, f"{number:08x}") if number % 9 == 4 else None
            partition.commit(
                _records(self.partition, [10 * number, 10 * number + 1]), next_offset=10 * number + 8, conflict=conflict
            )
            partition.advance(10 * number + 10)
        partition.lose(10 * CHUNKS + 10)
        partition.commit(_records(self.partition, [10 * CHUNKS + 10]))

    def _abandon(self) -> None:
        seed = self.keys.layout == "seed"
        end = self.partition.marker.chain_end
        assert end is not None
        for number in (0, 20, 333, 640, 699):
            start = ChunkStart(number, number, 1_760_000_000_000 + number)
            self.orphan(self.keys.chunks + self.keys.data_name(start, ".gz", DEAD))
        for number in (45, 333, 650):
            start = ChunkStart(number, number, 1_760_000_000_000 + number)
            self.orphan(self.keys.chunks + self.keys.index_name(start, DEAD))
            self.orphan(self.keys.chunks + self.keys.data_name(start, ".gz", Conflict(3, "00c0ffee")))
            if seed:
                self.orphan(self.keys.chunks + self.keys.data_name(start, ".index.json", Conflict(3, "00c0ffee")))
        # Plain names beside chunks that were committed under conflict names.
        start = ChunkStart(40, 40, 1_760_000_000_040)
        self.orphan(self.keys.chunks + self.keys.data_name(start, ".gz"))
        self.orphan(self.keys.chunks + self.keys.index_name(start))
        for position in (end, end + 1, end + 500):
            start = ChunkStart(position, position, 1_760_000_000_000 + position)
            self.spare(self.keys.chunks + self.keys.data_name(start, ".gz", DEAD))
            self.spare(self.keys.chunks + self.keys.index_name(start, DEAD))
        tail = self.partition.marker.tail
        old = _of_offsets(tail[:2])
        self.orphan(self.keys.home + catalog_name(1, 0, DEAD), encode(ChunkCatalog(level=1, entries=old)))
        self.spare(self.keys.home + catalog_name(1, 5, DEAD), b"damaged")
        in_progress = ChunkCatalog(level=1, entries=tail)
        self.spare(self.keys.home + catalog_name(1, tail[0].start_offset), encode(in_progress))
        reference: CatalogReference = self.partition.marker.catalogs[0][0]
        self.spare(self.keys.home + catalog_name(2, 0, DEAD), encode(ReferenceCatalog(level=2, entries=(reference,))))
        if seed:
            # May be the ancestor's: its records are not in the chain.
            self.spare("2025-10-09/orders-00000-000000000705.gz")
            self.spare("2025-10-09/orders-00000-000000000705.index.json")
        self.spare(self.keys.home + "notes.txt")
        self.spare(self.keys.home + "0000.gz")

    def orphan(self, key: str, body: bytes | None = None) -> None:
        """One that holds a record at its number: what cannot be read may hold one of the gap, and is spared."""
        name = parse_key(self.keys.layout, key)
        if body is None and name is not None:
            body = _body(self.partition, name)
            if name.kind is ObjectKind.DATA and self.keys.layout == "seed":
                self.orphan(name.stem + ".index.json")
        self.writer.put(key, body or b"orphan")
        self.orphans.add(key)

    def spare(self, key: str, body: bytes = b"spared") -> None:
        self.writer.put(key, body)
        self.spared.add(key)


def _body(partition: PartitionWriter, name: ObjectKey) -> bytes:
    number = name.number
    if name.kind is ObjectKind.DATA:
        return gzip.compress(b'{"offset":%d,"timestamp":0,"key":null,"value":"v"}\n' % number)
    index = partition.indexes[0]
    block = replace(index.blocks[0], first_record_offset=number, last_record_offset=number, num_records=1)
    if name.kind is ObjectKind.ANCESTOR_INDEX:
        return ancestor_index([block])
    return objects.encode(
        replace(
            index,
            start_offset=number,
            next_offset=number + 1,
            first_offset=number,
            last_offset=number,
            num_records=1,
            min_timestamp=block.min_timestamp,
            max_timestamp=block.max_timestamp,
            data=replace(index.data, name="none.gz", bytes=block.byte_length),
            blocks=(block,),
        )
    )


def _records(partition: PartitionWriter, offsets: list[int]) -> Any:
    made = records(offsets)
    if partition.record_format == "text":
        made = [record._replace(value=b"v", key=None, headers=()) for record in made]
    return made


def _of_offsets(entries: Any) -> Any:
    """Entries that look like chunks of one record each, from offset 0 on."""
    return tuple(
        replace(each, start_offset=at, first_offset=at, last_offset=at, next_offset=at + 1, num_records=1)
        for at, each in enumerate(entries)
    )


@pytest.mark.parametrize("layout", mostly_long(["topic", "seed"]))
def test_every_orphan_goes_and_the_archive_reads_fully(tmp_path: Path, layout: str) -> None:
    archive = Orphanage(tmp_path, layout)
    before = keys(tmp_path)
    assert archive.orphans | archive.spared <= before
    plan = swept(tmp_path)
    assert {found.name.key for found in plan.garbage} == archive.orphans
    assert not plan.problems
    assert keys(tmp_path) == before, "planning deletes nothing"
    plan.carry_out()
    assert plan.deleted == plan.count
    assert keys(tmp_path) == before - archive.orphans
    assert verdict(tmp_path, "orders") is Verdict.WARNING, "the gap, and orphans that may be in progress"
    assert swept(tmp_path).count == 0


def test_what_is_younger_than_the_grace_stays(tmp_path: Path) -> None:
    Orphanage(tmp_path)
    assert plan_sweep(LocalStore(tmp_path), (), 3600.0).count == 0


def test_a_damaged_chain_spares_its_partition_and_no_other(tmp_path: Path) -> None:
    archive = Orphanage(tmp_path)
    add_orphan(archive.writer, "payments", 2)
    archive.writer.put(archive.keys.home + archive.partition.marker.catalogs[0][0].name, b"damaged")
    plan = swept(tmp_path)
    assert [(found.name.folder.topic, found.name.number) for found in plan.garbage] == [("payments", 3)]
    assert [problem.where for problem in plan.problems] == ["orders:0"]


def test_only_the_topics_that_are_named_are_swept(tmp_path: Path) -> None:
    add_orphan(Orphanage(tmp_path).writer, "orders-eu", 0)
    for pattern, expected in (("orders-eu", "orders-eu"), ("*-eu", "orders-eu"), ("orders", "orders")):
        assert {found.name.folder.topic for found in swept(tmp_path, pattern).garbage} == {expected}
    with pytest.raises(NotInArchive):
        swept(tmp_path, "missing")


def add_orphan(writer: ArchiveWriter, topic: str, partition: int) -> None:
    made = writer.partition(topic, partition)
    made.commit(records(range(10)))
    writer.put(made.keys.chunks + made.keys.data_name(ChunkStart(3, 3, 0), ".gz"), b"orphan")


def test_an_older_incarnation_is_swept_by_its_own_marker(tmp_path: Path) -> None:
    archive = ArchiveWriter(tmp_path)
    for incarnation, end in ((1, 20), (2, 5)):
        partition = archive.partition("orders", 0, incarnation=incarnation)
        partition.commit(records(range(end)))
        archive.put(partition.keys.chunks + partition.keys.data_name(ChunkStart(9, 9, 0), ".gz"), b"orphan")
    assert [str(found.name.folder) for found in swept(tmp_path, "orders").garbage] == ["orders"]


def test_what_dead_writers_left_besides_objects_goes(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(10)))
    home = tmp_path / "topic=orders/partition=00000"
    probe = tmp_path / f".probe-{uuid.uuid4().hex}"
    probe.mkdir()
    buffer = tmp_path / ".buffer" / uuid.uuid4().hex
    buffer.mkdir(parents=True)
    gone = [home / f".00000000000000000010.gz.{uuid.uuid4().hex}.tmp", probe / "swap", probe / ".swap.lock"]
    kept = [
        home / ".last_chunk_index.json.lock",
        home / ".mine.tmp",
        buffer / ".lock",
        buffer / "x.chunk",
        buffer / f".x.{uuid.uuid4().hex}.tmp",
    ]
    for path in (*gone, *kept):
        path.write_bytes(b"left")
    plan = swept(tmp_path)
    assert sorted(each.kind for each in plan.leftovers) == ["probe object", "temporary file"]
    plan.carry_out()
    assert not [path for path in gone if path.exists()]
    assert not probe.exists()
    assert all(path.exists() for path in kept)


def test_a_linked_temporary_file_is_as_old_as_its_link(tmp_path: Path) -> None:
    """It keeps the mtime of the buffer, which an idle partition may have written to long ago."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(10)))
    source = tmp_path / "buffer"
    source.write_bytes(b"chunk")
    os.utime(source, (1, 1))
    os.link(source, tmp_path / "topic=orders/partition=00000" / f".x.gz.{uuid.uuid4().hex}.tmp")
    assert plan_sweep(LocalStore(tmp_path), (), 3600.0).count == 0


def test_unfinished_uploads_of_the_archiver_are_aborted_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as endpoint_url:
        abort_uploads(Bucket(endpoint_url, "uploads"), endpoint_url, ArchiveWriter(tmp_path))


def abort_uploads(bucket: Bucket, endpoint_url: str, writer: ArchiveWriter) -> None:
    writer.put = lambda key, body: bucket.put(f"p/{key}", body)  # type: ignore[method-assign]
    writer.__post_init__()
    keys = writer.partition("orders", 0).keys
    store = S3Store(S3Address(bucket.name, "p/"), S3Settings(endpoint_url, "us-east-1"))
    ours = {keys.chunks + keys.data_name(ChunkStart(5, 5, 0), ".gz"), f".probe-{uuid.uuid4().hex}/parts"}
    for key in (*ours, "movie.mp4", "topic=orders/x.gz"):
        bucket.begin_upload(f"p/{key}")
    bucket.begin_upload("outside/topic=orders/partition=00000/00000000000000000005.gz")
    plan = plan_sweep(store, (), GRACE)
    assert {each.key for each in plan.leftovers} == ours
    plan.carry_out()
    assert plan.deleted == 2
    assert {each.key for each in store.leftovers()} == {"movie.mp4", "topic=orders/x.gz"}
    plan.carry_out()
    assert plan.problems == [], "what is gone is no error"
    bucket.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit(records(range(10)))
    (tmp_path / partition.keys.chunks / "00000000000000000003.gz").write_bytes(b"orphan")

    def opened(*args: Any, **options: Any) -> Any:
        return Ahead(open_existing_store(*args, **options))

    monkeypatch.setattr(importlib.import_module("archiver.cli.gc"), "open_existing_store", opened)
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["gc", *map(str, arguments)])


def test_without_a_terminal_and_yes_nothing_is_deleted(folder: Path) -> None:
    result = run("-a", folder)
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert "orders" in result.stdout
    assert (folder / "topic=orders/partition=00000/00000000000000000003.gz").exists()


def test_a_dry_run_says_what_would_go(folder: Path) -> None:
    result = run("-a", folder, "--dry-run", "--json")
    assert result.exit_code == 0
    answer = orjson.loads(result.stdout)
    (garbage,) = answer.pop("garbage")
    assert garbage.pop("modified_ms") > 1_700_000_000_000
    assert garbage == {
        "kind": "data",
        "topic": "orders",
        "partition": 0,
        "key": "topic=orders/partition=00000/00000000000000000003.gz",
        "bytes": 6,
    }
    assert answer == {
        "archive": str(folder),
        "dry_run": True,
        "planned": 1,
        "bytes": 6,
        "deleted": 0,
        "group_tables": [],
        "topic_configs": [],
        "floors": [],
        "leftovers": [],
        "spared": [],
        "problems": [],
    }


def test_yes_deletes(folder: Path) -> None:
    result = run("-a", folder, "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "deleted 1 of 1" in result.stdout
    assert not (folder / "topic=orders/partition=00000/00000000000000000003.gz").exists()
    assert "nothing to delete" in run("-a", folder).stdout


def test_a_grace_below_an_hour_is_refused(folder: Path) -> None:
    result = run("-a", folder, "--grace", "59m", "--yes")
    assert result.exit_code == 2
    assert "younger than an hour" in result.stderr


def test_a_folder_that_is_not_an_archive_is_left_alone(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert run("-a", missing).exit_code == NoArchiveThere.exit_code == 10
    assert not missing.exists()
    assert run("-a", tmp_path).exit_code == 10

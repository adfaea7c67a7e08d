"""What a listing shows above a marker: rolled-back markers are found, writers at work and dead ones are no fault."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Verdict
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import PassingReader
from index_format import marker as marker_module
from index_format.chunk_index import Gap
from index_format.keys import Conflict, ObjectKey, ObjectKind, parse_key
from index_format.marker import Continues, Marker, claimed, decode_marker, encode
from replayer.verify import above_marker
from replayer.verify.chunk_checks import ChunkFindings
from replayer.verify.report import Depth, PartitionFindings
from replayer.verify.verifying import verify_partition
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryStore
from tests.support.scenarios import COLLECTED, CROWD, IDENTITY, PAIR, Company, run_schedule, short_partition


@pytest.fixture(params=["topic", "seed"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path, request.param)


def verified(partition: PartitionWriter, topic: str = "orders", depth: Depth = Depth.RECORDS) -> PartitionFindings:
    archive = Archive(LocalReader(LocalAddress(str(partition.archive.root))))
    return asyncio.run(verify_partition(archive, topic, 0, depth, lambda *_: None))


def claim(partition: PartitionWriter) -> None:
    partition.marker = claimed(
        partition.marker, writer="w", nonce="n", group_id="blockgz", isolation_level=partition.marker.isolation_level
    )
    partition.store_marker()


def put_back(partition: PartitionWriter, marker: Marker) -> None:
    partition.archive.put(partition.keys.marker, encode(marker))


def written(writer: ArchiveWriter, chunks: int, topic: str = "orders") -> tuple[PartitionWriter, list[Marker]]:
    """A partition with chunks of ten records, and the marker before each and at the end."""
    record_format = "text" if writer.layout == "seed" else "json"
    partition = writer.partition(topic, 0, record_format=record_format)
    markers = [partition.marker]
    for number in range(chunks):
        made = records(range(10 * number, 10 * number + 10))
        if record_format == "text":
            made = [each._replace(key=None, headers=(), value=each.value or b"") for each in made]
        partition.commit(made)
        markers.append(partition.marker)
    return partition, markers


def test_a_marker_that_was_put_back_is_a_failure_with_the_offsets(writer: ArchiveWriter) -> None:
    partition, markers = written(writer, 5)
    assert verified(partition).verdict is Verdict.OK
    for chunks in range(4):
        put_back(partition, markers[chunks])
        report = verified(partition)
        assert report.verdict is Verdict.FAILURE
        assert [(lost.start, lost.end) for lost in report.lost] == [(10 * chunks, 50)]
        (damage,) = report.damage
        assert damage.key == partition.keys.marker and "an older marker was put back" in damage.reason
        assert report.records == 10 * chunks and report.orphans == []
        assert [tuple(run) for run in report.readable] == ([(0, 10 * chunks)] if chunks else [])


def test_the_last_chunk_alone_proves_it_by_its_epoch(writer: ArchiveWriter) -> None:
    partition, markers = written(writer, 2)
    claim(partition)
    partition.commit([each._replace(key=None, headers=(), value=b"v") for each in records(range(20, 30))])
    put_back(partition, markers[2])
    report = verified(partition)
    assert report.verdict is Verdict.FAILURE
    assert [(lost.start, lost.end) for lost in report.lost] == [(20, 30)]
    assert "epoch 2" in report.damage[0].reason


def test_a_chunk_in_progress_is_an_orphan_and_no_fault(writer: ArchiveWriter) -> None:
    """What one put back by a single chunk looks like too: docs/verify.md says so."""
    partition, markers = written(writer, 3)
    put_back(partition, markers[2])
    report = verified(partition)
    (index,) = [key for key in listed(partition) if key.number == 20 and key.kind is ObjectKind.INDEX]
    assert report.verdict is Verdict.OK and not report.lost and not report.damage
    assert [tuple(orphan) for orphan in report.orphans] == [(index.key, 20, 30)]


def listed(partition: PartitionWriter) -> list[ObjectKey]:
    root, layout = partition.archive.root, partition.archive.layout
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return [key for path in paths if (key := parse_key(layout, path)) is not None]


def test_orphans_of_dead_writers_are_named(writer: ArchiveWriter) -> None:
    """Several writers died at the same chunk, and one before its index."""
    partition, markers = written(writer, 2)
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(20, 25))]
    for epoch in (1, 2):
        partition.marker = replace(markers[2], epoch=epoch)
        partition.commit(made, conflict=Conflict(epoch, "0123abcd"))
    partition.marker = claim_of(markers[2], epoch=3)
    partition.store_marker()
    for key in listed(partition):
        if key.kind is ObjectKind.INDEX and "~e2" in key.key:
            (partition.archive.root / key.key).unlink()
    report = verified(partition)
    assert report.verdict is Verdict.OK
    ends = [(orphan.start, orphan.end) for orphan in report.orphans]
    assert ends == ([(20, 25)] if writer.layout == "seed" else [(20, 25), (20, None)])


def claim_of(marker: Marker, epoch: int) -> Marker:
    return replace(marker, epoch=epoch, nonce=f"claim-{epoch}")


def test_a_damaged_index_above_the_marker_is_an_orphan(writer: ArchiveWriter) -> None:
    partition, markers = written(writer, 2)
    put_back(partition, markers[1])
    for key in listed(partition):
        if key.kind is ObjectKind.INDEX and key.number == 10:
            (partition.archive.root / key.key).write_bytes(b"{")
    report = verified(partition)
    assert report.verdict is Verdict.OK
    assert (report.orphans[0].start, report.orphans[0].end) == (10, None)


def test_a_catalog_proves_what_it_lists(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes above the marker are gone; the catalogs that they folded into are not."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 3)
    partition, markers = written(writer, 14)
    for chunks in (2, 4, 8, 11):
        put_back(partition, markers[chunks])
        removed = {}
        for key in listed(partition):
            if key.number >= 10 * chunks and key.kind is not ObjectKind.CATALOG:
                path = partition.archive.root / key.key
                removed[path] = path.read_bytes()
                path.unlink()
        report = verified(partition)
        assert report.verdict is Verdict.FAILURE, chunks
        assert [(lost.start, lost.end) for lost in report.lost] == [(10 * chunks, 120)]
        for path, body in removed.items():
            path.write_bytes(body)
    put_back(partition, markers[14])
    assert verified(partition).verdict is Verdict.OK


def test_a_catalog_in_progress_proves_nothing(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists what the marker lists still, and the chunk behind it is not committed yet."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 3)
    partition, markers = written(writer, 4)
    put_back(partition, markers[3])
    report = verified(partition)
    assert report.verdict is Verdict.OK
    assert [(orphan.start, orphan.end) for orphan in report.orphans] == [(30, 40)]


def test_gaps_and_progress_without_records_prove_nothing(writer: ArchiveWriter) -> None:
    partition, _ = written(writer, 2)
    partition.advance(25)
    partition.lose(30)
    partition.advance(35)
    assert verified(partition).verdict is Verdict.WARNING
    before = partition.marker
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(40, 45))]
    partition.commit(made)
    put_back(partition, before)
    report = verified(partition)
    assert report.verdict is Verdict.WARNING
    assert [(orphan.start, orphan.end) for orphan in report.orphans] == [(30, 45)]
    assert report.gaps[0] == Gap(25, 30, "retention")


class Committing(PassingReader):
    """Commits a chunk whenever an object was listed and before each marker is read: a writer at work."""

    def __init__(self, partition: PartitionWriter) -> None:
        super().__init__(LocalReader(LocalAddress(str(partition.archive.root))))
        self._partition = partition

    def work(self) -> None:
        start = self._partition.marker.next_offset or 0
        made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(start, start + 3))]
        if start % 2:
            claim(self._partition)
        self._partition.commit(made)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        async for key in super().list(prefix, after):
            yield key
            self.work()
        self.work()

    async def get(self, key: str, max_bytes: int) -> bytes:
        if key == self._partition.keys.marker:
            self.work()
        return await super().get(key, max_bytes)


def test_a_live_archive_is_never_a_failure(writer: ArchiveWriter) -> None:
    partition, _ = written(writer, 2)
    reader = Committing(partition)
    report = asyncio.run(verify_partition(Archive(reader), "orders", 0, Depth.STRUCTURE, lambda *_: None))
    assert report.verdict is Verdict.OK
    assert report.chunks > 5 and not report.lost and not report.damage


def test_incarnations_do_not_prove_anything_of_each_other(writer: ArchiveWriter) -> None:
    """In layout seed their chunks have the same names."""
    older, _ = written(writer, 5)
    older.hand_over("orders~2")
    newer = writer.partition("orders", 0, incarnation=2, record_format=older.record_format)
    newer.commit(
        [each._replace(key=None, headers=(), value=b"v") for each in records(range(5))],
        conflict=Conflict(1, "0123abcd"),
    )
    for topic in ("orders", "orders~1", "orders~2"):
        report = verified(newer, topic)
        assert (report.verdict, report.orphans) == (Verdict.OK, []), topic
    newer.marker = replace(newer.marker, epoch=2)
    newer.store_marker()
    before = newer.marker
    for start in (5, 10):
        made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(start, start + 5))]
        newer.commit(made, conflict=Conflict(2, f"{start:08d}"))
    put_back(newer, before)
    assert verified(newer, "orders~1").verdict is Verdict.OK
    report = verified(newer)
    assert [(lost.start, lost.end) for lost in report.lost] == [(5, 15)]


@pytest.mark.slow
def test_a_truncated_log_proves_nothing(writer: ArchiveWriter) -> None:
    """The older folder's chunks reach above the newer one's marker, and died writers left more."""
    older, markers = written(writer, 5)
    older.marker = claim_of(markers[5], epoch=3)
    newer = older.truncated(30)
    newer.marker = replace(newer.marker, epoch=4)
    newer.store_marker()

    def check() -> None:
        for topic in ("orders", "orders~1", "orders~2"):
            report = verified(newer, topic)
            assert (report.verdict, report.orphans) == (Verdict.OK, []), topic

    check()
    for start in (30, 40, 50, 60):
        made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(start, start + 10))]
        newer.commit(made, conflict=Conflict(4, f"{start:08d}"))
        check()


def test_a_copy_that_a_repair_left_proves_nothing(writer: ArchiveWriter) -> None:
    """A repair of a truncated log stores the copied chunk, of a higher epoch, before it replaces its first marker."""
    older, _ = written(writer, 5)
    newer = older.truncated(30)
    first = newer.marker
    newer.marker = replace(first, epoch=2, continues=Continues("orders", 30))
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(30, 35))]
    newer.commit(made, conflict=Conflict(2, "0123abcd"))
    put_back(newer, first)
    assert verified(newer).verdict is Verdict.OK


def test_what_is_kept_of_a_listing_is_bounded(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(above_marker, "MOST_OBJECTS", 4)
    partition, markers = written(writer, 20)
    put_back(partition, markers[1])
    report = verified(partition)
    assert [(lost.start, lost.end) for lost in report.lost] == [(10, 200)]

    async def kept() -> int:
        archive = Archive(LocalReader(LocalAddress(str(partition.archive.root))))
        listing = await above_marker.list_above(archive, [("orders", 0)])
        return len(listing.of(await archive.open_partition("orders", 0)))

    assert asyncio.run(kept()) == 5


async def above_later(before: dict[str, bytes], now: dict[str, bytes]) -> ChunkFindings | None:
    """What a listing of one moment shows above the marker of a later one; None where there was no marker yet."""
    if IDENTITY.keys.marker not in before:
        return None
    place = (IDENTITY.topic, IDENTITY.keys.partition)
    listing = await above_marker.list_above(Archive(MemoryReader(before)), [place])
    return await above_marker.look_above(await Archive(MemoryReader(now)).open_partition(*place), listing)


@pytest.mark.slow
@pytest.mark.parametrize("company", [PAIR, CROWD, COLLECTED], ids=["pair", "crowd", "collected"])
def test_no_schedule_of_writers_looks_like_a_marker_that_was_put_back(company: Company) -> None:
    """Writers interleave, die and sleep; what is listed at one moment is compared with the marker of any later one."""
    first_seed = random.randrange(2**32)
    found, num_put_back = 0, 0
    for seed in range(first_seed, first_seed + 60):
        rng, moments, last = random.Random(seed), list[dict[str, bytes]](), MemoryStore()

        def check(store: MemoryStore) -> None:
            nonlocal found, last
            last = store
            moments.append(store.bodies())  # noqa: B023
            above = asyncio.run(above_later(rng.choice(moments), moments[-1]))  # noqa: B023
            assert above is None or not above.damage, (seed, above)  # noqa: B023
            found += above is not None and bool(above.orphans)

        run_schedule(dataclasses.replace(short_partition(), check=check), seed, company)
        end = last.bodies()
        chunks = decode_marker(end[IDENTITY.keys.marker]).num_chunks
        for body in last.versions[IDENTITY.keys.marker]:
            if decode_marker(body).num_chunks < chunks - 1:
                older = {**end, IDENTITY.keys.marker: body}
                above = asyncio.run(above_later(older, older))
                assert above is not None and above.damage, f"seed {seed}: an older marker is not found"
                num_put_back += 1
    assert found and num_put_back, f"seeds from {first_seed}"

"""Verifying archives that are maintained or corrupted, and what is above a marker."""

import asyncio
import dataclasses
import hashlib
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.errors import Verdict
from blockgz.kafka import LogBounds
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import PassingReader
from index_format import marker as marker_module
from index_format import objects
from index_format.keys import Conflict, ObjectKey, ObjectKind, parse_key
from index_format.marker import Continues, Marker, claimed, decode_marker, encode
from index_format.objects import Erased, Gap
from index_format.records import Record, batch_from_records
from replayer.cli.report import print_report
from replayer.kafka.topic_facts import TopicFacts
from replayer.verify import above_marker
from replayer.verify.above_marker import list_above
from replayer.verify.chunk_checks import ChunkFindings
from replayer.verify.comparison import compare_source
from replayer.verify.earlier import compare_with, parse_report
from replayer.verify.report import (
    ArchiveReport,
    Depth,
    EarlierFindings,
    PartitionFindings,
    StoredReport,
    verification_document,
)
from replayer.verify.verifying import verify_partition
from tests.support.archives import ArchiveWriter, MemoryArchiveWriter, PartitionWriter, records
from tests.support.corruption import cases, run_cases, sample_archive
from tests.support.maintained import Maintainer, three_catalogs
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryStore
from tests.support.scenarios import COLLECTED, CROWD, IDENTITY, PAIR, Company, run_schedule, short_partition

HEAD = {"format": "blockgz-report", "version": 1, "created": "2026-11-22T00:00:00Z"}


@pytest.fixture
def archive() -> MemoryArchiveWriter:
    return MemoryArchiveWriter()


@pytest.fixture
def maintainer(archive: MemoryArchiveWriter) -> Maintainer:
    return three_catalogs(archive.partition("orders", 0))


@pytest.fixture
def writer(maintainer: Maintainer) -> PartitionWriter:
    return maintainer.writer


def verified(archive: MemoryArchiveWriter, reader: MemoryReader | None = None) -> PartitionFindings:
    opened = ArchiveReader(reader or MemoryReader(archive.objects))
    return asyncio.run(verify_partition(opened, "orders", 0, Depth.RECORDS, lambda *_: None))


def report_of(archive: MemoryArchiveWriter) -> StoredReport:
    document = verification_document(ArchiveReport(partitions=[verified(archive)]), "somewhere", Depth.RECORDS)
    return parse_report(msgspec.json.encode({**HEAD, **document}), "report.json")


def since(archive: MemoryArchiveWriter, report: StoredReport) -> EarlierFindings:
    return asyncio.run(compare_with(ArchiveReader(MemoryReader(archive.objects)), None, report, ()))


def test_what_is_pruned_and_erased_is_told_and_no_fault(
    archive: MemoryArchiveWriter, maintainer: Maintainer, capsys: pytest.CaptureFixture[str]
) -> None:
    maintainer.prune(1)
    maintainer.rewrite([2], [21, *range(40, 60)])
    report = verified(archive)
    assert (report.verdict, report.records, report.pruned_before) == (Verdict.OK, 70 - 20 - 21, 20)
    assert report.erased == [(21, 22), (40, 60)]
    print_report(ArchiveReport(partitions=[report]))
    printed = capsys.readouterr().out
    assert "orders:0 pruned: nothing below offset 20 is kept" in printed
    assert "orders:0 erased: [21..22), [40..60)" in printed


def test_other_offsets_that_are_missing_are_damage_as_before(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    maintainer.rewrite([2], [21])
    archive.remove(maintainer.keys.chunks + maintainer.chunks[2].name)
    assert [(lost.start, lost.end) for lost in verified(archive).lost] == [(40, 60)]


def test_a_record_at_an_erased_offset_is_damage(archive: MemoryArchiveWriter, writer: PartitionWriter) -> None:
    writer.commit(records(range(70, 75)))
    index = replace(writer.indexes[-1], erased=(Erased(72, 74),))
    body = objects.encode(index)
    archive.put(writer.keys.chunks + writer.marker.tail[-1].name, body)
    entry = replace(writer.marker.tail[-1], sha256=hashlib.sha256(body).hexdigest())
    writer.marker = replace(writer.marker, tail=(*writer.marker.tail[:-1], entry))
    writer.store_marker()
    report = verified(archive)
    assert report.verdict is Verdict.FAILURE
    assert any("holds a record that was erased" in lost.reason for lost in report.lost)


def test_what_is_rewritten_while_it_is_verified_is_verified_again(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    class Rewriting(MemoryReader):
        """Rewrites everything when the first data object is read."""

        async def size(self, key: str) -> int:
            if key.endswith(".gz") and not maintainer.rewrites:
                maintainer.rewrite([2])
            return await super().size(key)

    report = verified(archive, Rewriting(archive.objects))
    assert (report.verdict, report.records, report.chunks) == (Verdict.OK, 70, 4)


def test_fewer_records_than_in_a_report_are_explained_by_pruning_and_erasing_alone(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    before = report_of(archive)
    maintainer.rewrite([2], [21, 22])
    assert since(archive, before).differences == []
    between = report_of(archive)
    maintainer.prune(1)
    maintainer.writer.commit(records(range(70, 80)))
    assert since(archive, before).differences == since(archive, between).differences == []

    # One that nothing explains: as if a maintainer had lost it.
    maintainer.rewrite([1], [30])
    _without_erased_ranges(archive, maintainer, 30)
    (difference,) = since(archive, between).differences
    assert difference.reason == (
        "it has 47 records there and had 68: at most 20 of them are explained by what was pruned, erased or lost"
    )


def _without_erased_ranges(archive: MemoryArchiveWriter, maintainer: Maintainer, offset: int) -> None:
    """Takes an erased offset out of the index that tells of it."""
    lower = maintainer.marker.catalogs[0]
    for number, reference in enumerate(lower):
        catalog = maintainer._read(reference)
        entries = []
        for entry in catalog.entries:
            index = maintainer.index(entry)
            kept = tuple(each for each in index.erased or () if offset not in each)
            body = objects.encode(replace(index, erased=kept or msgspec.UNSET))
            archive.put(maintainer.keys.chunks + entry.name, body)
            entries.append(replace(entry, sha256=hashlib.sha256(body).hexdigest()))
        body = encode(replace(catalog, entries=tuple(entries)))
        archive.put(maintainer.keys.home + reference.name, body)
        lower = (*lower[:number], replace(reference, sha256=hashlib.sha256(body).hexdigest()), *lower[number + 1 :])
    maintainer._swap(maintainer.maintenance, lower)


def test_a_floor_never_falls_and_what_is_erased_never_rises(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    kept = dict(archive.objects)
    maintainer.deletes = False
    maintainer.rewrite([1], [21])
    erased = report_of(archive)
    maintainer.prune(1)
    pruned = report_of(archive)
    archive.objects.update(kept)
    (difference,) = since(archive, pruned).differences
    assert difference.reason == "it was pruned below 20, and its floor is 0"
    (difference,) = since(archive, erased).differences
    assert difference.reason == "what was erased at [21..22) is there again"


class FakeReader:
    def __init__(self, made: list[Record]) -> None:
        self._records = made

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield batch_from_records([record for record in self._records if start <= record.offset < end])


def compared(archive: MemoryArchiveWriter, topic: Iterable[int]) -> tuple[Verdict, int, int, list[Gap]]:
    async def compare() -> tuple[Verdict, int, int, list[Gap]]:
        partition = await ArchiveReader(MemoryReader(archive.objects)).open_partition("orders", 0)
        selection = Selection(partition, OffsetRange(partition.start_offset, partition.next_offset))
        reader = FakeReader(records(topic))
        facts = TopicFacts("orders", 1, "id-1", None)
        found = await compare_source(selection, facts, LogBounds(0, 70), reader, lambda *_: None)
        return found.verdict, found.missing, found.extra, found.excused

    return asyncio.run(compare())


def test_the_source_may_hold_what_was_pruned_or_erased(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(1)
    maintainer.rewrite([1], [25, *range(30, 40)])
    verdict, missing, extra, excused = compared(archive, range(70))
    assert (verdict, missing, extra) == (Verdict.WARNING, 0, 0)
    assert excused == [
        Gap(0, 20, "the archive keeps them no longer (pruned)"),
        Gap(25, 40, "the archive has erased some records since"),
    ]
    assert compared(archive, [each for each in range(70) if each != 50])[1] == 1


async def test_a_catalog_without_a_chunk_above_the_marker_is_read(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    """As after a marker was put back from before an erase of everything."""
    before = archive.objects[maintainer.keys.marker]
    maintainer.fold()
    maintainer.rewrite([1], range(70))
    archive.put(maintainer.keys.marker, before)
    opened = ArchiveReader(MemoryReader(archive.objects))
    listing = await list_above(opened, [("orders", 0)])
    await verify_partition(opened, "orders", 0, Depth.STRUCTURE, lambda *_: None, listing=listing)


def test_a_report_names_them(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(1)
    maintainer.rewrite([1], [25])
    document = verification_document(ArchiveReport(partitions=[verified(archive)]), "somewhere", Depth.RECORDS)
    assert document["partitions"][0]["pruned_before"] == 20
    assert document["partitions"][0]["erased"] == [{"from": 25, "to": 26}]


@pytest.mark.slow
def test_damage_is_detected_and_costs_what_it_must() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, sample = random.Random(seed), sample_archive("topic")
    chosen = rng.sample([*cases(sample, rng, 200)], 30)
    assert run_cases(sample, chosen, seed).total() == 30


@pytest.fixture(params=["topic", "seed"])
def writer_above_marker(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path, request.param)


def verify_above(partition: PartitionWriter, topic: str = "orders", depth: Depth = Depth.RECORDS) -> PartitionFindings:
    archive = ArchiveReader(LocalReader(LocalAddress(str(partition.archive.root))))
    return asyncio.run(verify_partition(archive, topic, 0, depth, lambda *_: None))


def claim(partition: PartitionWriter) -> None:
    partition.marker = claimed(
        partition.marker, writer="w", nonce="n", group_id="blockgz", isolation_level=partition.marker.isolation_level
    )
    partition.store_marker()


def put_back(partition: PartitionWriter, marker: Marker) -> None:
    partition.archive.put(partition.keys.marker, encode(marker))


def written(
    writer_above_marker: ArchiveWriter, chunks: int, topic: str = "orders"
) -> tuple[PartitionWriter, list[Marker]]:
    """A partition with chunks of ten records, and the marker before each and at the end."""
    record_format = "text" if writer_above_marker.layout == "seed" else "json"
    partition = writer_above_marker.partition(topic, 0, record_format=record_format)
    markers = [partition.marker]
    for number in range(chunks):
        made = records(range(10 * number, 10 * number + 10))
        if record_format == "text":
            made = [each._replace(key=None, headers=(), value=each.value or b"") for each in made]
        partition.commit(made)
        markers.append(partition.marker)
    return partition, markers


def test_a_marker_that_was_put_back_is_a_failure_with_the_offsets(writer_above_marker: ArchiveWriter) -> None:
    partition, markers = written(writer_above_marker, 5)
    assert verify_above(partition).verdict is Verdict.OK
    for chunks in range(4):
        put_back(partition, markers[chunks])
        report = verify_above(partition)
        assert report.verdict is Verdict.FAILURE
        assert [(lost.start, lost.end) for lost in report.lost] == [(10 * chunks, 50)]
        (damage,) = report.damage
        assert damage.key == partition.keys.marker and "an older marker was put back" in damage.reason
        assert report.records == 10 * chunks and report.orphans == []
        assert [tuple(run) for run in report.readable] == ([(0, 10 * chunks)] if chunks else [])


def test_the_last_chunk_alone_proves_it_by_its_epoch(writer_above_marker: ArchiveWriter) -> None:
    partition, markers = written(writer_above_marker, 2)
    claim(partition)
    partition.commit([each._replace(key=None, headers=(), value=b"v") for each in records(range(20, 30))])
    put_back(partition, markers[2])
    report = verify_above(partition)
    assert report.verdict is Verdict.FAILURE
    assert [(lost.start, lost.end) for lost in report.lost] == [(20, 30)]
    assert "epoch 2" in report.damage[0].reason


def test_a_chunk_in_progress_is_an_orphan_and_no_fault(writer_above_marker: ArchiveWriter) -> None:
    """What one put back by a single chunk looks like too: docs/verify.md says so."""
    partition, markers = written(writer_above_marker, 3)
    put_back(partition, markers[2])
    report = verify_above(partition)
    (index,) = [key for key in listed(partition) if key.number == 20 and key.kind is ObjectKind.INDEX]
    assert report.verdict is Verdict.OK and not report.lost and not report.damage
    assert [tuple(orphan) for orphan in report.orphans] == [(index.key, 20, 30)]


def listed(partition: PartitionWriter) -> list[ObjectKey]:
    root, layout = partition.archive.root, partition.archive.layout
    paths = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return [key for path in paths if (key := parse_key(layout, path)) is not None]


def test_orphans_of_dead_writers_are_named(writer_above_marker: ArchiveWriter) -> None:
    """Several writers died at the same chunk, and one before its index."""
    partition, markers = written(writer_above_marker, 2)
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(20, 25))]
    for epoch in (1, 2):
        partition.marker = replace(markers[2], epoch=epoch)
        partition.commit(made, conflict=Conflict(epoch, "0123abcd"))
    partition.marker = claim_of(markers[2], epoch=3)
    partition.store_marker()
    for key in listed(partition):
        if key.kind is ObjectKind.INDEX and "~e2" in key.key:
            (partition.archive.root / key.key).unlink()
    report = verify_above(partition)
    assert report.verdict is Verdict.OK
    ends = [(orphan.start, orphan.end) for orphan in report.orphans]
    assert ends == ([(20, 25)] if writer_above_marker.layout == "seed" else [(20, 25), (20, None)])


def claim_of(marker: Marker, epoch: int) -> Marker:
    return replace(marker, epoch=epoch, nonce=f"claim-{epoch}")


def test_a_damaged_index_above_the_marker_is_an_orphan(writer_above_marker: ArchiveWriter) -> None:
    partition, markers = written(writer_above_marker, 2)
    put_back(partition, markers[1])
    for key in listed(partition):
        if key.kind is ObjectKind.INDEX and key.number == 10:
            (partition.archive.root / key.key).write_bytes(b"{")
    report = verify_above(partition)
    assert report.verdict is Verdict.OK
    assert (report.orphans[0].start, report.orphans[0].end) == (10, None)


def test_a_catalog_proves_what_it_lists(writer_above_marker: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes above the marker are gone; the catalogs that they folded into are not."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 3)
    partition, markers = written(writer_above_marker, 14)
    for chunks in (2, 4, 8, 11):
        put_back(partition, markers[chunks])
        removed = {}
        for key in listed(partition):
            if key.number >= 10 * chunks and key.kind is not ObjectKind.CATALOG:
                path = partition.archive.root / key.key
                removed[path] = path.read_bytes()
                path.unlink()
        report = verify_above(partition)
        assert report.verdict is Verdict.FAILURE, chunks
        assert [(lost.start, lost.end) for lost in report.lost] == [(10 * chunks, 120)]
        for path, body in removed.items():
            path.write_bytes(body)
    put_back(partition, markers[14])
    assert verify_above(partition).verdict is Verdict.OK


def test_a_catalog_in_progress_proves_nothing(
    writer_above_marker: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists what the marker lists still, and the chunk behind it is not committed yet."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 3)
    partition, markers = written(writer_above_marker, 4)
    put_back(partition, markers[3])
    report = verify_above(partition)
    assert report.verdict is Verdict.OK
    assert [(orphan.start, orphan.end) for orphan in report.orphans] == [(30, 40)]


def test_gaps_and_progress_without_records_prove_nothing(writer_above_marker: ArchiveWriter) -> None:
    partition, _ = written(writer_above_marker, 2)
    partition.advance(25)
    partition.lose(30)
    partition.advance(35)
    assert verify_above(partition).verdict is Verdict.WARNING
    before = partition.marker
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(40, 45))]
    partition.commit(made)
    put_back(partition, before)
    report = verify_above(partition)
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


def test_a_live_archive_is_never_a_failure(writer_above_marker: ArchiveWriter) -> None:
    partition, _ = written(writer_above_marker, 2)
    reader = Committing(partition)
    report = asyncio.run(verify_partition(ArchiveReader(reader), "orders", 0, Depth.STRUCTURE, lambda *_: None))
    assert report.verdict is Verdict.OK
    assert report.chunks > 5 and not report.lost and not report.damage


def test_incarnations_do_not_prove_anything_of_each_other(writer_above_marker: ArchiveWriter) -> None:
    """In layout seed their chunks have the same names."""
    older, _ = written(writer_above_marker, 5)
    older.hand_over("orders~2")
    newer = writer_above_marker.partition("orders", 0, incarnation=2, record_format=older.record_format)
    newer.commit(
        [each._replace(key=None, headers=(), value=b"v") for each in records(range(5))],
        conflict=Conflict(1, "0123abcd"),
    )
    for topic in ("orders", "orders~1", "orders~2"):
        report = verify_above(newer, topic)
        assert (report.verdict, report.orphans) == (Verdict.OK, []), topic
    newer.marker = replace(newer.marker, epoch=2)
    newer.store_marker()
    before = newer.marker
    for start in (5, 10):
        made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(start, start + 5))]
        newer.commit(made, conflict=Conflict(2, f"{start:08d}"))
    put_back(newer, before)
    assert verify_above(newer, "orders~1").verdict is Verdict.OK
    report = verify_above(newer)
    assert [(lost.start, lost.end) for lost in report.lost] == [(5, 15)]


@pytest.mark.slow
def test_a_truncated_log_proves_nothing(writer_above_marker: ArchiveWriter) -> None:
    """The older folder's chunks reach above the newer one's marker, and died writers left more."""
    older, markers = written(writer_above_marker, 5)
    older.marker = claim_of(markers[5], epoch=3)
    newer = older.truncated(30)
    newer.marker = replace(newer.marker, epoch=4)
    newer.store_marker()

    def check() -> None:
        for topic in ("orders", "orders~1", "orders~2"):
            report = verify_above(newer, topic)
            assert (report.verdict, report.orphans) == (Verdict.OK, []), topic

    check()
    for start in (30, 40, 50, 60):
        made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(start, start + 10))]
        newer.commit(made, conflict=Conflict(4, f"{start:08d}"))
        check()


def test_a_copy_that_a_repair_left_proves_nothing(writer_above_marker: ArchiveWriter) -> None:
    """A repair of a truncated log stores the copied chunk, of a higher epoch, before it replaces its first marker."""
    older, _ = written(writer_above_marker, 5)
    newer = older.truncated(30)
    first = newer.marker
    newer.marker = replace(first, epoch=2, continues=Continues("orders", 30))
    made = [each._replace(key=None, headers=(), value=b"v") for each in records(range(30, 35))]
    newer.commit(made, conflict=Conflict(2, "0123abcd"))
    put_back(newer, first)
    assert verify_above(newer).verdict is Verdict.OK


def test_what_is_kept_of_a_listing_is_bounded(
    writer_above_marker: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(above_marker, "MOST_OBJECTS", 4)
    partition, markers = written(writer_above_marker, 20)
    put_back(partition, markers[1])
    report = verify_above(partition)
    assert [(lost.start, lost.end) for lost in report.lost] == [(10, 200)]

    async def kept() -> int:
        archive = ArchiveReader(LocalReader(LocalAddress(str(partition.archive.root))))
        listing = await above_marker.list_above(archive, [("orders", 0)])
        return len(listing.of(await archive.open_partition("orders", 0)))

    assert asyncio.run(kept()) == 5


async def above_later(before: dict[str, bytes], now: dict[str, bytes]) -> ChunkFindings | None:
    """What a listing of one moment shows above the marker of a later one; None where there was no marker yet."""
    if IDENTITY.keys.marker not in before:
        return None
    place = (IDENTITY.topic, IDENTITY.keys.partition)
    listing = await above_marker.list_above(ArchiveReader(MemoryReader(before)), [place])
    return await above_marker.look_above(await ArchiveReader(MemoryReader(now)).open_partition(*place), listing)


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

"""Damage of every kind to a small archive, and what each must cost, worked out from what was written.

A case is a set of stored objects. `truth` tells the offsets that it must lose, knowing the chain and the bytes alone.
"""

import asyncio
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.inventory import compare
from blockgz.archive.partition import STOP, Damaged, SkipDamage
from blockgz.archive.selection import scan
from blockgz.errors import Verdict
from index_format import marker as marker_module
from index_format import objects as format_objects
from index_format.blocks import GZIP_HEADER, GZIP_TRAILER_BYTES, inflate
from index_format.errors import BlockgzError
from index_format.marker import Catalog, CatalogReference, Marker, Span, decode_catalog, decode_marker
from index_format.objects import ChunkIndex, Gap, TopicConfig
from index_format.records import Record, iter_records
from replayer.verify.report import Depth, PartitionFindings
from replayer.verify.verifying import Identity, read_identity, verify_partition
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.memory_reader import MemoryReader

Objects = Mapping[str, bytes]
END = 2**63 - 1
FAN_OUT = 3
BLOCK_BYTES = {"json": 260, "arrow": 2_300, "text": 90}
WEIGHTS = {"data": 8, "index": 3, "catalog": 2, "last_chunk_index.json": 3}
"""How often each kind of object is damaged; all others 1."""
DAMAGES = ("flip", "flip", "flip", "cut", "swap", "double", "zero", "grow", "two")


@dataclass(frozen=True)
class Written:
    """A partition as it was written."""

    topic: str
    number: int
    home: str
    chunks: str
    marker_key: str
    records: Sequence[Record]
    markers: Sequence[bytes]
    """Every version of the marker that had a chunk, oldest first."""

    def owns(self, key: str) -> bool:
        """Whether an object is one of the partition's."""
        return key.startswith(self.home) or f"/{self.topic}-{self.number:05d}-" in key


class Sample(NamedTuple):
    """The archive that the cases damage."""

    objects: Objects
    vital: Sequence[str]
    """The keys of those that cases damage."""
    partitions: Sequence[Written]

    def name(self, key: str) -> str:
        """What kind of object it is."""
        last = key.rpartition("/")[2]
        if "/_catalog/" in key:
            return "catalog"
        if last.endswith((".index.json", ".meta.json")):
            return "index"
        return "data" if last.endswith(".gz") else last


class Case(NamedTuple):
    """One damaged archive: `changed` has the objects that are other ones now, None for those that are gone."""

    kind: str
    changed: Mapping[str, bytes | None]
    still_valid: bool = False
    """An older state of a partition, which is no damage."""


def sample_archive(layout: str) -> Sample:
    """Two topics, three partitions; gaps, holes, catalogs of two levels, chunks of one block and of several."""
    record_format = "text" if layout == "seed" else "json"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(marker_module, "FAN_OUT", FAN_OUT)
        writer = ArchiveWriter(Path(folder), layout)
        partitions = [
            _written(writer, "orders", 0, record_format, chunks=17),
            _written(writer, "orders", 1, "text" if layout == "seed" else "arrow", chunks=6),
            _written(writer, "bills", 0, "text", chunks=3),
        ]
        for partition in partitions:
            config = TopicConfig(
                topic=partition.topic, topic_id=None, partitions=2, replication_factor=1, config={}, defaults={"a": "1"}
            )
            writer.put(partition.home.rpartition("partition=")[0] + "_topic_config.json", format_objects.encode(config))
        root = Path(folder)
        stored = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    # The ancestor's own indexes and markers are a courtesy to its readers: no record is read by them.
    courtesies = {key for key in stored if layout == "seed" and key.endswith((".index.json", ".txt"))}
    return Sample(stored, sorted(stored.keys() - courtesies), partitions)


def _written(writer: ArchiveWriter, topic: str, number: int, record_format: str, chunks: int) -> Written:
    partition = writer.partition(topic, number, record_format=record_format)
    markers, offset = [], number
    for chunk in range(chunks):
        if chunk in (2, 5):
            partition.lose(offset := offset + 4)
        step = 1 if chunk % 2 else 2
        count = 12 if chunk % 4 == 1 else 1 + chunk % 3
        made = [_fit(each, record_format) for each in records(range(offset, offset + step * count, step))]
        gaps = [Gap(made[-1].offset + 1, made[-1].offset + 3, "skipped")] if chunk == 4 else []
        offset = made[-1].offset + 1 + (3 if gaps else chunk % 2)
        partition.commit(made, block_bytes=BLOCK_BYTES[record_format], next_offset=offset, gaps=gaps)
        markers.append(_stored_marker(partition))
    keys = partition.keys
    decoded = [each._replace(timestamp=-1, timestamp_type=-1) for each in partition.records]
    return Written(
        topic,
        number,
        keys.home,
        keys.chunks,
        keys.marker,
        decoded if record_format == "text" else partition.records,
        markers,
    )


def _fit(record: Record, record_format: str) -> Record:
    if record_format != "text":
        return record
    return record._replace(key=None, headers=(), value=record.value or b"")


def _stored_marker(partition: PartitionWriter) -> bytes:
    return (partition.archive.root / partition.keys.marker).read_bytes()


def damaged(sample: Sample, case: Case) -> dict[str, bytes]:
    merged: dict[str, bytes | None] = {**sample.objects, **case.changed}
    return {key: body for key, body in merged.items() if body is not None}


def truth(sample: Sample, partition: Written, after: Objects) -> set[int]:
    """The offsets of those records of a partition that can no longer be read."""
    before = sample.objects
    every = {record.offset for record in partition.records}
    if after.get(partition.marker_key) != before[partition.marker_key]:
        return every
    lost: set[int] = set()

    def descend(spans: Sequence[tuple[Span, int]]) -> None:
        for span, level in spans:
            inside = {offset for offset in every if span.start_offset <= offset < span.next_offset}
            if isinstance(span, CatalogReference):
                key = partition.home + span.name
                if after.get(key) != before[key]:
                    lost.update(inside)
                else:
                    descend([(each, level - 1) for each in _catalog(before[key], span, level).entries])
            elif after.get(partition.chunks + span.name) != before[partition.chunks + span.name]:
                lost.update(inside)
            else:
                lost.update(inside & _lost_blocks(partition, span.name, before, after))

    marker = _marker(before[partition.marker_key])
    descend([(ref, level) for level, refs in enumerate(marker.catalogs, 1) for ref in refs])
    descend([(entry, 0) for entry in marker.tail])
    return lost


def _lost_blocks(partition: Written, name: str, before: Objects, after: Objects) -> set[int]:
    index = format_objects.decode(before[partition.chunks + name], ChunkIndex, name)
    key = partition.chunks + index.data.name
    lost: set[int] = set()
    for block in index.blocks:
        was, now = (objects.get(key, b"")[block.byte_offset : block.byte_end] for objects in (before, after))
        if was != now and _raw(now, block.byte_length_uncompressed) != _raw(was, block.byte_length_uncompressed):
            lost.update(range(block.first_record_offset, block.last_record_offset + 1))
    return lost


def _raw(member: bytes, length: int) -> bytes | None:
    """What a member inflates to; a change of its time, say, changes nothing of that."""
    try:
        return inflate(member, length, length)
    except BlockgzError:
        return None


def _marker(body: bytes) -> Marker:
    return decode_marker(body)


def _catalog(body: bytes, reference: CatalogReference, level: int) -> Catalog:
    return decode_catalog(body, reference, level)


def cases(sample: Sample, rng: random.Random, count: int) -> Iterator[Case]:
    """So many cases: all deletions and older markers, each damage to each kind of object once, and others by chance.

    Flips count as one damage for each class of bytes.
    """
    made = 0
    for case in [*_deleted(sample), *_older_markers(sample)]:
        yield case
        made += 1
    by_kind: dict[str, list[str]] = {}
    for key in sample.vital:
        by_kind.setdefault(sample.name(key), []).append(key)
    each_once: list[tuple[str, str, str | None]] = []
    for kind, members in by_kind.items():
        each_once += [(kind, damage, None) for damage in sorted({*DAMAGES} - {"flip"})]
        each_once += [(kind, "flip", where) for where in _byte_classes(sample.objects[members[0]], kind)]
    rng.shuffle(each_once)
    while made < count:
        if each_once:
            kind, damage, where = each_once.pop()
        else:
            (kind,) = rng.choices([*by_kind], [WEIGHTS.get(kind, 1) for kind in by_kind])
            damage, where = rng.choice(DAMAGES), None
        case = _one(sample, rng, kind, by_kind[kind], damage, where)
        if case is not None:
            yield case
            made += 1


def _deleted(sample: Sample) -> Iterator[Case]:
    for key in sample.vital:
        if sample.name(key) != "_topic_config.json":
            yield Case(f"{sample.name(key)} deleted", {key: None})


def _older_markers(sample: Sample) -> Iterator[Case]:
    for partition in sample.partitions:
        for body in partition.markers[:-1]:
            yield Case("older marker", {partition.marker_key: body}, still_valid=True)


def _one(
    sample: Sample, rng: random.Random, kind: str, members: Sequence[str], damage: str, where: str | None
) -> Case | None:
    key = rng.choice(members)
    if damage == "swap":
        if len(members) < 2:
            return None
        other = rng.choice([each for each in members if each != key])
        changed: dict[str, bytes | None] = {key: sample.objects[other], other: sample.objects[key]}
        return None if sample.objects[other] == sample.objects[key] else Case(f"{kind} swapped", changed)
    body = sample.objects[key]
    if damage == "two":
        second = rng.choice(sample.vital)
        changed = {key: _flipped(body, rng, sample.name(key))[1]}
        if second != key:
            changed[second] = _cut(sample.objects[second], rng)
        return Case(f"{kind} and another", changed)
    if damage == "flip":
        where, changed_body = _flipped(body, rng, kind, where)
        return Case(f"{kind} {where} flipped", {key: changed_body})
    made = {"cut": _cut, "double": _doubled, "zero": _zeroed, "grow": _grown}[damage](body, rng)
    return None if made == body else Case(f"{kind} {damage}", {key: made})


def _flipped(body: bytes, rng: random.Random, kind: str, where: str | None = None) -> tuple[str, bytes]:
    """A bit of a byte class chosen first, so that the few bytes of a header are hit as often as the many behind it."""
    classes = _byte_classes(body, kind)
    where = where or rng.choice(sorted(classes))
    flipped = bytearray(body)
    flipped[rng.choice(classes[where])] ^= 1 << rng.randrange(8)
    return where, bytes(flipped)


def _byte_classes(body: bytes, kind: str) -> dict[str, list[int]]:
    """The positions of each class of bytes that there are."""
    classes = _gzip_classes(body) if kind == "data" else _json_classes(body)
    return {name: positions for name, positions in classes.items() if positions}


def _gzip_classes(body: bytes) -> dict[str, list[int]]:
    starts = [match.start() for match in re.finditer(re.escape(GZIP_HEADER[:8]), body)]
    ends = [*starts[1:], len(body)][: len(starts)]
    classes: dict[str, list[int]] = {"header": [], "body": [], "trailer": [], "boundary": []}
    for start, end in zip(starts, ends, strict=True):
        classes["header"] += range(start, start + len(GZIP_HEADER))
        classes["body"] += range(start + len(GZIP_HEADER), end - GZIP_TRAILER_BYTES)
        classes["trailer"] += range(end - GZIP_TRAILER_BYTES, end)
        classes["boundary"] += [start, end - 1]
    return classes


def _json_classes(body: bytes) -> dict[str, list[int]]:
    classes: dict[str, list[int]] = {"digit": [], "letter": [], "structure": [], "tail": []}
    for position, byte in enumerate(body):
        where = "digit" if chr(byte).isdigit() else "letter" if chr(byte).isalpha() else "structure"
        classes[where].append(position)
    classes["tail"] += range(len(body) - 22, len(body))
    return classes


def _cut(body: bytes, rng: random.Random) -> bytes:
    classes = _gzip_classes(body)["boundary"]
    return body[: rng.choice([0, len(body) - 1, rng.randrange(len(body)), *classes])]


def _doubled(body: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(body))
    end = rng.choice([start + 1, rng.randint(start, len(body)), len(body)])
    return rng.choice([body[:end] + body[start:end] + body[end:], body + body])


def _zeroed(body: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(body))
    end = rng.randint(start + 1, len(body))
    return body[:start] + bytes(end - start) + body[end:]


def _grown(body: bytes, rng: random.Random) -> bytes:
    extra = rng.randbytes(rng.randint(1, 20))
    position = rng.choice([0, len(body), rng.randrange(len(body))])
    return body[:position] + extra + body[position:]


async def check(sample: Sample, case: Case) -> None:
    """Asserts that the case is detected, that what is reported lost is the truth, and that all else is read."""
    after = damaged(sample, case)
    archive = ArchiveReader(MemoryReader(after))
    identity = await read_identity(archive, sorted({partition.topic for partition in sample.partitions}))
    found = [Verdict.FAILURE] if identity.damage or (await compare(archive)).damage else []
    for partition in sample.partitions:
        if any(map(partition.owns, case.changed)):
            if case.still_valid:
                await _check_older(partition, archive, identity, after[partition.marker_key])
            else:
                found.append((await _check_partition(sample, partition, archive, identity, after)).verdict)
    assert case.still_valid or Verdict.FAILURE in found, "not detected"


async def _check_partition(
    sample: Sample, partition: Written, archive: ArchiveReader, identity: Identity, after: Objects
) -> PartitionFindings:
    lost = truth(sample, partition, after)
    report = await _verified(partition, archive, identity)
    every = {record.offset for record in partition.records}
    named = {offset for run in report.lost for offset in range(run.start, run.end)} & every
    if after.get(partition.marker_key) == sample.objects[partition.marker_key]:
        assert named == lost, f"reported lost {sorted(named)}, in truth {sorted(lost)}"
        assert report.records == len(every - lost)
        readable = {offset for run in report.readable for offset in range(*run)} & every
        assert readable == every - lost
        skipped = await _read_on(partition, archive, [each for each in partition.records if each.offset not in lost])
        assert skipped & every == lost, f"skipped {sorted(skipped & every)}, in truth {sorted(lost)}"
        await _stopped(partition, archive, min(lost, default=END))
    else:
        kept = _indexed(partition, sample, after)
        assert named == kept, f"reported lost {sorted(named)}, the indexes name {sorted(kept)}"
        with pytest.raises(Damaged):
            await archive.open_partition(partition.topic, partition.number)
    return report


def _indexed(partition: Written, sample: Sample, after: Objects) -> set[int]:
    """Where the marker is gone, the offsets that the indexes beside it still tell of."""
    named: set[int] = set()
    for key, body in after.items():
        if partition.owns(key) and sample.name(key) == "index":
            try:
                index = format_objects.decode(body, ChunkIndex, key)
            except BlockgzError:
                continue
            if (index.topic, index.partition) == (partition.topic, partition.number):
                named.update(range(index.first_offset, index.last_offset + 1))
    return named & {record.offset for record in partition.records}


async def _check_older(partition: Written, archive: ArchiveReader, identity: Identity, marker: bytes) -> None:
    """An older marker is an older archive, whole and shorter, unless what lies above it proves that it was put back."""
    older, newest = _marker(marker), _marker(partition.markers[-1])
    end = older.tail[-1].next_offset
    expected = [record for record in partition.records if record.offset < end]
    report = await _verified(partition, archive, identity)
    chunks_above = newest.num_chunks - older.num_chunks
    if chunks_above > 1 or _marker(partition.markers[older.num_chunks]).epoch > older.epoch:
        assert report.verdict is Verdict.FAILURE
        (lost,) = report.lost
        assert (lost.start, lost.end) == (older.next_offset, newest.tail[-1].next_offset)
    else:
        assert report.verdict is not Verdict.FAILURE
        assert [orphan.start for orphan in report.orphans] == [older.chain_end]
    assert report.records == len(expected) < len(partition.records)
    assert await _read_on(partition, archive, expected) == set()


async def _verified(partition: Written, archive: ArchiveReader, identity: Identity) -> PartitionFindings:
    return await verify_partition(
        archive, partition.topic, partition.number, Depth.RECORDS, lambda *_: None, identity=identity
    )


async def _read_on(partition: Written, archive: ArchiveReader, expected: Sequence[Record]) -> set[int]:
    """Reads with damage skipped, which must give the expected records; the offsets that were skipped."""
    policy = SkipDamage()
    opened = await archive.open_partition(partition.topic, partition.number)
    async with aclosing(scan(opened, 0, END, on_damage=policy)) as batches:
        found = [record async for batch in batches for record in iter_records(batch)]
    assert found == [*expected], "wrong records, or not all that can be read"
    return {offset for each in policy.skipped for offset in range(each.start, each.end)}


async def _stopped(partition: Written, archive: ArchiveReader, first_lost: int) -> None:
    """Reads up to the first damage: exactly the records before it."""
    opened = await archive.open_partition(partition.topic, partition.number)
    found: list[Record] = []
    try:
        async with aclosing(scan(opened, 0, END, on_damage=STOP)) as batches:
            async for batch in batches:
                found += iter_records(batch)
        assert first_lost == END, "damage was passed over"
    except Damaged:
        assert first_lost < END, "an error where nothing is lost"
    assert found == [record for record in partition.records if record.offset < first_lost]


def run_cases(sample: Sample, chosen: Iterable[Case], seed: int) -> Counter[str]:
    """Checks cases; how many there were of each kind. An AssertionError names their seed and the case."""
    kinds: Counter[str] = Counter()

    async def run() -> None:
        for number, case in enumerate(chosen):
            try:
                await check(sample, case)
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {number}: {case.kind} {sorted(case.changed)}") from error
            kinds[case.kind] += 1

    asyncio.run(run())
    return kinds

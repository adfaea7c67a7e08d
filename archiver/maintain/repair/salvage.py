"""Records that a gap lists as lost and that an object of a dead writer still holds, brought back into the archive.

The log is not read: it has those records no more, and nothing above the gap changes.
"""

import hashlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.commit import FinishedChunk, PartitionIdentity
from archiver.commit.driver import Driver, UnreadLog, Wait
from archiver.commit.repairs import insert_chunk
from archiver.errors import SalvageRefused
from archiver.maintain.garbage import Chain, ListedPart, gaps_met, may_meet_a_gap
from archiver.maintain.gc import offsets_of, read_chain, read_offsets
from archiver.maintain.planned import Problem
from archiver.maintain.repair.chunk_indexes import ListedPartition, list_partition, stored_indexes, without_begun
from archiver.maintain.repair.plan import RepairPlan, RepairStep, RepairTarget
from blockgz.encryption.keyring import ChunkSeal, Sealing, keyring_of, opened_block
from blockgz.errors import BlockgzError
from blockgz.store.writer import FileBody, ToolStore
from index_format.blocks import COMPRESSORS, BlockBuilder, RawBlock, decode_block
from index_format.chunk_index import ERASED, BlockEntry, ChunkIndex, Gap, Stored
from index_format.keys import ChunkStart, ObjectKind, PartitionKeys
from index_format.marker import Marker, blocks_between, replaceable_gap
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS, Record, record_at, record_hash

LEVEL_OF_CUT_BLOCKS = 2


@dataclass(frozen=True)
class SalvagedPiece:
    """Offsets [start, end) of a stored chunk."""

    index: ChunkIndex
    start: int
    end: int

    @property
    def own_gaps(self) -> tuple[Gap, ...]:
        """The gaps that the orphan's writer recorded inside the piece."""
        cut = ((max(gap.start, self.start), min(gap.end, self.end), gap.reason) for gap in self.index.gaps)
        return tuple(Gap(*gap) for gap in cut if gap[0] < gap[1])


class StoredMember(NamedTuple):
    """A block of the piece as it will be stored, but not encrypted yet; its records are checked.

    `entry` says nothing of where.
    """

    member: Stored
    entry: BlockEntry
    last: Record


def plan_salvage(
    store: ToolStore, target: RepairTarget, max_block_bytes: int, wait: Wait, encrypt: str | None = None
) -> RepairPlan:
    """Plan chunks of the records that orphans of a partition hold in its gaps; every one of these records is read.

    `encrypt` is the setting that says where the keys of encrypted chunks are.
    """
    keys = target.keys
    place = list_partition(store, target, max_block_bytes)
    try:
        chain = read_chain(store, keys)
    except BlockgzError as error:
        return RepairPlan(problems=(Problem(keys.marker, error),))
    if chain is None or not chain.gaps:
        return RepairPlan(notes=(f"{target}: no marker lists a gap in it; nothing to recover",))
    indexes = stored_indexes(place)
    orphans = {name: index for name, (_, index) in indexes.items() if index and keys.chunks + name not in chain.indexes}
    settled, plan = without_begun(place, chain)
    named = [index for _, index in indexes.values() if index]
    plan += RepairPlan(problems=tuple(_without_index(settled, chain, named)))
    # Where records were erased, the objects that held them may be there still.
    gaps = sorted((gap for gap in chain.gaps if gap.reason != ERASED), key=lambda gap: gap.start)
    for name, index in sorted(orphans.items(), key=lambda orphan: -orphan[1].epoch):
        for gap in gaps_met(gaps, offsets_of(index)):
            piece = SalvagedPiece(index, max(gap.start, index.start_offset), min(gap.end, index.next_offset))
            try:
                check_piece(target, chain.marker, piece, gap, keys.chunks + name)
                records = sum(
                    member.entry.num_records
                    for member in members_of(place.store, target.keys, piece, place.max_block_bytes, encrypt)
                )
            except BlockgzError as error:
                plan += RepairPlan(problems=(Problem(keys.chunks + name, error),))
                continue
            if records:
                plan += RepairPlan((_step(place, chain.marker, piece, gap, records, wait, encrypt),))
                gaps = list(_without(gaps, piece))
    return plan


def _without_index(place: ListedPartition, chain: Chain, indexes: Iterable[ChunkIndex]) -> Iterator[Problem]:
    keys = place.target.keys
    named = {keys.chunks + index.data.name for index in indexes}
    found = [ListedPart(*each) for each in place.of_kind(ObjectKind.DATA) if each[0].key not in named]
    nameless = [each for each in found if may_meet_a_gap([chain], each)]
    held = read_offsets(place.store, keys, nameless, ())
    for each in nameless:
        if each.name.key not in held or gaps_met(chain.gaps, held[each.name.key]):
            yield Problem(each.name.key, _refused(each.name.key, "it has no index, so its topic id is unknown"))


def check_piece(target: RepairTarget, marker: Marker, piece: SalvagedPiece, gap: Gap, key: str) -> None:
    """Raise SalvageRefused if the piece may be of another topic, or its gap cannot be changed."""
    index = piece.index
    if index.topic_id is None or marker.topic_id is None:
        raise _refused(key, "its topic id, or the marker's, is unknown: the topic may have been created again since")
    if index.topic_id != marker.topic_id:
        raise _refused(key, f"its topic id is {index.topic_id}, the marker's is {marker.topic_id}: it is another topic")
    if marker.isolation_level not in (None, index.isolation_level):
        raise _refused(key, f"it was read with isolation level {index.isolation_level}, not {marker.isolation_level}")
    if marker.successor is not None:
        raise _refused(key, f"the partition continues in {marker.successor}; this folder is closed")
    if replaceable_gap(marker, piece.start, piece.end) is None:
        raise SalvageRefused(
            f"{target}: the gap from {gap.start} to {gap.end} cannot be filled yet, though {key} reaches into it",
            why="it lies inside a chunk, or among older chunks in catalogs; only gaps among the newest chunks can be",
            remedy="the object is kept: gc spares it",
        )


def _refused(key: str, why: str) -> SalvageRefused:
    return SalvageRefused(
        f"{key} reaches into a gap but is not recovered", why=why, remedy="the object is kept: gc spares it"
    )


def _step(
    place: ListedPartition,
    marker: Marker,
    piece: SalvagedPiece,
    gap: Gap,
    records: int,
    wait: Wait,
    encrypt: str | None,
) -> RepairStep:
    target, index = place.target, piece.index
    key = target.keys.chunks + index.data.name
    detail = (
        f"{records:,} records at offsets [{piece.start}..{piece.end}), "
        f"of the gap [{gap.start}..{gap.end}): {gap.reason}"
    )

    def carry_out() -> None:
        identity = PartitionIdentity(
            keys=target.keys,
            archive_id=marker.archive_id,
            topic_id=marker.topic_id,
            group_id=marker.group_id,
            record_format=index.record_format,
            codec=index.codec,
            isolation_level=index.isolation_level,
            key_prefix=place.store.prefix,
            encrypt=encrypt,
        )
        with tempfile.TemporaryDirectory(prefix="blockgz-") as folder:
            members = members_of(place.store, target.keys, piece, place.max_block_bytes, encrypt)
            chunk = cut_chunk(piece, members, Path(folder) / "chunk", encrypt)
            driver = Driver(place.store, UnreadLog(), wait, lambda: True)
            driver.run(insert_chunk(identity, chunk, str(uuid.uuid4())))

    return RepairStep(str(target), "records", key, detail, carry_out)


def cut_chunk(
    piece: SalvagedPiece, members: Iterable[StoredMember], path: Path, encrypt: str | None = None
) -> FinishedChunk:
    """Write the data of a piece to `path`, encrypted if the piece was, and return the chunk."""
    blocks, size, digest, last = list[BlockEntry](), 0, hashlib.sha256(), None
    seal = _seal(piece, encrypt)
    with path.open("wb") as data:
        for member, entry, newest in members:
            if seal is not None:
                member, entry = seal.sealed(len(blocks), member, entry)  # noqa: PLW2901 - the block as it is stored
            data.write(member)
            digest.update(member)
            blocks.append(replace(entry, byte_offset=size))
            size, last = size + len(member), newest
    is_lossless = piece.index.record_format != "text"
    secret = seal.tail_secret if seal else None
    return FinishedChunk(
        body=FileBody(path, size, digest.hexdigest()),
        start=ChunkStart(piece.start, blocks[0].first_record_offset, blocks[0].min_timestamp),
        next_offset=piece.end,
        blocks=tuple(blocks),
        gaps=piece.own_gaps,
        timestamp_type=piece.index.timestamp_type,
        leader_epoch=None,
        tail_hash=record_hash(last, secret) if last is not None and is_lossless else None,
        encryption=seal.encryption if seal else UNSET,
        tail_key=seal.tail_key if seal else UNSET,
    )


def _seal(piece: SalvagedPiece, encrypt: str | None) -> ChunkSeal | None:
    index, keyring = piece.index, keyring_of(encrypt)
    if not index.encryption or keyring is None:
        return None
    return Sealing(keyring, index.archive_id, index.topic, index.partition).of_chunk(piece.start)


def members_of(
    store: ToolStore, keys: PartitionKeys, piece: SalvagedPiece, max_block_bytes: int, encrypt: str | None = None
) -> Iterator[StoredMember]:
    """Yield the blocks of a piece, cut at its edges and decrypted.

    Raises a FormatError or StoreError for one that is damaged, KeyMissing for an encrypted one without its key.
    """
    keyring = keyring_of(encrypt)
    index, start, end = piece.index, piece.start, piece.end
    key = keys.chunks + index.data.name
    for number in blocks_between(index.blocks, start, end):
        entry = index.blocks[number]
        stored = store.get_range(key, entry.byte_offset, entry.byte_end)
        member, entry = opened_block(stored, number, index, key, keyring)
        batch = decode_block(member, entry, index, max_block_bytes)
        if start <= entry.first_record_offset and entry.last_record_offset < end:
            yield StoredMember(member, entry, record_at(batch, -1))
            continue
        offsets = batch.column("offset").to_numpy()
        inside = batch.filter(pa.array(np.logical_and(offsets >= start, offsets < end)))
        if inside.num_rows:
            yield from _encoded(index, entry, inside)


def _encoded(index: ChunkIndex, whole: BlockEntry, batch: pa.RecordBatch) -> Iterator[StoredMember]:
    compressor = COMPRESSORS["zstd" if index.codec == "zstd" else "isal"](LEVEL_OF_CUT_BLOCKS)
    encoding = record_format(index.record_format)
    builder = BlockBuilder(encoding, TIMESTAMP_TYPE_IDS[index.timestamp_type], whole.byte_length_uncompressed + 1)
    blocks: Sequence[RawBlock | None] = [*builder.add(batch), builder.finish()]
    for raw in blocks:
        if raw is not None:
            member = compressor.compress(raw.raw)
            entry = raw.entry(0, len(member))
            if encoding.name == "text":  # only the index tells its timestamps
                entry = replace(entry, min_timestamp=whole.min_timestamp, max_timestamp=whole.max_timestamp)
            yield StoredMember(member, entry, record_at(batch, -1))


def _without(gaps: Iterable[Gap], piece: SalvagedPiece) -> Iterator[Gap]:
    for gap in gaps:
        for start, end in ((gap.start, min(gap.end, piece.start)), (max(gap.start, piece.end), gap.end)):
            if start < end:
                yield Gap(start, end, gap.reason)

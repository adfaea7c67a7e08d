"""Records that a gap lists as lost and that an object of a dead writer still holds, brought back into the archive.

The log is not read: it has those records no more, and nothing above the gap changes.
"""

import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from archiver.commit.commit import FinishedChunk, PartitionIdentity
from archiver.commit.operations import Driver
from archiver.commit.repairs import insert_chunk
from archiver.errors import SalvageRefused
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.garbage import ListedPart, gaps_met, may_meet_a_gap
from archiver.maintain.gc import offsets_of, read_offsets
from archiver.maintain.planned import Problem
from archiver.maintain.repair.chunk_indexes import ListedPartition, list_partition, stored_indexes, without_begun
from archiver.maintain.repair.plan import RepairPlan, RepairStep, RepairTarget
from archiver.maintain.rewrite.chunks import Block, BlockWriter, data_in, opened_blocks
from archiver.maintain.rewrite.contents import compressor_of_rest, encode_rest
from archiver.maintain.rewrite.tree import StoredChain, read_chain
from blockgz.encryption.keyring import ChunkSeal, Keyring, Sealing, keyring_of
from blockgz.errors import BlockgzError
from index_format.blocks import decode_block
from index_format.keys import ChunkStart, ObjectKind
from index_format.marker import Marker, blocks_between, replaceable_gap
from index_format.objects import ERASED, LOST, ChunkIndex, Gap
from index_format.records import Record, record_at, record_hash


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


def plan_salvage(target: RepairTarget) -> RepairPlan:
    """Plan chunks of the records that orphans of a partition hold in its gaps; every one of these records is read."""
    keys, plan = target.keys, RepairPlan()
    place = list_partition(target)
    try:
        chain = read_chain(target.store, keys)
    except BlockgzError as error:
        return RepairPlan(problems=[Problem(keys.marker, error)])
    if chain is None or not chain.gaps:
        return RepairPlan(notes=[f"{target}: no marker lists a gap in it; nothing to recover"])
    indexes = stored_indexes(place)
    orphans = {name: index for name, (_, index) in indexes.items() if index and keys.chunks + name not in chain.indexes}
    settled = without_begun(place, chain, plan)
    plan.problems += _without_index(settled, chain, [index for _, index in indexes.values() if index])
    # Where records were erased, or accepted as lost, the objects that held them may be there still.
    gaps = sorted((gap for gap in chain.gaps if gap.reason not in (ERASED, LOST)), key=lambda gap: gap.start)
    for name, index in sorted(orphans.items(), key=lambda orphan: -orphan[1].epoch):
        for gap in gaps_met(gaps, offsets_of(index)):
            piece = SalvagedPiece(index, max(gap.start, index.start_offset), min(gap.end, index.next_offset))
            try:
                check_piece(target, chain.marker, piece, gap, keys.chunks + name)
                records = sum(batch.num_rows for _, batch in blocks_of_piece(target, piece))
            except BlockgzError as error:
                plan.problems.append(Problem(keys.chunks + name, error))
                continue
            if records:
                plan.steps.append(_step(target, chain.marker, piece, gap, records))
                gaps = list(_without(gaps, piece))
    return plan


def _without_index(place: ListedPartition, chain: StoredChain, indexes: Iterable[ChunkIndex]) -> Iterator[Problem]:
    keys = place.target.keys
    named = {keys.chunks + index.data.name for index in indexes}
    found = [ListedPart(*each) for each in place.of_kind(ObjectKind.DATA) if each[0].key not in named]
    nameless = [each for each in found if may_meet_a_gap([chain], each)]
    held = read_offsets(place.target.store, keys, nameless, ())
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


def _step(target: RepairTarget, marker: Marker, piece: SalvagedPiece, gap: Gap, records: int) -> RepairStep:
    index = piece.index
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
            key_prefix=target.store.prefix,
            encrypt=target.encrypt,
        )
        with cut_chunk(target, piece) as chunk:
            Driver(target.store).run(insert_chunk(identity, chunk, str(uuid.uuid4())))

    return RepairStep(str(target), "records", key, detail, carry_out)


@contextmanager
def cut_chunk(target: RepairTarget, piece: SalvagedPiece) -> Iterator[FinishedChunk]:
    """Provide a chunk of a piece, encrypted if the piece was; its data is in a file, for the time of the block."""
    index, last, seal = piece.index, None, _seal(piece, target.encrypt)
    with tempfile.TemporaryDirectory(prefix="blockgz-") as folder, closing(BufferFolder(Path(folder))) as buffers:
        writer = BlockWriter(buffers.new_file(), seal)
        for (member, entry), batch in blocks_of_piece(target, piece):
            if batch.num_rows == entry.num_records:
                writer.copy(member, entry)
            else:
                encode_rest(batch, entry, index, writer, compressor_of_rest(index))
            last = record_at(batch, -1)
        is_lossless = index.record_format != "text"
        blocks, secret = writer.blocks, seal.tail_secret if seal else None
        yield FinishedChunk(
            body=writer.finish(),
            start=ChunkStart(piece.start, blocks[0].first_record_offset, blocks[0].min_timestamp),
            next_offset=piece.end,
            blocks=tuple(blocks),
            gaps=piece.own_gaps,
            timestamp_type=index.timestamp_type,
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


def blocks_of_piece(target: RepairTarget, piece: SalvagedPiece) -> Iterator[tuple[Block, pa.RecordBatch]]:
    """Yield the blocks of a piece, decrypted, each with its records inside the piece.

    Raises a FormatError or StoreError for one that is damaged, KeyMissing for an encrypted one without its key.
    """
    index, start, end = piece.index, piece.start, piece.end
    data = data_in(target.store, target.keys, keyring_of(target.encrypt))(index)
    for member, entry in opened_blocks(data, index.blocks, blocks_between(index.blocks, start, end)):
        batch = decode_block(member, entry, index, target.max_block_bytes)
        offsets = batch.column("offset").to_numpy()
        inside = batch.filter(pa.array(np.logical_and(offsets >= start, offsets < end)))
        if inside.num_rows:
            yield (member, entry), inside


def last_record(target: RepairTarget, index: ChunkIndex, keyring: Keyring | None) -> Record:
    """Return the last record of a chunk; raises as `blocks_of_piece` does."""
    data = data_in(target.store, target.keys, keyring)(index)
    ((member, entry),) = opened_blocks(data, index.blocks, [len(index.blocks) - 1])
    return record_at(decode_block(member, entry, index, target.max_block_bytes), -1)


def _without(gaps: Iterable[Gap], piece: SalvagedPiece) -> Iterator[Gap]:
    for gap in gaps:
        for start, end in ((gap.start, min(gap.end, piece.start)), (max(gap.start, piece.end), gap.end)):
            if start < end:
                yield Gap(start, end, gap.reason)

"""The report of an erase: which records were erased by offset and digest, and whether anything still holds them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from archiver.commit.lost_markers import claimed_partitions
from archiver.maintain.contents.merge import erased_in
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.erase.search import AtOffsets, FoundRecords, find_records, read_chunks
from archiver.maintain.garbage import Chain, Found
from archiver.maintain.sweep import read_chain
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.writer import Leftover, ToolStore
from index_format import marker as markers
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ERASED
from index_format.errors import BlockgzError, KeyMissing
from index_format.keys import LAYOUTS, ObjectKind, PartitionKeys, parse_key, parse_topic_folder
from index_format.objects import Count, Offset, Sha256, Timestamp

ERASE_FORMAT: Final = "block-gzip-erase-report"
COMPLETION_FORMAT = "block-gzip-erase-completion"
"""Of what `archiver erase --status` writes to --report."""
LAYOUT = "topic"
"""The only one in which records are erased."""


class ErasedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be erased in one partition's folder; it says nothing of the records' content."""

    topic: str
    """`orders`, or `orders~2` for the second incarnation."""
    partition: Count
    records: Count
    offsets: tuple[tuple[Offset, Offset], ...]
    """Ranges [from, to) of the records' offsets."""
    content: Sha256
    positions: Sha256
    chunks: Count
    bytes: Count
    """Of the chunks that held them, as stored."""
    blocks_read: Count
    blocks: Count
    error: str | None = None
    """Why not all of them were erased."""

    def __post_init__(self) -> None:
        if any(start >= end for start, end in self.offsets):
            raise ValueError(f"a range of offsets of {self} is empty")
        if sum(end - start for start, end in self.offsets) != self.records:
            raise ValueError(f"{self} has {self.records} records and other offsets")

    @classmethod
    def of(cls, found: FoundRecords, error: str | None = None) -> "ErasedPartition":
        return cls(
            topic=str(found.keys.folder),
            partition=found.keys.partition,
            records=found.num_records,
            offsets=tuple((each.start, each.stop) for each in found.offsets),
            content=found.content,
            positions=found.positions,
            chunks=found.num_chunks,
            bytes=found.num_bytes,
            blocks_read=found.blocks_read,
            blocks=found.blocks,
            error=error,
        )

    @property
    def keys(self) -> PartitionKeys:
        return LAYOUTS[LAYOUT](parse_topic_folder(self.topic), self.partition)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class NotSearched(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of which nobody knows whether it holds such records."""

    topic: str
    partition: Count
    error: str

    @classmethod
    def of(cls, keys: PartitionKeys, error: BlockgzError) -> "NotSearched":
        return cls(topic=str(keys.folder), partition=keys.partition, error=error.reason)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON contract of `archiver erase --json` and `--report`."""

    format: Literal["block-gzip-erase-report"] = ERASE_FORMAT
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    archive: str
    archive_id: str
    at: Timestamp
    """When it was written, by the clock of the archive's store, in ms."""
    dry_run: bool
    partitions: tuple[ErasedPartition, ...]
    """All that were searched, also where nothing was found: what was replaced or pruned before may hold records."""
    not_searched: tuple[NotSearched, ...] = ()
    signed: bool = False
    """Whether a signature was written beside it, which must be there whenever it is read."""


def read_report(path: Path) -> tuple[bytes, EraseReport]:
    """Return what a file holds, and the report that it is; raises UsageError."""
    try:
        body = path.read_bytes()
        report = msgspec.json.decode(body, type=EraseReport)
        if not report.partitions and not report.not_searched:
            raise msgspec.ValidationError("it names no partition")
        return body, report
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path} is not the report of an erase", why=str(error), remedy="name a file that --report wrote"
        ) from error


@dataclass(frozen=True)
class Remains:
    """What still stands between an erase and its completion in one partition."""

    not_erased: OffsetRanges
    """Offsets whose records are still archived, as far as the keys at hand tell."""
    retired: int
    """Replaced catalogs that readers with an older marker may still follow."""
    is_rewriting: bool
    unreached: tuple[str, ...]
    """Keys of objects and uploads below the chain's end that the marker does not lead to."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing in the archive holds the records any more."""
        return not (len(self.not_erased) or self.retired or self.is_rewriting or self.unreached)


def remains_of(store: ToolStore, erased: ErasedPartition, uploads: Sequence[Leftover]) -> Remains:
    """Looks whether the records are gone from the chain, and whether any object may still hold them.

    The marker is read, then the partition is listed, then the marker is read again and followed: what was retired
    before the listing, or is listed and not led to, may hold them. `uploads` are what `store.leftovers` gave before.
    Raises NotInArchive, a FormatError or a StoreError.
    """
    keys = erased.keys
    stored = store.get(keys.marker)
    if stored is None:
        if not _is_dropped(store, keys):
            raise _no_marker(keys)
        of_partition = (each.key for each in uploads if each.key.startswith(keys.home))
        return Remains(OffsetRanges(), retired=0, is_rewriting=False, unreached=tuple(of_partition))
    before = markers.decode_marker(stored.body, keys.marker)
    listed = [Found(name, each) for each in store.list(keys.home) if (name := parse_key(LAYOUT, each.key)) is not None]
    chain = read_chain(store, LAYOUT, keys.folder, keys.partition)
    if chain is None:
        raise _no_marker(keys)
    offsets = OffsetRanges(range(start, end) for start, end in erased.offsets)
    maintenance = before.maintenance or markers.Maintenance()
    return Remains(
        not_erased=_not_erased(store, chain, offsets),
        retired=sum(len(each.references) for each in maintenance.retired),
        is_rewriting=maintenance.rewriting is not None,
        unreached=(*_unreached(store, chain, listed), *_below_end(chain, uploads)),
    )


def _is_dropped(store: ToolStore, keys: PartitionKeys) -> bool:
    """Whether nothing of the partition is stored, and the inventory does not name it any more."""
    if next(store.list(keys.home), None) is not None:
        return False
    return keys.partition not in claimed_partitions(store, LAYOUT).get(keys.folder, ())


def _no_marker(keys: PartitionKeys) -> NotInArchive:
    return NotInArchive(
        f"{keys.folder}:{keys.partition} is not in the archive",
        why=f"there is no {keys.marker}",
        remedy="check -a; if the marker was lost, archiver repair marker rebuilds it",
    )


def _not_erased(store: ToolStore, chain: Chain, offsets: OffsetRanges) -> OffsetRanges:
    """Those of the offsets that still have a record; without the keys of an encrypted chunk, those not known as erased.

    Indexes that were rebuilt from erased data know of no erased ranges: then the blocks themselves are looked at.
    """
    gone = [range(gap.start, gap.end) for gap in chain.gaps if gap.reason == ERASED]
    gone.append(range(chain.marker.pruned_before))
    left = offsets - OffsetRanges(gone)
    entries = [entry for entry in chain.entries if left.meets(entry.start_offset, entry.next_offset)]
    erased = [each for chunk in read_chunks(store, chain.keys, entries) for each in erased_in(chunk.index)]
    left -= OffsetRanges(erased)
    if not len(left):
        return left
    try:
        return find_records(store, chain, AtOffsets(left), DEFAULT_MAX_BLOCK_BYTES).offsets
    except KeyMissing:
        return left


def _unreached(store: ToolStore, chain: Chain, listed: Sequence[Found]) -> list[str]:
    """What the chain does not lead to, of all that may hold records below its end."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for found in listed:
        if found.name.kind is ObjectKind.DATA:
            by_number[found.name.number].append(found.name.key)
    sole = {number for number, keys in by_number.items() if len(keys) == 1 and number in chain.by_number}
    doubtful = [entry for number in by_number if number not in sole for entry in chain.by_number.get(number, ())]
    named = {chain.keys.chunks + chunk.index.data.name for chunk in read_chunks(store, chain.keys, doubtful)}
    end = chain.end or 0
    return [
        found.name.key
        for found in listed
        if found.name.number < end
        and found.name.key not in chain.catalogs
        and found.name.key not in chain.indexes
        and not (found.name.kind is ObjectKind.DATA and (found.name.number in sole or found.name.key in named))
    ]


def _below_end(chain: Chain, uploads: Sequence[Leftover]) -> list[str]:
    names = [parse_key(LAYOUT, each.key) for each in uploads if each.key.startswith(chain.keys.home)]
    return [name.key for name in names if name is not None and name.number < (chain.end or 0)]

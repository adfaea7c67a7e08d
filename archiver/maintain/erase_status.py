"""Show whether an erase is complete: whether anything in the archive still holds what its report names."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from archiver.commit.archive import archive_info, claimed_partitions, layout_of
from archiver.errors import RewriteRefused
from archiver.maintain import erase
from archiver.maintain.garbage import ListedPart
from archiver.maintain.planned import Cell, Problem
from archiver.maintain.rewrite.chunks import OffsetRanges
from archiver.maintain.rewrite.contents import erased_in
from archiver.maintain.rewrite.tree import StoredChain, read_chain
from blockgz.errors import BlockgzError, KeyMissing, NotInArchive, UsageError
from blockgz.signing import check_signature, signature_of
from blockgz.store.writer import Leftover, ToolStore
from blockgz.units import timestamp_text
from index_format import marker as markers
from index_format.keys import ObjectKind, PartitionKeys, parse_key
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES, ERASED


class EraseStatus:
    """The progress of an erase: what its report names, and what of it is still in the archive."""

    columns = ("topic", "partition", "records", "not erased", "retired catalogs", "objects left", "state")
    droppable = ("retired catalogs",)

    def __init__(self, store: ToolStore, path: Path, key: Path | None) -> None:
        """Read the report, which must be signed by the key if one is given, and search the archive.

        Raises UsageError for another file or archive, MalformedObject for a wrong signature.
        """
        body, self._report = read_report(path)
        self.is_signature_unchecked = key is None and signature_of(path).exists()
        if key is not None:
            check_signature(body, path, key)
        elif self._report.signed and not self.is_signature_unchecked:
            raise UsageError(
                f"{path} was signed, but {signature_of(path)} is missing", remedy="restore both files from a safe copy"
            )
        self._store, self._sha256 = store, hashlib.sha256(body).hexdigest()
        self._archive_id = archive_info(store, layout_of(store)).archive_id
        if self._report.archive_id != self._archive_id:
            raise UsageError(
                f"{path} is the report of another archive",
                why=f"its archive_id is {self._report.archive_id}, that of {store.url} is {self._archive_id}",
                remedy="check -a",
            )
        uploads = list(store.leftovers())
        self.seen = list[tuple[erase.ErasedPartition, Remains]]()
        self.problems = [
            Problem(
                str(each),
                RewriteRefused(
                    "the erase did not search this partition",
                    why=each.error,
                    remedy="fix that, then run the same erase again with a new --report file",
                ),
            )
            for each in self._report.not_searched
        ]
        for each in self._report.partitions:
            try:
                self.seen.append((each, remains_of(store, each, uploads)))
            except BlockgzError as error:
                self.problems.append(Problem(str(each), error))
        self.is_complete = not self.problems and all(remains.is_complete for _, remains in self.seen)
        self._at = round(store.clock() * 1000)

    def as_json(self) -> dict[str, object]:
        """Return the JSON contract of `archiver erase --status --json`, and of its --report file."""
        return {
            "format": erase.COMPLETION_FORMAT,
            "version": 1,
            "archive": self._store.url,
            "archive_id": self._archive_id,
            "report_sha256": self._sha256,
            "report_at": self._report.at,
            "records": sum(each.records for each in self._report.partitions),
            "complete": self.is_complete,
            "at": self._at,
            "partitions": [
                {
                    "topic": erased.topic,
                    "partition": erased.partition,
                    "complete": remains.is_complete,
                    "not_erased": [(each.start, each.stop) for each in remains.not_erased],
                    "retired": remains.retired,
                    "rewriting": remains.is_rewriting,
                    "unreached": remains.unreached,
                }
                for erased, remains in self.seen
            ],
            "problems": [each.as_json for each in self.problems],
        }

    def rows(self) -> list[tuple[Cell, ...]]:
        """Return a row for each partition that has such records, or is not complete."""
        return [
            (
                *(erased.topic, erased.partition, erased.records, remains.not_erased.num_offsets, remains.retired),
                *(len(remains.unreached), "complete" if remains.is_complete else "not yet"),
            )
            for erased, remains in self.seen
            if erased.records or not remains.is_complete
        ]

    def summary(self) -> list[str]:
        """Return what the user can do next, or that nothing is left to do."""
        if self.is_complete:
            return [f"complete at {timestamp_text(self._at)}: nothing in the archive holds the records any longer"]
        lines = []
        if any(len(remains.not_erased) for _, remains in self.seen):
            lines.append("some records are not erased: run the same archiver erase again, with another --report")
        if any(remains.retired or remains.is_rewriting or remains.unreached for _, remains in self.seen):
            lines.append("not complete yet: run archiver gc, now and once the grace period of what is retired is over")
        return lines


def read_report(path: Path) -> tuple[bytes, erase.EraseReport]:
    """Return the content of a file, and its report; raises UsageError."""
    try:
        body = path.read_bytes()
        report = msgspec.json.decode(body, type=erase.EraseReport)
        if not report.partitions and not report.not_searched:
            raise msgspec.ValidationError("it names no partition")
        return body, report
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path} is not the report of an erase", why=str(error), remedy="name a file that --report wrote"
        ) from error


@dataclass(frozen=True)
class Remains:
    """The parts of one partition that keep an erase from being complete."""

    not_erased: OffsetRanges
    """Offsets whose records are still archived, as far as the given keys show."""
    retired: int
    """Replaced catalogs that readers with an older marker may still use."""
    is_rewriting: bool
    unreached: tuple[str, ...]
    """Keys of objects and uploads below the chain's end that the marker does not reference."""

    @property
    def is_complete(self) -> bool:
        """True if nothing in the archive holds the records any longer."""
        return not (len(self.not_erased) or self.retired or self.is_rewriting or self.unreached)


def remains_of(store: ToolStore, erased: erase.ErasedPartition, uploads: Sequence[Leftover]) -> Remains:
    """Return what of an erase is still in the archive: its records in the chain, or objects that may hold them.

    Reads the marker, lists the partition, then reads the marker again and follows it: what was retired before the
    listing, or is listed and not referenced, may hold them. `uploads` come from an earlier `store.leftovers`. Raises
    NotInArchive, a FormatError or a StoreError.
    """
    keys = erased.keys
    stored = store.get(keys.marker)
    if stored is None:
        if not _is_dropped(store, keys):
            raise _no_marker(keys)
        of_partition = (each.key for each in uploads if each.key.startswith(keys.home))
        return Remains(OffsetRanges(), retired=0, is_rewriting=False, unreached=tuple(of_partition))
    before = markers.decode_marker(stored.body, keys.marker)
    listed = [
        ListedPart(name, each)
        for each in store.list(keys.home)
        if (name := parse_key(erase.LAYOUT, each.key)) is not None
    ]
    chain = read_chain(store, keys)
    if chain is None:
        raise _no_marker(keys)
    maintenance = before.maintenance or markers.Maintenance()
    return Remains(
        not_erased=_not_erased(store, chain, erased.ranges),
        retired=sum(len(each.references) for each in maintenance.retired),
        is_rewriting=maintenance.rewriting is not None,
        unreached=tuple(_unreached(store, chain, listed, uploads)),
    )


def _is_dropped(store: ToolStore, keys: PartitionKeys) -> bool:
    """Return whether nothing of the partition is stored, and the inventory no longer names it."""
    if next(store.list(keys.home), None) is not None:
        return False
    return keys.partition not in claimed_partitions(store, erase.LAYOUT).get(keys.folder, ())


def _no_marker(keys: PartitionKeys) -> NotInArchive:
    return NotInArchive(
        f"{keys} is not in the archive",
        why=f"there is no {keys.marker}",
        remedy="check -a; if the marker was lost, archiver repair marker rebuilds it",
    )


def _not_erased(store: ToolStore, chain: StoredChain, offsets: OffsetRanges) -> OffsetRanges:
    """Return the offsets that still have a record; without the keys of a chunk, those not listed as erased."""
    gone = [range(gap.start, gap.end) for gap in chain.gaps if gap.reason == ERASED]
    gone.append(range(chain.marker.pruned_before))
    left = offsets - OffsetRanges(gone)
    entries = [entry for entry in chain.entries if left.meets(entry.start_offset, entry.next_offset)]
    erased = [each for chunk in erase.read_chunks(store, chain.keys, entries) for each in erased_in(chunk.index)]
    left -= OffsetRanges(erased)
    if not len(left):
        return left
    try:
        # Indexes that were rebuilt from erased data list no erased ranges: the blocks tell.
        return erase.find_records(store, chain, erase.AtOffsets(left), DEFAULT_MAX_BLOCK_BYTES).ranges
    except KeyMissing:
        return left


def _unreached(
    store: ToolStore, chain: StoredChain, listed: Sequence[ListedPart], uploads: Sequence[Leftover]
) -> list[str]:
    """Return what the chain does not reference, of all objects and uploads that may hold records below its end."""
    by_number: dict[int, list[str]] = defaultdict(list)
    for found in listed:
        if found.name.kind is ObjectKind.DATA:
            by_number[found.name.number].append(found.name.key)
    sole = {number for number, keys in by_number.items() if len(keys) == 1 and number in chain.by_number}
    doubtful = [entry for number in by_number if number not in sole for entry in chain.by_number.get(number, ())]
    named = {chain.keys.chunks + chunk.index.data.name for chunk in erase.read_chunks(store, chain.keys, doubtful)}
    end = chain.end or 0
    sent = [parse_key(erase.LAYOUT, each.key) for each in uploads if each.key.startswith(chain.keys.home)]
    unreached = [
        found.name.key
        for found in listed
        if found.name.number < end
        and found.name.key not in chain.catalogs
        and found.name.key not in chain.indexes
        and not (found.name.kind is ObjectKind.DATA and (found.name.number in sole or found.name.key in named))
    ]
    return [*unreached, *(name.key for name in sent if name is not None and name.number < end)]

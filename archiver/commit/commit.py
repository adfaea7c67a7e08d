"""Committing a chunk: data, index, catalogs where the tail is full, then the marker; and progress without records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from archiver.commit.objects import Held, store_once, swap_own_marker
from archiver.commit.operations import CompareAndSwap, CourtesyFailed, Get, NewToken, Now, Protocol
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import keyring_of
from blockgz.encryption.opening import Sealing
from blockgz.errors import AccessDenied, StoreError
from blockgz.store.writer import Body, FileBody, StoredObject
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import BlockEntry, ChunkIndex, DataObject, Encryption, Gap, WrappedKey, ancestor_index
from index_format.keys import ChunkStart, Conflict, PartitionKeys, SeedLayoutKeys, catalog_name, data_suffix
from index_format.marker import Marker


@dataclass(frozen=True)
class PartitionIdentity:
    """What every object of a partition says of itself."""

    keys: PartitionKeys
    archive_id: str
    topic_id: str | None
    group_id: str
    record_format: str
    codec: str
    isolation_level: str
    key_prefix: str
    """What the store puts before a key; the ancestor's marker names keys in full."""
    encrypt: str | None = None
    """Where the keys are with which chunks are encrypted; None where they are not."""

    @classmethod
    def of(
        cls, config: RunConfig, keys: PartitionKeys, archive_id: str, topic_id: str | None, key_prefix: str
    ) -> "PartitionIdentity":
        """As the settings have it."""
        group, level = config.group, config.isolation_level
        formats = (config.record_format, config.codec)
        return cls(keys, archive_id, topic_id, group, *formats, level, key_prefix, config.encrypt)

    @property
    def sealing(self) -> Sealing | None:
        """What encrypts its chunks; None where nothing does. Raises UsageError where the keys cannot be had."""
        keyring = keyring_of(self.encrypt)
        return None if keyring is None else Sealing(keyring, self.archive_id, self.topic, self.keys.partition)

    @property
    def topic(self) -> str:
        return self.keys.folder.topic

    def __str__(self) -> str:
        return f"{self.topic}:{self.keys.partition}"

    def suffix(self, encryption: Encryption | UnsetType) -> str:
        """What the name of a chunk's data ends with."""
        return data_suffix(self.record_format, self.codec, encrypted=bool(encryption))


class FinishedChunk(NamedTuple):
    """A chunk whose bytes lie complete in the local buffer."""

    body: FileBody
    start: ChunkStart
    next_offset: int
    blocks: tuple[BlockEntry, ...]
    gaps: tuple[Gap, ...]
    timestamp_type: str
    leader_epoch: int | None
    tail_hash: str | None
    encryption: Encryption | UnsetType = UNSET
    tail_key: WrappedKey | UnsetType = UNSET


class StoredChunk(NamedTuple):
    """A chunk whose data is in the store and which no index and no marker names yet: an orphan unless it is committed.

    It may be committed by another process than the one that stored it.
    """

    data: DataObject
    conflict: Conflict | None
    """What tells the data's name from the plain one, which was taken."""
    start: ChunkStart
    next_offset: int
    blocks: tuple[BlockEntry, ...]
    gaps: tuple[Gap, ...]
    timestamp_type: str
    leader_epoch: int | None
    tail_hash: str | None
    encryption: Encryption | UnsetType = UNSET
    tail_key: WrappedKey | UnsetType = UNSET

    @property
    def first_offset(self) -> int:
        return self.blocks[0].first_record_offset

    @property
    def last_offset(self) -> int:
        return self.blocks[-1].last_record_offset


def commit_chunk(identity: PartitionIdentity, held: Held, chunk: FinishedChunk) -> Protocol[Held]:
    """Make a chunk part of the archive; returns the marker that holds it.

    Raises Fenced when the partition is no longer this writer's: the chunk is then an orphan at most.
    """
    stored = yield from store_data(identity, chunk, held.marker.epoch)
    return (yield from commit_stored(identity, held, stored))


def store_data(
    identity: PartitionIdentity, chunk: FinishedChunk, epoch: int, *, below_end: bool = False
) -> Protocol[StoredChunk]:
    """Store the data of a chunk, which changes nothing for readers; `epoch` is its writer's.

    `below_end`: the chunk lies where garbage collection may be at work, so that it gets a name of its own.
    """
    keys = identity.keys
    parts: list[tuple[Callable[[Conflict | None], str], Body]]
    suffix = identity.suffix(chunk.encryption)
    parts = [(lambda conflict: keys.chunks + keys.data_name(chunk.start, suffix, conflict), chunk.body)]
    if isinstance(keys, SeedLayoutKeys):
        sidecar = ancestor_index(chunk.blocks)
        parts.append((lambda conflict: keys.ancestor_index_name(chunk.start, conflict), sidecar))
    conflict = yield from store_once(parts, epoch, names_are_shared=below_end or _shares_names(keys))
    name = keys.data_name(chunk.start, suffix, conflict)
    return StoredChunk(DataObject(name, chunk.body.size, chunk.body.sha256), conflict, *chunk[1:])


def commit_stored(identity: PartitionIdentity, held: Held, chunk: StoredChunk) -> Protocol[Held]:
    """Store the index of a chunk whose data is stored, then swap the marker; see `commit_chunk`."""
    keys, marker = identity.keys, held.marker
    index = index_of(identity, marker, chunk)
    body = objects.encode(index)
    index_conflict = yield from store_once(
        [(lambda conflict: keys.chunks + keys.index_name(chunk.start, conflict), body)],
        marker.epoch,
        names_are_shared=_shares_names(keys),
    )
    entry = markers.entry_of(index, keys.index_name(chunk.start, index_conflict), body)
    nonce: str = yield NewToken()
    stored = StoredCatalogs()

    def append(based_on: Marker) -> Protocol[Marker]:
        folded = yield from fold_tail(keys, based_on, stored)
        at = yield from recording_time(based_on)
        return markers.appended(folded, entry, chunk.gaps, nonce=nonce, at=at, **newest_record(chunk))

    result = yield from swap_own_marker(keys.marker, held, append)
    if isinstance(keys, SeedLayoutKeys):
        sidecar_key = identity.key_prefix + keys.ancestor_index_name(chunk.start, chunk.conflict)
        yield from _follow_with_ancestor_marker(keys, sidecar_key)
    return result


def newest_record(chunk: StoredChunk) -> dict[str, Any]:
    """What the marker says of the last record, where it is the chunk's."""
    return {"leader_epoch": chunk.leader_epoch, "tail_hash": chunk.tail_hash, "tail_key": chunk.tail_key}


def _shares_names(keys: PartitionKeys) -> bool:
    """In layout seed, the incarnations of a topic share the names of chunks; plain ones are the first's."""
    return isinstance(keys, SeedLayoutKeys) and keys.folder.incarnation > 1


def commit_progress(
    identity: PartitionIdentity, held: Held, next_offset: int, gaps: tuple[Gap, ...] = ()
) -> Protocol[Held]:
    """Move the marker over offsets that hold no record to archive; nothing else is written."""
    nonce: str = yield NewToken()
    keys, stored = identity.keys, StoredCatalogs()

    def advance(based_on: Marker) -> Protocol[Marker]:
        # In version 1 only an append folds, whose chunk needs the space.
        marker = (yield from fold_tail(keys, based_on, stored)) if based_on.maintenance else based_on
        at = yield from recording_time(based_on)
        epoch = marker.leader_epoch
        return markers.advanced(marker, next_offset, nonce=nonce, leader_epoch=epoch, gaps=gaps, at=at)

    return (yield from swap_own_marker(keys.marker, held, advance))


def commit_fold(keys: PartitionKeys, held: Held) -> Protocol[Held]:
    """Fold what a maintainer asked to be folded early, and nothing else."""
    nonce: str = yield NewToken()
    stored = StoredCatalogs()

    def fold(based_on: Marker) -> Protocol[Marker]:
        return replace((yield from fold_tail(keys, based_on, stored)), nonce=nonce)

    return (yield from swap_own_marker(keys.marker, held, fold))


def recording_time(marker: Marker) -> Protocol[int | None]:
    """What a gap that is recorded now says of the time; None in version 1, which does not tell."""
    return (yield Now()) if marker.maintenance else None


def index_of(identity: PartitionIdentity, marker: Marker, chunk: StoredChunk) -> ChunkIndex:
    """The index of a chunk that follows that marker."""
    blocks = chunk.blocks
    newest_end = marker.spans[-1].next_offset if marker.spans else 0
    gaps_since_chunk = (gap for gap in marker.gaps if gap.start >= newest_end)
    return ChunkIndex(
        version=2 if chunk.encryption else objects.VERSION,
        archive_id=identity.archive_id,
        topic=identity.topic,
        topic_id=identity.topic_id,
        partition=identity.keys.partition,
        epoch=marker.epoch,
        record_format=identity.record_format,
        codec=identity.codec,
        isolation_level=identity.isolation_level,
        timestamp_type=chunk.timestamp_type,
        start_offset=chunk.start.position,
        next_offset=chunk.next_offset,
        first_offset=chunk.first_offset,
        last_offset=chunk.last_offset,
        num_records=sum(block.num_records for block in blocks),
        min_timestamp=min(block.min_timestamp for block in blocks),
        max_timestamp=max(block.max_timestamp for block in blocks),
        data=chunk.data,
        previous=marker.last_chunk_index,
        gaps=(*gaps_since_chunk, *chunk.gaps),
        encryption=chunk.encryption,
        blocks=blocks,
    )


StoredCatalogs = dict[tuple[int, int, bytes], str]
"""The names of catalogs that this swap has stored already, by level, position and body: a repeated one may use them."""


def fold_tail(keys: PartitionKeys, marker: Marker, stored: StoredCatalogs) -> Protocol[Marker]:
    """The marker with space in its tail; catalogs that this takes are stored before the marker that references them."""
    folded, pending = markers.folded(marker)
    return (yield from store_catalogs(keys, folded, pending, stored))


def store_catalogs(
    keys: PartitionKeys, marker: Marker, catalogs: Sequence[markers.PendingCatalog], stored: StoredCatalogs
) -> Protocol[Marker]:
    """The marker with the names that its new catalogs got."""
    for catalog in catalogs:
        if catalog[:3] not in stored:
            stored[catalog[:3]] = yield from _store_catalog(keys, marker.epoch, catalog)
        marker = markers.with_catalog_name(marker, catalog, stored[catalog[:3]])
    return marker


def _store_catalog(keys: PartitionKeys, epoch: int, catalog: markers.PendingCatalog) -> Protocol[str]:
    """The name that the catalog got."""

    def key_of(conflict: Conflict | None) -> str:
        return keys.home + catalog_name(catalog.level, catalog.position, conflict)

    conflict = yield from store_once([(key_of, catalog.body)], epoch)
    return catalog_name(catalog.level, catalog.position, conflict)


def _follow_with_ancestor_marker(keys: SeedLayoutKeys, sidecar_key: str) -> Protocol[None]:
    """Point the ancestor's plain-text marker at the newest sidecar: a courtesy that only moves forward.

    The commit stands without it, whatever the store says; the next commit catches up.
    """
    try:
        found: StoredObject | None = yield Get(keys.ancestor_marker)
        newest = sidecar_key.encode()
        if found is None or keys.ancestor_position(found.body) < keys.ancestor_position(newest):
            yield CompareAndSwap(keys.ancestor_marker, newest, found.etag if found else None)
    except (StoreError, AccessDenied) as error:
        yield CourtesyFailed(keys.ancestor_marker, error.what)

"""Committing a chunk: data, index, catalogs if the tail is full, then the marker; and progress without records.

Write-once objects are stored under names that no other writer took; the marker is swapped.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from archiver.commit import operations
from archiver.errors import Fenced, passing
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import Sealing, keyring_of
from blockgz.errors import AccessDenied, BlockgzError, StoreError, StoreUnfit
from blockgz.store.writer import Body, ContentTag, FileBody, ObjectHead, StoredObject, in_parts
from index_format import marker as markers
from index_format import objects
from index_format.keys import ChunkStart, Conflict, PartitionKeys, SeedLayoutKeys, catalog_name, data_suffix
from index_format.marker import ChunkEntry, Marker

R = TypeVar("R")
# A store that refuses this many swaps from its own current ETag is broken.
MAX_REFUSALS = 10


class Held(NamedTuple):
    """A marker and its version in the store; the right to replace exactly that."""

    marker: Marker
    etag: ContentTag


KeyOf = Callable[[Conflict | None], str]


def store_once(
    parts: Sequence[tuple[KeyOf, Body]], epoch: int, *, names_are_shared: bool = False
) -> operations.Protocol[Conflict | None]:
    """Store bodies under their plain keys, or all under conflict keys where a dead writer's orphan took one of them.

    Nothing is overwritten, adopted or deleted. `names_are_shared`: the plain keys are another chain's as well, so that
    they are not asked for: garbage collection may have freed them, and its requests may arrive late. Returns what
    distinguishes the keys that were used.
    """
    attempt: str = yield operations.NewToken()
    conflict: Conflict | None = (yield from _new_conflict(epoch)) if names_are_shared else None
    while True:
        for key_of, body in parts:
            if not (yield from store_at(key_of(conflict), body, attempt)):
                break
        else:
            return conflict
        conflict = yield from _new_conflict(epoch)


def _new_conflict(epoch: int) -> operations.Protocol[Conflict]:
    token: str = yield operations.NewToken()
    return Conflict(epoch, token.replace("-", "")[:8])


def store_at(key: str, body: Body, attempt: str) -> operations.Protocol[bool]:
    """Store a body under a key; return False if another writer's body is there."""
    # A body that goes up in parts is sent only if the key is free. Any other one is sent at once: one request.
    tries = 0
    is_asked = in_parts(body)
    while True:
        if is_asked:
            head: ObjectHead | None = yield from operations.retrying(operations.Head(key))
            if head is not None:
                return head.attempt == attempt
        # A name is rarely taken: asking first would cost every small object a request.
        was_asked, is_asked = is_asked, True
        cause, failure = f"the store says both that {key} exists and that it does not", None
        try:
            if (yield operations.PutIfAbsent(key, body, attempt)):
                return True
            if not was_asked:
                continue
        except BlockgzError as error:
            failure = passing(error)
            cause = error.what
        tries += 1
        yield operations.Wait(tries, cause, failure)


def read_marker(key: str) -> operations.Protocol[Held | None]:
    """Return the marker as it is now; None if there is none. Raises FormatError for one that is damaged."""
    found: StoredObject | None = yield from operations.retrying(operations.Get(key))
    return Held(markers.decode_marker(found.body, key), found.etag) if found else None


def swap_marker(key: str, marker: Marker, expected: ContentTag | None) -> operations.Protocol[Held]:
    """Replace version `expected` of the marker: the commit point.

    The marker's nonce must be new: by it a swap whose answer was lost is known from another writer's. Raises Fenced if
    another marker is there, StoreError if an existing marker vanished, StoreUnfit if the store keeps refusing its own
    ETag.
    """
    found = yield from try_swap(key, marker, expected)
    if found.marker.nonce != marker.nonce:
        raise _fenced(key, found.marker)
    return found


def swap_own_marker(
    key: str, held: Held, change: Callable[[Marker], operations.Protocol[Marker]]
) -> operations.Protocol[Held]:
    """Replace a marker that this writer holds by what `change` makes of it, with one new nonce for all tries.

    If maintainers changed their part of it in the meantime, `change` is applied to that version. Raises Fenced if
    another writer claimed the partition, and what `swap_marker` raises.
    """
    mine = held.marker
    while True:
        marker = yield from change(markers.rebased(mine, held.marker))
        found = yield from try_swap(key, marker, held.etag)
        if found.marker.nonce == marker.nonce:
            return found
        if (found.marker.epoch, found.marker.writer) != (mine.epoch, mine.writer):
            raise _fenced(key, found.marker)
        held = found


def _fenced(key: str, found: Marker) -> Fenced:
    return Fenced(
        f"another writer took over {key}",
        why=f"writer {found.writer} of group {found.group_id!r} holds epoch {found.epoch}",
        remedy="run only one deployment per archive; this writer drops its open chunk, and nothing is lost",
    )


def try_swap(key: str, marker: Marker, expected: ContentTag | None) -> operations.Protocol[Held]:
    """Replace version `expected` of the marker; return the marker that is there then: this one, or another writer's.

    The new marker is known by its nonce, even if maintainers changed their part of it since. Raises StoreError and
    StoreUnfit: see `swap_marker`.
    """
    marker = markers.revised(marker)
    body = markers.encode(marker)
    tries = refusals = 0
    while True:
        cause, failure = "the store refused a swap from its own ETag", None
        try:
            etag: ContentTag | None = yield operations.CompareAndSwap(key, body, expected)
            if etag is not None:
                return Held(marker, etag)
            refusals += 1
        except BlockgzError as error:
            failure = passing(error)
            cause = error.what
        # A swap whose answer was lost may have happened: the marker itself tells.
        current = yield from read_marker(key)
        if current is None and expected is not None:
            raise StoreError(
                f"the marker {key} vanished",
                why="it existed when this writer claimed the partition",
                remedy=f"rebuild it: archiver repair marker {marker.topic}:{marker.partition}; "
                "a service continues within 5 minutes, or at once on SIGHUP",
            )
        if current is not None and current.etag != expected:
            return current
        if refusals >= MAX_REFUSALS:
            raise StoreUnfit(
                f"the store refused {refusals} swaps of {key} from the ETag that it reported itself",
                remedy="use a store with working conditional writes",
            )
        tries += 1
        yield operations.Wait(tries, cause, failure)


def until_swapped(attempt: Callable[[], operations.Protocol[R]]) -> operations.Protocol[R]:
    """Repeat an attempt to read and swap a marker as long as another writer swaps it in between."""
    tries = 0
    while True:
        try:
            return (yield from attempt())
        except Fenced as error:
            tries += 1
            yield operations.Wait(tries, error.what)


class RestingMarker(NamedTuple):
    """The stored form of a marker, compressed, with some of its fields: a seventh of the decoded marker's memory."""

    packed: bytes
    etag: ContentTag
    epoch: int
    next_offset: int | None
    newest_timestamp: int | None
    num_gaps: int
    num_retired: int
    retired_bytes: int

    @classmethod
    def of(cls, held: Held) -> "RestingMarker":
        marker = held.marker
        return cls(
            packed=zlib.compress(markers.encode(marker)),
            etag=held.etag,
            epoch=marker.epoch,
            next_offset=marker.next_offset,
            newest_timestamp=marker.newest_timestamp,
            num_gaps=len(marker.gaps),
            num_retired=len(marker.retired),
            retired_bytes=sum(each.num_bytes for each in marker.retired),
        )

    def unpack(self) -> Held:
        """Return the marker itself, for a commit: some tenths of a millisecond of work."""
        return Held(markers.decode_marker(zlib.decompress(self.packed)), self.etag)


@dataclass(frozen=True)
class PartitionIdentity:
    """The fields that every object of a partition has."""

    keys: PartitionKeys
    archive_id: str
    topic_id: str | None
    group_id: str
    record_format: str
    codec: str
    isolation_level: str
    key_prefix: str
    """The store's prefix of keys; the ancestor's marker names keys in full."""
    encrypt: str | None = None
    """The setting that says where the keys to encrypt chunks are; None for plain chunks."""
    single_writer: bool = False
    """Whether the store has no conditional writes, so that a late request could overwrite an object of its name."""

    @classmethod
    def of(
        cls, config: RunConfig, keys: PartitionKeys, archive_id: str, topic_id: str | None, key_prefix: str
    ) -> "PartitionIdentity":
        group, level = config.group, config.isolation_level
        formats = (config.record_format, config.codec)
        return cls(keys, archive_id, topic_id, group, *formats, level, key_prefix, config.encrypt, config.single_writer)

    @property
    def sealing(self) -> Sealing | None:
        """The keys that encrypt its chunks; None for plain chunks. Raises UsageError if the keys cannot be read."""
        keyring = keyring_of(self.encrypt)
        return None if keyring is None else Sealing(keyring, self.archive_id, self.topic, self.keys.partition)

    @property
    def topic(self) -> str:
        return self.keys.folder.topic

    def __str__(self) -> str:
        return f"{self.topic}:{self.keys.partition}"

    def suffix(self, encryption: objects.Encryption | UnsetType) -> str:
        """Return the end of the name of a chunk's data."""
        return data_suffix(self.record_format, self.codec, encrypted=bool(encryption))


class FinishedChunk(NamedTuple):
    """A chunk whose bytes are complete in the local buffer."""

    body: FileBody
    start: ChunkStart
    next_offset: int
    blocks: tuple[objects.BlockEntry, ...]
    gaps: tuple[objects.Gap, ...]
    timestamp_type: str
    leader_epoch: int | None
    tail_hash: str | None
    encryption: objects.Encryption | UnsetType = UNSET
    tail_key: objects.WrappedKey | UnsetType = UNSET

    @property
    def first_offset(self) -> int:
        return self.blocks[0].first_record_offset

    @property
    def last_offset(self) -> int:
        return self.blocks[-1].last_record_offset

    @property
    def newest_record(self) -> dict[str, Any]:
        """The marker's fields about the newest record."""
        return {"leader_epoch": self.leader_epoch, "tail_hash": self.tail_hash, "tail_key": self.tail_key}


class StoredChunk(NamedTuple):
    """A chunk whose data is in the store, without an index: an orphan until it is committed, by any process."""

    data: objects.DataObject
    conflict: Conflict | None
    """The part of the data's name that differs from the plain one, which was taken."""
    content: FinishedChunk

    def with_content(self, **fields: Any) -> "StoredChunk":
        return self._replace(content=self.content._replace(**fields))


def commit_chunk(identity: PartitionIdentity, held: Held, chunk: FinishedChunk) -> operations.Protocol[Held]:
    """Make a chunk part of the archive; return the marker that holds it.

    Raises Fenced if the partition no longer belongs to this writer: the chunk is then an orphan at most.
    """
    stored = yield from store_data(identity, chunk, held.marker.epoch)
    return (yield from commit_stored(identity, held, stored))


def store_data(
    identity: PartitionIdentity, chunk: FinishedChunk, epoch: int, *, below_end: bool = False
) -> operations.Protocol[StoredChunk]:
    """Store the data of a chunk, which changes nothing for readers; `epoch` is its writer's.

    `below_end`: garbage collection may be running where the chunk is, so that it needs a name of its own.
    """
    keys = identity.keys
    parts: list[tuple[Callable[[Conflict | None], str], Body]]
    suffix = identity.suffix(chunk.encryption)
    parts = [(lambda conflict: keys.chunks + keys.data_name(chunk.start, suffix, conflict), chunk.body)]
    if isinstance(keys, SeedLayoutKeys):
        sidecar = objects.ancestor_index(chunk.blocks)
        parts.append((lambda conflict: keys.ancestor_index_name(chunk.start, conflict), sidecar))
    conflict = yield from store_once(parts, epoch, names_are_shared=below_end or _shares_names(identity))
    name = keys.data_name(chunk.start, suffix, conflict)
    return StoredChunk(objects.DataObject(name, chunk.body.size, chunk.body.sha256), conflict, chunk)


def commit_stored(identity: PartitionIdentity, held: Held, stored_chunk: StoredChunk) -> operations.Protocol[Held]:
    """Store the index of a chunk whose data is stored, then swap the marker; see `commit_chunk`."""
    keys, chunk = identity.keys, stored_chunk.content
    # Data, index, marker: no object ever names one that is not stored yet.
    entry = yield from store_index(identity, held.marker, stored_chunk, names_are_shared=_shares_names(identity))
    nonce: str = yield operations.NewToken()
    stored = StoredCatalogs()

    def append(based_on: Marker) -> operations.Protocol[Marker]:
        folded = yield from fold_tail(keys, based_on, stored)
        at = yield from recording_time(based_on)
        return markers.appended(folded, entry, chunk.gaps, nonce=nonce, at=at, **chunk.newest_record)

    result = yield from swap_own_marker(keys.marker, held, append)
    if isinstance(keys, SeedLayoutKeys):
        sidecar_key = identity.key_prefix + keys.ancestor_index_name(chunk.start, stored_chunk.conflict)
        yield from _follow_with_ancestor_marker(keys, sidecar_key)
    return result


def store_index(
    identity: PartitionIdentity, marker: Marker, stored: StoredChunk, *, names_are_shared: bool
) -> operations.Protocol[ChunkEntry]:
    """Store the index of a chunk that follows that marker; return the chunk's entry in the chain."""
    keys, start = identity.keys, stored.content.start
    index = _index_of(identity, marker, stored)
    body = objects.encode(index)
    conflict = yield from store_once(
        [(lambda conflict: keys.chunks + keys.index_name(start, conflict), body)],
        marker.epoch,
        names_are_shared=names_are_shared,
    )
    return markers.entry_of(index, keys.index_name(start, conflict), body)


def _shares_names(identity: PartitionIdentity) -> bool:
    # In layout seed, the incarnations of a topic share the names of chunks; plain ones are the first incarnation's.
    keys = identity.keys
    return identity.single_writer or (isinstance(keys, SeedLayoutKeys) and keys.folder.incarnation > 1)


def commit_progress(
    identity: PartitionIdentity, held: Held, next_offset: int, gaps: tuple[objects.Gap, ...] = ()
) -> operations.Protocol[Held]:
    """Move the marker over offsets that hold no record to archive; nothing else is written."""
    nonce: str = yield operations.NewToken()
    keys, stored = identity.keys, StoredCatalogs()

    def advance(based_on: Marker) -> operations.Protocol[Marker]:
        # In version 1 only an append folds, whose chunk needs the space.
        marker = (yield from fold_tail(keys, based_on, stored)) if based_on.maintenance else based_on
        at = yield from recording_time(based_on)
        epoch = marker.leader_epoch
        return markers.advanced(marker, next_offset, nonce=nonce, leader_epoch=epoch, gaps=gaps, at=at)

    return (yield from swap_own_marker(keys.marker, held, advance))


def commit_fold(keys: PartitionKeys, held: Held) -> operations.Protocol[Held]:
    """Fold what a maintainer asked to be folded early, and nothing else."""
    nonce: str = yield operations.NewToken()
    stored = StoredCatalogs()

    def fold(based_on: Marker) -> operations.Protocol[Marker]:
        return replace((yield from fold_tail(keys, based_on, stored)), nonce=nonce)

    return (yield from swap_own_marker(keys.marker, held, fold))


def recording_time(marker: Marker) -> operations.Protocol[int | None]:
    """Return the time to store with a gap that is recorded now; None in version 1, which stores none."""
    return (yield operations.Now()) if marker.maintenance else None


def _index_of(identity: PartitionIdentity, marker: Marker, stored: StoredChunk) -> objects.ChunkIndex:
    chunk = stored.content
    newest_end = marker.spans[-1].next_offset if marker.spans else 0
    gaps_since_chunk = (gap for gap in marker.gaps if gap.start >= newest_end)
    return objects.ChunkIndex(
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
        data=stored.data,
        previous=marker.last_chunk_index,
        gaps=(*gaps_since_chunk, *chunk.gaps),
        encryption=chunk.encryption,
        **objects.fields_of_blocks(chunk.blocks),
    )


# The names of catalogs that this swap has stored already, by level, position and body: a repeated one may use them.
StoredCatalogs = dict[tuple[int, int, bytes], str]


def fold_tail(keys: PartitionKeys, marker: Marker, stored: StoredCatalogs) -> operations.Protocol[Marker]:
    """Return the marker with space in its tail."""
    # Catalogs that this needs are stored before the marker that references them.
    folded, pending = markers.folded(marker)
    return (yield from store_catalogs(keys, folded, pending, stored))


def store_catalogs(
    keys: PartitionKeys, marker: Marker, catalogs: Sequence[markers.PendingCatalog], stored: StoredCatalogs
) -> operations.Protocol[Marker]:
    """Return the marker with the names that its new catalogs got."""
    for catalog in catalogs:
        # A repeated swap must not store a catalog again under another name.
        if catalog[:3] not in stored:
            stored[catalog[:3]] = yield from _store_catalog(keys, marker.epoch, catalog)
        marker = markers.with_catalog_name(marker, catalog, stored[catalog[:3]])
    return marker


def _store_catalog(keys: PartitionKeys, epoch: int, catalog: markers.PendingCatalog) -> operations.Protocol[str]:
    def key_of(conflict: Conflict | None) -> str:
        return keys.home + catalog_name(catalog.level, catalog.position, conflict)

    conflict = yield from store_once([(key_of, catalog.body)], epoch)
    return catalog_name(catalog.level, catalog.position, conflict)


def _follow_with_ancestor_marker(keys: SeedLayoutKeys, sidecar_key: str) -> operations.Protocol[None]:
    """Point the ancestor's plain-text marker at the newest sidecar; it only moves forward."""
    # The commit is valid without it, and the next commit tries again.
    try:
        found: StoredObject | None = yield operations.Get(keys.ancestor_marker)
        newest = sidecar_key.encode()
        if found is None or keys.ancestor_position(found.body) < keys.ancestor_position(newest):
            yield operations.CompareAndSwap(keys.ancestor_marker, newest, found.etag if found else None)
    except (StoreError, AccessDenied) as error:
        yield operations.CourtesyFailed(keys.ancestor_marker, error.what)

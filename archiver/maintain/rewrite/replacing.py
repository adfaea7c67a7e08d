"""Replacing the chunks of neighbouring catalogs: merge, convert, erase, by what stands in their place."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.operations import Compute, Now, Protocol
from archiver.maintain.contents.chunks import (
    ChangedItem,
    ErasedRun,
    Item,
    NewChunk,
    OldChunk,
    Replacement,
    RewrappedChunk,
)
from archiver.maintain.rewrite.committing import Change, commit
from archiver.maintain.rewrite.intent import LEASE_MS, Attempt, Choose, Outcome, begin, given_up_on_failure
from archiver.maintain.rewrite.layout import (
    NewCatalog,
    OldCatalog,
    apart_from_gaps,
    check_replacement,
    new_catalogs,
    taken,
)
from archiver.maintain.rewrite.tree import References, Run, read_all, read_catalogs
from blockgz.store.writer import Body
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import ChunkIndex, DataObject
from index_format.keys import INDEX_SUFFIX, ChunkStart, PartitionKeys, catalog_name, data_suffix
from index_format.marker import ChunkCatalog, ChunkEntry

INDEXES_AT_ONCE = 64

Keep = Callable[[], Protocol[None]]
"""What has to be done while something takes long."""


@dataclass(frozen=True)
class Rewrite:
    """What a rewrite does with the chunks of its run."""

    kind: str
    """merge, convert, erase or rewrap, for the marker."""
    contents: Callable[[Sequence[OldChunk]], Iterator[Item]]
    """What stands in the place of chunks, item by item; each takes as long as it needs, and may read the store."""
    check: Callable[[Sequence[OldChunk], ChangedItem], None]
    """Raises a BlockgzError where an item does not hold what it must of the chunks in whose place it stands."""
    is_repacked: bool = False
    """Whether the chunks move to as few catalogs as possible."""


def rewrite(keys: PartitionKeys, choose: Choose[Run], what: Rewrite, *, lease_ms: int = LEASE_MS) -> Protocol[Outcome]:
    """Replace the chunks of the run that `choose` finds; NOTHING where they stay as they are.

    Raises RewriteRefused, and what keeps old chunks from being read and new ones from being stored. Then nothing has
    changed but for objects that no marker names.
    """
    begun = yield from begin(keys, what.kind, choose, lease_ms=lease_ms)
    if isinstance(begun, Outcome):
        return begun
    attempt, run = begun
    return (yield from given_up_on_failure(attempt, _replace(attempt, run, what)))


def _replace(attempt: Attempt, run: Run, what: Rewrite) -> Protocol[Outcome]:
    references = yield from _stored(attempt, run, what)
    if references == run.references:
        yield from attempt.give_up()
        return Outcome.NOTHING
    return (yield from commit(attempt, Change(references)))


def _stored(attempt: Attempt, run: Run, what: Rewrite) -> Protocol[References]:
    """The references to what is stored in the place of the run."""
    catalogs = yield from old_catalogs(attempt.keys, run.references)
    old = yield from old_chunks(attempt.keys, catalogs, attempt.keep)
    replacement = yield from _replacement(attempt, old, what)
    items = yield from _stored_chunks(attempt, old, replacement)
    at: int = yield Now()
    references = []
    for each in new_catalogs(catalogs, items, at=at, is_repacked=what.is_repacked):
        new = (yield from _store_catalog(attempt, each)) if isinstance(each, NewCatalog) else each.reference
        references.append(new)
    return tuple(references)


def _replacement(attempt: Attempt, old: Sequence[OldChunk], what: Rewrite) -> Protocol[Replacement]:
    """What stands in the place of the chunks, checked; the intent is kept from item to item."""
    replacement = list[Item]()
    contents = what.contents(old)
    while (item := (yield Compute(partial(next, contents, None)))) is not None:
        replacement.append(item)
        yield from attempt.keep()
    check_replacement(old, replacement)
    for item in replacement:
        if isinstance(item, ChangedItem):
            yield Compute(partial(what.check, taken(old, item), item))
            yield from attempt.keep()
    return replacement


def old_catalogs(keys: PartitionKeys, references: References) -> Protocol[list[OldCatalog]]:
    """The catalogs of level 1; raises ObjectMissing or a FormatError."""
    catalogs = yield from read_catalogs(keys, references, 1)
    return [OldCatalog(*each) for each in zip(references, cast(list[ChunkCatalog], catalogs), strict=True)]


def old_chunks(keys: PartitionKeys, catalogs: Sequence[OldCatalog], keep: Keep) -> Protocol[list[OldChunk]]:
    """Their chunks with their indexes, in order; `keep` runs now and then. Raises ObjectMissing or a FormatError."""
    old: list[OldChunk] = []
    for some in parts_of([entry for each in catalogs for entry in each.catalog.entries]):
        yield from keep()
        old += yield from chunks_of(keys, some)
    return old


def parts_of(entries: Sequence[ChunkEntry]) -> Iterator[Sequence[ChunkEntry]]:
    """As many in turn as have their indexes read at once."""
    return (entries[first : first + INDEXES_AT_ONCE] for first in range(0, len(entries), INDEXES_AT_ONCE))


def chunks_of(keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Protocol[list[OldChunk]]:
    """The chunks of these entries with their indexes, in order. Raises ObjectMissing or a FormatError."""
    names = [keys.chunks + keys.check_name(each.name, each.start_offset, INDEX_SUFFIX) for each in entries]
    bodies = yield from read_all(tuple(names))
    return [
        OldChunk(entry, markers.decode_index(body, entry, keys.folder.topic, keys.partition))
        for body, entry in zip(bodies, entries, strict=True)
    ]


def _stored_chunks(
    attempt: Attempt, old: Sequence[OldChunk], replacement: Replacement
) -> Protocol[list[ChunkEntry | ErasedRun]]:
    """What stands in the catalogs: entries of old chunks and of new ones, which are stored, and erased runs."""
    items: list[ChunkEntry | ErasedRun] = []
    previous: str | None = None
    for item in replacement:
        if isinstance(item, NewChunk):
            entry = yield from _store_chunk(attempt, taken(old, item), item, previous)
        elif isinstance(item, RewrappedChunk):
            entry = yield from _store_index(attempt, item)
        elif isinstance(item, OldChunk):
            entry = item.entry
        else:
            items += apart_from_gaps(item, taken(old, item))
            continue
        items.append(entry)
        previous = entry.name
    return items


def _store_chunk(
    attempt: Attempt, old: Sequence[OldChunk], new: NewChunk, previous: str | None
) -> Protocol[ChunkEntry]:
    """Store data and index of a new chunk; its entry. `previous`: the index before it in the run."""
    keys, mark = attempt.keys, attempt.mark()
    start = ChunkStart(new.start_offset, new.blocks[0].first_record_offset, new.blocks[0].min_timestamp)
    suffix = data_suffix(new.record_format, new.codec, encrypted=bool(new.encryption))
    name = keys.data_name(start, suffix, mark)
    yield from attempt.store(keys.chunks + name, new.body)
    index = index_of(old, new, DataObject(name, *size_and_hash(new.body)), previous)
    body = objects.encode(index)
    yield from attempt.store(keys.chunks + keys.index_name(start, mark), body)
    return markers.entry_of(index, keys.index_name(start, mark), body)


def _store_index(attempt: Attempt, chunk: RewrappedChunk) -> Protocol[ChunkEntry]:
    """Store the index of a chunk whose data stays; its entry."""
    keys, index = attempt.keys, chunk.index
    name = keys.index_name(ChunkStart(index.start_offset, index.first_offset, index.min_timestamp), attempt.mark())
    body = objects.encode(index)
    yield from attempt.store(keys.chunks + name, body)
    return replace(chunk.entry, name=name, sha256=hashlib.sha256(body).hexdigest())


def size_and_hash(body: Body) -> tuple[int, str]:
    """Bytes and SHA-256."""
    return (len(body), hashlib.sha256(body).hexdigest()) if isinstance(body, bytes) else (body.size, body.sha256)


def index_of(old: Sequence[OldChunk], new: NewChunk, data: DataObject, previous: str | None) -> ChunkIndex:
    """The index of a new chunk in the place of old ones."""
    first, blocks = old[0].index, new.blocks
    return ChunkIndex(
        version=2 if new.encryption else objects.VERSION,
        archive_id=first.archive_id,
        topic=first.topic,
        topic_id=new.topic_id,
        partition=first.partition,
        epoch=new.epoch,
        record_format=new.record_format,
        codec=new.codec,
        isolation_level=new.isolation_level,
        timestamp_type=new.timestamp_type,
        start_offset=new.start_offset,
        next_offset=new.next_offset,
        first_offset=blocks[0].first_record_offset,
        last_offset=blocks[-1].last_record_offset,
        num_records=new.num_records,
        min_timestamp=min(block.min_timestamp for block in blocks),
        max_timestamp=max(block.max_timestamp for block in blocks),
        data=data,
        previous=new.previous if previous is None else previous,
        gaps=new.gaps,
        erased=new.erased or UNSET,
        encryption=new.encryption,
        blocks=blocks,
    )


def _store_catalog(attempt: Attempt, new: NewCatalog) -> Protocol[markers.CatalogReference]:
    body = markers.encode(new.catalog)
    name = catalog_name(1, new.start, attempt.mark())
    yield from attempt.store(attempt.keys.home + name, body)
    return markers.reference_to(new.catalog, name, body, (new.start, new.end))

"""What objects that no marker leads to hold: by the index that names them, or else by a scan of the data."""

from collections.abc import Iterable, Iterator, Sequence

from archiver.maintain.garbage import Found
from blockgz.store.writer import ToolStore
from index_format import objects
from index_format.ancestor.index import decode_old_index
from index_format.ancestor.members import MemberScanner, Scanned
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex, Gap
from index_format.errors import FormatError
from index_format.keys import ENCRYPTED_SUFFIX, INDEX_SUFFIX, ObjectKey, ObjectKind, PartitionKeys
from index_format.rebuild import blocks_of, scan_frames

READ_BYTES = 4 * 1024 * 1024


def held_offsets(
    store: ToolStore, keys: PartitionKeys, asked: Iterable[Found], listed: Iterable[Found]
) -> dict[str, list[range]]:
    """Key -> offsets between which each object holds records; those that nothing can be said of are left out.

    `listed` is everything there is of the partition, for the indexes.
    """
    asked = list(asked)
    numbers = {found.name.number for found in asked}
    held: dict[str, list[range]] = {}
    for found in listed:
        if found.name.kind is ObjectKind.INDEX and found.name.number in numbers:
            index = read_index(store, found.name.key)
            if index is not None:
                held[found.name.key] = held[keys.chunks + index.data.name] = offsets_of(index)
    for found in asked:
        if found.name.kind is ObjectKind.DATA and found.name.key not in held:
            scanned = _scanned_offsets(store, found)
            if scanned is not None:
                held[found.name.key] = scanned
    by_stem = {found.name.stem: held[found.name.key] for found in asked if found.name.key in held}
    for found in asked:
        if found.name.kind is ObjectKind.ANCESTOR_INDEX and found.name.stem in by_stem:
            held[found.name.key] = by_stem[found.name.stem]
    return held


def read_index(store: ToolStore, key: str) -> ChunkIndex | None:
    """The index under a key; None where it is gone or damaged."""
    stored = store.get(key)
    try:
        return objects.decode(stored.body, ChunkIndex, key) if stored is not None else None
    except FormatError:
        return None


def offsets_of(index: ChunkIndex) -> list[range]:
    """Between which offsets a chunk holds records: those of its blocks, without the gaps inside it."""
    blocks = [range(block.first_record_offset, block.last_record_offset + 1) for block in index.blocks]
    return [piece for block in blocks for piece in _without(block, index.gaps)]


def scan(store: ToolStore, key: ObjectKey, size: int, max_block_bytes: int) -> Iterator[Scanned]:
    """The members or frames of a data object of `size` bytes."""
    if key.key.endswith(".zst"):
        yield from scan_frames(store.get_range(key.key, 0, size), max_block_bytes)
        return
    scanner = MemberScanner(max_block_bytes)
    for piece in pieces(store, key.key, size):
        yield from scanner.feed(piece)
    yield from scanner.finish()


def pieces(store: ToolStore, key: str, size: int) -> Iterator[bytes]:
    """An object of `size` bytes, a few MiB at a time."""
    for start in range(0, size, READ_BYTES):
        yield store.get_range(key, start, min(size, start + READ_BYTES))


def _scanned_offsets(store: ToolStore, found: Found) -> list[range] | None:
    key = found.name
    if key.key.endswith(ENCRYPTED_SUFFIX):
        return None
    sidecar = store.get(key.stem + INDEX_SUFFIX)
    try:
        if sidecar is not None:
            counted = decode_old_index(sidecar.body, key.key, key.number)
            return [range(block.first_offset, block.next_offset) for block in counted]
        form = "arrow" if ".arrows." in key.key else "json"
        blocks = blocks_of(scan(store, key, found.listed.size, DEFAULT_MAX_BLOCK_BYTES), form)
    except FormatError:
        return None
    return [range(block.first_record_offset, block.last_record_offset + 1) for block in blocks]


def _without(span: range, gaps: Sequence[Gap]) -> Iterator[range]:
    start = span.start
    for gap in gaps:
        if start < gap.start < span.stop:
            yield range(start, gap.start)
        if gap.start < span.stop and gap.end > start:
            start = gap.end
    if start < span.stop:
        yield range(start, span.stop)

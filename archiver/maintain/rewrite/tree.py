"""Read the catalogs that a marker references, down to those of level 1."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from archiver.commit.archive import lost_marker
from archiver.commit.objects import Held, read_marker
from archiver.commit.operations import GetAll, Protocol, retrying
from blockgz.errors import MalformedObject, ObjectMissing
from blockgz.store.writer import StoredObject
from index_format import marker as markers
from index_format.keys import PartitionKeys, is_catalog_name
from index_format.marker import Catalog, CatalogReference, Marker

References = tuple[CatalogReference, ...]


class CatalogRun(NamedTuple):
    """Neighbouring catalogs of level 1 in one list: the marker's, or the entries of one catalog of level 2."""

    references: References

    @property
    def start(self) -> int:
        return self.references[0].start_offset

    @property
    def end(self) -> int:
        return self.references[-1].next_offset


class RunLimits(NamedTuple):
    """The limits of one rewrite, unless a single catalog has more: the indexes of all its chunks are read."""

    chunks: int = 1024
    records: int = 200_000_000
    bytes: int = 2**63
    """Bytes of data as stored."""


def first_run(references: References, is_meant: Callable[[CatalogReference], bool], limits: RunLimits) -> References:
    """Return the references from the first that `is_meant` to the last one within the limits, if there is one."""
    chosen, last, chunks, records, size = list(references[:0]), 0, 0, 0, 0
    for reference in references:
        is_it = is_meant(reference)
        if not (chosen or is_it):
            continue
        chunks, records = chunks + reference.num_chunks, records + reference.num_records
        size += reference.bytes
        if chosen and (chunks > limits.chunks or records > limits.records or size > limits.bytes):
            break
        chosen.append(reference)
        last = len(chosen) if is_it else last
    return tuple(chosen[:last])


def runs_of(
    references: References, is_meant: Callable[[CatalogReference], bool], limits: RunLimits
) -> Iterator[References]:
    """Yield the runs of all rewrites that are needed for the catalogs that `is_meant`, in order."""
    while run := first_run(references, is_meant, limits):
        references = references[references.index(run[-1]) + 1 :]
        yield run


def read_known(keys: PartitionKeys) -> Protocol[Held]:
    """Return the marker of a partition that was archived; raises MalformedObject if it is missing."""
    held = yield from read_marker(keys.marker)
    if held is None:
        raise lost_marker(keys)
    return held


def level_1_lists(keys: PartitionKeys, marker: Marker, start: int, end: int) -> Protocol[list[References]]:
    """Return the lists of references to catalogs of level 1 that overlap [start, end), in the order of offsets.

    Each list is whole. Reads the catalogs above. Raises ObjectMissing or a FormatError for one that does not match its
    reference.
    """
    found: list[References] = []
    above: list[CatalogReference] = []
    for level in range(len(marker.catalogs), 0, -1):
        if level == 1:
            return found + ([marker.catalogs[0]] if meeting(marker.catalogs[0], start, end) else [])
        above = meeting([*above, *marker.catalogs[level - 1]], start, end)
        catalogs = yield from read_catalogs(keys, above, level)
        lists = [tuple(entry for entry in each.entries if isinstance(entry, CatalogReference)) for each in catalogs]
        if level == 2:
            found += lists
        above = [reference for each in lists for reference in each]
    return found


def meeting(references: Sequence[CatalogReference], start: int, end: int) -> list[CatalogReference]:
    """Return the references that overlap [start, end)."""
    return [each for each in references if each.start_offset < end and start < each.next_offset]


def find_run(keys: PartitionKeys, marker: Marker, start: int, end: int) -> Protocol[CatalogRun | None]:
    """Return the neighbours of one list that span exactly [start, end), or None."""
    for references in (yield from level_1_lists(keys, marker, start, end)):
        inside = tuple(each for each in references if start <= each.start_offset and each.next_offset <= end)
        if inside and (inside[0].start_offset, inside[-1].next_offset) == (start, end):
            return CatalogRun(inside)
    return None


def read_catalogs(keys: PartitionKeys, references: Sequence[CatalogReference], level: int) -> Protocol[list[Catalog]]:
    """Return the catalogs, in order, checked against their references; raises ObjectMissing or a FormatError."""
    for reference in references:
        if not is_catalog_name(reference.name, level, reference.start_offset):
            raise MalformedObject(
                f"the name {reference.name[:120]!r} does not belong in {keys.home}",
                why="names in an archive are always derived",
            )
    if not references:
        return []
    names = tuple(keys.home + reference.name for reference in references)
    bodies = yield from read_all(names)
    return [markers.decode_catalog(body, each, level) for body, each in zip(bodies, references, strict=True)]


def read_all(names: tuple[str, ...]) -> Protocol[list[bytes]]:
    """Return the objects with these keys; raises ObjectMissing."""
    found: list[StoredObject | None] = yield from retrying(GetAll(names))
    bodies = [each.body for each in found if each is not None]
    if len(bodies) < len(names):
        raise ObjectMissing(next(name for name, each in zip(names, found, strict=True) if each is None))
    return bodies

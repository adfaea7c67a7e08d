"""Reading an archive that kafka-connect-s3 or a fork of it wrote: what it holds, and its records in offset order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from blockgz.errors import NoArchiveThere, NotInArchive, UsageError
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format.ancestor.files import (
    Fetch,
    Fetching,
    OldPartition,
    R,
    Unsure,
    advance,
    parts_of,
    read_file,
    records_of,
)
from index_format.ancestor.keys import found_partitions, has_current_objects
from index_format.ancestor.payloads import OldFormat


@dataclass(frozen=True)
class OldReader:
    """How an old archive is read: where it is, and what its operator knows of it."""

    store: ToolStore
    old_format: OldFormat
    max_block_bytes: int

    def run(self, fetching: Fetching[R]) -> R:
        """What it returns, once all is fetched that it asks for."""
        step = advance(fetching, None)
        while isinstance(step, Fetch):
            step = advance(fetching, self._fetched(step))
        return step.result

    def records(self, partition: OldPartition, position: int) -> Iterator[pa.RecordBatch | Unsure]:
        """The records at or above `position`, in offset order, with what cannot be told in its place."""
        for piece in partition.choice.pieces:
            if position >= piece.end:
                continue
            if position < piece.start and piece is not partition.choice.pieces[0]:
                yield Unsure(position, piece.start, "no file holds them", is_damage=True)
            data = (self._fetched(part) or b"" for part in parts_of(piece.file.key, piece.file.size))
            yield from records_of(piece, data, self.old_format, self.max_block_bytes, position)
            position = piece.end

    def _fetched(self, fetch: Fetch) -> bytes | None:
        if fetch.end is not None:
            return self.store.get_range(fetch.key, fetch.start, fetch.end)
        stored = self.store.get(fetch.key)
        return None if stored is None else stored.body


def survey(reader: OldReader, topics: Sequence[str] = ()) -> list[OldPartition]:
    """The partitions of an old archive, or of the topics selected; data is read only where no index can be used.

    Raises NoArchiveThere, NotInArchive, UsageError for a current archive, TooLarge, and the store's errors.
    """
    selection = TopicSelection(topics) if topics else None
    sizes = {listed.key: listed.size for listed in reader.store.list("")}
    if has_current_objects(sizes):
        raise UsageError(
            f"{reader.store.url} is already an archive of this program", why="it has an _archive.json or its folders"
        )
    found = found_partitions(sizes)
    if not found:
        raise NoArchiveThere(
            f"there is no old archive at {reader.store.url}",
            why="no key looks like 2016-02-24/topic-00000-000000000000.gz",
            remedy="give the address of the folder that holds the date folders, including the prefix",
        )
    partitions = []
    for place, each in found.items():
        if selection is None or selection([place.topic]):
            files = [
                reader.run(read_file(data, sizes[data.key], reader.old_format, reader.max_block_bytes))
                for data in each.data
            ]
            marker = reader.store.get(each.marker_key) if each.marker_key else None
            partitions.append(OldPartition.of(place, each, files, marker.body if marker else None))
    missing = (selection.names if selection else frozenset()) - {each.place.topic for each in partitions}
    if missing or not partitions:
        raise NotInArchive(
            f"topic {', '.join(sorted(missing)) or ' '.join(topics)} is not in {reader.store.url}",
            why="no file has this name",
            remedy="run it with --dry-run and without topics to see what there is",
        )
    return partitions

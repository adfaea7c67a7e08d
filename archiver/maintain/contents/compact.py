"""What a compaction puts in the place of chunks: small neighbours as one, and all as it is asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from archiver.ingest.buffer import BufferFolder
from archiver.maintain.contents.chunks import ChangedItem, NewChunk, OldChunk
from archiver.maintain.contents.comparison import check_same
from archiver.maintain.contents.convert import ConvertSettings, converted, is_as_asked
from archiver.maintain.contents.data import ChunkFiles, DataOf
from archiver.maintain.contents.keys import NO_KEYS, RewriteKeys
from archiver.maintain.contents.merge import ALIKE, SAME_PARTITION, MergeLimits, merge_groups, merged, runs_alike
from index_format.chunk_index import ChunkIndex

ISAL_LEVELS = 3
"""The highest level of the library that is ten times faster; higher ones are those of zlib."""


@dataclass(frozen=True)
class Conversion:
    """How chunks are to be encoded; record format and codec stay what they are where they are None."""

    block_bytes: int
    record_format: str | None = None
    codec: str | None = None
    gzip_level: int = 1
    zstd_level: int = 2

    def settings_of(self, index: ChunkIndex) -> ConvertSettings:
        """How a chunk is to be encoded."""
        library, level = ("isal" if self.gzip_level <= ISAL_LEVELS else "zlib"), self.gzip_level
        if (self.codec or index.codec) == "zstd":
            library, level = "zstd", self.zstd_level
        return ConvertSettings(self.record_format or index.record_format, library, level, self.block_bytes)

    @property
    def alike(self) -> tuple[str, ...]:
        """What chunks have in common that become one."""
        kept = [field for field in ("record_format", "codec") if getattr(self, field) is None]
        return (*kept, *SAME_PARTITION)


@dataclass(frozen=True)
class Compaction:
    """What becomes of chunks: small neighbours are merged and, with a `conversion`, all are encoded as it says."""

    limits: MergeLimits
    conversion: Conversion | None = None
    keys: RewriteKeys = NO_KEYS

    @property
    def kind(self) -> str:
        """What it is called in the marker."""
        return "merge" if self.conversion is None else "convert"

    def groups(self, old: Sequence[OldChunk], turn: int | None = None) -> list[Sequence[OldChunk]]:
        """The chunks in order, those together that become one; none on both sides of `turn` (see `turn_of`)."""
        fields = ALIKE if self.conversion is None else self.conversion.alike
        groups = list[Sequence[OldChunk]]()
        below = len(old) if turn is None else sum(chunk.entry.first_offset < turn for chunk in old)
        sides = (part for part in (old[:below], old[below:]) if part)
        openable = (
            list(part) for side in sides for _, part in groupby(side, lambda chunk: self.keys.opens(chunk.index))
        )
        for run in (run for part in openable for run in runs_alike(part, fields)):
            done = 0
            num_blocks = [len(chunk.index.blocks) for chunk in run] if self.conversion is None else ()
            for group in merge_groups([chunk.entry for chunk in run], self.limits, num_blocks):
                groups += [[chunk] for chunk in run[done : group.start]]
                groups.append(run[group.start : group.stop])
                done = group.stop
            groups += [[chunk] for chunk in run[done:]]
        return groups

    def is_due(self, group: Sequence[OldChunk]) -> bool:
        """Whether a group is to be stored again."""
        if len(group) > 1:
            return True
        index = group[0].index
        return self.conversion is not None and not is_as_asked(index, self.conversion.settings_of(index))

    def is_meant(self, group: Sequence[OldChunk]) -> bool:
        """Whether a group is stored again: encrypted chunks stay as they are where a key of them is missing."""
        return self.is_due(group) and all(self.keys.opens(chunk.index) for chunk in group)


class CompactedContents:
    """The contents and the check of one rewrite; its files are in the buffer until `discard`."""

    def __init__(
        self,
        data_of: DataOf,
        buffers: BufferFolder,
        compaction: Compaction,
        *,
        buffer_bytes: int,
        max_block_bytes: int,
        start: int = 0,
    ) -> None:
        """`buffer_bytes` are rewritten at once, unless a group has more; chunks below `start` stay as they are."""
        self._data_of = data_of
        self._files = ChunkFiles(buffers, buffer_bytes)
        self._compaction = compaction
        self._max_block_bytes = max_block_bytes
        self._start = start
        self.left_from: int | None = None
        """Where the first chunk starts that the buffer had no room for."""
        self.turn: int | None = None
        """What no chunk may lie on both sides of; see `turn_of`."""

    def contents(self, old: Sequence[OldChunk]) -> Iterator[OldChunk | NewChunk]:
        """New chunks, and old ones where nothing is to be done or the buffer has no room; see `merged`, `converted`."""
        before = [each for each in old if each.entry.start_offset < self._start]
        self.left_from = None
        yield from before
        for group in self._compaction.groups(old[len(before) :], self.turn):
            if self.left_from is None and self._compaction.is_meant(group):
                new = self._new_chunk(group)
                if new is not None:
                    yield new
                    continue
                self.left_from = group[0].entry.start_offset
            yield from group

    def _new_chunk(self, group: Sequence[OldChunk]) -> NewChunk | None:
        """What stands for a group; None without room."""
        buffer = self._files.new_file(sum(chunk.entry.bytes for chunk in group))
        if buffer is None:
            return None
        conversion, seal = self._compaction.conversion, self._compaction.keys.seal(group[0])
        if conversion is None:
            return merged(group, self._data_of, buffer, seal)
        settings = conversion.settings_of(group[0].index)
        return converted(group, settings, self._data_of, buffer, self._max_block_bytes, seal)

    def check(self, old: Sequence[OldChunk], new: ChangedItem) -> None:
        """Raises ContentsDiffer unless every record is in its place."""
        assert isinstance(new, NewChunk)
        check_same(old, new, self._data_of, self._compaction.keys.data_of(new, old[0]), self._max_block_bytes)

    def discard(self) -> None:
        """Give the space in the buffer back."""
        self._files.discard()

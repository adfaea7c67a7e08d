"""What a compaction puts in the place of chunks: small neighbours as one, and all as it is asked for."""

from collections.abc import Sequence

from archiver.ingest.buffer import BufferFolder
from archiver.maintain.contents.chunks import NewChunk, OldChunk, Replacement
from archiver.maintain.contents.comparison import check_same
from archiver.maintain.contents.convert import ConvertSettings, converted, is_as_asked
from archiver.maintain.contents.data import ChunkFiles, DataOf, data_of_body
from archiver.maintain.contents.merge import ALIKE, SAME_PARTITION, MergeLimits, merge_groups, merged, runs_alike


class CompactedContents:
    """The contents and the check of one rewrite; its files are in the buffer until `discard`."""

    def __init__(
        self,
        data_of: DataOf,
        buffers: BufferFolder,
        *,
        limits: MergeLimits,
        settings: ConvertSettings | None,
        buffer_bytes: int,
        max_block_bytes: int,
    ) -> None:
        """Without `settings` blocks are only copied; `buffer_bytes` are rewritten at once, unless a group has more."""
        self._data_of = data_of
        self._files = ChunkFiles(buffers, buffer_bytes)
        self._limits = limits
        self._settings = settings
        self._max_block_bytes = max_block_bytes

    def contents(self, old: Sequence[OldChunk]) -> Replacement:
        """New chunks, and old ones where nothing is to be done or the buffer has no room; see `merged`, `converted`."""
        replacement: list[OldChunk | NewChunk] = []
        for group in compact_groups(old, self._limits, self._settings):
            is_meant = len(group) > 1 or not self._is_as_asked(group[0])
            buffer = self._files.new_file(sum(chunk.entry.bytes for chunk in group)) if is_meant else None
            if buffer is None:
                replacement += group
            elif self._settings is None:
                replacement.append(merged(group, self._data_of, buffer))
            else:
                replacement.append(converted(group, self._settings, self._data_of, buffer, self._max_block_bytes))
        return replacement

    def _is_as_asked(self, chunk: OldChunk) -> bool:
        # Encrypted chunks stay as they are.
        return self._settings is None or bool(chunk.index.encryption) or is_as_asked(chunk.index, self._settings)

    def check(self, old: Sequence[OldChunk], replacement: Replacement) -> None:
        """Raises ContentsDiffer unless every record is in its place."""
        todo = list(old)
        for item in replacement:
            if isinstance(item, NewChunk):
                replaced = [chunk for chunk in todo if chunk.entry.start_offset < item.next_offset]
                check_same(replaced, item, self._data_of, data_of_body(item.body), self._max_block_bytes)
                del todo[: len(replaced)]
            else:
                del todo[:1]

    def discard(self) -> None:
        """Give the space in the buffer back."""
        self._files.discard()


def compact_groups(
    old: Sequence[OldChunk], limits: MergeLimits, settings: ConvertSettings | None
) -> list[Sequence[OldChunk]]:
    """The chunks in order, those together that become one."""
    fields = ALIKE if settings is None else SAME_PARTITION
    groups, done = list[Sequence[OldChunk]](), 0
    for group in merge_groups([chunk.entry for chunk in old], limits):
        groups += [[chunk] for chunk in old[done : group.start]]
        groups += runs_alike(old[group.start : group.stop], fields)
        done = group.stop
    return groups + [[chunk] for chunk in old[done:]]

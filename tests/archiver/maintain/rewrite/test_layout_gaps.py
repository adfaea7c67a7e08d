"""An erased run lies apart from the gaps inside its chunks, which marker or catalogs list already."""

import random
from pathlib import Path

from msgspec.structs import replace

from archiver.maintain.rewrite.chunks import ErasedRun, OldChunk
from archiver.maintain.rewrite.replace import apart_from_gaps
from index_format.chunk_index import Gap
from tests.archiver.maintain.contents.random_chunks import Partition


def old_chunk(folder: Path, *gaps: Gap) -> OldChunk:
    """A chunk over [100, 200) with those gaps in its index."""
    partition = Partition(random.Random(1), folder).grow(1)
    partition.buffers.close()
    entry, index = partition.chunks[0].entry, partition.chunks[0].index
    span = {"start_offset": 100, "next_offset": 200, "first_offset": 100, "last_offset": 199}
    block = replace(index.blocks[0], first_record_offset=100, last_record_offset=199, byte_length=index.data.bytes)
    whole = replace(
        index,
        **span,
        gaps=gaps,
        erased=(),
        blocks=(block,),
        num_records=block.num_records,
        min_timestamp=block.min_timestamp,
        max_timestamp=block.max_timestamp,
    )
    return OldChunk(replace(entry, **span, num_records=block.num_records), whole)


def test_a_run_is_cut_at_gaps(tmp_path: Path) -> None:
    run = ErasedRun(100, 200)
    assert apart_from_gaps(run, [old_chunk(tmp_path)]) == [run]
    before = Gap(90, 100, "retention")
    inside = (Gap(120, 130, "skipped"), Gap(130, 131, "unverified"), Gap(190, 200, "skipped"))
    pieces = [ErasedRun(100, 120), ErasedRun(131, 190)]
    assert apart_from_gaps(run, [old_chunk(tmp_path, before, *inside)]) == pieces
    assert apart_from_gaps(run, [old_chunk(tmp_path, Gap(100, 110, "skipped"))]) == [ErasedRun(110, 200)]

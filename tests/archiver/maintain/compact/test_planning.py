"""What a compaction is about, as far as catalogs tell, and what is planned for a run: values alone."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.maintain.compact import Compaction, Conversion, catalogs_in_question, planned_run
from archiver.maintain.rewrite.chunks import OldChunk
from archiver.maintain.rewrite.encode import MergeLimits
from archiver.maintain.rewrite.replace import OldCatalog
from archiver.maintain.rewrite.tree import RunLimits, first_run
from blockgz.errors import UsageError
from index_format import marker as markers
from index_format.chunk_index import Encryption, WrappedKey
from index_format.encryption import CIPHER
from index_format.marker import ChunkCatalog
from tests.archiver.maintain.contents.random_chunks import Partition

MERGE = Compaction(MergeLimits(small_bytes=1 << 20, chunk_bytes=1 << 30))


@pytest.fixture
def partition(tmp_path: Any) -> Any:
    number = 0
    while True:
        made = Partition(random.Random(number), tmp_path / str(number)).grow(12)
        if made.format == "json":
            break
        made.buffers.close()
        number += 1
    yield made
    made.buffers.close()


def catalogs_of(chunks: list[OldChunk], size: int) -> list[OldCatalog]:
    catalogs = []
    for first in range(0, len(chunks), size):
        catalog = ChunkCatalog(level=1, entries=tuple(chunk.entry for chunk in chunks[first : first + size]))
        name = f"_catalog/1-{catalog.entries[0].start_offset:020d}.json"
        catalogs.append(OldCatalog(markers.reference_to(catalog, name, markers.encode(catalog)), catalog))
    return catalogs


def sized(chunks: list[OldChunk], *sizes: int) -> list[OldChunk]:
    return [OldChunk(replace(chunk.entry, bytes=size), chunk.index) for chunk, size in zip(chunks, sizes, strict=False)]


def test_only_catalogs_with_small_neighbours_are_in_question(partition: Partition) -> None:
    big = 1 << 21
    catalogs = catalogs_of(sized(partition.chunks, big, 5, big, big, big, 5, 5, big, big, big), 2)
    found = catalogs_in_question(catalogs, MERGE)
    assert found == {catalogs[2].reference, catalogs[3].reference}
    assert catalogs_in_question(catalogs[:2], MERGE) == set()
    assert len(catalogs_in_question(catalogs, Compaction(MERGE.limits, Conversion(100)))) == 5


def test_a_run_is_planned_without_catalogs_at_its_ends_that_stay(partition: Partition) -> None:
    big = 1 << 21
    chunks = sized(partition.chunks, big, 5, big, 7, 8, 9, big, 5, big, big)
    catalogs = catalogs_of(chunks, 2)
    run = planned_run(catalogs, chunks, MERGE)
    assert run is not None
    assert (run.start, run.end) == (chunks[2].entry.start_offset, chunks[5].entry.next_offset)
    assert (run.chunks, run.chunks_after, run.catalogs, run.moved_bytes) == (4, 2, 2, 24)
    assert run.catalogs_after == 1
    assert planned_run(catalogs[:1], chunks[:2], MERGE) is None


def test_encrypted_chunks_and_other_formats_are_not_planned(partition: Partition) -> None:
    chunks = partition.chunks[:2]
    sealed = [
        OldChunk(
            each.entry, replace(each.index, version=2, encryption=Encryption(CIPHER, WrappedKey("id", b"wrapped")))
        )
        for each in chunks
    ]
    assert planned_run(catalogs_of(sealed, 2), sealed, MERGE) is None
    assert planned_run(catalogs_of(sealed, 2), sealed, Compaction(MERGE.limits, Conversion(100, "arrow"))) is None
    with pytest.raises(UsageError, match="cannot be converted"):
        planned_run(catalogs_of(chunks, 2), chunks, Compaction(MERGE.limits, Conversion(100, "text")))


def test_runs_keep_their_limits(partition: Partition) -> None:
    references = tuple(each.reference for each in catalogs_of(sized(partition.chunks, *[10] * 12), 2))
    assert first_run(references, lambda _: True, RunLimits(bytes=45)) == references[:2]
    assert first_run(references, lambda _: True, RunLimits(chunks=6)) == references[:3]
    assert first_run(references, lambda _: True, RunLimits(bytes=1)) == references[:1]
    assert first_run(references, lambda each: each in references[1:3], RunLimits()) == references[1:3]
    assert first_run(references, lambda _: False, RunLimits()) == ()

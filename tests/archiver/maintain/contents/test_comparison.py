"""What a mistake in a rewritten chunk is caught by: every one that was made on purpose here."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer
from archiver.maintain.rewrite.chunks import ErasedRun, NewChunk, OffsetRanges, data_of_body
from archiver.maintain.rewrite.compare import check_contents
from archiver.maintain.rewrite.encode import merged, without
from index_format.blocks import COMPRESSORS, BlockBuilder
from index_format.chunk_index import BlockEntry, Erased, Gap
from index_format.errors import BlockgzError
from index_format.key_filter import hashes_of, key_filter
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.archiver.maintain.contents.random_chunks import MAX, Partition
from tests.support.sampling import mostly_long


def partition_of(folder: Path, form: str) -> Partition:
    rng, number = random.Random(8), 0
    while True:
        partition = Partition(rng, folder / str(number)).grow(3)
        if partition.format == form and partition.key_filter_bits and len(partition.records) > 60:
            return partition
        partition.buffers.close()
        number += 1


def encoded(partition: Partition, new: NewChunk, records: list[Record]) -> NewChunk:
    """The same chunk of other records."""
    builder = BlockBuilder(record_format(partition.format), partition.timestamp_type, 1 << 20)
    blocks, body = list[BlockEntry](), b""
    for raw in [*builder.add(batch_from_records(records)), builder.finish()]:
        if raw is not None:
            member = COMPRESSORS[partition.library](1).compress(raw.raw)
            blocks.append(raw.entry(len(body), len(member)))
            body += member
    return dataclasses.replace(new, body=body, blocks=tuple(blocks))


def _changed(change: Callable[[list[Record]], list[Record]]) -> Callable[[Partition, NewChunk], NewChunk]:
    return lambda partition, new: encoded(partition, new, change(list(partition.records)))


def _block(**fields: object) -> Callable[[Partition, NewChunk], NewChunk]:
    def change(_: Partition, new: NewChunk) -> NewChunk:
        return dataclasses.replace(new, blocks=(*new.blocks[:-1], replace(new.blocks[-1], **fields)))

    return change


def _extra_bytes(_: Partition, new: NewChunk) -> NewChunk:
    body = data_of_body(new.body).read(0, new.blocks[-1].byte_end)
    return dataclasses.replace(new, body=body + b"more")


MISTAKES: dict[str, Callable[[Partition, NewChunk], NewChunk]] = {
    "a record less": _changed(lambda records: records[:5] + records[6:]),
    "the last record less": _changed(lambda records: records[:-1]),
    "the first record less": _changed(lambda records: records[1:]),
    "another value": _changed(lambda records: [records[0]._replace(value=b"other"), *records[1:]]),
    "another key": _changed(lambda records: [*records[:-1], records[-1]._replace(key=b"other")]),
    "another timestamp": _changed(lambda records: [*records[:-1], records[-1]._replace(timestamp=12)]),
    "another timestamp type": _changed(
        lambda records: [*records[:-1], records[-1]._replace(timestamp_type=(records[-1].timestamp_type + 2) % 3 - 1)]
    ),
    "a header more": _changed(lambda records: [records[0]._replace(headers=[("x", b"y")] * 3), *records[1:]]),
    "a record moved": _changed(lambda records: [*records[:-1], records[-1]._replace(offset=records[-1].offset + 1)]),
    "a gap more": lambda _, new: dataclasses.replace(
        new, gaps=(*new.gaps, Gap(new.next_offset - 1, new.next_offset, "skipped"))
    ),
    "an erased range more": lambda _, new: dataclasses.replace(
        new, erased=(*new.erased, Erased(new.next_offset - 1, new.next_offset))
    ),
    "it starts elsewhere": lambda _, new: dataclasses.replace(new, next_offset=new.next_offset + 1),
    "a block with other timestamps": _block(max_timestamp=2**60),
    "a block with another filter": _block(key_filter=key_filter(hashes_of([]), 10)),
    "a block with another checksum": _block(crc32=1),
    "bytes behind the last block": _extra_bytes,
}


@pytest.mark.parametrize("form", mostly_long(["arrow", "json"]))
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str, form: str, tmp_path: Path) -> None:
    partition = partition_of(tmp_path, form)
    new = merged(partition.chunks, partition.data_of, partition.buffer())
    check_contents(partition.chunks, new, partition.data_of, data_of_body(new.body), MAX)
    if mistake == "a record moved":
        new = dataclasses.replace(new, next_offset=new.next_offset + 2)
    broken = MISTAKES[mistake](partition, new)
    with pytest.raises(BlockgzError) as caught:
        check_contents(partition.chunks, broken, partition.data_of, data_of_body(broken.body), MAX)
    if mistake != "a block with another checksum":
        assert isinstance(caught.value, ContentsDiffer)
        assert "nothing was committed" in caught.value.remedy
    partition.buffers.close()


def test_an_erase_that_took_too_much_or_too_little_is_caught(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, "json")
    old = max(partition.chunks, key=lambda chunk: chunk.index.num_records)
    offsets = [r.offset for r in partition.records if old.entry.start_offset <= r.offset < old.entry.next_offset]
    asked = OffsetRanges(range(n, n + 1) for n in offsets[3:5])
    for done in (offsets[3:6], offsets[3:4], []):
        drop = OffsetRanges(range(n, n + 1) for n in done)
        new = without(old, drop, partition.data_of, partition.buffer(), MAX)
        assert isinstance(new, NewChunk)
        check_contents([old], new, partition.data_of, data_of_body(new.body), MAX, drop)
        with pytest.raises(ContentsDiffer):
            check_contents([old], new, partition.data_of, data_of_body(new.body), MAX, asked)
    whole = ErasedRun(old.entry.start_offset, old.entry.next_offset)
    with pytest.raises(ContentsDiffer):
        check_contents([old], whole, partition.data_of, None, MAX, asked)
    partition.buffers.close()

from contextlib import aclosing

from blockgz.archive.archive import Archive
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, selected
from blockgz.record_filter import RecordFilter
from index_format.records import Record, iter_records
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened


def read(opened: Opened, record_filter: RecordFilter) -> list[Record]:
    async def use(archive: Archive) -> list[Record]:
        partition = await archive.open_partition("orders", 0)
        selection = Selection(partition, OffsetRange(0, partition.next_offset))
        async with aclosing(selected(selection, record_filter)) as batches:
            return [record async for batch in batches for record in iter_records(batch)]

    return opened.read(use)


def test_catalogs_chunks_and_blocks_without_wanted_timestamps_are_not_read(
    opened: Opened, writer: ArchiveWriter
) -> None:
    partition = writer.partition("orders", 0)
    # A catalog of chunks with timestamps 0 to 63, which have no index at all, and one chunk whose times go to and fro.
    partition.pretend(range(64))
    partition.commit(records(range(64, 100), timestamps=[1000 + 37 * n % 36 for n in range(36)]), block_bytes=500)
    wanted = [record for record in partition.records if 1010 <= record.timestamp < 1012]
    assert read(opened, RecordFilter(since=1010, until=1012)) == wanted
    assert len(wanted) == 2
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes
    assert opened.counts.requests == 3, "marker, index, one run of blocks"
    assert read(opened, RecordFilter(since=2000)) == []
    assert (opened.counts.requests, opened.counts.data_bytes_fetched) == (2, 0)


def test_runs_of_wanted_blocks_are_read_without_what_lies_between(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    times = [5] * 10 + [9] * 50 + [5] * 10
    partition.commit(records(range(70), timestamps=times), block_bytes=200)
    assert [r.offset for r in read(opened, RecordFilter(until=6))] == [*range(10), *range(60, 70)]
    assert opened.counts.requests == 4
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes / 2

import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.follow import last_records
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.record_filter import KeyIn, RecordFilter
from index_format.records import Record, iter_records
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened


def last(opened: Opened, count: int, record_filter: RecordFilter, start: int = 0, end: int = 2**62) -> list[Record]:
    async def use(archive: Archive) -> list[Record]:
        partition = await archive.open_partition("orders", 0)
        batches = await last_records(Selection(partition, OffsetRange(start, end)), record_filter, count)
        return [record for batch in batches for record in iter_records(batch)]

    return opened.read(use)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 10, 33, 1000])
@pytest.mark.parametrize(
    "record_filter", [RecordFilter(), RecordFilter(conditions=(KeyIn([None]),)), RecordFilter(until=1_760_000_000_030)]
)
def test_the_last_records_are_those_of_the_whole(
    opened: Opened, writer: ArchiveWriter, count: int, record_filter: RecordFilter
) -> None:
    partition = writer.partition("orders", 0)
    for chunk in (range(0, 40, 3), range(40, 41), range(50, 90)):
        partition.commit(records(chunk), block_bytes=300)
    partition.advance(200)
    for start, end in ((0, 2**62), (5, 60), (41, 50), (50, 57)):
        inside = [r for r in partition.records if start <= r.offset < end]
        if record_filter.conditions:
            inside = [r for r in inside if r.key is None]
        if record_filter.until is not None:
            inside = [r for r in inside if r.timestamp < record_filter.until]
        assert last(opened, count, record_filter, start, end) == inside[len(inside) - min(count, len(inside)) :]


def test_only_the_end_is_read(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.pretend(range(100))
    partition.commit(records(range(100, 200)), block_bytes=500)
    assert [r.offset for r in last(opened, 3, RecordFilter())] == [197, 198, 199]
    assert opened.counts.requests == 3
    assert opened.counts.data_bytes_fetched < partition.indexes[0].data.bytes / 5

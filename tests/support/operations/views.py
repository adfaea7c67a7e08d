"""What readers are told, in the model's words."""

from contextlib import aclosing

from blockgz.archive.lookup import FoundRecord, Lost, Outcome
from blockgz.archive.paging import Missing, Page, page_before, page_from
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.selection import scan
from index_format.records import Record, iter_records
from tests.support.operations.model import Answer


def told(outcome: Outcome) -> Answer:
    if isinstance(outcome, FoundRecord):
        return plain(outcome.record)
    return "lost" if isinstance(outcome, Lost) else outcome.kind.replace(" ", "")


def plain(record: Record) -> Record:
    return record._replace(headers=tuple(record.headers))


async def scanned(partition: ArchivedPartition, start: int, end: int) -> list[Record]:
    records = list[Record]()
    async with aclosing(scan(partition, start, end)) as batches:
        async for batch in batches:
            records += map(plain, iter_records(batch))
    return records


async def paged(partition: ArchivedPartition, count: int) -> list[dict[int, Answer]]:
    """All that pages of so many records say, upwards and downwards: each offset once, in order."""
    up = [page := await page_from(partition, 0, count)]
    while page.has_after:
        up.append(page := await page_from(partition, page.end, count))
    down = [page := await page_before(partition, partition.next_offset, count)]
    while page.has_before:
        down.insert(0, page := await page_before(partition, page.start, count))
    return [_answers(up), _answers(down)]


def _answers(pages: list[Page]) -> dict[int, Answer]:
    said = dict[int, Answer]()
    for item in (item for page in pages for item in page.items):
        what: Answer = item.kind if isinstance(item, Missing) else plain(item)
        offsets = range(item.start, item.end) if isinstance(item, Missing) else [item.offset]
        assert not said.keys() & set(offsets), f"{item} was told before"
        said |= dict.fromkeys(offsets, what)
    return said

"""Fetches of `replayer broker`: what is in the archive, what is gone, what never was, and a slow store."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from blockgz.archive.archive import ArchiveReader
from blockgz.errors import StoreUnavailable
from blockgz.topic_patterns import TopicSelection
from index_format.objects import Gap
from replayer.broker.answers import Answers, Client
from replayer.broker.block_cache import BlockCache
from replayer.broker.fetch import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Allowance,
    FetchState,
)
from replayer.broker.partition_logs import Logs
from tests.support.archives import MemoryArchiveWriter, records
from tests.support.memory_reader import MemoryReader

MIB = 1024 * 1024


class SlowReader(MemoryReader):
    """A store that takes `seconds` for each range, or does not answer."""

    seconds = 0.0
    is_down = False
    ranges = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.ranges += 1
        await asyncio.sleep(self.seconds)
        if self.is_down:
            raise StoreUnavailable("the store does not answer")
        return await super().get_range(key, start, end)


class Endpoint:
    """The broker's answers over an archive in memory, without connections."""

    def __init__(self, writer: MemoryArchiveWriter, memory: int = 16 * MIB, *, stops_at_gaps: bool = False) -> None:
        self.store = SlowReader(writer.objects)
        self.blocks = BlockCache(memory, None)
        self.logs = Logs(ArchiveReader(self.store), TopicSelection(["*"]), self.blocks.drop, 0.01)
        self.reading = FetchState(self.blocks, Allowance(memory), stops_at_gaps)
        self.answers = Answers(self.logs, self.reading)
        self.client = Client(("127.0.0.1", 9092))

    async def fetch(self, *places: tuple[str, int, int], wait_ms: int = 0, **limits: int) -> list[dict[str, Any]]:
        """Fetch partitions (topic, number, offset); their answers in order."""
        wanted = {"partition_max_bytes": limits.pop("most", MIB)}
        topics = [
            {"topic": topic, "partitions": [{"partition": number, "fetch_offset": offset, **wanted}]}
            for topic, number, offset in places
        ]
        request = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 50 * MIB, "topics": topics, **limits}
        values, allowed = await self.answers.fetch(self.client, request)
        await self.reading.allowance.give_back(allowed)
        return [part for topic in values["responses"] for part in topic["partitions"]]

    async def read(self, topic: str, number: int = 0, offset: int = 0) -> list[int]:
        """Read to the end, as a client does; return the offset where each fetch began."""
        began = []
        while True:
            (part,) = await self.fetch((topic, number, offset))
            assert part["error_code"] == 0
            if not part["records"]:
                return [*began, offset]
            began.append(offset)
            offset = end_of(part["records"])


def end_of(batches: Sequence[bytearray]) -> int:
    last = batches[-1]
    return int.from_bytes(last[:8]) + int.from_bytes(last[23:27]) + 1


def bounds(batches: Sequence[bytearray]) -> list[tuple[int, int, int]]:
    """First offset, last offset and number of records of each batch."""
    return [(int.from_bytes(each[:8]), end_of([each]) - 1, int.from_bytes(each[57:61])) for each in batches]


@asynccontextmanager
async def opened(writer: MemoryArchiveWriter, **given: Any) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(writer, **given)
    try:
        yield endpoint
    finally:
        endpoint.logs.close()
        await endpoint.reading.close()
        await endpoint.blocks.close()


@pytest.fixture
def writer() -> MemoryArchiveWriter:
    return MemoryArchiveWriter()


def test_offsets_outside_the_log_are_out_of_range_and_nothing_else_is(writer: MemoryArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(100, 200)))
    partition.advance(250)

    async def check() -> None:
        async with opened(writer) as endpoint:
            codes = [(await endpoint.fetch(("orders", 0, each)))[0]["error_code"] for each in (99, 100, 199, 249, 250)]
            assert codes == [OFFSET_OUT_OF_RANGE, 0, 0, 0, 0]
            (beyond,) = await endpoint.fetch(("orders", 0, 251))
            assert (beyond["error_code"], beyond["log_start_offset"]) == (OFFSET_OUT_OF_RANGE, 100)
            assert (beyond["high_watermark"], beyond["last_stable_offset"]) == (250, 250)
            (unknown,) = await endpoint.fetch(("orders", 7, 0))
            assert unknown["error_code"] == UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(check())


def test_an_empty_batch_reaches_over_the_holes_at_the_end(writer: MemoryArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records([0, 1, 5]), block_bytes=10_000)
    partition.advance(20)

    async def check() -> None:
        async with opened(writer) as endpoint:
            (part,) = await endpoint.fetch(("orders", 0, 0))
            assert bounds(part["records"]) == [(0, 5, 3), (6, 19, 0)]
            assert await endpoint.read("orders", 0, 3) == [3, 20]

    asyncio.run(check())


@pytest.mark.parametrize("stops", [False, True])
def test_a_recorded_gap_is_skipped_with_a_word_or_ends_the_reading(
    writer: MemoryArchiveWriter, caplog: pytest.LogCaptureFixture, stops: bool
) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(10)), block_bytes=10_000)
    partition.lose(30)
    partition.commit(records([*range(30, 40), *range(60, 70)]), gaps=[Gap(40, 60, "lost")], block_bytes=10)

    async def check() -> None:
        async with opened(writer, stops_at_gaps=stops) as endpoint:
            (part,) = await endpoint.fetch(("orders", 0, 0))
            if not stops:
                assert (await endpoint.read("orders"))[-1] == 70
                assert endpoint.reading.counts["gap"] >= 2
                return
            assert (part["error_code"], end_of(part["records"])) == (0, 10)
            for at in (10, 40):
                (part,) = await endpoint.fetch(("orders", 0, at))
                assert (part["error_code"], part["records"]) == (CORRUPT_MESSAGE, [])
            (part,) = await endpoint.fetch(("orders", 0, 39))
            assert (part["error_code"], end_of(part["records"])) == (0, 40)

    asyncio.run(check())
    words = [each.getMessage() for each in caplog.records]
    assert "gap of orders:0 at offset 10: [10..30) is not archived: retention" in words
    assert "gap of orders:0 at offset 40: [40..60) is not archived: lost" in words


def test_damage_is_told_apart_from_a_store_that_does_not_answer(writer: MemoryArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    indexes = [partition.commit(records(range(n, n + 10)), block_bytes=10_000) for n in (0, 10, 20)]

    async def check() -> None:
        async with opened(writer) as endpoint:
            endpoint.store.is_down = True
            (part,) = await endpoint.fetch(("orders", 0, 20))
            assert part["error_code"] == KAFKA_STORAGE_ERROR
            endpoint.store.is_down = False
            del writer.objects[partition.keys.data_key(indexes[1])]
            (part,) = await endpoint.fetch(("orders", 0, 0))
            assert (part["error_code"], end_of(part["records"])) == (0, 10)
            (part,) = await endpoint.fetch(("orders", 0, 10))
            assert part["error_code"] == CORRUPT_MESSAGE
            (part,) = await endpoint.fetch(("orders", 0, 20))
            assert (part["error_code"], end_of(part["records"])) == (0, 30)

    asyncio.run(check())


def test_a_response_has_one_batch_at_least_and_no_more_than_fits(writer: MemoryArchiveWriter) -> None:
    for number in range(2):
        partition = writer.partition("orders", number)
        partition.commit(records(range(50), value_bytes=1000), block_bytes=5000)

    async def check() -> None:
        async with opened(writer) as endpoint:
            both = ("orders", 0, 0), ("orders", 1, 0)
            for limits, count in (
                ({"most": 1, "min_bytes": MIB}, 2),
                ({"max_bytes": 1}, 1),
                ({"max_bytes": 12_000, "min_bytes": MIB}, 2),
            ):
                parts = await endpoint.fetch(*both, wait_ms=50, **limits)
                assert sum(len(part["records"]) for part in parts) == count
            parts = await endpoint.fetch(*both, min_bytes=MIB, wait_ms=50)
            assert [end_of(part["records"]) for part in parts] == [50, 50]

    asyncio.run(check())


def test_a_slow_store_is_not_asked_again_for_what_it_is_about_to_give(writer: MemoryArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(10)), block_bytes=10_000)

    async def check() -> None:
        async with opened(writer) as endpoint:
            endpoint.store.seconds = 0.2
            for _ in range(3):
                fetching = asyncio.create_task(endpoint.fetch(("orders", 0, 0)))
                await asyncio.sleep(0.02)
                fetching.cancel()  # the client went away
                await asyncio.wait({fetching})
            (part,) = await endpoint.fetch(("orders", 0, 0))
            assert (end_of(part["records"]), endpoint.store.ranges) == (10, 1)

    asyncio.run(check())


def test_a_fetch_at_the_end_waits_and_sees_what_is_committed(writer: MemoryArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(10)))

    async def check() -> None:
        async with opened(writer) as endpoint:
            began = time.monotonic()
            assert (await endpoint.fetch(("orders", 0, 10), wait_ms=50))[0]["records"] == []
            assert time.monotonic() - began >= 0.05
            fetching = asyncio.create_task(endpoint.fetch(("orders", 0, 10), wait_ms=30_000))
            await asyncio.sleep(0.02)
            partition.commit(records(range(10, 20)), block_bytes=10_000)
            (part,) = await asyncio.wait_for(fetching, 20)
            assert (bounds(part["records"]), part["high_watermark"]) == ([(10, 19, 10)], 20)

    asyncio.run(check())


def test_a_fetch_waits_until_there_is_memory_for_its_response(writer: MemoryArchiveWriter) -> None:
    writer.partition("orders", 0).commit(records(range(10)))

    async def check() -> None:
        async with opened(writer, memory=MIB) as endpoint:
            await endpoint.reading.allowance.take(MIB)
            fetching = asyncio.create_task(endpoint.fetch(("orders", 0, 0), wait_ms=20_000))
            assert not (await asyncio.wait({fetching}, timeout=0.05))[0]
            await endpoint.reading.allowance.give_back(MIB)
            (part,) = await fetching
            assert part["records"]

    asyncio.run(check())

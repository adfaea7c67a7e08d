"""Second requests for slow reads: when, how many, and who wins."""

import asyncio
from collections import Counter

import pytest

from blockgz.errors import ObjectTruncated, StoreUnavailable
from blockgz.store.reader import CountingReader
from blockgz.store.s3_reader import (
    BURST,
    EXTRA_SHARE,
    FEWEST_READS,
    SHORTEST_PATIENCE,
    HedgingReader,
    SlowReads,
)

MIB = 1024 * 1024


class Scripted(CountingReader):
    """Answers reads, once all are made, by what is scripted: a body, an error, or nothing until it is cancelled."""

    def __init__(self, *answers: bytes | Exception | None) -> None:
        self.answers = [*answers]
        self.asked = 0
        self.cancelled = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        answer = self.answers[self.asked]
        self.asked += 1
        while self.asked < len(self.answers):
            await asyncio.sleep(0)
        if answer is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


class Impatient(SlowReads):
    """Calls every read slow at once."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.allowed = allowed

    def patience(self, num_bytes: int) -> float | None:
        return 0

    def spend(self) -> bool:
        self.allowed -= 1
        return self.allowed >= 0


def read(scripted: Scripted, allowed: int = 1) -> tuple[bytes, int]:
    reader = HedgingReader(scripted, Impatient(allowed))
    body = asyncio.run(asyncio.wait_for(reader.get_range("x", 0, 4), 20))
    return body, reader.second_requests


def test_the_second_answer_wins_and_the_first_request_is_cancelled() -> None:
    scripted = Scripted(None, b"body")
    assert read(scripted) == (b"body", 1)
    assert (scripted.asked, scripted.cancelled) == (2, 1)


def test_the_first_answer_wins_and_the_second_request_is_cancelled() -> None:
    scripted = Scripted(b"body", None)
    assert read(scripted) == (b"body", 1)
    assert scripted.cancelled <= 1


def test_an_error_of_one_request_waits_for_the_other() -> None:
    assert read(Scripted(StoreUnavailable("down"), b"body")) == (b"body", 1)
    assert read(Scripted(b"body", StoreUnavailable("down"))) == (b"body", 1)


def test_where_both_fail_the_first_error_is_raised() -> None:
    with pytest.raises(ObjectTruncated):
        read(Scripted(ObjectTruncated("x", 0, 4), StoreUnavailable("down")))


def test_nothing_is_asked_twice_beyond_the_allowance() -> None:
    assert read(Scripted(b"body"), allowed=0) == (b"body", 0)


def test_cancelling_the_read_cancels_both_requests() -> None:
    scripted = Scripted(None, None)

    async def run() -> None:
        task = asyncio.create_task(HedgingReader(scripted, Impatient(1)).get_range("x", 0, 4))
        while scripted.asked < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 20))
    assert scripted.cancelled == 2


def test_a_read_is_slow_by_what_reads_of_its_size_took() -> None:
    slow_reads = SlowReads()
    for number in range(FEWEST_READS):
        assert slow_reads.patience(MIB) is None
        slow_reads.took(MIB, 1 + number / 100)
    assert slow_reads.patience(MIB) == pytest.approx(1 + 19 / 100)
    assert slow_reads.patience(MIB // 64) is None
    for _ in range(FEWEST_READS):
        slow_reads.took(100, 0.001)
    assert slow_reads.patience(100) == SHORTEST_PATIENCE


def test_second_requests_are_a_bounded_share() -> None:
    slow_reads, made = SlowReads(), Counter[bool]()
    for _ in range(10_000):
        slow_reads.patience(MIB)
        made[slow_reads.spend()] += 1
    assert made[True] <= 10_000 * EXTRA_SHARE + BURST
    for _ in range(10_000):
        slow_reads.patience(MIB)
    assert sum(slow_reads.spend() for _ in range(100)) == BURST

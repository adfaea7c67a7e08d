import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from blockgz.archive.partition import prefetched


async def numbers(count: int, fail_after: int | None = None) -> AsyncIterator[int]:
    for number in range(count):
        if number == fail_after:
            raise LookupError("the source broke")
        yield number


def test_results_come_in_order_whatever_finishes_first() -> None:
    async def run() -> list[int]:
        turns: dict[int, asyncio.Event] = {number: asyncio.Event() for number in range(4)}

        async def work(number: int) -> int:
            if number < 3:
                await turns[number + 1].wait()
            turns[number].set()
            return number

        return [n async for n in prefetched(numbers(4), work, cost=lambda _: 1, budget=4)]

    assert asyncio.run(run()) == [0, 1, 2, 3]


@pytest.mark.parametrize(("budget", "most"), [(1, 1), (3, 3), (10, 10), (0, 1)])
def test_the_budget_bounds_what_runs_at_once(budget: int, most: int) -> None:
    running = 0
    peak = 0

    async def work(number: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async def run() -> list[int]:
        return [n async for n in prefetched(numbers(20), work, cost=lambda _: 1, budget=budget)]

    assert asyncio.run(run()) == list(range(20))
    assert peak <= most


@pytest.mark.parametrize("where", ["source", "work"])
def test_an_error_comes_after_the_results_before_it(where: str) -> None:
    async def work(number: int) -> int:
        if where == "work" and number == 5:
            raise LookupError("the work broke")
        return number

    async def run() -> list[int]:
        found: list[int] = []
        with pytest.raises(LookupError):
            async for number in prefetched(
                numbers(20, 5 if where == "source" else None), work, cost=lambda _: 1, budget=8
            ):
                found.append(number)
        return found

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_closing_early_cancels_what_is_under_way() -> None:
    cancelled: list[int] = []

    async def work(number: int) -> int:
        try:
            if number:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    async def run() -> None:
        async with aclosing(prefetched(numbers(5), work, cost=lambda _: 1, budget=3)) as results:
            async for _ in results:
                await asyncio.sleep(0)
                break

    asyncio.run(run())
    assert cancelled == [1, 2]

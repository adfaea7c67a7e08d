"""Working ahead of a consumer, in order and within a budget."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def prefetched(
    items: AsyncIterator[T], work: Callable[[T], Coroutine[Any, Any, R]], *, cost: Callable[[T], int], budget: int
) -> AsyncGenerator[R]:
    """The result of `work` for each item, in order; as many run at once as their costs fit into `budget`, at least one.

    An error of `items` or `work` is raised in its place: all results before it come first.
    """
    pending: deque[tuple[asyncio.Task[R], int]] = deque()
    spent = 0
    exhausted = False
    failure: Exception | None = None
    try:
        while True:
            while not exhausted and (not pending or spent < budget):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    exhausted = True
                except Exception as error:  # raised below, behind the results before it
                    exhausted, failure = True, error
                else:
                    pending.append((asyncio.create_task(work(item)), cost(item)))
                    spent += pending[-1][1]
            if not pending:
                break
            task, price = pending.popleft()
            result = await task
            spent -= price
            yield result
            del result, task
        if failure is not None:
            raise failure
    finally:
        for task, _ in pending:
            task.cancel()
        await asyncio.gather(*(task for task, _ in pending), return_exceptions=True)


async def streamed(items: Iterable[T]) -> AsyncIterator[T]:
    """The items of what is at hand, for `prefetched`."""
    for item in items:
        yield item

"""What an answer cost: requests to the store and bytes, counted for each request of the page by itself."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from blockgz.program.tables import bytes_text
from blockgz.store.reader import PassingReader


@dataclass
class Costs:
    """Running totals."""

    requests: int = 0
    bytes_fetched: int = 0


_COSTS: ContextVar[Costs | None] = ContextVar("costs", default=None)


@contextmanager
def counted() -> Iterator[Costs]:
    """Counts what is read within the block, also by tasks and threads that begin there."""
    costs = Costs()
    token = _COSTS.set(costs)
    try:
        yield costs
    finally:
        _COSTS.reset(token)


def cost_text(costs: Costs, opened_bytes: int) -> str:
    """`41.0 kB of 1.0 GB, 2 requests`: what was read of the chunks that were opened."""
    requests = f"{costs.requests} request{'' if costs.requests == 1 else 's'}"
    return f"{bytes_text(costs.bytes_fetched)} of {bytes_text(max(opened_bytes, costs.bytes_fetched))}, {requests}"


class CostingReader(PassingReader):
    """Adds requests and bytes to whoever counts where they are made."""

    async def get(self, key: str, max_bytes: int) -> bytes:
        _add(requests=1)
        body = await super().get(key, max_bytes)
        _add(num_bytes=len(body))
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        _add(requests=1)
        body = await super().get_range(key, start, end)
        _add(num_bytes=len(body))
        return body

    async def size(self, key: str) -> int:
        _add(requests=1)
        return await super().size(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        _add(requests=1)
        return super().list(prefix, after)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        _add(requests=1)
        return await super().folders(prefix)


def _add(requests: int = 0, num_bytes: int = 0) -> None:
    costs = _COSTS.get()
    if costs is not None:
        costs.requests += requests
        costs.bytes_fetched += num_bytes

"""What every route works with: the archive, what is known of it, and what is under way."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.responses import StreamingResponse

from blockgz_runtime.errors import StoreBusy
from blockgz_runtime.store.cache import DiskCache, default_folder
from replayer.place import opened
from replayer.serve.archive_view import ArchiveView
from replayer.serve.archivers import Archivers
from replayer.serve.costs import CostingReader
from replayer.serve.replays import Replays
from replayer.serve.settings import ServeSettings
from replayer.serve.tasks import Tasks
from replayer.serve.verifying import Reports

T = TypeVar("T")

GONE_SECONDS = 0.5
CLIENT_GONE = 499
"""The status of an answer that nobody waits for, as proxies log it."""
MOST_STREAMS = 100
"""Half of the connections: pages are answered beside them."""


@dataclass
class Service:
    """One page, while it runs."""

    settings: ServeSettings
    view: ArchiveView
    tasks: Tasks
    replays: Replays
    reports: Reports
    archivers: Archivers
    streams: int = 0
    """Answers that are still being sent, of those that may last."""

    def streamed(self, parts: AsyncIterator[bytes], media_type: str) -> StreamingResponse:
        """An answer that lasts as long as its parts come; raises StoreBusy where there are too many."""
        if self.streams >= MOST_STREAMS:
            raise StoreBusy(f"{MOST_STREAMS} answers are being streamed", remedy="close some of them, and try again")

        async def counted() -> AsyncIterator[bytes]:
            self.streams += 1
            try:
                async for part in parts:
                    yield part
            finally:
                self.streams -= 1

        return StreamingResponse(counted(), media_type=media_type)

    @property
    def has_brokers(self) -> bool:
        """Whether a cluster is known."""
        return bool(self.settings.kafka.get("bootstrap.servers"))


@asynccontextmanager
async def running_service(settings: ServeSettings) -> AsyncIterator[Service]:
    """Opens the archive; ends all that is under way at the end, replay jobs apart."""
    folder = default_folder()
    async with opened(settings.place, DiskCache(folder) if folder else None, CostingReader) as archive:
        service = Service(
            settings,
            ArchiveView(archive),
            Tasks(),
            Replays(settings),
            Reports(settings.reports, settings.report_key),
            Archivers(settings.archivers),
        )
        try:
            yield service
        finally:
            await service.tasks.close()
            await service.view.close()


def _service(request: Request) -> Service:
    service: Service = request.state.service
    return service


def _user(request: Request) -> str:
    return str(request.scope["user_name"])


Serving = Annotated[Service, Depends(_service)]
"""The parameter of a route by which it gets the service."""
User = Annotated[str, Depends(_user)]
"""Who asks, as the guard knows it."""


def now_ms() -> int:
    """The time of day, which durations before now count from."""
    return time.time_ns() // 1_000_000


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which ends when its client goes away."""
    doing = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({doing}, timeout=GONE_SECONDS))[0]:
            if await request.is_disconnected():
                raise HTTPException(CLIENT_GONE, "the client went away")
        return await doing
    finally:
        doing.cancel()
        await asyncio.wait({doing})

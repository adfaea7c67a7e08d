"""The service behind every route: the archive, what is known of it, running work, and limits on large answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from blockgz.archive.archive import opened
from blockgz.elastic_pool import ElasticPool
from blockgz.errors import StoreBusy
from blockgz.store.reader import CountingReader, DiskCache, default_folder
from blockgz.units import bytes_text
from replayer.serve.archive_view import FRESH_SECONDS, SHARE_OF_TIME, ArchiveView, Look
from replayer.serve.archivers import Archivers
from replayer.serve.errors import told
from replayer.serve.replays import Replays
from replayer.serve.settings import ServeSettings
from replayer.serve.tasks import Tasks
from replayer.serve.verifying import OpenDamage, Reports

PIECE_BYTES = 64 * 1024


class Bound:
    """A limit on answers of a kind at once."""

    def __init__(self, most: int, kind: str) -> None:
        self.most, self.kind = most, kind
        self.held = 0

    def take(self) -> None:
        """Count one more; raise StoreBusy if there are enough."""
        if self.held >= self.most:
            raise StoreBusy(f"{self.held} {self.kind} are being sent", remedy="close some of them, and try again")
        self.held += 1

    def give_back(self) -> None:
        self.held -= 1


class BoundedAnswer(StreamingResponse):
    """An answer in parts, one of a bound until the last part is sent or its client went away; raises StoreBusy."""

    def __init__(
        self, bound: Bound, parts: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parts, media_type=media_type, headers=headers)
        self._bound = bound
        bound.take()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._bound.give_back()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in pieces, so that no more of it is copied than its client takes."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)  # other requests have their turn, and a client that left is noticed


@dataclass
class Costs:
    """Running totals of requests and bytes."""

    requests: int = 0
    bytes_fetched: int = 0

    def stats(self, chunk_bytes: int) -> dict[str, int]:
        """Return the costs as the API gives them, with the size of the chunks that were opened."""
        return {"requests": self.requests, "bytes_fetched": self.bytes_fetched, "chunk_bytes": chunk_bytes}

    def text(self, chunk_bytes: int) -> str:
        """Return the costs as `41.0 kB of 1.0 GB, 2 requests`: the bytes read of the chunks that were opened."""
        requests = f"{self.requests} request{'' if self.requests == 1 else 's'}"
        return f"{bytes_text(self.bytes_fetched)} of {bytes_text(max(chunk_bytes, self.bytes_fetched))}, {requests}"


_COSTS: ContextVar[Costs | None] = ContextVar("costs", default=None)


@contextmanager
def counted() -> Iterator[Costs]:
    """Count what is read within the block, also by tasks and threads that begin there."""
    costs = Costs()
    token = _COSTS.set(costs)
    try:
        yield costs
    finally:
        _COSTS.reset(token)


class CostingReader(CountingReader):
    """A reader that adds its requests and bytes to the cost that is counted in the current context."""

    def count(self, requests: int = 0, num_bytes: int = 0, data_bytes: int = 0) -> None:
        super().count(requests, num_bytes, data_bytes)
        costs = _COSTS.get()
        if costs is not None:
            costs.requests += requests
            costs.bytes_fetched += num_bytes


T = TypeVar("T")

GONE_SECONDS = 0.5
# The status of an answer that nobody waits for, as proxies log it.
CLIENT_GONE = 499
# Answers for which records are read; with large records each takes some tens of megabytes. Others wait.
READS_AT_ONCE = 8
LARGE_BYTES = 1024 * 1024
FILES_AT_ONCE = 4
# Answers of more bytes than that, each held until its client has taken it.
MOST_LARGE = 16
# Seconds a page waits for the store of jobs, which may hang.
KEPT_SECONDS = 2.0
# The most streams of records, each of which reads ahead.
MOST_STREAMS = 16
# Most jobs that are watched at once: half of the connections, so that pages are still answered.
MOST_WATCHED = 100


@dataclass
class Service:
    """One page, while it runs."""

    settings: ServeSettings
    view: ArchiveView
    tasks: Tasks
    replays: Replays
    reports: Reports
    archivers: Archivers
    kept: Look = field(default_factory=lambda: Look(FRESH_SECONDS, SHARE_OF_TIME))
    """The look at the damage that is kept in the store of jobs."""
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_AT_ONCE))
    large: Bound = field(default_factory=lambda: Bound(MOST_LARGE, "large answers"))
    streams: Bound = field(default_factory=lambda: Bound(MOST_STREAMS, "streams of records"))
    watched: Bound = field(default_factory=lambda: Bound(MOST_WATCHED, "jobs that are watched"))

    files: ElasticPool = field(default_factory=lambda: ElasticPool(FILES_AT_ONCE, "files"))
    """For the page's own files: the threads of others may all wait for an archive that hangs."""

    async def in_thread(self, call: Callable[..., T], *given: Any) -> T:
        """Return the result of a call that reads files of the page."""
        return await asyncio.get_running_loop().run_in_executor(self.files, partial(call, *given))

    async def reading(self, request: Request, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of what reads records, when it is its turn; it ends when its client goes away."""

        async def in_turn() -> T:
            async with self.reads:
                return await read()

        return await unless_gone(request, in_turn())

    def answer(self, body: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
        """Return an answer of any size; raise StoreBusy if too many large ones wait for their clients."""
        if len(body) <= LARGE_BYTES:
            return Response(body, media_type=media_type, headers=headers)
        length = {"Content-Length": str(len(body))}
        return BoundedAnswer(self.large, pieces(body), media_type, length | dict(headers or {}))

    async def open_damage(self) -> list[OpenDamage]:
        """Return the damage of topics in the archive that no later verification found repaired."""
        view, reports, look = self.view, self.reports, self.kept
        if look.is_due:
            address = view.archive.reader.address
            look.begin(lambda: self.replays.in_thread(reports.read_kept, view.archive_id, address))
        if reports.kept is None:
            await look.wait(KEPT_SECONDS)
        found = await self.in_thread(reports.open_damage, view.archive_id)
        if reports.kept is None or look.error is not None:
            why = "it does not answer" if look.error is None else told(look.error)[1]["error"]
            text = f"the damage that earlier verifications found cannot be read: {why}"
            found.append(OpenDamage("", None, None, None, text, "records", ""))
        return [each for each in found if view.holds(each.folder)]


@asynccontextmanager
async def running_service(settings: ServeSettings) -> AsyncIterator[Service]:
    """Open the archive; at the end, end all that is running except replay jobs."""
    folder = default_folder()
    async with opened(settings.place, DiskCache(folder) if folder else None, CostingReader) as archive:
        replays = Replays(settings)
        service = Service(
            settings,
            ArchiveView(archive),
            Tasks(),
            replays,
            Reports(settings.reports, settings.report_key, lambda: replays.store),
            Archivers(settings.archivers),
        )
        try:
            yield service
        finally:
            await service.tasks.close()
            await service.archivers.look.close()
            await service.kept.close()
            await service.view.close()


def _service(request: Request) -> Service:
    service: Service = request.state.service
    return service


def _user(request: Request) -> str:
    return str(request.scope["user_name"])


# The parameter of a route by which it gets the service.
Serving = Annotated[Service, Depends(_service)]
# The name of the user, as the guard found it.
User = Annotated[str, Depends(_user)]


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of the work, which ends when its client goes away."""
    doing = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({doing}, timeout=GONE_SECONDS))[0]:
            if await request.is_disconnected():
                raise HTTPException(CLIENT_GONE, "the client went away")
        return await doing
    finally:
        doing.cancel()
        await asyncio.wait({doing})

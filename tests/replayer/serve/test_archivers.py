"""What archivers tell the page."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest

from archiver.ingest.ownership import PartitionState
from archiver.monitor.snapshot import MaintenanceSnapshot, PartitionSnapshot, ServiceSnapshot
from replayer.serve.archivers import ArchivedNow, ArchiverMaintenance, Archivers

MAINTENANCE = MaintenanceSnapshot(
    retention_age_seconds=5.0,
    compaction_age_seconds=None,
    pruned_chunks=64,
    merged_chunks=0,
    moved_bytes=0,
    retention_failures=1,
    compaction_failures=0,
    troubles=("orders:0: no",),
)


def snapshot(*partitions: PartitionSnapshot) -> bytes:
    return msgspec.json.encode(
        ServiceSnapshot(
            version="1.2",
            archive="file:///a",
            group_id="g",
            joined=True,
            heartbeat_age_seconds=0.1,
            paused=False,
            memory_budget=1,
            waiting_bytes=0,
            open_block_bytes=0,
            buffer_budget=1,
            buffer_bytes=0,
            watermarks_age_seconds=1.0,
            maintenance=MAINTENANCE,
            progress_seconds=60.0,
            partitions=partitions,
        )
    )


def partition(number: int, state: PartitionState = PartitionState.ARCHIVING, **more: Any) -> PartitionSnapshot:
    return PartitionSnapshot(topic="orders", partition=number, state=state, **more)


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if self.path == "/status" else b"")

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_lags_are_summed_and_objections_told() -> None:
    body = snapshot(
        partition(0, lag_records=5, lag_seconds=1.5, retention_headroom=90),
        partition(1, PartitionState.STOPPED, failure="the log diverged", lag_records=7, retention_headroom=40),
        partition(2, stuck="nothing was fetched"),
        partition(3, PartitionState.RELEASED, lag_records=1000),
        partition(4, paused_seconds=61.0),
        partition(5, trouble="a retry that went well"),
    )

    async def ask(url: str) -> None:
        archivers = Archivers([url])
        (archiver,) = await archivers.all()
        assert archiver.maintenance == ArchiverMaintenance(5.0, None, 64, 0, ("orders:0: no",))
        assert await archivers.of_topics() == {
            "orders": {"lag_records": 12, "lag_seconds": 1.5, "retention_headroom": 40, "objections": 3}
        }
        (found,) = await archivers.all()
        assert [each.objection for each in found.partitions] == [
            None,
            "the log diverged",
            "nothing was fetched",
            None,
            "paused for 61 s",
            None,
        ]

    with answering(body) as url:
        asyncio.run(ask(url))


def test_one_that_does_not_answer_is_named_beside_the_others() -> None:
    async def ask(*urls: str) -> list[str | None]:
        return [each.error for each in await Archivers(urls).all()]

    with answering(snapshot()) as good, answering(b"{", 200) as torn, answering(b"", 503) as ill:
        errors = asyncio.run(ask(good, torn, ill, "http://127.0.0.1:1", "http://[bad"))
    assert errors[0] is None
    assert all(errors[1:])
    assert errors[3] == "connection refused"


def test_one_that_hangs_holds_up_who_does_not_wait() -> None:
    async def ask() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            archivers = Archivers([f"http://127.0.0.1:{silent.getsockname()[1]}"])
            assert await archivers.of_topics(0.0) == {}
            assert archivers.look.task is not None and not archivers.look.task.done()
            await archivers.look.close()
            assert archivers.look.task.cancelled()

    asyncio.run(ask())


def test_what_is_known_is_given_while_they_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.serve.archivers.FRESH_SECONDS", 0.0)

    async def ask(url: str) -> None:
        archivers = Archivers([url])
        first = await archivers.all()
        assert await archivers.all(0.0) is first
        assert (await archivers.all())[0].version == "1.2"

    with answering(snapshot()) as url:
        asyncio.run(ask(url))


def test_the_fields_are_those_of_an_archiver() -> None:
    """The two programs do not know each other: a name that changes shows here."""
    theirs = {field.name for field in msgspec.structs.fields(PartitionSnapshot)}
    assert {field.name for field in msgspec.structs.fields(ArchivedNow)} <= theirs
    assert {"version", "archive", "paused", "partitions"} <= {f.name for f in msgspec.structs.fields(ServiceSnapshot)}

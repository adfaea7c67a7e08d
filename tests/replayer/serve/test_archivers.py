"""What archivers tell the page."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from archiver.ingest.ownership import PartitionState
from archiver.monitor.snapshot import MaintenanceSnapshot, PartitionSnapshot, ServiceSnapshot
from blockgz.archive.archive import ArchiveReader
from blockgz.errors import NoArchiveThere, NotInArchive
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import CountingReader
from replayer.serve import archive_view
from replayer.serve.archive_view import ArchiveView
from replayer.serve.archivers import ArchivedNow, ArchiverMaintenance, Archivers
from tests.support.archives import ArchiveWriter, records

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


async def test_one_that_hangs_holds_up_who_does_not_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archivers = Archivers([f"http://127.0.0.1:{silent.getsockname()[1]}"])
        assert await archivers.of_topics(0.0) == {}
        assert archivers.look.task is not None and not archivers.look.task.done()
        await archivers.look.close()
        assert archivers.look.task.cancelled()


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


@pytest.fixture(autouse=True)
def _always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_view, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(archive_view, "SHARE_OF_TIME", 1e9)


def looked(root: Path, use: Callable[[ArchiveView, CountingReader], Awaitable[None]]) -> None:
    async def run() -> None:
        reader = CountingReader(LocalReader(LocalAddress(str(root))))
        view = ArchiveView(ArchiveReader(reader))
        try:
            await use(view, reader)
        finally:
            await view.close()

    asyncio.run(run())


async def settled(view: ArchiveView) -> None:
    await view.look.wait(None)
    for known in view._topics.values():
        await known.look.wait(None)


def test_what_is_known_is_given_while_it_is_looked_at_again(tmp_path: Path) -> None:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit(records(range(10)))

    async def use(view: ArchiveView, _: CountingReader) -> None:
        first = await view.survey()
        assert first is not None
        assert first.documents["orders"]["records"] == 10
        partition.commit(records(range(10, 15)))
        assert await view.survey() is first, "what was known is given at once"
        await settled(view)
        second = await view.survey()
        assert second is not None
        assert second.documents["orders"]["records"] == 15

    looked(tmp_path, use)


@pytest.mark.slow
def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    written = [writer.partition("orders", number) for number in range(3)]
    for partition in written:
        for start in range(130):
            partition.commit(records([start]))

    async def use(view: ArchiveView, reader: CountingReader) -> None:
        found = await view.coverage("orders")
        assert isinstance(found, tuple)
        assert [each.records for each in found[0]] == [130] * 3
        await settled(view)
        written[1].commit(records([130]))
        await view.survey()
        await settled(view)
        before = reader.requests
        await view.coverage("orders")
        await settled(view)
        assert [each.records for each in (await view.coverage("orders"))[0]] == [130, 131, 130]  # type: ignore[index]
        # The catalogs of one partition, and markers for the surveys that follow each question.
        assert 0 < reader.requests - before < 30

    looked(tmp_path, use)


def test_a_first_look_that_takes_long_tells_how_far_it_is(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    for number in range(20):
        writer.partition(f"topic-{number}", 0).commit(records([1]))

    async def use(view: ArchiveView, _: CountingReader) -> None:
        assert await view.survey(0.0) is None
        assert view.look.done < 20
        await settled(view)
        assert (view.look.done, view.look.all) == (20, 20)
        survey = await view.survey(0.0)
        assert survey is not None and len(survey.topics) == 20
        assert not isinstance(await view.coverage("topic-1", 0.0), tuple)
        await settled(view)
        assert isinstance(await view.coverage("topic-1", 0.0), tuple)

    looked(tmp_path, use)


def test_a_topic_waits_no_longer_than_that_for_the_first_look(tmp_path: Path) -> None:
    """Who comes by a link to a topic sees how far the look at all of them is."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records([1]))

    async def use(view: ArchiveView, _: CountingReader) -> None:
        assert await view.topic("orders", 0.0) is None
        assert await view.coverage("orders", 0.0) is view.look
        await settled(view)
        assert await view.topic("orders", 0.0) is not None

    looked(tmp_path, use)


def test_a_bug_in_a_look_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records([1]))

    def broken(*_: object) -> None:
        raise KeyError("oops")

    async def use(view: ArchiveView, _: CountingReader) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(archive_view, "topic_document", broken)
            with pytest.raises(KeyError):
                await view.survey()
        await view.survey()
        await settled(view)
        assert await view.survey() is not None
        with monkeypatch.context() as patched:
            patched.setattr(archive_view, "partition_coverage", broken)
            with pytest.raises(KeyError):
                await view.coverage("orders")

    looked(tmp_path, use)


def test_errors_are_told_and_tried_again(tmp_path: Path) -> None:
    async def use(view: ArchiveView, _: CountingReader) -> None:
        with pytest.raises(NoArchiveThere):
            await view.survey()
        ArchiveWriter(tmp_path).partition("orders", 0).commit(records([1]))
        await view.survey()
        with pytest.raises(NotInArchive):
            await view.coverage("payments")

    looked(tmp_path, use)


def test_a_damaged_partition_is_told_beside_the_others(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    written = [writer.partition("orders", number) for number in range(3)]
    for partition in written:
        partition.commit(records([1]))
    (tmp_path / written[1].keys.marker).write_bytes(b"torn")

    async def use(view: ArchiveView, _: CountingReader) -> None:
        survey = await view.survey()
        assert survey is not None
        assert [each["partition"] for each in survey.documents["orders"]["damaged"]] == [1]
        found = await view.coverage("orders")
        assert isinstance(found, tuple)
        assert [each.partition for each in found[0]] == [0, 2]

    looked(tmp_path, use)


@pytest.mark.slow
def test_few_coverages_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_view, "REMEMBERED_CHUNKS", 25)
    writer = ArchiveWriter(tmp_path)
    for number in range(6):
        partition = writer.partition(f"topic-{number}", 0)
        for start in range(10):
            partition.commit(records([start]))

    async def use(view: ArchiveView, _: CountingReader) -> None:
        for number in range(6):
            await view.coverage(f"topic-{number}")
        await settled(view)
        assert list(view._topics) == ["topic-4", "topic-5"]

    looked(tmp_path, use)

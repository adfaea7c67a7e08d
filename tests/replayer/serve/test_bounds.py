"""Answers that hold memory or connections are few at once, and are given back."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from blockgz.errors import StoreBusy, StoreUnavailable
from blockgz.store.local import LocalReader
from index_format.records import Record
from replayer.serve import service
from replayer.serve.service import PIECE_BYTES, Bound, BoundedAnswer, pieces
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import page_client, page_server, settings_of

ORDERS = "/api/v1/topics/orders/partitions/0"
LARGE = b"x" * 12_000_000
"""More than the kernel holds for a client that does not read."""


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit([*records(range(50)), Record(50, 1, 0, b"k", LARGE, ())])
    return tmp_path


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


@contextmanager
def unread(url: str, path: str) -> Iterator[socket.socket]:
    """A client that asks and reads nothing but the status."""
    place = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((place.hostname, place.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


def status(url: str, path: str) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_a_bound_is_told_and_given_back() -> None:
    bound = Bound(1, "streams")

    async def send(_: object) -> None:
        """Nobody listens."""

    async def never(*_: object) -> dict[str, str]:
        return await asyncio.Event().wait() or {}

    async def run() -> None:
        answer = BoundedAnswer(bound, pieces(LARGE), "text/plain")
        with pytest.raises(StoreBusy, match="1 streams are being sent"):
            BoundedAnswer(bound, pieces(LARGE), "text/plain")
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, never, send)  # type: ignore[arg-type]
        assert bound.held == 0
        assert [len(piece) async for piece in pieces(b"x" * (PIECE_BYTES + 1))] == [PIECE_BYTES, 1]

    asyncio.run(run())


@pytest.mark.slow
def test_streams_leave_room_for_pages(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_STREAMS", 0)
    with page_client(settings_of(archived)) as asking:
        refused = asking.get(f"{ORDERS}/records")
        assert (refused.status_code, refused.json()["do"]) == (503, "close some of them, and try again")
        assert asking.get(f"{ORDERS}/page").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("path", [f"{ORDERS}/records/50", f"{ORDERS}/records/50/value", f"{ORDERS}/records?n=51"])
def test_a_client_that_reads_nothing_has_one_place_until_it_goes(
    archived: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(service, "MOST_LARGE", 1)
    monkeypatch.setattr(service, "MOST_STREAMS", 1)
    with page_server(settings_of(archived)) as url:
        with unread(url, path):
            assert status(url, path) == 503
            assert status(url, f"{ORDERS}/records/3") == 200, "small answers wait for nobody"
        until(lambda: status(url, path) == 200)


@pytest.mark.slow
def test_a_large_answer_is_whole(archived: Path) -> None:
    with page_client(settings_of(archived)) as asking:
        value = asking.get(f"{ORDERS}/records/50/value")
        assert value.content == LARGE
        assert value.headers["content-length"] == str(len(LARGE))
        assert value.headers["content-disposition"] == 'attachment; filename="orders-0-50.value"'
        assert asking.get(f"{ORDERS}/records/50").json()["record"]["value"] == LARGE.decode()


@pytest.mark.slow
def test_an_archive_that_hangs_holds_up_no_page_of_what_is_known(
    archived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every thread that reads the archive waits for it."""
    reports, goes_on, hanging = tmp_path / "reports", threading.Event(), 0
    reports.mkdir()

    def hang(*_: object) -> bytes:
        nonlocal hanging
        hanging += 1
        goes_on.wait()
        raise StoreUnavailable("it did not answer")

    known = ("/", "/topics/orders", "/jobs", "/verify", "/archivers", "/api/v1/reports", "/healthz")
    with page_server(settings_of(archived, reports=reports, jobs=str(tmp_path / "jobs"))) as url:
        until(lambda: status(url, "/api/v1/topics/orders/coverage") == 200)
        with monkeypatch.context() as patched, ThreadPoolExecutor(64) as pool:
            patched.setattr(LocalReader, "_get", hang)
            asked = [pool.submit(status, url, f"{ORDERS}/page") for _ in range(64)]
            try:
                until(lambda: hanging > 5)
                assert {path: status(url, path) for path in known} == dict.fromkeys(known, 200)
            finally:
                goes_on.set()
            assert {each.result() for each in asked} == {503}


@pytest.mark.slow
def test_few_read_at_once(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READS_AT_ONCE", 2)
    read, reading, most = LocalReader.get_range, 0, 0

    async def counted(self: LocalReader, key: str, start: int, end: int) -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(100):
            await asyncio.sleep(0)
        reading -= 1
        return await read(self, key, start, end)

    monkeypatch.setattr(LocalReader, "get_range", counted)
    paths = (f"{ORDERS}/page?n=1", f"{ORDERS}/records/7", f"{ORDERS}/records/8/key", "/topics/orders/0")
    with page_server(settings_of(archived)) as url, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda path: status(url, path), paths * 4))
    assert (set(answers), most) == ({200}, 2)

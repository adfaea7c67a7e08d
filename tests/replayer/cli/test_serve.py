"""`replayer serve` as a process: what it refuses, how it begins and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from click.testing import CliRunner

from index_format.records import Record
from replayer.cli import main, serve
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import page_server, settings_of
from tests.support.terminal import printed

HANGING = """
import threading
from blockgz.store.local import LocalReader
from replayer.cli import main, serve
serve.END_SECONDS = 0.3
LocalReader._get = lambda *_: threading.Event().wait()
main(prog_name="replayer")
"""
"""The program in a folder whose files are read for ever."""


@contextmanager
def serving(
    root: Path, *options: str, http: str = "127.0.0.1:0", program: Sequence[str] = ("-m", "replayer")
) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The process, and where it listens."""
    command = [sys.executable, *program, "serve", "-a", str(root), "--http", http, *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"serving file://\S+ on http://(\S+):(\d+)\n", line)
        assert found is not None, line + process.stderr.read()
        yield process, found[1], int(found[2])
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def status(host: str, port: int, path: str = "/api/v1/topics") -> int:
    connection = HTTPConnection(host.strip("[]"), port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    ArchiveWriter(tmp_path / "archive").partition("orders", 0).commit(records(range(10)))
    return tmp_path / "archive"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_ended(archived: Path, number: signal.Signals) -> None:
    with serving(archived) as (process, host, port):
        assert (host, status(host, port)) == ("127.0.0.1", 200)
        watching = HTTPConnection(host, port, timeout=10)
        watching.request("GET", "/api/v1/topics/orders/partitions/0/records")
        process.send_signal(number)
        assert process.wait(10) == 0
        watching.close()
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.slow
def test_it_serves_on_ipv6(archived: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(archived, http="[::1]:0") as (_, host, port):
        assert (host, status(host, port)) == ("[::1]", 200)


@pytest.mark.slow
def test_an_archive_that_is_not_there_yet_is_told_by_the_pages(tmp_path: Path) -> None:
    with serving(tmp_path / "none") as (_, host, port):
        assert status(host, port) == 503
        assert status(host, port, "/healthz") == 200
        ArchiveWriter(tmp_path / "none").partition("orders", 0).commit(records(range(10)))
        assert status(host, port, "/api/v1/topics/orders/partitions/0/page") == 200


@pytest.mark.slow
def test_a_store_that_hangs_holds_up_neither_health_nor_the_end(archived: Path) -> None:
    with serving(archived, program=("-c", HANGING)) as (process, host, port):
        waiting = [HTTPConnection(host, port, timeout=30) for _ in range(3)]
        for connection in waiting:
            connection.request("GET", "/api/v1/topics")
        assert status(host, port, "/healthz") == 200
        assert status(host, port, "/login") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        for connection in waiting:
            connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 9\r\n\r\ncsrf",
    ],
)
def test_a_connection_that_asks_for_nothing_is_closed(
    archived: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.05)
    with page_server(settings_of(archived), http=serve._Connection) as url:
        asking = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10)
        asking.sendall(sent)
        while asking.recv(65536):
            pass
        asking.close()
    assert printed(capfd) == []


@pytest.mark.parametrize("path", ["records/50/value", "records?n=51"])
def test_a_connection_that_takes_nothing_of_its_answer_is_closed(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all of one answer may be in the transport's buffer already, and the other one never ends."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit([Record(50, 1, 0, b"k", b"x" * 12_000_000, ())])
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.05)
    lost = threading.Event()

    class Connection(serve._Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    with page_server(settings_of(tmp_path), http=Connection) as url, socket.socket() as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        asked = f"GET /api/v1/topics/orders/partitions/0/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        asking.sendall(asked.encode())
        assert asking.recv(12) == b"HTTP/1.1 200"
        assert lost.wait(20)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--http", "8080"), "--http 8080 is not an address"),
        (("--http", "127.0.0.1:99999"), "is not an address"),
        (("--http", "0.0.0.0:0"), "cannot be served on 0.0.0.0 for everybody"),
        (("--http", "192.0.2.1:0", "--token-file", "{token}"), "cannot be opened"),
        (("--user-header", "X-User"), "is not safe without --trusted-proxy"),
        (("--trusted-proxy", "proxy"), "is not an address of a proxy"),
        (("--token-file", "{short}"), "cannot be used"),
        (("--token-file", "{none}"), "cannot be read"),
        (("--archiver", "localhost:9464"), "is not a URL"),
    ],
)
def test_what_cannot_be_served_says_why(archived: Path, tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "short").write_text("short")
    paths = {name: str(tmp_path / name) for name in ("token", "short", "none")}
    given = [option.format(**paths) for option in options]
    result = CliRunner().invoke(main, ["serve", "-a", str(archived), *given])
    assert result.exit_code == 2, result.output
    assert text in result.stderr


def test_a_port_that_is_taken_is_told(archived: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", "-a", str(archived), "--http", f"127.0.0.1:{port}"])
        assert (result.exit_code, "cannot be opened" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--allow-replay"], "--allow-replay has no cluster to replay to"),
        (["--sign-key", "none.pem"], "none.pem is not a usable Ed25519 key"),
        (["--key", "text"], "text is not a usable Ed25519 key"),
        (["--reports", "text/reports"], "--reports text/reports cannot be made"),
    ],
)
def test_what_would_fail_later_is_told_at_the_start(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no key")
    refused = CliRunner().invoke(main, ["serve", "-a", str(tmp_path), "--http", "127.0.0.1:0", *options])
    assert refused.exit_code == 2 and told in refused.stderr, refused.output

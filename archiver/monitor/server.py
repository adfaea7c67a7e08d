"""Metrics, health and status of a running archiver over HTTP: served, and asked for. Read-only."""

import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from archiver.errors import ServiceUnreachable
from archiver.logs import LogEvent, log
from archiver.monitor.metrics import make_registry
from archiver.monitor.snapshot import UNOWNED, ServiceSnapshot
from blockgz.errors import UsageError, listed
from blockgz.hosts import is_own_name

PATHS = ("/metrics", "/healthz", "/readyz", "/status")
REQUEST_SECONDS = 10.0
"""From a connection to the end of its answer."""
MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 16 * 1024
MAX_STATUS_BYTES = 256 * 1024 * 1024
"""So many partitions an answer names."""
STALE_SECONDS = 300.0
"""Without an answer about the logs for so long, nobody knows whether there are records to archive."""
END_SECONDS = 0.1
"""How long it may take to notice that the server ends."""


class Response(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


@contextmanager
def serving(address: str, take_snapshot: Callable[[], ServiceSnapshot]) -> Iterator[None]:
    """Serve while the context lasts. Raises as StatusServer does."""
    server = StatusServer(address, take_snapshot, make_registry(take_snapshot))
    try:
        yield
    finally:
        server.close()


class StatusServer:
    """Serves `/metrics`, `/healthz`, `/readyz` and `/status` from its own threads until `close`."""

    def __init__(self, address: str, take_snapshot: Callable[[], ServiceSnapshot], registry: CollectorRegistry) -> None:
        """Listens on `HOST:PORT`; port 0 is any free one. Raises UsageError where that cannot be."""
        self._take_snapshot = take_snapshot
        self._registry = registry
        self._server = _listen(address, self._respond)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(END_SECONDS,), name="http", daemon=True
        )
        self._thread.start()
        log.info(LogEvent.LISTENING, url=self.url)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _respond(self, path: str, accept: str) -> Response:
        match path:
            case "/metrics":
                encode, content_type = choose_encoder(accept)
                return Response(HTTPStatus.OK, content_type, encode(self._registry))
            case "/status":
                return Response(HTTPStatus.OK, "application/json", msgspec.json.encode(self._take_snapshot()))
            case "/healthz":
                return _verdict(health(self._take_snapshot()))
            case "/readyz":
                return _verdict(readiness(self._take_snapshot()))
            case _:
                return Response(HTTPStatus.NOT_FOUND, "text/plain", f"there are {' '.join(PATHS)}\n".encode())


def health(snapshot: ServiceSnapshot) -> str | None:
    """Why the process should be restarted; None while it need not be."""
    return None if snapshot.is_live else f"the main loop has not moved for {snapshot.heartbeat_age_seconds:.0f} s"


def readiness(snapshot: ServiceSnapshot) -> str | None:
    """Why the process does not archive all that is its own; None where it does."""
    if not snapshot.joined:
        return "not a member of the consumer group yet"
    partitions, age = snapshot.partitions, snapshot.watermarks_age_seconds
    unowned = [
        f"{each.name} is {each.state.value}{_in_brackets(each.failure or each.trouble)}"
        for each in partitions
        if each.state in UNOWNED
    ]
    stuck = [f"{each.name}: {each.stuck}{_in_brackets(each.trouble)}" for each in partitions if each.stuck is not None]
    objections = {
        f"{snapshot.unowned} of {snapshot.assigned} partitions are not archived: {listed(unowned)}": bool(unowned),
        f"{snapshot.stuck} of {snapshot.assigned} partitions make no progress: {listed(stuck)}": bool(stuck),
        "fetching is paused, because memory or the buffer is full": snapshot.paused,
        f"no broker has reported where the logs end for {age or 0:.0f} s": age is not None and age >= STALE_SECONDS,
    }
    return "; ".join(text for text, holds in objections.items() if holds) or None


def _in_brackets(cause: str | None) -> str:
    return f" ({cause})" if cause else ""


def _verdict(objection: str | None) -> Response:
    status = HTTPStatus.OK if objection is None else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, "text/plain", f"{objection or 'ok'}\n".encode())


def _listen(address: str, respond: Callable[[str, str], Response]) -> ThreadingHTTPServer:
    class StatusHandler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            self.rfile: _BoundedHead = _BoundedHead(self.connection.makefile("rb", 0))

        def do_GET(self) -> None:
            if self.rfile.left <= 0:
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            if not is_own_name(host, self.headers.get("Host")):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
                return
            status, content_type, body = respond(urlsplit(self.path).path, self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def version_string(self) -> str:
            return "blockgz"

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not worth a line in the log."""

    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        return (_HttpServerV6 if ":" in host else _HttpServer)((host, int(port)), StatusHandler)
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(
            f"--http {address} cannot be opened",
            why=getattr(error, "strerror", None) or str(error),
            remedy="use HOST:PORT with an address of this machine and a free port",
        ) from error


class _BoundedHead(io.BufferedReader):
    """What a client sends: no more than a request's line and headers take."""

    left = MAX_HEAD_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        room = self.left if size is None or size < 0 else min(size, self.left)
        line = super().readline(room)
        self.left -= len(line)
        return line


class _HttpServer(ThreadingHTTPServer):
    """Each connection is one request, and has a deadline; the oldest gives way where there are too many."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        self._deadlines: dict[socket.socket, float] = {}
        """Of the open connections, the oldest first."""
        self._guard = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._end(list(self._deadlines)[: max(0, len(self._deadlines) + 1 - MAX_CONNECTIONS)])
            self._deadlines[request] = time.monotonic() + REQUEST_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections at their deadline; called every moment."""
        now = time.monotonic()
        with self._guard:
            self._end([request for request, deadline in self._deadlines.items() if deadline <= now])

    def _end(self, requests: list[socket.socket]) -> None:
        for request in requests:
            del self._deadlines[request]
            with suppress(OSError):  # the client was faster
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log faults of this process; a client that went away is none."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error(LogEvent.REQUEST_FAILED, cause=repr(error))


class _HttpServerV6(_HttpServer):
    address_family = socket.AF_INET6


def service_snapshot(address: str) -> ServiceSnapshot:
    """The snapshot that the archiver at `http://HOST:PORT`, or `HOST:PORT`, gives.

    Raises UsageError for what is no such address, ServiceUnreachable where nobody answers, or not as an archiver does.
    """
    base = address if "://" in address else f"http://{address}"
    if not base.startswith(("http://", "https://")):
        raise UsageError(
            f"--http {address!r} is not the address of an archiver", remedy="write HOST:PORT or http://HOST:PORT"
        )
    try:
        with urlopen(f"{base.rstrip('/')}/status", timeout=REQUEST_SECONDS) as response:
            return msgspec.json.decode(response.read(MAX_STATUS_BYTES), type=ServiceSnapshot)
    except (OSError, HTTPException, ValueError) as error:
        raise ServiceUnreachable(
            f"no archiver answers at {address}",
            why=str(error),
            remedy="check the address, and that the archiver runs with --http",
        ) from error

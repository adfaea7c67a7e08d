"""Metrics, health and status of a running archiver over HTTP: served, and asked for. Read-only."""

import io
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from archiver.errors import ServiceUnreachable
from archiver.logs import LogEvent, log
from archiver.monitor.snapshot import UNOWNED, MaintenanceSnapshot, PartitionSnapshot, ServiceSnapshot, metrics_of
from blockgz.errors import UsageError, listed
from blockgz.hosts import is_own_name

PREFIX = "blockgz_"
PATHS = ("/metrics", "/healthz", "/readyz", "/status")
# Seconds from a connection to the end of its answer.
REQUEST_SECONDS = 10.0
MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 16 * 1024
# Bytes of the largest answer that is read.
MAX_STATUS_BYTES = 256 * 1024 * 1024
# Without an answer about the logs for so long, nobody knows whether there are records to archive.
STALE_SECONDS = 300.0
# How long it may take to notice that the server ends.
END_SECONDS = 0.1


class ArchiverCollector(Collector):
    """The archiver's metrics, read from one snapshot a scrape and counted nowhere else."""

    def __init__(self, take_snapshot: Callable[[], ServiceSnapshot]) -> None:
        self._take_snapshot = take_snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._take_snapshot()
        build = InfoMetricFamily(f"{PREFIX}build", "Version of the archiver and of Python")
        build.add_metric((), {"version": snapshot.version, "python": platform.python_version()})
        yield build
        yield from _families(ServiceSnapshot, [snapshot])
        yield from _families(MaintenanceSnapshot, [snapshot.maintenance] if snapshot.maintenance else [])
        yield from _families(PartitionSnapshot, snapshot.partitions)

    def describe(self) -> Iterable[Metric]:
        """Return no names to compare at registration: the registry holds nothing else of ours."""
        return ()


def _families(kind: type[msgspec.Struct], snapshots: Iterable[Any]) -> Iterable[Metric]:
    """Return the metrics of one kind of snapshot, each with what the given ones say."""
    of_partitions = ("topic", "partition") if kind is PartitionSnapshot else ()
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for field, metric in metrics_of(kind).items():
        made = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        names = (*of_partitions, metric.label[0]) if metric.label else of_partitions
        family = families.setdefault(metric.name, made(PREFIX + metric.name, metric.help, labels=names))
        for each in snapshots:
            value = metric.value(each) if metric.value else getattr(each, field)
            if value is not None:
                labels = [str(getattr(each, label)) for label in of_partitions]
                family.add_metric([*labels, metric.label[1]] if metric.label else labels, value)
    return families.values()


def make_registry(take_snapshot: Callable[[], ServiceSnapshot]) -> CollectorRegistry:
    """Return a new registry with the archiver's metrics and the process's memory, descriptors and CPU time."""
    registry = CollectorRegistry()
    registry.register(ArchiverCollector(take_snapshot))
    ProcessCollector(registry=registry)
    return registry


# Status, content type and body.
Response = tuple[HTTPStatus, str, bytes]


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
        """Listen on `HOST:PORT`; port 0 is any free one. Raises UsageError if that is not possible."""
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
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _respond(self, path: str, accept: str) -> Response:
        match path:
            case "/metrics":
                encode, content_type = choose_encoder(accept)
                return HTTPStatus.OK, content_type, encode(self._registry)
            case "/status":
                return HTTPStatus.OK, "application/json", msgspec.json.encode(self._take_snapshot())
            case "/healthz":
                return _verdict(health(self._take_snapshot()))
            case "/readyz":
                return _verdict(readiness(self._take_snapshot()))
            case _:
                return HTTPStatus.NOT_FOUND, "text/plain", f"there are {' '.join(PATHS)}\n".encode()


def health(snapshot: ServiceSnapshot) -> str | None:
    """Return why the process should be restarted; None while it need not be."""
    return None if snapshot.is_live else f"the main loop has not moved for {snapshot.heartbeat_age_seconds:.0f} s"


def readiness(snapshot: ServiceSnapshot) -> str | None:
    """Return why the process does not archive all of its partitions; None if it does."""
    if not snapshot.joined:
        return f"not a member of the consumer group yet{_in_brackets(snapshot.trouble)}"
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
    return status, "text/plain", f"{objection or 'ok'}\n".encode()


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
            """Log nothing: scrapes are not worth a line."""

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
    """A client's request, limited to the size of a request line and headers."""

    left = MAX_HEAD_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        room = self.left if size is None or size < 0 else min(size, self.left)
        line = super().readline(room)
        self.left -= len(line)
        return line


class _HttpServer(ThreadingHTTPServer):
    """Each connection is one request, and has a deadline; the oldest gives way if there are too many."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        # Deadlines of the open connections, the oldest first.
        self._deadlines: dict[socket.socket, float] = {}
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
        """End connections at their deadline. The server calls this several times a second."""
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
    """Return the snapshot that the archiver at `http://HOST:PORT`, or `HOST:PORT`, gives.

    Raises UsageError for what is no such address, ServiceUnreachable if nobody answers, or not as an archiver does.
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

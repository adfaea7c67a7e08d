"""A proxy before an HTTP server that does to each request what a function of the test says; in this process.

    with FaultProxy(upstream, lambda request: Fault.RESET_AFTER if request.method == "PUT" else Fault.NONE) as proxy:
        ...  # clients use proxy.endpoint_url

Requests are forwarded whole and unchanged, so that signatures stay valid. `seeded` makes decisions at random.
"""

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

SECONDS = 30
NOT_FORWARDED = {"connection", "transfer-encoding", "expect"}


class Fault(Enum):
    """What a request meets."""

    NONE = "none"
    RESET_BEFORE = "reset before"
    """The connection is reset, the server hears nothing."""
    RESET_AFTER = "reset after"
    """The server carries the request out, its answer is lost."""
    ERROR_BEFORE = "500 before"
    ERROR_AFTER = "500 after"
    THROTTLE = "503"
    LATE = "late"
    """Answered with 503, and carried out when `deliver_late` is called."""
    TWICE = "twice"
    """Carried out twice in a row; the client gets the second answer."""
    TWICE_LATE = "twice, late"
    """Carried out at once, and again when `deliver_late` is called."""
    CUT = "cut"
    """The answer breaks off in the middle of its body."""
    HELD = "held"
    """The answer is held back until `release` is called, or the proxy ends."""


class Request(NamedTuple):
    """One HTTP request, whole; `number` counts from 1."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """S3's name for it, as far as tests care: such as PutObject or CompleteMultipartUpload."""
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        match self.method:
            case "POST" if "uploads" in query:
                return "CreateMultipartUpload"
            case "POST" if "uploadId" in query:
                return "CompleteMultipartUpload"
            case "PUT" if "partNumber" in query:
                return "UploadPart"
            case "DELETE" if "uploadId" in query:
                return "AbortMultipartUpload"
            case "PUT":
                return "PutObject"
            case other:
                return f"{other.title()}Object"


class Answer(NamedTuple):
    """An HTTP response, whole."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    sent: int | None = None
    """How many bytes of the body are sent before the connection breaks off; None for all."""


def _error(status: int, code: str) -> Answer:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    return Answer(status, [("Content-Type", "application/xml")], body)


_INTERNAL_ERROR = _error(500, "InternalError")
_SLOW_DOWN = _error(503, "SlowDown")
_UNHEARD: dict[Fault, Answer | None] = {
    Fault.RESET_BEFORE: None,
    Fault.ERROR_BEFORE: _INTERNAL_ERROR,
    Fault.THROTTLE: _SLOW_DOWN,
    Fault.LATE: _SLOW_DOWN,
}
"""The answers to requests that the server does not hear, or not yet."""

Decide = Callable[[Request], Fault]


def seeded(seed: object, weights: Mapping[Fault, float]) -> Decide:
    """Faults at random: what a request meets is a function of the seed and its number."""

    def decide(request: Request) -> Fault:
        rng = random.Random(f"{seed}:{request.number}")
        return rng.choices(list(weights), list(weights.values()))[0]

    return decide


def once(operation: str, fault: Fault) -> Decide:
    """That fault for the first such request, none for all others."""
    waiting = [fault]

    def decide(request: Request) -> Fault:
        return waiting.pop() if waiting and request.operation == operation else Fault.NONE

    return decide


def no_fault(_: Request) -> Fault:
    """Everything is forwarded."""
    return Fault.NONE


class FaultProxy:
    """Listens on a free port of 127.0.0.1 inside a `with` block. `decide` may be exchanged at any time."""

    def __init__(self, upstream: str, decide: Decide = no_fault) -> None:
        self.decide = decide
        self.counts: Counter[Fault] = Counter()
        """Requests by what they met."""
        self.operations: Counter[str] = Counter()
        """Requests that came in, by S3's names."""
        self._upstream = urlsplit(upstream).netloc
        self._late: list[Request] = []
        self._released = threading.Event()
        self._requests = 0
        self._guard = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fault-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def deliver_late(self) -> int:
        """Carry out what was held back, in the order it came; how many requests that were."""
        with self._guard:
            late, self._late = self._late, []
        for request in late:
            self._forward(request)
        return len(late)

    def release(self) -> None:
        """Send what is held back."""
        self._released.set()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """The answer to a request; None resets the connection."""
        with self._guard:
            self._requests += 1
            request = Request(self._requests, method, path, headers, body)
            self.operations[request.operation] += 1
            fault = self.decide(request)
            self.counts[fault] += 1
            if fault in (Fault.LATE, Fault.TWICE_LATE):
                self._late.append(request)
        return self._inflict(fault, request)

    def _inflict(self, fault: Fault, request: Request) -> Answer | None:
        if fault in _UNHEARD:
            return _UNHEARD[fault]
        answer = self._forward(request)
        if fault is Fault.TWICE:
            return self._forward(request)
        if fault is Fault.CUT:
            return answer._replace(sent=len(answer.body) // 2)
        if fault is Fault.HELD:
            self._released.wait(SECONDS)
        return {Fault.RESET_AFTER: None, Fault.ERROR_AFTER: _INTERNAL_ERROR}.get(fault, answer)

    def _forward(self, request: Request) -> Answer:
        connection = HTTPConnection(self._upstream, timeout=SECONDS)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            kept = [(name, value) for name, value in response.getheaders() if name.lower() not in NOT_FORWARDED]
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none of ours."""


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = proxy.answer(self.command, self.path, dict(self.headers.items()), body)
            if answer is None:
                self._reset()
                return
            self.send_response_only(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in answer.headers):
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.sent])
            if answer.sent is not None:
                self.close_connection = True

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                self.connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    return Handler

"""A proxy before an HTTP server, in this process: what becomes of each request is up to the subclass.

Requests are forwarded whole and unchanged, so that signatures stay valid.
"""

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

SECONDS = 30
NOT_FORWARDED = {"connection", "transfer-encoding", "expect"}


class Request(NamedTuple):
    """One HTTP request, whole; `number` counts from 1, the names of headers are in lower case."""

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
    """An HTTP response, whole; a body that is shorter than its Content-Length is followed by a reset."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def error_answer(status: int, code: str) -> Answer:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    return Answer(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))], body)


class HttpProxy(ABC):
    """Listens on a free port of 127.0.0.1 inside a `with` block."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._requests = 0
        self._guard = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="proxy")

    @abstractmethod
    def answer(self, request: Request) -> Answer | None:
        """The answer to a request; None, OSError and HTTPException reset the connection. Called in many threads."""

    def forward(self, request: Request) -> Answer:
        """The server's answer; raises OSError or HTTPException where it gives none."""
        connection = HTTPConnection(self._upstream, timeout=SECONDS)
        try:
            headers = {name: value for name, value in request.headers.items() if name not in NOT_FORWARDED}
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            kept = [(name, value) for name, value in response.getheaders() if name.lower() not in NOT_FORWARDED]
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()

    def numbered(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        with self._guard:
            self._requests += 1
            return Request(self._requests, method, path, headers, body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Unconditional(HttpProxy):
    """Before an S3 server: refuses each conditional write with one answer, as stores without them do."""

    def __init__(self, upstream: str, refusal: Answer | None = None) -> None:
        super().__init__(upstream)
        self.refusal = refusal or error_answer(501, "NotImplemented")
        self.num_refused = 0

    def answer(self, request: Request) -> Answer | None:
        if request.operation in ("PutObject", "CompleteMultipartUpload") and {"if-match", "if-none-match"} & {
            *request.headers
        }:
            self.num_refused += 1
            return self.refusal
        return self.forward(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none of ours."""


def _handler(proxy: HttpProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            try:
                answer = proxy.answer(proxy.numbered(self.command, self.path, headers, body))
            except (OSError, HTTPException):
                answer = None
            if answer is None:
                self._reset()
                return
            self.send_response_only(answer.status)
            lengths = [int(value) for name, value in answer.headers if name.lower() == "content-length"]
            for name, value in answer.headers:
                self.send_header(name, value)
            if not lengths:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
                if lengths and len(answer.body) < lengths[0]:
                    self._reset()

        def _reset(self) -> None:
            """Close with RST instead of FIN."""
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                self.connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    return Handler

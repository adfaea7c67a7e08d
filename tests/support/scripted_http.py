"""An HTTP server that answers what it is told to, for what no sound S3 server does on demand."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

PIECE_BYTES = 64 * 1024


class Answer(NamedTuple):
    """One answer: an S3 error code makes the body; `promised` is a Content-Length that may be a lie."""

    status: int
    code: str = ""
    body: bytes = b""
    promised: int | None = None
    is_reset: bool = False
    """Whether the connection is reset behind the body, rather than closed."""

    def content(self) -> bytes:
        """The body as it goes over the wire."""
        if not self.code:
            return self.body
        return f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>scripted</Message></Error>".encode()


CLOSE = Answer(0)
"""No answer: the connection is closed."""


@dataclass
class Script:
    """What the server answers to every request, and what it was asked."""

    answer: Answer = CLOSE
    requests: list[str] = field(default_factory=list)
    endpoint_url: str = ""


@contextmanager
def scripted_server() -> Iterator[Script]:
    """A server on a free port of 127.0.0.1; change `answer` at will."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which answers `Expect: 100-continue`, that botocore waits a second for

        def respond(self) -> None:
            left = int(self.headers.get("Content-Length", "0"))
            while left:  # in pieces: tests measure what the client holds in this process
                left -= len(self.rfile.read(min(left, PIECE_BYTES)))
            script.requests.append(f"{self.command} {self.path}")
            self.close_connection = True
            if script.answer is CLOSE:
                return
            content = script.answer.content()
            self.send_response(script.answer.status)
            self.send_header("ETag", '"etag"')
            self.send_header("Connection", "close")
            promised = script.answer.promised
            self.send_header("Content-Length", str(len(content) if promised is None else promised))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            if script.answer.is_reset:
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    script.endpoint_url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

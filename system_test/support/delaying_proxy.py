"""A TCP proxy that holds everything back for a while in both directions, as a network far away does."""

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 256 * 1024


class DelayingProxy:
    """Listens on `port` of 127.0.0.1 and forwards to `upstream`; `seconds` one way, which may be changed any time."""

    def __init__(self, port: int, upstream: int, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        threading.Thread(target=self._accept, name="delaying-proxy", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._upstream))
                except OSError:
                    client.close()
                    continue
                for source, target in ((client, server), (server, client)):
                    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    for work in (self._receive, self._deliver):
                        threading.Thread(target=work, args=(source, target, waiting), daemon=True).start()

    def _receive(
        self, source: socket.socket, _: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        received = b"-"
        while received:
            try:
                received = source.recv(CHUNK_BYTES)
            except OSError:
                received = b""
            waiting.put((time.monotonic() + self.seconds, received))

    def _deliver(
        self, _: socket.socket, target: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        with suppress(OSError):
            while True:
                due, received = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not received:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(received)

"""Three requests of Kafka's protocol over a plain socket: Metadata 1, ListOffsets 2, Fetch 10. No TLS, no SASL.

Versions without compact fields: they read and write with `struct`. Kafka 4 still answers them, and zstd needs Fetch 10.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

METADATA, LIST_OFFSETS, FETCH = (3, 1), (2, 2), (1, 10)
"""Numbers and versions of the requests."""
READ_COMMITTED = 1
EARLIEST, LATEST = -2, -1
CONSUMER_ID = -1
NO_SESSION = (0, -1)
ANY_EPOCH = -1
WAIT_MS = 100
SECONDS = 30.0


class ProtocolFailed(RuntimeError):
    """The broker answered with an error, or with what this prototype does not do."""


class Fetched(NamedTuple):
    """What came for a partition: record batches as they are in the log, and where committed records end."""

    partition: int
    stable_end: int
    content: memoryview


class Reader:
    """Walks an answer."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def take(self, layout: str) -> tuple[int, ...]:
        """Fixed-size fields, in `struct`'s letters."""
        values = struct.unpack_from(">" + layout, self._content, self._at)
        self._at += struct.calcsize(">" + layout)
        return values

    def one(self, layout: str) -> int:
        """One of them."""
        return self.take(layout)[0]

    def bytes(self, length: int) -> memoryview:
        """A view of the next bytes; none for a negative length, which is null."""
        start, self._at = self._at, self._at + max(0, length)
        return self._content[start : self._at]

    def text(self) -> str:
        """A string."""
        return str(self.bytes(self.one("h")), "utf-8")


class Connection:
    """One broker. A request is sent and its answer taken in two steps, so that work fits in between."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 20)
        self._sent = self._taken = 0

    def send(self, kind: tuple[int, int], body: bytes) -> None:
        """Send a request."""
        self._sent += 1
        head = struct.pack(">hhi", *kind, self._sent) + _text("prototype")
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def answer(self) -> Reader:
        """Wait for the oldest request's answer; it is good until the next one is asked for."""
        self._taken += 1
        (size,) = struct.unpack(">i", self._exactly(4))
        reader = Reader(self._exactly(size))
        if (number := reader.one("i")) != self._taken:
            raise ProtocolFailed(f"the answer {self._taken} has the number {number}")
        return reader

    def _exactly(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size + size // 4)
        view = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            if (count := self._socket.recv_into(view[filled:])) == 0:
                raise ProtocolFailed("the broker closed the connection")
            filled += count
        return view

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def leaders(bootstrap: str, topic: str) -> dict[int, tuple[str, int]]:
    """The address of each partition's leader."""
    host, _, port = bootstrap.rpartition(":")
    connection = Connection(host, int(port))
    connection.send(METADATA, struct.pack(">i", 1) + _text(topic))
    reader = connection.answer()
    addresses = {}
    for _ in range(reader.one("i")):
        number = reader.one("i")
        addresses[number] = (reader.text(), reader.one("i"))
        reader.text()  # its rack
    reader.one("i")  # the controller
    found = {}
    for _ in range(reader.one("i")):
        _succeeded(reader.one("h"))
        reader.text(), reader.one("b")
        for _ in range(reader.one("i")):
            error, partition, leader = reader.take("hii")
            _succeeded(error)
            found[partition] = addresses[leader]
            for _ in ("replicas", "in sync"):
                reader.bytes(4 * reader.one("i"))
    connection.close()
    return found


def bounds(connection: Connection, topic: str, partition: int) -> tuple[int, int]:
    """A partition's first offset, and the one behind its last committed record."""
    found = []
    for which in (EARLIEST, LATEST):
        body = struct.pack(">ibi", CONSUMER_ID, READ_COMMITTED, 1) + _text(topic)
        connection.send(LIST_OFFSETS, body + struct.pack(">iiq", 1, partition, which))
        reader = connection.answer()
        reader.take("ii"), reader.text()
        _, _, error, _, offset = reader.take("iihqq")
        _succeeded(error)
        found.append(offset)
    return found[0], found[1]


def fetch_request(topic: str, positions: Mapping[int, int], most_bytes: int, partition_bytes: int) -> bytes:
    """From these positions, no more than about `most_bytes`; one batch at least, however large."""
    parts = [
        struct.pack(">iiiibii", CONSUMER_ID, WAIT_MS, 1, most_bytes, READ_COMMITTED, *NO_SESSION),
        struct.pack(">i", 1) + _text(topic) + struct.pack(">i", len(positions)),
        *(struct.pack(">iiqqi", number, ANY_EPOCH, at, -1, partition_bytes) for number, at in positions.items()),
        struct.pack(">i", 0),
    ]
    return b"".join(parts)


def fetched(reader: Reader) -> Sequence[Fetched]:
    """What a fetch brought; raises ProtocolFailed for aborted transactions, which this prototype cannot leave out."""
    _, error, _ = reader.take("ihi")
    _succeeded(error)
    found = []
    for _ in range(reader.one("i")):
        reader.text()
        for _ in range(reader.one("i")):
            partition, error, _, stable_end, _, aborted = reader.take("ihqqqi")
            _succeeded(error)
            if aborted > 0:
                raise ProtocolFailed("aborted transactions are not left out by this prototype")
            found.append(Fetched(partition, stable_end, reader.bytes(reader.one("i"))))
    return found


def _text(content: str) -> bytes:
    encoded = content.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _succeeded(error: int) -> None:
    if error:
        raise ProtocolFailed(f"the broker answered with error {error}")

"""A proxy before an S3 server that breaks requests: a program that reads commands from stdin.

    python -m system_test.faults.proxy --port P --upstream P --seed S --rate 0.05 --journal FILE

Every request is forwarded whole, over a connection of its own, or meets a fault. What a request meets is a function of
seed and request number. `quiet` on stdin ends all faults, late deliveries included once they are out. The journal gets
a line of JSON for each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

_LIMIT = 1 << 20
_PROBE_SHARE = 0.25
"""Every start asks some forty requests whether the store is fit; they are to meet fewer faults than real work."""
_LONG_SECONDS = 65.0
"""Longer than the archiver's client waits for an answer."""


class Request(NamedTuple):
    """One HTTP request: `head` as it came, without `Expect`, and with `Connection: close`."""

    method: str
    path: str
    head: bytes
    body: bytes
    conditional: bool

    @property
    def changes(self) -> bool:
        """Whether it may change what is stored."""
        return self.method in ("PUT", "POST", "DELETE")

    @property
    def is_probe(self) -> bool:
        """Whether it is part of the question whether the store is fit, rather than of archiving."""
        return "/.probe-" in self.path


class Reset(Exception):
    """The client's connection is to be reset."""


def error_answer(status: int, code: str) -> bytes:
    """An S3 error as a whole HTTP response."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class FaultProxy:
    """The proxy's state: how many requests came, whether faults are on, which burst runs."""

    def __init__(self, upstream: int, seed: str, rate: float, journal: TextIO) -> None:
        self._upstream = upstream
        self._seed = seed
        self._rate = rate
        self._journal = journal
        self._requests = 0
        self._burst_until = 0.0
        self._late: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._faults: list[tuple[float, str, Callable[[Request, random.Random], Awaitable[bytes]]]] = [
            (10, "reset-before", self._reset_before),
            (14, "reset-after", self._reset_after),
            (8, "error-before", self._error_before),
            (10, "error-after", self._error_after),
            (6, "throttled", self._throttled),
            (3, "burst", self._burst),
            (10, "slow", self._slow),
            (10, "late", self._deliver_late),
            (10, "double", self._double),
            (8, "double-late", self._double_late),
            (6, "cut", self._cut),
            (6, "conflict", self._conflict),
            (4, "refused", self._refused),
            (4, "timed-out", self._timed_out),
            (2, "stall", self._stall),
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection, request after request."""
        try:
            while (request := await _read_request(reader, writer)) is not None:
                answer = await self._answer(request)
                writer.write(answer)
                await writer.drain()
        except CutShort as cut:
            writer.write(cut.sent)
            await writer.drain()
            await asyncio.sleep(0.05)
            _reset(writer)
        except Reset:
            _reset(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def quiet(self) -> None:
        """No more faults; returns when the late deliveries are out."""
        self._quiet.set()
        self._burst_until = 0.0
        if self._late:
            await asyncio.wait(self._late)

    async def _answer(self, request: Request) -> bytes:
        self._requests += 1
        rng = random.Random(f"{self._seed}:{self._requests}")
        if self._quiet.is_set():
            return await self._forward(request)
        if time.monotonic() < self._burst_until:
            self._note("burst", request)
            return error_answer(503, "SlowDown")
        if rng.random() >= (self._rate * _PROBE_SHARE if request.is_probe else self._rate):
            return await self._forward(request)
        weights = [weight for weight, _, _ in self._faults]
        ((_, name, inflict),) = rng.choices(self._faults, weights)
        if name in ("late", "double", "double-late", "error-after") and not request.changes:
            name, inflict = "reset-after", self._reset_after
        if name == "cut" and request.method != "GET":
            name, inflict = "reset-before", self._reset_before
        if name in ("conflict", "refused") and (not request.conditional or request.is_probe):
            name, inflict = "error-before", self._error_before
        self._note(name, request)
        return await inflict(request, rng)

    def _note(self, name: str, request: Request) -> None:
        entry = {"at": round(time.time(), 3), "n": self._requests, "fault": name, "request": request.method}
        self._journal.write(json.dumps(entry | {"path": request.path, "probe": request.is_probe}) + "\n")
        self._journal.flush()

    async def _reset_before(self, request: Request, rng: random.Random) -> bytes:
        raise Reset

    async def _reset_after(self, request: Request, rng: random.Random) -> bytes:
        await self._forward(request)
        raise Reset

    async def _error_before(self, request: Request, rng: random.Random) -> bytes:
        return rng.choice([error_answer(500, "InternalError"), error_answer(503, "ServiceUnavailable")])

    async def _error_after(self, request: Request, rng: random.Random) -> bytes:
        await self._forward(request)
        return error_answer(500, "InternalError")

    async def _throttled(self, request: Request, rng: random.Random) -> bytes:
        return rng.choice([error_answer(503, "SlowDown"), error_answer(429, "TooManyRequests")])

    async def _burst(self, request: Request, rng: random.Random) -> bytes:
        self._burst_until = time.monotonic() + rng.uniform(0.3, 2.0)
        return error_answer(503, "SlowDown")

    async def _slow(self, request: Request, rng: random.Random) -> bytes:
        await asyncio.sleep(rng.uniform(0.1, 3.0))
        return await self._forward(request)

    async def _deliver_late(self, request: Request, rng: random.Random) -> bytes:
        self._forward_later(request, rng.uniform(0.2, 9.0))
        if rng.random() < 0.5:
            raise Reset
        return error_answer(503, "ServiceUnavailable")

    async def _double(self, request: Request, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            answers = list(await asyncio.gather(self._forward(request), self._forward(request)))
        else:
            answers = [await self._forward(request), await self._forward(request)]
        return rng.choice(answers)

    async def _double_late(self, request: Request, rng: random.Random) -> bytes:
        self._forward_later(request, rng.uniform(0.2, 9.0))
        return await self._forward(request)

    async def _cut(self, request: Request, rng: random.Random) -> bytes:
        answer = await self._forward(request)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not body:
            raise Reset
        raise CutShort(head + b"\r\n\r\n" + body[: int(len(body) * rng.random())])

    async def _conflict(self, request: Request, rng: random.Random) -> bytes:
        return error_answer(409, "ConditionalRequestConflict")

    async def _refused(self, request: Request, rng: random.Random) -> bytes:
        return error_answer(412, "PreconditionFailed")

    async def _timed_out(self, request: Request, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            await self._forward(request)
        return rng.choice([error_answer(400, "RequestTimeout"), error_answer(504, "GatewayTimeout")])

    async def _stall(self, request: Request, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            await self._forward(request)
        seconds = _LONG_SECONDS if rng.random() < 0.3 else rng.uniform(3.0, 8.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)
        raise Reset

    def _forward_later(self, request: Request, seconds: float) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            with suppress(Reset):
                await self._forward(request)

        task = asyncio.create_task(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _forward(self, request: Request) -> bytes:
        """The server's whole answer; Reset where it does not give one."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            raise Reset from None
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            answer = await reader.read(-1)
        except OSError:
            raise Reset from None
        finally:
            writer.close()
        if not answer:
            raise Reset
        return _without_close(answer)


class CutShort(Reset):
    """The client is to get these bytes of an answer and then a reset."""

    def __init__(self, sent: bytes) -> None:
        super().__init__()
        self.sent = sent


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head[:-4].split(b"\r\n")
    method, path, _ = lines[0].decode().split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if headers.get(b"expect", b"").lower() == b"100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    dropped = (b"expect:", b"connection:")
    kept = [lines[0], *(line for line in lines[1:] if not line.lower().startswith(dropped)), b"Connection: close"]
    conditional = b"if-match" in headers or b"if-none-match" in headers
    return Request(method, path, b"\r\n".join(kept) + b"\r\n\r\n", body, conditional)


def _without_close(answer: bytes) -> bytes:
    head, separator, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines) + separator + body


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _run(port: int, proxy: FaultProxy) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await proxy.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_LIMIT)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with server:
        print("ready", flush=True)
        while command := (await commands.readline()).strip():
            if command == b"quiet":
                await proxy.quiet()
            print(command.decode(), flush=True)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    with options.journal.open("a") as journal:
        asyncio.run(_run(options.port, FaultProxy(options.upstream, options.seed, options.rate, journal)))


if __name__ == "__main__":
    main()

"""Connections of Kafka clients: bounded in number, size and time; login; answers in order."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from replayer.broker import messages
from replayer.broker.answers import Answers, Client
from replayer.broker.fetch import Allowance
from replayer.broker.messages import MalformedRequest, Request, read_request, response_pieces
from replayer.broker.users import HASHES, PLAIN, BrokerLogins, Exchange, LoginFailed

log = logging.getLogger(__name__)

SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE = 58, 33, 34
_BEFORE_LOGIN_BYTES, _AFTER_LOGIN_BYTES = 16 * 1024, 1024 * 1024
_LEAST_REQUEST = 10
_LOGIN_SECONDS = 10.0
# For a client that asks for nothing; that takes nothing of its answer; that sends a request slowly.
_IDLE_SECONDS, _STALLED_SECONDS, _REQUEST_SECONDS = 600.0, 30.0, 30.0
_WRITTEN_BYTES = 256 * 1024
_CERTIFICATE_SECONDS = 30.0
# Requests of more bytes wait until all such requests together, as they are in memory, fit.
_SMALL_REQUEST, _REQUESTS_BYTES, _GROWTH = 64 * 1024, 128 * 1024 * 1024, 8
MOST_CONNECTIONS = 1000
# Seconds that answers have at the end.
_DRAIN_SECONDS = 3.0


@dataclass(frozen=True)
class Listener:
    """An address to listen on, and the one that clients are given."""

    host: str
    port: int
    advertised: tuple[str, int] | None = None
    """None for the name that a TLS client asked for, or the address that the client connected to."""


class ServerCertificate:
    """The certificate of a TLS server, and what clients called the server."""

    def __init__(self, chain: Path, key: Path | None, client_authority: Path | None) -> None:
        """Raise OSError, as ssl.SSLError is one, for files that cannot be used."""
        self._chain, self._key = chain, key or chain
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.sni_callback = self._note_name
        if client_authority is not None:
            self.context.load_verify_locations(client_authority)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._seen: list[int] = []
        self.read_again()

    def read_again(self) -> None:
        """Use the files for new connections if they changed; raise OSError."""
        seen = [each.stat().st_mtime_ns for each in (self._chain, self._key)]
        if seen != self._seen:
            self.context.load_cert_chain(self._chain, self._key)
            self._seen = seen

    def name_of(self, connection: object) -> str | None:
        """Return the server's name as the client of a TLS connection gave it."""
        return self._names.get(connection)

    def _note_name(self, connection: Any, name: str | None, _: ssl.SSLContext) -> None:
        if name:
            self._names[connection] = name


@dataclass
class Security:
    """TLS and the users of a server."""

    certificate: ServerCertificate | None = None
    logins: BrokerLogins | None = None

    async def renew(self) -> None:
        """Read the certificate again whenever its files change, until cancelled."""
        while self.certificate is not None:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                self.certificate.read_again()
            except OSError as error:
                log.warning("the certificate changed, and cannot be used: %s; the former one stays", error)

    @property
    def mechanisms(self) -> list[str]:
        """Passwords in the clear are not offered without TLS."""
        return [*HASHES, *([PLAIN] if self.certificate is not None else [])] if self.logins is not None else []


class BrokerServer:
    """Listens, and serves each connection in a task of its own."""

    def __init__(self, answers: Answers, security: Security, most_connections: int = MOST_CONNECTIONS) -> None:
        self._answers = answers
        self._security = security
        self._most_connections = most_connections
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.large_requests = Allowance(_REQUESTS_BYTES)
        self.is_ending = False

    async def listen(self, listeners: Sequence[Listener]) -> list[tuple[str, int]]:
        """Begin to accept connections; return the addresses that are listened on. Raise OSError."""
        addresses = []
        for each in listeners:
            accept, certificate = partial(self._accept, each), self._security.certificate
            tls: dict[str, Any] = {}
            if certificate is not None:
                tls = {"ssl": certificate.context, "ssl_handshake_timeout": _LOGIN_SECONDS}
            server = await asyncio.start_server(
                accept, each.host, each.port, limit=_BEFORE_LOGIN_BYTES, backlog=128, **tls
            )
            self._servers.append(server)
            addresses.append(server.sockets[0].getsockname()[:2])
        return addresses

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Accept nothing more, let running answers be sent, and end all connections."""
        self.is_ending = True
        for server in self._servers:
            server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._most_connections or self.is_ending:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            client = Client(self._address(listener, writer))
            connection = ClientConnection(self, self._answers, self._security, client, reader, writer)
            await connection.serve()
        finally:
            self._tasks.discard(task)

    def _address(self, listener: Listener, writer: asyncio.StreamWriter) -> tuple[str, int]:
        host, port = writer.get_extra_info("sockname")[:2]
        if listener.advertised is not None:
            return listener.advertised[0], listener.advertised[1] or port
        certificate = self._security.certificate
        name = certificate and certificate.name_of(writer.get_extra_info("ssl_object"))
        return name or host, port


class ClientConnection:
    """One client's connection."""

    def __init__(
        self,
        server: BrokerServer,
        answers: Answers,
        security: Security,
        client: Client,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._answers = answers
        self._security = security
        self._client = client
        self._reader, self._writer = reader, writer
        self._is_open = security.logins is None
        self._mechanism: str | None = None
        self._exchange: Exchange | None = None
        writer.transport.set_write_buffer_limits(high=_WRITTEN_BYTES)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def serve(self) -> None:
        """Answer requests, one after the other, until the client goes or does what it may not."""
        peer = self._writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(None if self._is_open else _LOGIN_SECONDS) as login:
                while not self._server.is_ending:
                    await self._serve_one()
                    if self._is_open and login.when() is not None:
                        login.reschedule(None)
        except MalformedRequest as error:
            log.warning("the connection of %s is closed: it sent %s", peer, error)
        except TimeoutError:
            log.info("the connection of %s is closed: it took too long", peer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        except Exception:
            log.exception("the connection of %s is closed by a fault of the broker", peer)
        finally:
            self._answers.forget(self._client)
            self._writer.transport.abort()

    async def _serve_one(self) -> None:
        async with asyncio.timeout(_IDLE_SECONDS):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        most = _AFTER_LOGIN_BYTES if self._is_open else _BEFORE_LOGIN_BYTES
        if not _LEAST_REQUEST <= size <= most:
            raise MalformedRequest(f"a request of {size} bytes, where {most} are allowed")
        if size <= _SMALL_REQUEST:
            await self._answer_one(size)
            return
        await self._server.large_requests.take(_GROWTH * size)
        try:
            await self._answer_one(size)
        finally:
            await self._server.large_requests.give_back(_GROWTH * size)

    async def _answer_one(self, size: int) -> None:
        async with asyncio.timeout(_REQUEST_SECONDS):
            body = await self._reader.readexactly(size)
        request = read_request(body)
        self._client.name = request.client_id
        self._answers.reading.counts[f"request {request.api.key}"] += 1
        del body
        if request.api is messages.FETCH and self._is_open:
            values, allowed = await self._answers.fetch(self._client, request.values)
            try:
                await self._send(request, values)
            finally:
                if allowed:
                    await self._answers.reading.allowance.give_back(allowed)
            return
        answer = await self._answer(request)
        if answer is not None:
            await self._send(request, answer)
        if self._mechanism is not None and answer and answer.get("error_code") == SASL_AUTHENTICATION_FAILED:
            raise ConnectionError("the login failed")

    async def _answer(self, request: Request) -> Mapping[str, Any] | None:
        if request.api is messages.SASL_HANDSHAKE:
            return self._handshake(request.values["mechanism"])
        if request.api is messages.SASL_AUTHENTICATE:
            return await self._authenticate(request.values["auth_bytes"] or b"")
        if not self._is_open and request.api is not messages.VERSIONS:
            raise MalformedRequest("a request before it logged in")
        return await self._answers.answer(self._client, request)

    def _handshake(self, mechanism: str | None) -> dict[str, Any]:
        mechanisms = self._security.mechanisms
        if mechanism not in mechanisms:
            return {"error_code": UNSUPPORTED_SASL_MECHANISM, "mechanisms": mechanisms}
        self._mechanism, self._exchange = mechanism, None
        return {"mechanisms": mechanisms}

    async def _authenticate(self, message: bytes) -> dict[str, Any]:
        logins, mechanism = self._security.logins, self._mechanism
        if logins is None or mechanism is None or self._is_open:
            return {"error_code": ILLEGAL_SASL_STATE, "error_message": "a handshake comes first", "auth_bytes": b""}
        user, said = None, b""
        try:
            if mechanism == PLAIN:
                user = await asyncio.to_thread(logins.plain, message)
            elif self._exchange is None:
                said, self._exchange = logins.begin(mechanism, message)
            else:
                said, user = logins.finish(mechanism, self._exchange, message)
        except LoginFailed as error:
            log.warning("a login of %s failed: %s", self._writer.get_extra_info("peername"), error)
            return {"error_code": SASL_AUTHENTICATION_FAILED, "error_message": str(error), "auth_bytes": b""}
        if user is not None:
            self._is_open = True
            self._client.may_read = user.may_read
        return {"auth_bytes": said}

    async def _send(self, request: Request, values: Mapping[str, Any]) -> None:
        pieces = response_pieces(request.api, request.version, request.correlation, values)
        size = sum(map(len, pieces))
        self._answers.reading.counts["bytes sent"] += size
        self._writer.write(struct.pack(">i", size))
        for piece in pieces:
            self._writer.write(piece)
            del piece
            await self._drained()

    async def _drained(self) -> None:
        """Return when the client has taken enough; raise TimeoutError if it takes nothing for a while."""
        draining = asyncio.ensure_future(self._writer.drain())
        left = -1
        try:
            while not (await asyncio.wait({draining}, timeout=_STALLED_SECONDS))[0]:
                before, left = left, self._writer.transport.get_write_buffer_size()
                if left == before:
                    raise TimeoutError
            await draining
        finally:
            draining.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await draining

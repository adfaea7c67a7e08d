"""Connections of `replayer broker`: hostile and slow peers, logins that do not come, and an orderly end."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from replayer.broker import connections
from replayer.broker.connections import BrokerServer, Listener, Security, ServerCertificate
from replayer.broker.users import BrokerLogins, new_user
from tests.replayer.broker.test_broker_messages import encoded
from tests.replayer.broker.test_fetches import opened
from tests.support.archives import MemoryArchiveWriter, records

VERSIONS = encoded(18, 0, {})
METADATA = encoded(3, 1, {"topics": None})
SECONDS = 10


@asynccontextmanager
async def listening(security: Security | None = None, **given: Any) -> AsyncIterator[tuple[BrokerServer, int]]:
    writer = MemoryArchiveWriter()
    writer.partition("orders", 0).commit(records(range(2000), value_bytes=5000), block_bytes=100_000)
    async with opened(writer) as endpoint:
        server = BrokerServer(endpoint.answers, security or Security(), **given)
        ((_, port),) = await server.listen([Listener("127.0.0.1", 0)])
        try:
            yield server, port
        finally:
            await server.close()


@asynccontextmanager
async def connected(port: int, count: int = 1, **given: Any) -> AsyncIterator[list[tuple[Any, Any]]]:
    """Connect so many peers."""
    peers = [await asyncio.open_connection("127.0.0.1", port, **given) for _ in range(count)]
    try:
        yield peers
    finally:
        for _, writer in peers:
            writer.transport.abort()
        for _, writer in peers:
            with suppress(ConnectionError):
                await writer.wait_closed()


async def send(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(struct.pack(">i", len(body)) + body)
    await writer.drain()


async def answered(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), SECONDS))
    return await asyncio.wait_for(reader.readexactly(size), SECONDS)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), SECONDS) == b""
    except ConnectionError:
        return True


def test_peers_that_announce_much_and_send_little_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 0.2)

    async def check() -> None:
        async with listening() as (server, port), connected(port, 50) as peers, connected(port) as [(reader, writer)]:
            for _, other in peers:
                other.write(struct.pack(">i", 1_000_000) + b"x" * 100)
            await send(writer, METADATA)
            assert b"orders" in await answered(reader)
            assert all(await asyncio.gather(*(is_closed(each) for each, _ in peers)))
            assert server.connections == 1

    asyncio.run(check())


def test_a_client_that_takes_no_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_STALLED_SECONDS", 0.1)
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    wanted = {"topics": [{"topic": "orders", "partitions": [place]}]}
    limits = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**26, "isolation_level": 0}

    async def check() -> None:
        async with listening() as (server, port), connected(port, limit=1024) as [(_, writer)]:
            for _ in range(100):
                await send(writer, encoded(1, 4, {**limits, **wanted}))
            async with asyncio.timeout(SECONDS):
                while server.connections:
                    await asyncio.sleep(0.01)

    asyncio.run(check())


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -5),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 12) + b"\xff" * 12,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_a_request_ends_the_connection(sent: bytes) -> None:
    async def check() -> None:
        async with listening() as (_, port), connected(port) as [(reader, writer)]:
            writer.write(sent)
            assert await is_closed(reader)

    asyncio.run(check())


def test_nothing_but_a_login_is_answered_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOGIN_SECONDS", 0.3)
    security = Security(logins=BrokerLogins({"anna": new_user("anna", (), "secret")}))

    async def check() -> None:
        async with listening(security) as (_, port):
            for request in (METADATA, b"x" * 20_000, None):
                async with connected(port) as [(reader, writer)]:
                    await send(writer, VERSIONS)
                    await answered(reader)
                    if request is not None:
                        await send(writer, request)
                    assert await is_closed(reader)
            async with connected(port) as [(reader, writer)]:
                await send(writer, encoded(17, 1, {"mechanism": "PLAIN"}))
                assert struct.unpack_from(">h", await answered(reader), 4) == (33,)  # not in the clear

    asyncio.run(check())


def test_there_are_at_most_so_many_connections() -> None:
    async def check() -> None:
        async with listening(most_connections=2) as (_, port), connected(port, 2) as peers:
            for reader, writer in peers:
                await send(writer, VERSIONS)
                await answered(reader)
            async with connected(port) as [(reader, _)]:
                assert await is_closed(reader)

    asyncio.run(check())


def certificate(folder: Path, number: int) -> tuple[Path, Path]:
    """A chain and a key as PEM files, in the place of former ones; the certificate has this serial number."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "archive.example")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), number, now, now + timedelta(days=1))
    chain, private = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain, private


def test_tls_with_passwords_the_name_that_was_asked_for_and_a_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_CERTIFICATE_SECONDS", 0.01)
    chain, key = certificate(tmp_path, 7)
    logins = BrokerLogins({"anna": new_user("anna", (), "secret")})
    security = Security(ServerCertificate(chain, key, None), logins)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def serial(port: int) -> int:
        async with connected(port, ssl=trusting, server_hostname="archive.example") as [(reader, writer)]:
            await send(writer, encoded(17, 1, {"mechanism": "PLAIN"}))
            await answered(reader)
            await send(writer, encoded(36, 1, {"auth_bytes": b"\0anna\0secret"}))
            assert struct.unpack_from(">h", await answered(reader), 4) == (0,)
            await send(writer, METADATA)
            assert b"archive.example" in await answered(reader)
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(der).serial_number

    async def check() -> None:
        async with listening(security) as (_, port):
            renewing = asyncio.create_task(security.renew())
            assert await serial(port) == 7
            key.write_text("half a key")  # as a tool that replaces one file after the other leaves it for a moment
            await asyncio.sleep(0.05)
            assert await serial(port) == 7
            certificate(tmp_path, 8)
            async with asyncio.timeout(SECONDS):
                while await serial(port) != 8:
                    await asyncio.sleep(0.02)
            renewing.cancel()

    asyncio.run(check())

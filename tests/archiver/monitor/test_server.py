"""What a running archiver serves."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry

from archiver.errors import ServiceUnreachable
from archiver.ingest.ownership import PartitionState
from archiver.monitor import server
from archiver.monitor.server import STALE_SECONDS, StatusServer, make_registry, service_snapshot, serving
from archiver.monitor.snapshot import LIVE_SECONDS, ServiceSnapshot
from blockgz.errors import UsageError
from blockgz.hosts import is_own_name
from tests.support.snapshots import partition, service


@contextmanager
def served(*snapshots: ServiceSnapshot, address: str = "127.0.0.1:0") -> Iterator[str]:
    """A server that shows these one after the other, the last for ever."""
    left = list(snapshots)

    def take() -> ServiceSnapshot:
        return left.pop(0) if len(left) > 1 else left[0]

    server = StatusServer(address, take, make_registry(take))
    try:
        yield server.url
    finally:
        server.close()


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics() -> None:
    with served(service(partition(0, durable_offset=42))) as url:
        status, content_type, body = get(f"{url}/metrics")
        assert (status, content_type.startswith("text/plain")) == (200, True)
        assert 'blockgz_durable_offset{partition="0",topic="orders"} 42.0' in body
        _, content_type, body = get(f"{url}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert content_type.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")


def test_health_and_readiness() -> None:
    late = service(heartbeat_age=LIVE_SECONDS + 40)
    waiting = service(partition(0), partition(1, PartitionState.WAITING))
    stuck = service(partition(0), *(partition(number, stuck="it is paused") for number in range(1, 14)), paused=True)
    silent = service(partition(0), watermarks_age=STALE_SECONDS)
    with served(service(), late, service(), service(joined=False), waiting, stuck, stuck, silent) as url:
        assert get(f"{url}/healthz") == (200, "text/plain", "ok\n")
        assert get(f"{url}/healthz") == (503, "text/plain", "the main loop has not moved for 100 s\n")
        assert get(f"{url}/readyz") == (200, "text/plain", "ok\n")
        assert get(f"{url}/readyz") == (503, "text/plain", "not a member of the consumer group yet\n")
        assert get(f"{url}/readyz") == (503, "text/plain", "1 of 2 partitions are not archived: orders:1 is waiting\n")
        named = ", ".join(f"orders:{number}: it is paused" for number in range(1, 11))
        told = (
            f"13 of 14 partitions make no progress: {named} and 3 more; "
            "fetching is paused, because memory or the buffer is full\n"
        )
        assert get(f"{url}/readyz") == (503, "text/plain", told)
        assert get(f"{url}/healthz")[0] == 200, "a restart would not help"
        assert get(f"{url}/readyz") == (503, "text/plain", "no broker has reported where the logs end for 300 s\n")


def test_status_is_the_snapshot() -> None:
    snapshot = service(partition(0, durable_offset=42, lag_seconds=1.5), partition(1, PartitionState.STOPPED))
    with served(snapshot) as url:
        assert service_snapshot(url) == snapshot
        assert service_snapshot(url.removeprefix("http://") + "/") == snapshot


def test_nothing_else_is_served() -> None:
    with served(service()) as url:
        status, _, body = get(f"{url}/")
        assert (status, body) == (404, "there are /metrics /healthz /readyz /status\n")
        assert get(f"{url}/healthz?verbose=1", "HEAD") == (200, "text/plain", "")
        assert get(f"{url}/healthz", "POST")[0] == 501


def test_version_6_addresses() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        with served(service(), address="[::1]:0") as url:
            assert get(f"{url}/healthz")[0] == 200
    except UsageError as error:
        pytest.skip(f"this machine has no IPv6 address: {error.why}")


def test_a_port_that_is_taken_is_reported() -> None:
    with served(service()) as url, pytest.raises(UsageError, match="cannot be opened") as caught:
        StatusServer(url.removeprefix("http://"), service, CollectorRegistry())
    assert caught.value.why == "Address already in use"
    assert ":9464" not in caught.value.remedy, "no port is proposed that may be the taken one"


def test_serving_ends_with_its_context() -> None:
    before = threading.active_count()
    with serving("127.0.0.1:0", service):
        assert threading.active_count() > before
    assert threading.active_count() == before


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 200 OK\r\n\r\n{}", b"nonsense\r\n\r\n"])
def test_a_stranger_is_not_an_archiver(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ServiceUnreachable, match="no archiver answers"):
            service_snapshot(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_nobody_there() -> None:
    with pytest.raises(ServiceUnreachable):
        service_snapshot("127.0.0.1:1")
    with pytest.raises(UsageError):
        service_snapshot("ftp://127.0.0.1")


def answered(url: str, request: bytes) -> bytes:
    """The answer, headers and all, to a request as it is."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_no_version_is_named() -> None:
    with served(service()) as url:
        for request in (b"GET /healthz HTTP/1.0\r\n\r\n", b"NONSENSE /\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"):
            answer = answered(url, request)
            assert answer and b"Python" not in answer and b"BaseHTTP" not in answer


@pytest.mark.parametrize(
    ("bound", "asked", "is_own"),
    [
        ("127.0.0.1", "127.0.0.1:9464", True),
        ("127.0.0.1", "localhost", True),
        ("localhost", "LOCALHOST:9464", True),
        ("::1", "[::1]:9464", True),
        ("127.0.0.1", None, True),
        ("127.0.0.1", "evil.example:9464", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("localhost", "[", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "archiver.example:9464", True),
        ("", "archiver.example:9464", True),
    ],
)
def test_names_of_a_loopback_address(bound: str, asked: str | None, is_own: bool) -> None:
    assert is_own_name(bound, asked) is is_own


def test_another_name_for_loopback_is_refused() -> None:
    with served(service()) as url:
        assert get(f"{url}/status", Host="evil.example")[0] == 421
        assert get(f"{url}/status", Host="localhost")[0] == 200


def test_long_headers_are_refused() -> None:
    with served(service()) as url:
        assert get(f"{url}/healthz", Padding="x" * (server.MAX_HEAD_BYTES // 2))[0] == 200
        many = {f"Padding-{number}": "x" * 2000 for number in range(1 + server.MAX_HEAD_BYTES // 2000)}
        assert get(f"{url}/healthz", **many)[0] == 431


def test_silent_connections_end_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    with served(service()) as url:
        assert answered(url, b"GET /healthz HTT") == b""


def test_the_oldest_of_too_many_connections_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with served(service()) as url, ExitStack() as stack:
        parts = urlsplit(url)
        address = (parts.hostname, parts.port)
        silent = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(3)]
        assert get(f"{url}/healthz")[0] == 200
        assert silent[0].recv(1) == b""
        silent[2].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert silent[2].recv(65536).startswith(b"HTTP/1.0 200")

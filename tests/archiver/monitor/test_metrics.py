"""Metrics and what they are made of."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from archiver.errors import ServiceUnreachable
from archiver.ingest.backpressure import STALL_SECONDS
from archiver.ingest.ownership import PartitionState
from archiver.monitor import server
from archiver.monitor.server import STALE_SECONDS, StatusServer, make_registry, readiness, service_snapshot, serving
from archiver.monitor.snapshot import (
    LIVE_SECONDS,
    MaintenanceSnapshot,
    ServiceSnapshot,
    lag_records,
    lag_seconds,
    progress_seconds,
    why_stuck,
)
from blockgz.errors import UsageError
from blockgz.hosts import is_own_name
from blockgz.kafka import LogBounds
from tests.support.snapshots import partition, service

PAGE = (Path(__file__).parents[3] / "docs/monitoring.md").read_text()
NOW_MS = 1_760_000_100_000


def test_metrics_are_as_documented() -> None:
    families = make_registry(service).collect()
    served = {
        (
            family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else ""),
            family.type,
        )
        for family in families
    }
    table = PAGE.partition("## Metrics")[2].partition("## Log")[0]
    documented = set(re.findall(r"^\| `(\w+)` \| (gauge|counter) \| \S.* \|.*\|$", table, re.MULTILINE))
    assert {(name, "gauge" if kind == "info" else kind) for name, kind in served} == documented


def test_values_come_from_one_snapshot_at_the_time_of_the_scrape() -> None:
    taken = []

    def take() -> object:
        taken.append(1)
        return service(
            partition(0, durable_offset=90, lag_records=10, records=90, retries=2, unstable_records=4, stuck="x"),
            partition(1, PartitionState.CLAIMING),
            partition(2, PartitionState.STOPPED, failure="the log diverged"),
            partition(3, PartitionState.RELEASED, records=7),
        )

    registry = make_registry(take)  # type: ignore[arg-type]
    assert not taken
    text = generate_latest(registry).decode()
    assert len(taken) == 1
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["blockgz_durable_offset", "0", "orders"] == 90
    assert samples["blockgz_lag_records", "0", "orders"] == 10
    assert samples["blockgz_retries_total", "0", "orders"] == 2
    assert samples["blockgz_archived_records_total", "3", "orders"] == 7, "a counter outlives the ownership"
    assert ("blockgz_lag_records", "1", "orders") not in samples, "what is not known is not 0"
    assert samples["blockgz_unstable_records", "0", "orders"] == 4
    assert samples["blockgz_partition_paused", "0", "orders"] == 0
    assert samples["blockgz_stuck_partitions",] == 1
    assert samples["blockgz_assigned_partitions",] == 3
    assert samples["blockgz_unowned_partitions",] == 2
    assert samples["blockgz_stopped_partitions",] == 1
    assert samples["blockgz_memory_bytes", "open_blocks"] == 20
    assert ("blockgz_watermarks_age_seconds",) not in samples
    assert ("blockgz_groups_age_seconds",) not in samples
    assert (samples["blockgz_group_tables_total",], samples["blockgz_group_failures_total",]) == (40, 2)


def test_maintenance_has_values_where_there_is_a_policy() -> None:
    maintenance = MaintenanceSnapshot(
        retention_age_seconds=7.5,
        compaction_age_seconds=None,
        pruned_chunks=64,
        merged_chunks=3,
        moved_bytes=99,
        retention_failures=2,
        compaction_failures=0,
    )
    partitions = partition(0, epoch=1, retired=5, retired_bytes=600), partition(1, PartitionState.CLAIMING)

    def samples(found: MaintenanceSnapshot | None) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in make_registry(lambda: service(*partitions, maintenance=found)).collect()
            for sample in family.samples
        }

    told = samples(maintenance)
    assert told["blockgz_maintenance_age_seconds", "retention"] == 7.5
    assert ("blockgz_maintenance_age_seconds", "compaction") not in told
    assert told["blockgz_maintenance_failures_total", "retention"] == 2
    assert (told["blockgz_pruned_chunks_total",], told["blockgz_merged_chunks_total",]) == (64, 3)
    assert told["blockgz_maintenance_bytes_total",] == 99
    assert (told["blockgz_retired_rewrites", "0", "orders"], told["blockgz_retired_bytes", "0", "orders"]) == (5, 600)
    assert ("blockgz_retired_rewrites", "1", "orders") not in told
    assert {name for name, *_ in told.keys() - samples(None).keys()} == {
        "blockgz_maintenance_age_seconds",
        "blockgz_maintenance_failures_total",
        "blockgz_pruned_chunks_total",
        "blockgz_merged_chunks_total",
        "blockgz_maintenance_bytes_total",
    }


def test_a_service_is_live_and_ready() -> None:
    ready = service(partition(0), partition(1, PartitionState.DONE), partition(2, PartitionState.RELEASED))
    assert ready.is_live
    assert readiness(ready) is None
    assert readiness(service()) is None, "there may be no partition left for this process"
    assert readiness(service(joined=False)) is not None
    assert readiness(service(partition(0), partition(1, PartitionState.WAITING))) is not None
    assert not service(heartbeat_age=LIVE_SECONDS + 1).is_live


BOUNDS = LogBounds(10, 100)


@pytest.mark.parametrize(
    ("reach", "bounds", "records", "seconds"),
    [
        ((None, None, None, None), None, None, None),
        ((None, 10, None, None), BOUNDS, 90, None),
        ((100, 100, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
        ((90, 100, NOW_MS - 3000, NOW_MS - 5000), BOUNDS, 10, 3.0),
        ((90, 100, NOW_MS - 3000, NOW_MS - 5000), None, None, 3.0),
        ((90, 100, NOW_MS + 3000, None), BOUNDS, 10, 0.0),
        ((90, 100, -1, NOW_MS - 5000), BOUNDS, 10, None),
        ((90, 100, None, NOW_MS - 5000), BOUNDS, 10, 0.0),
        ((90, 92, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        ((90, None, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        ((5, 10, None, NOW_MS - 5000), BOUNDS, 90, 5.0),
        ((120, 120, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
    ],
    ids=[
        "nothing known",
        "nothing archived yet",
        "all archived",
        "records in an open chunk",
        "bounds not asked yet",
        "a clock ahead of this one",
        "records without a timestamp",
        "only holes are not durable",
        "records that were not read yet",
        "not owned right now",
        "retention passed the archive",
        "bounds older than the archive",
    ],
)
def test_lag(
    reach: tuple[int | None, ...], bounds: LogBounds | None, records: int | None, seconds: float | None
) -> None:
    durable, position, oldest_ms, newest_ms = reach
    assert lag_records(durable, bounds) == records
    age = lag_seconds(
        durable, position, bounds, oldest_uncommitted_ms=oldest_ms, newest_durable_ms=newest_ms, wall_ms=NOW_MS
    )
    assert age == seconds


PROGRESS = progress_seconds(chunk_interval_seconds=300)


def test_short_chunks_leave_a_minute() -> None:
    assert (progress_seconds(300), progress_seconds(1)) == (900, 60)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, None),
        ({"paused_seconds": STALL_SECONDS - 1}, None),
        ({"paused_seconds": STALL_SECONDS + 5}, "paused for 15 s: its commit does not finish, or the buffer is full"),
        ({"uncommitted_seconds": PROGRESS - 1, "commit_age_seconds": 10**6}, None),
        ({"uncommitted_seconds": PROGRESS}, "records have been waiting for their commit for 900 s"),
        ({"fetch_age_seconds": 10**6, "log_end_offset": 5, "unfetched_records": 0}, None),
        ({"fetch_age_seconds": PROGRESS - 1, "unfetched_records": 7}, None),
        (
            {"fetch_age_seconds": PROGRESS, "log_end_offset": 5, "unfetched_records": 7},
            "nothing was fetched for 900 s, although there are records",
        ),
        ({"fetch_age_seconds": PROGRESS}, "nothing was fetched for 900 s, and no broker answers for its log"),
    ],
    ids=[
        "just claimed",
        "a commit that takes long",
        "a commit that hangs",
        "a chunk that takes long",
        "an old chunk",
        "nothing is produced",
        "records came a moment ago",
        "records are not fetched",
        "no leader",
    ],
)
def test_a_partition_without_progress_is_stuck(found: dict[str, Any], why: str | None) -> None:
    assert why_stuck(partition(0, **found), PROGRESS, logs_answer=True) == why
    elsewhere = partition(0, PartitionState.RELEASED, **found)
    assert why_stuck(elsewhere, PROGRESS, logs_answer=True) is None


def test_where_no_broker_tells_ends_at_all_no_partition_is_blamed() -> None:
    assert why_stuck(partition(0, fetch_age_seconds=PROGRESS), PROGRESS, logs_answer=False) is None


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

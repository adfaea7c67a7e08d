"""The application as a whole: requests made up from its schema, and clients that go away."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case

from blockgz.store.local import LocalReader
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import page_client, page_server, settings_of
from tests.support.sampling import LONG
from tests.support.terminal import printed

EXAMPLES = 300 if LONG else 8
"""For each operation."""
LONG_SECONDS = 1800
ANSWER_SECONDS = 30
OF_STORE_AND_CLUSTER = (502, 503)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("served")
    writer = ArchiveWriter(root / "archive")
    for number in range(2):
        writer.partition("orders", number).commit(records(range(200)))
    with page_server(settings_of(root / "archive", jobs=str(root / "jobs"))) as url:
        yield url


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.timeout(LONG_SECONDS if EXAMPLES > 100 else 120)
def test_requests_made_up_from_the_schema_meet_no_bug(served: str) -> None:
    schema = schemathesis.openapi.from_url(f"{served}/api/v1/openapi.json")
    for found in schema.get_all_operations():

        @given(case=found.ok().as_strategy())
        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def ask(case: Case) -> None:
            answer = case.call(timeout=ANSWER_SECONDS)
            assert answer.status_code < 500 or answer.status_code in OF_STORE_AND_CLUSTER, answer.text
            if answer.status_code >= 400:
                assert set(answer.json()) == {"error", "why", "do"}, answer.text

        ask()


def test_a_parameter_that_an_operation_does_not_take_is_refused(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(3)))
    with page_client(settings_of(tmp_path)) as asking:
        paths = asking.get("/api/v1/openapi.json").json()["paths"]
        operations = [(method, path) for path, found in paths.items() for method in found]
        for method, path in [*operations, ("get", "/api/v1/openapi.json")]:
            for part in ("{topic}", "{partition}", "{position}", "{name}", "{part}", "{action}"):
                path = path.replace(part, "orders" if part == "{topic}" else "0")  # noqa: PLW2901
            answer = asking.request(method, path, params={"sicne": "-1h"})
            assert answer.status_code == 400, path
            assert "'sicne'" in answer.json()["error"], path


def test_the_schema_documents_every_operation(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path)
    with page_client(settings_of(tmp_path)) as asking:
        schema = asking.get("/api/v1/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) > 18
    assert all(operation.get("description") for operation in operations)
    assert all("400" in operation["responses"] and "422" not in operation["responses"] for operation in operations)


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_client_that_goes_away_ends_what_it_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    for start in range(0, 4_000, 100):
        partition.commit(records(range(start, start + 100), value_bytes=20_000), block_bytes=100_000)
    ranges = 0
    get_range = LocalReader.get_range

    async def counted(self: LocalReader, key: str, start: int, end: int) -> bytes:
        nonlocal ranges
        ranges += 1
        return await get_range(self, key, start, end)

    monkeypatch.setattr(LocalReader, "get_range", counted)
    with page_server(settings_of(tmp_path)) as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as client:
            path = "/api/v1/topics/orders/partitions/0/records?n=100000"
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            received = 0
            while received < 1_000_000:
                received += len(client.recv(100_000))
        seen = [-1, ranges]

        def is_quiet() -> bool:
            seen.append(ranges)
            time.sleep(0.05)
            return seen[-1] == seen[-2] == ranges

        until(is_quiet)
        assert 0 < ranges < 30, "the rest of 80 MB was read for nobody"


def test_a_question_that_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(10)))
    events: list[str] = []

    async def hanging(_: LocalReader, *__: object) -> bytes:
        events.append("asked")
        try:
            await asyncio.sleep(60)
        finally:
            events.append("ended")
        return b""

    monkeypatch.setattr(LocalReader, "get_range", hanging)
    with page_server(settings_of(tmp_path)) as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as client:
            path = "/api/v1/topics/orders/partitions/0/page"
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            until(lambda: events == ["asked"])
        until(lambda: events == ["asked", "ended"])
    assert printed(capfd) == []

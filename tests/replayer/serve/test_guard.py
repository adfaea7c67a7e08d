"""The page as a whole: who may ask what, how many answers at once, and record content for people."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from starlette.testclient import TestClient

from blockgz.errors import NotInArchive, StoreBusy, StoreUnavailable, UsageError
from blockgz.store.local import LocalReader
from index_format.records import Record
from replayer.serve import content, guard, service, tasks
from replayer.serve.content import MOST_NODES, Node, hex_dump, json_tree, preview_of, shown
from replayer.serve.errors import MAX_BODY_BYTES
from replayer.serve.guard import HEADERS, LOGINS_A_MINUTE, SESSION_SECONDS, Logins
from replayer.serve.service import PIECE_BYTES, Bound, BoundedAnswer, pieces
from replayer.serve.settings import Access, parse_network, read_token
from replayer.serve.tasks import MOST_RUNNING, Task, Tasks, events, steer
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import (
    BROWSER,
    URL,
    form_token,
    get_page,
    page_client,
    page_server,
    send_form,
    settings_of,
)
from tests.support.sampling import LONG, seeded_random
from tests.support.terminal import printed

TOKEN = "0123456789abcdef0123"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(10)))
    return tmp_path


@pytest.fixture
def local(archived: Path) -> Iterator[TestClient]:
    with page_client(settings_of(archived)) as asking:
        yield asking


@pytest.fixture
def with_token(archived: Path) -> Iterator[TestClient]:
    with page_client(settings_of(archived, Access("0.0.0.0", TOKEN)), "10.0.0.9") as asking:
        yield asking


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_only_names_of_this_machine_are_answered(local: TestClient, host: str, status: int) -> None:
    for path in ("/", "/api/v1/topics", "/static/page.js", "/healthz"):
        assert local.get(path, headers={"host": host}).status_code == status


def test_names_that_are_allowed(archived: Path) -> None:
    access = Access("0.0.0.0", TOKEN, allowed_hosts=frozenset({"page.example"}))
    with page_client(settings_of(archived, access)) as asking:
        assert asking.get("/api/v1/topics", headers=BEARER | {"host": "page.example"}).status_code == 200
        assert asking.get("/api/v1/topics", headers=BEARER | {"host": "Page.Example:443"}).status_code == 200
        assert asking.get("/api/v1/topics", headers=BEARER | {"host": "127.0.0.1:8080"}).status_code == 200
        assert asking.get("/api/v1/topics", headers=BEARER | {"host": "other.example"}).status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"origin": URL}, 400),
        ({"origin": URL, "sec-fetch-site": "same-origin"}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "127.0.0.1:8080"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "origin": URL}, 403),
    ],
)
def test_what_changes_something_comes_from_here(local: TestClient, headers: dict[str, str], status: int) -> None:
    """A good origin gets as far as the job's kind, which is missing."""
    assert local.post("/api/v1/jobs", json={}, headers=headers).status_code == status


def test_a_form_of_another_page_is_refused(local: TestClient) -> None:
    for form in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}):
        answer = local.post("/verify", data={"sample": "5", **form}, headers=BROWSER | {"origin": URL})
        assert answer.status_code == 400
        assert "the form cannot be used" in answer.text
    assert send_form(local, "/verify", sample="100", depth="structure").status_code == 303


@pytest.mark.slow
def test_every_answer_keeps_hostile_content_harmless(local: TestClient) -> None:
    for path in ("/", "/nothing", "/api/v1/topics", "/api/v1/nothing", "/static/page.js", "/api/v1/openapi.json"):
        answer = local.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_bodies_are_bounded(local: TestClient) -> None:
    large = b"x" * (MAX_BODY_BYTES + 1)
    kinds = {"/api/v1/jobs": "application/json", "/verify": "application/x-www-form-urlencoded"}
    for path, kind in kinds.items():
        parts = (large[start : start + 1000] for start in range(0, len(large), 1000))
        for body in (large, parts):
            answer = local.post(path, content=body, headers={"content-type": kind})
            assert answer.status_code == 413
            told = answer.json()
            assert set(told) == {"error", "why", "do"} and all(told.values())
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert local.post("/api/v1/jobs", content=b"{}", headers={"content-type": "text/plain"}).status_code in (400, 415)


def test_without_a_token_nothing_is_told(with_token: TestClient) -> None:
    for path in ("/api/v1/topics", "/api/v1/openapi.json", "/nothing"):
        answer = with_token.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["do"] == "send the header Authorization: Bearer TOKEN"
    page = with_token.get("/topics/orders?scale=offset", headers=BROWSER)
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ftopics%2Forders%3Fscale%3Doffset")
    login = with_token.get("/login", headers=BROWSER)
    assert login.status_code == 200
    assert "orders" not in login.text and "file://" not in login.text
    assert with_token.get("/healthz").text == "ok\n"
    assert with_token.get("/static/page.css").status_code == 200


def test_a_token_opens_everything(with_token: TestClient) -> None:
    assert with_token.get("/api/v1/topics", headers=BEARER).json()["topics"][0]["topic"] == "orders"
    assert with_token.get("/api/v1/topics", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401
    assert with_token.get("/api/v1/topics", headers={"authorization": f"bearer {TOKEN} "}).status_code == 200


def test_a_session_of_a_browser(with_token: TestClient) -> None:
    token = form_token(with_token, "/login")
    wrong = with_token.post("/login", data={"csrf": token, "token": "x" * 20}, headers={"origin": URL})
    assert wrong.status_code == 401
    assert "That is not the token." in wrong.text
    right = with_token.post(
        "/login", data={"csrf": token, "token": TOKEN, "next": "/topics/orders"}, headers={"origin": URL}
    )
    assert (right.status_code, right.headers["location"]) == (303, "/topics/orders")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert ">orders<" in get_page(with_token, "/")
    assert send_form(with_token, "/logout").headers["location"] == "/login"
    with_token.cookies.clear()
    assert with_token.get("/", headers=BROWSER).status_code == 303


@pytest.mark.parametrize("where", ["https://evil.example", "//evil.example", "/\\evil.example", ""])
def test_a_login_leads_to_this_server(with_token: TestClient, where: str) -> None:
    token = form_token(with_token, "/login")
    fields = {"csrf": token, "token": TOKEN, "next": where}
    assert with_token.post("/login", data=fields, headers={"origin": URL}).headers["location"] == "/"


def test_a_session_ends_and_belongs_to_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Logins(TOKEN)
    cookie = logins.session()
    assert logins.is_session(cookie)
    assert not Logins("another-token-of-20-").is_session(cookie)
    assert not logins.is_session(cookie[:-1])
    assert not logins.is_session("in")
    monkeypatch.setattr(guard, "SESSION_SECONDS", -1)
    assert not logins.is_session(cookie)
    assert SESSION_SECONDS <= 24 * 3600


def test_guesses_are_few_a_minute(archived: Path) -> None:
    time = [0.0]
    logins = Logins(TOKEN, lambda: time[0])
    assert [logins.may_fail() for _ in range(LOGINS_A_MINUTE + 1)] == [True] * LOGINS_A_MINUTE + [False]
    time[0] = 61
    assert logins.may_fail()
    with page_client(settings_of(archived, Access("0.0.0.0", TOKEN))) as asking:
        guesses = [asking.get("/api/v1/topics", headers={"authorization": f"Bearer {n:020}"}) for n in range(15)]
        assert [each.status_code for each in guesses] == [401] * LOGINS_A_MINUTE + [429] * 5
        assert asking.get("/api/v1/topics", headers=BEARER).status_code == 200, "guesses lock nobody out"


def test_a_user_is_believed_from_a_trusted_proxy_only(archived: Path) -> None:
    access = Access("0.0.0.0", None, "X-User", (parse_network("10.0.0.0/8"),))
    named = {"x-user": "ada"}
    with page_client(settings_of(archived, access), "10.1.2.3") as asking:
        assert asking.get("/api/v1/topics", headers=named).status_code == 200
        assert asking.get("/api/v1/topics").status_code == 401
        assert asking.get("/api/v1/topics", headers=[("x-user", "ada"), ("x-user", "root")]).status_code == 401
        job = asking.post("/api/v1/jobs", json={"kind": "verify", "depth": "structure"}, headers=named).json()
        assert job["user"] == "ada"
    with page_client(settings_of(archived, access), "192.0.2.1") as asking:
        assert asking.get("/api/v1/topics", headers=named).status_code == 401


def test_a_token_is_taken_from_a_trusted_proxy_that_names_nobody(archived: Path) -> None:
    access = Access("0.0.0.0", TOKEN, "X-User", (parse_network("10.0.0.0/8"),))
    with page_client(settings_of(archived, access), "10.1.2.3") as asking:
        assert asking.get("/api/v1/topics", headers=BEARER).status_code == 200
        assert asking.get("/api/v1/topics", headers={"x-user": ""}).status_code == 401
        unnamed = [asking.get("/api/v1/topics", headers=BEARER | {"x-user": ""}) for _ in range(LOGINS_A_MINUTE + 1)]
        assert {each.status_code for each in unnamed} == {401}, "the right token is no guess"
        assert asking.get("/api/v1/topics").status_code == 401


@pytest.mark.parametrize("header", ["X User", "Host", "authorization", "", "x" * 200])
def test_a_header_that_names_no_user_is_refused(header: str) -> None:
    with pytest.raises(UsageError, match="cannot name users"):
        Access("127.0.0.1", None, header, (parse_network("10.0.0.0/8"),))


def test_a_page_for_everybody_is_refused() -> None:
    with pytest.raises(UsageError, match="has no effect"):
        Access("127.0.0.1", None, None, (parse_network("10.0.0.0/8"),))
    with pytest.raises(UsageError, match="for everybody"):
        Access("0.0.0.0")
    with pytest.raises(UsageError, match="is not safe without"):
        Access("0.0.0.0", None, "X-User")
    assert not Access("127.0.0.1").is_trusted_proxy("unix")


def test_tokens_that_are_easily_guessed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("", "short", "with blanks 0123456789", "ä" * 20):
        path.write_text(text)
        with pytest.raises(UsageError, match="cannot be used"):
            read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert read_token(path) == TOKEN
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(UsageError, match="not an address"):
        parse_network("proxy.example")


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "", "multipart/form-data; boundary=x"])
def test_a_body_that_is_no_json_is_not_read(archived: Path, kind: str) -> None:
    with page_client(settings_of(archived)) as asking:
        refused = asking.post("/api/v1/jobs", content=b'{"kind": "verify"}', headers={"content-type": kind})
        assert (refused.status_code, refused.json()["error"]) == (415, "the body is not JSON")
        taken = asking.post(
            "/api/v1/jobs", content=b'{"kind": "verify"}', headers={"content-type": "Application/JSON; charset=utf-8"}
        )
        assert taken.status_code != 415
        assert asking.post("/api/v1/jobs/none/pause").status_code == 404, "without a body"


ORDERS = "/api/v1/topics/orders/partitions/0"
LARGE = b"x" * 12_000_000
"""More than the kernel holds for a client that does not read."""


@pytest.fixture
def archived_lines(tmp_path: Path) -> Path:
    partition = ArchiveWriter(tmp_path).partition("orders", 0)
    partition.commit([*records(range(50)), Record(50, 1, 0, b"k", LARGE, ())])
    return tmp_path


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


@contextmanager
def unread(url: str, path: str) -> Iterator[socket.socket]:
    """A client that asks and reads nothing but the status."""
    place = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((place.hostname, place.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


def status(url: str, path: str) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_a_bound_is_told_and_given_back() -> None:
    bound = Bound(1, "streams")

    async def send(_: object) -> None:
        """Nobody listens."""

    async def never(*_: object) -> dict[str, str]:
        return await asyncio.Event().wait() or {}

    async def run() -> None:
        answer = BoundedAnswer(bound, pieces(LARGE), "text/plain")
        with pytest.raises(StoreBusy, match="1 streams are being sent"):
            BoundedAnswer(bound, pieces(LARGE), "text/plain")
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, never, send)  # type: ignore[arg-type]
        assert bound.held == 0
        assert [len(piece) async for piece in pieces(b"x" * (PIECE_BYTES + 1))] == [PIECE_BYTES, 1]

    asyncio.run(run())


@pytest.mark.slow
def test_streams_leave_room_for_pages(archived_lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_STREAMS", 0)
    with page_client(settings_of(archived_lines)) as asking:
        refused = asking.get(f"{ORDERS}/records")
        assert (refused.status_code, refused.json()["do"]) == (503, "close some of them, and try again")
        assert asking.get(f"{ORDERS}/page").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("path", [f"{ORDERS}/records/50", f"{ORDERS}/records/50/value", f"{ORDERS}/records?n=51"])
def test_a_client_that_reads_nothing_has_one_place_until_it_goes(
    archived_lines: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(service, "MOST_LARGE", 1)
    monkeypatch.setattr(service, "MOST_STREAMS", 1)
    with page_server(settings_of(archived_lines)) as url:
        with unread(url, path):
            assert status(url, path) == 503
            assert status(url, f"{ORDERS}/records/3") == 200, "small answers wait for nobody"
        until(lambda: status(url, path) == 200)


@pytest.mark.slow
def test_a_large_answer_is_whole(archived_lines: Path) -> None:
    with page_client(settings_of(archived_lines)) as asking:
        value = asking.get(f"{ORDERS}/records/50/value")
        assert value.content == LARGE
        assert value.headers["content-length"] == str(len(LARGE))
        assert value.headers["content-disposition"] == 'attachment; filename="orders-0-50.value"'
        assert asking.get(f"{ORDERS}/records/50").json()["record"]["value"] == LARGE.decode()


@pytest.mark.slow
def test_an_archive_that_hangs_holds_up_no_page_of_what_is_known(
    archived_lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every thread that reads the archive waits for it."""
    reports, goes_on, hanging = tmp_path / "reports", threading.Event(), 0
    reports.mkdir()

    def hang(*_: object) -> bytes:
        nonlocal hanging
        hanging += 1
        goes_on.wait()
        raise StoreUnavailable("it did not answer")

    known = ("/", "/topics/orders", "/jobs", "/verify", "/archivers", "/api/v1/reports", "/healthz")
    with page_server(settings_of(archived_lines, reports=reports, jobs=str(tmp_path / "jobs"))) as url:
        until(lambda: status(url, "/api/v1/topics/orders/coverage") == 200)
        with monkeypatch.context() as patched, ThreadPoolExecutor(64) as pool:
            patched.setattr(LocalReader, "_get", hang)
            asked = [pool.submit(status, url, f"{ORDERS}/page") for _ in range(64)]
            try:
                until(lambda: hanging > 5)
                assert {path: status(url, path) for path in known} == dict.fromkeys(known, 200)
            finally:
                goes_on.set()
            assert {each.result() for each in asked} == {503}


@pytest.mark.slow
def test_few_read_at_once(archived_lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READS_AT_ONCE", 2)
    read, reading, most = LocalReader.get_range, 0, 0

    async def counted(self: LocalReader, key: str, start: int, end: int) -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(100):
            await asyncio.sleep(0)
        reading -= 1
        return await read(self, key, start, end)

    monkeypatch.setattr(LocalReader, "get_range", counted)
    paths = (f"{ORDERS}/page?n=1", f"{ORDERS}/records/7", f"{ORDERS}/records/8/key", "/topics/orders/0")
    with page_server(settings_of(archived_lines)) as url, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda path: status(url, path), paths * 4))
    assert (set(answers), most) == ({200}, 2)


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


def until_true(holds: Callable[[], bool], seconds: float = 10.0) -> None:
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

        until_true(is_quiet)
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
            until_true(lambda: events == ["asked"])
        until_true(lambda: events == ["asked", "ended"])
    assert printed(capfd) == []


HOSTILE = "\x1b[31m\u202eevil\u2066\u0000\x9b\r"


def test_null_empty_text_and_binary() -> None:
    assert shown(None).size == "null"
    empty = shown(b"")
    assert (empty.text, empty.tree, empty.hex) == ("", None, "")
    binary = shown(b"\xff\xfe")
    assert (binary.text, binary.preview, binary.hex) == (None, "2 bytes binary", hex_dump(b"\xff\xfe"))
    assert shown("Kännchen ☕".encode()).text == "Kännchen ☕"


def test_what_a_browser_or_a_terminal_would_obey_is_escaped() -> None:
    found = shown(HOSTILE.encode())
    assert found.text is not None
    for text in (found.text, found.preview, preview_of(HOSTILE.encode())):
        assert not any(character in text for character in "\x1b\u202e\u2066\x00\x9b\r")
        assert "\\u202e" in text
    tree = json_tree(json.dumps({HOSTILE: [HOSTILE]}).encode())
    assert tree is not None
    assert "\u202e" not in str(tree)


def test_a_tree_keeps_numbers_names_and_order_as_they_are_written() -> None:
    tree = json_tree(b'{"b":12345678901234567890.10,"a":[1e3,null,true,"x"],"b":{},"c":[]}')
    assert tree is not None
    assert [(child.name, child.kind, child.text) for child in tree.children] == [
        ("b", "number", "12345678901234567890.10"),
        ("a", "array", "4"),
        ("b", "object", "0"),
        ("c", "array", "0"),
    ]
    assert [(child.kind, child.text) for child in tree.children[1].children] == [
        ("number", "1e3"),
        ("word", "null"),
        ("word", "true"),
        ("string", "x"),
    ]


@pytest.mark.parametrize("text", [b"17", b'"text"', b"null", b"{", b"\xff", b"[1,]", b"[" * 100_000])
def test_what_is_no_object_or_array_has_no_tree(text: bytes) -> None:
    assert json_tree(text) is None


def test_half_a_character_is_escaped() -> None:
    tree = json_tree(b'{"a\\udfff":["\\ud800"]}')
    assert tree is not None
    assert (tree.children[0].name, tree.children[0].children[0].text) == ("a\\udfff", "\\ud800")


def count(node: Node) -> int:
    return 1 + sum(map(count, node.children))


def test_a_tree_is_bounded() -> None:
    wide, deep = json_tree(json.dumps(list(range(10_000))).encode()), json_tree(b"[" * 400 + b"]" * 400)
    assert wide is not None and deep is not None
    assert count(wide) <= MOST_NODES + 1
    assert wide.children[-1].kind == "cut"
    assert count(deep) < 50


def test_large_content_is_cut_at_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "TEXT_BYTES", 10)
    for size in range(12, 18):
        found = shown(("ä" * size).encode())
        assert found.text == "ä" * 5
        assert found.is_cut
    found = shown(("x" + "ä" * 20).encode())
    assert found.text == "xääää"
    assert len(preview_of(b"long " * 10_000)) < 200


def test_hex() -> None:
    assert hex_dump(b"<script>\x00\xff") == ("00000000  3c 73 63 72 69 70 74 3e 00 ff                    <script>..")


def test_any_bytes_can_be_shown() -> None:
    rng = seeded_random()
    for _ in range(500):
        found = shown(rng.randbytes(rng.randrange(60)))
        assert found.hex is not None


async def endless(task: Task) -> None:
    task.all = 10
    while True:
        await task.may_go_on.wait()
        task.advance(1)
        await asyncio.sleep(0)


async def failing(_: Task) -> None:
    raise UsageError("it fails", why="so it is", remedy="nothing")


async def broken(_: Task) -> None:
    raise RuntimeError(" ".join(["secret", "content"]))


async def over(task: Task) -> Task:
    assert task.work is not None
    await asyncio.wait({task.work})
    return task


async def test_a_task_is_watched_paused_resumed_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EVENT_SECONDS", 0.0)
    task = Tasks().begin("search", "a search", "ada", endless, can_pause=True)
    seen = []
    async for document in events(task):
        seen.append(document)
        if len(seen) == 2:
            assert set(document["actions"]) == {"pause", "cancel"}
            steer(task, "pause")
            done = task.done
            for _ in range(5):
                await asyncio.sleep(0)
            assert task.done <= done + 1
            assert set(task.document["actions"]) == {"resume", "cancel"}
            steer(task, "resume")
        if len(seen) == 4:
            steer(task, "cancel")
    assert [document["state"] for document in seen][-1] == "cancelled"
    assert seen[1]["progress"] == {"done": seen[1]["progress"]["done"], "all": 10, "unit": "bytes"}
    with pytest.raises(UsageError, match="cannot be cancelled"):
        steer(task, "cancel")


def test_failures_are_told_bugs_without_content(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        begun = Tasks()
        failed = await over(begun.begin("verify", "t", "ada", failing))
        assert failed.document["failure"] == {"error": "it fails", "why": "so it is", "do": "nothing"}
        bug = await over(begun.begin("verify", "t", "ada", broken))
        assert bug.document["failure"]["why"] == "this is a bug"
        assert "secret" not in str(bug.document)

    asyncio.run(run())
    logged = capsys.readouterr().err
    assert "RuntimeError" in logged and "test_guard.py" in logged and "secret content" not in logged


async def test_tasks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_REMEMBERED", 3)
    begun = Tasks()
    for _ in range(MOST_RUNNING):
        begun.begin("search", "t", "ada", endless)
    with pytest.raises(UsageError, match="tasks are running"):
        begun.begin("search", "t", "ada", endless)
    await begun.close()
    for _ in range(5):
        await over(begun.begin("verify", "t", "ada", failing))
    assert len(list(begun)) <= 4
    with pytest.raises(NotInArchive):
        begun.get("search-1")


async def test_everybody_who_watches_sees_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EVENT_SECONDS", 0.0)
    task = Tasks().begin("search", "a search", "ada", endless)
    slow = events(task)
    await anext(slow)
    quick = events(task)
    await anext(quick)
    steer(task, "cancel")
    assert (await asyncio.wait_for(anext(quick), 5))["state"] == "cancelled"
    assert (await asyncio.wait_for(anext(slow), 5))["state"] == "cancelled"

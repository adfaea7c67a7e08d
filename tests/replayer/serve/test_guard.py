"""Who may ask the page what."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from blockgz.errors import UsageError
from replayer.serve import guard
from replayer.serve.errors import MAX_BODY_BYTES
from replayer.serve.guard import HEADERS, LOGINS_A_MINUTE, SESSION_SECONDS, Logins
from replayer.serve.settings import Access, parse_network, read_token
from tests.support.archives import ArchiveWriter, records
from tests.support.page_client import BROWSER, URL, form_token, get_page, page_client, send_form, settings_of

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
    for given in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}):
        answer = local.post("/verify", data={"sample": "5", **given}, headers=BROWSER | {"origin": URL})
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
        for content in (large, parts):
            answer = local.post(path, content=content, headers={"content-type": kind})
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

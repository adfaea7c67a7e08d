"""Access to the page: checked for every request, before any route.

Host and Origin keep other web pages out; a token or a trusted proxy says who asks; bodies are bounded; answers carry
the headers that keep hostile records harmless.
"""

import hashlib
import hmac
from collections import deque
from collections.abc import Callable
from time import monotonic
from urllib.parse import quote, urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blockgz.hosts import is_own_name
from replayer.serve.errors import MAX_BODY_BYTES, WORDS
from replayer.serve.settings import Access

SESSION = "blockgz_session"
SESSION_SECONDS = 12 * 3600
LOGINS_A_MINUTE = 10
OPEN_PATHS = ("/healthz", "/login")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
WRONG_HOST = (
    421,
    "the request is for another server",
    "its Host header names another one",
    "use the address that the server prints, or add --allowed-host NAME",
)
FailedAnswer = Callable[[Request, Exception], Response]
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Logins:
    """Login attempts with tokens, and the sessions of the successful ones; attempts are limited to a few a minute."""

    def __init__(self, token: str | None, now: Callable[[], float] = monotonic) -> None:
        self._token, self._now = token, now
        self._wrong: deque[float] = deque()
        key = hashlib.sha256(b"blockgz session " + (token or "").encode()).digest()
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)

    def is_right(self, offered: str) -> bool:
        """Return whether this is the token."""
        return self._token is not None and hmac.compare_digest(self._token.encode(), offered.encode())

    def may_fail(self) -> bool:
        """Return whether a wrong guess is answered as such, or as one too many: the right token is never refused."""
        while self._wrong and self._wrong[0] < self._now() - 60:
            self._wrong.popleft()
        if len(self._wrong) >= LOGINS_A_MINUTE:
            return False
        self._wrong.append(self._now())
        return True

    def session(self) -> str:
        """Return the value of a session's cookie."""
        return self._signer.sign(b"in").decode()

    def is_session(self, cookie: str) -> bool:
        """Return whether a cookie is that of a session that has not ended."""
        try:
            return self._signer.unsign(cookie, max_age=SESSION_SECONDS) == b"in"
        except BadSignature:
            return False


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, access: Access, logins: Logins, failed: FailedAnswer) -> None:
        """`failed` answers a request in which a bug was met."""
        self._app, self._access, self._logins, self._failed = app, access, logins, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed HTTP request to the app, answer refused or failed ones, add `HEADERS` to every answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_begun = False

        async def with_headers(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope), scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        try:
            await self._app(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # a bug, told without the values that a traceback may show
            answer = self._failed(Request(scope), error)
            if not is_begun:
                await answer(scope, receive, with_headers)

    def _refusal(self, asked: HTTPConnection, scope: Scope) -> Response | None:
        """Return the answer to what may not pass; None for what may."""
        headers, path = asked.headers, scope["path"]
        if not self._is_known_host(headers.get("host")):
            return _refused(*WRONG_HOST)
        if int_or_zero(headers.get("content-length")) > MAX_BODY_BYTES:
            return _refused(413, *WORDS[413])
        if scope["method"] not in SAFE_METHODS and not is_same_origin(headers):
            return _refused(403, "the request comes from another site", "its Origin is not this server")
        has_body = int_or_zero(headers.get("content-length")) > 0 or "transfer-encoding" in headers
        if path.startswith("/api/") and has_body and media_type(headers) != "application/json":
            return _refused(415, "the body is not JSON", remedy="send the header Content-Type: application/json")
        if path in OPEN_PATHS or path.startswith("/static/"):
            return None
        return self._refused_user(asked, scope)

    def _refused_user(self, asked: HTTPConnection, scope: Scope) -> Response | None:
        user = self._user(asked)
        if user is None:
            is_guess = "authorization" in asked.headers and not self._has_token(asked)
            if is_guess and not self._logins.may_fail():
                return _refused(429, "too many wrong tokens were offered", remedy="wait a minute")
            return self._unknown_user(asked, scope)
        scope["user_name"] = user
        return None

    def _is_known_host(self, host: str | None) -> bool:
        if host is None:
            return False
        if not is_own_name(self._access.host, host):
            return name_of(host) in self._access.allowed_hosts
        return not self._access.allowed_hosts or name_of(host) in self._access.allowed_hosts | {
            self._access.host,
            "localhost",
            "127.0.0.1",
            "::1",
        }

    def _user(self, asked: HTTPConnection) -> str | None:
        access = self._access
        if access.user_header is not None and asked.client and access.is_trusted_proxy(asked.client.host):
            named = asked.headers.getlist(access.user_header)
            if named or access.token is None:
                return named[0] or None if len(named) == 1 else None
        if access.token is None:
            return "local" if access.user_header is None else None
        if _bearer(asked) is None:
            return "token" if self._logins.is_session(asked.cookies.get(SESSION, "")) else None
        return "token" if self._has_token(asked) else None

    def _has_token(self, asked: HTTPConnection) -> bool:
        return self._logins.is_right(_bearer(asked) or "")

    def _unknown_user(self, asked: HTTPConnection, scope: Scope) -> Response:
        has_token = self._access.token is not None
        wants_page = "text/html" in asked.headers.get("accept", "") and scope["method"] in SAFE_METHODS
        if has_token and wants_page and not scope["path"].startswith("/api/"):
            where = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"/login?next={quote(where, safe='')}", status_code=303)
        remedy = "send the header Authorization: Bearer TOKEN" if has_token else "send the request through the proxy"
        refusal = _refused(401, "the user is not known", "the request has no valid token or user", remedy)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal


def _bearer(asked: HTTPConnection) -> str | None:
    """Return the token that a request brings in a header; None for none."""
    kind, _, offered = asked.headers.get("authorization", "").partition(" ")
    return offered.strip() if kind.lower() == "bearer" else None


def media_type(headers: Headers) -> str:
    """Return the media type of a request's body."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_same_origin(headers: Headers) -> bool:
    """Return whether a request that changes something comes from this server's own pages, or from no browser at all."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or origin.partition("://")[2] == headers.get("host")


def name_of(host: str) -> str:
    """Return the name in a header Host, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def int_or_zero(text: str | None) -> int:
    """Return the number in a header; 0 if it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _refused(status: int, error: str, why: str = "", remedy: str = "") -> JSONResponse:
    return JSONResponse({"error": error, "why": why, "do": remedy}, status_code=status)

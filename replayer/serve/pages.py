"""Pages made from templates: what all of them show, forms that only a page of this server may send, and the log-in."""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from blockgz.errors import UsageError
from blockgz.program.terminal import printable
from blockgz.units import bytes_text, time_text, timestamp_text
from replayer.serve.archive_view import Look
from replayer.serve.content import preview_of
from replayer.serve.errors import Failure
from replayer.serve.guard import SESSION, SESSION_SECONDS, Logins, media_type
from replayer.serve.service import Service

# A page that is not known by then shows how far it is.
PAGE_SECONDS = 0.25
# The key of this process: forms of an earlier one are refused until the page is reloaded.
_FORM_KEY = secrets.token_bytes(32)

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def span_text(seconds: float | None) -> str:
    """Return a time as `40 s`, `12 min`, `3.5 h` or `4.2 days`, or a dash for None."""
    if seconds is None:
        return "-"
    for unit, length in (("days", 172_800.0), ("h", 7200.0), ("min", 120.0)):
        if seconds >= length:
            return f"{seconds / {'days': 86_400, 'h': 3600, 'min': 60}[unit]:,.1f} {unit}"
    return f"{seconds:,.0f} s"


_templates.filters |= {
    "bytes": lambda number: "-" if number is None else bytes_text(number),
    "count": lambda number: "-" if number is None else f"{number:,}",
    "time": time_text,
    "exact_time": lambda timestamp: "-" if timestamp is None or timestamp < 0 else timestamp_text(timestamp),
    "span": span_text,
    "printable": printable,
    "preview": preview_of,
}


def page(request: Request, template: str, status_code: int = 200, **facts: Any) -> Response:
    """Return a page of a template, with what every page shows."""
    service: Service = request.state.service
    shared = {
        "archive": service.view.archive.reader.address,
        "settings": service.settings,
        "path": request.url.path,
        "csrf": form_token(request),
        "user": request.scope.get("user_name"),
        "failure": None,
    }
    return HTMLResponse(_templates.get_template(template).render(shared | facts), status_code=status_code)


def error_page(request: Request, status: int, failure: Failure, around: str | None = None) -> Response:
    """Show what happened, why, and what to do; `around` is a page that shows more.

    A form that was sent is shown again with it: a route notes its template and what that shows in `state.form`.
    """
    template, facts = getattr(request.state, "form", ("error.html", {"around": around}))
    return page(request, template, status, **facts, failure=failure, status=status)


def progress_page(request: Request, title: str, look: Look) -> Response:
    """Show the progress of the first look at an archive; the page reloads itself."""
    return page(request, "looking.html", title=title, look=look)


def form_token(request: Request) -> str:
    """Return the token that a form of this server sends back."""
    user = str(request.scope.get("user_name", ""))
    return hmac.new(_FORM_KEY, user.encode(), hashlib.sha256).hexdigest()


async def _sent_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form; raise UsageError for one that no page of this server made."""
    if media_type(request.headers) != "application/x-www-form-urlencoded":
        raise HTTPException(415, "the body is not a form of this page")
    fields: dict[str, list[str]] = {}
    for name, value in (await request.form()).multi_items():
        fields.setdefault(name, []).append(str(value))
    if not hmac.compare_digest(fields.pop("csrf", [""])[0].encode(), form_token(request).encode()):
        raise UsageError(
            "the form cannot be used",
            why="it was made before the server was started, or by another page",
            remedy="load the page again, and repeat it",
        )
    return fields


# The parameter of a route that takes a form.
SentForm = Annotated[dict[str, list[str]], Depends(_sent_form)]


def first(fields: dict[str, list[str]], name: str, default: str = "") -> str:
    """Return the value of a field, without blanks around it."""
    return fields.get(name, [default])[0].strip()


def lines_of(fields: dict[str, list[str]], name: str) -> list[str]:
    """Return the lines of a field that are not empty."""
    return [line for line in first(fields, name).splitlines() if line.strip()]


login_pages = APIRouter()


@login_pages.get("/login")
async def login_page(request: Request, where: Annotated[str, Query(alias="next", max_length=2000)] = "/") -> Response:
    """Show the form."""
    return page(request, "login.html", where=own_path(where), wrong=False)


@login_pages.post("/login")
async def login(request: Request, form: SentForm) -> Response:
    """Begin a session if the token is right."""
    logins: Logins = request.state.logins
    where = own_path(first(form, "next", "/"))
    if not logins.is_right(first(form, "token")):
        return page(request, "login.html", 401 if logins.may_fail() else 429, where=where, wrong=True)
    answer = RedirectResponse(where, status_code=303)
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    answer.set_cookie(
        SESSION, logins.session(), max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=secure
    )
    return answer


@login_pages.post("/logout")
async def logout(form: SentForm) -> Response:  # noqa: ARG001  # it brings the form's token
    """End the session of this browser."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(SESSION)
    return answer


def own_path(where: str) -> str:
    """Return `where` if it is a path of this server, otherwise the first page."""
    return where if where.startswith("/") and not where.startswith(("//", "/\\")) else "/"

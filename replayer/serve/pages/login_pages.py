"""The page on which a token is given, for a session of some hours."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from replayer.serve.guard import SESSION, SESSION_SECONDS, Logins
from replayer.serve.pages.rendering import SentForm, first, page

routes = APIRouter()


@routes.get("/login")
async def login_page(request: Request, where: Annotated[str, Query(alias="next", max_length=2000)] = "/") -> Response:
    """The form."""
    return page(request, "login.html", where=own_path(where), wrong=False)


@routes.post("/login")
async def login(request: Request, form: SentForm) -> Response:
    """Begins a session for who knows the token."""
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


@routes.post("/logout")
async def logout(form: SentForm) -> Response:  # noqa: ARG001  # it brings the form's token
    """Ends the session of this browser."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(SESSION)
    return answer


def own_path(where: str) -> str:
    """A path of this server; the first page for anything else."""
    return where if where.startswith("/") and not where.startswith(("//", "/\\")) else "/"

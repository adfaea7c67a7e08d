"""The application: routes under their guard, with one service behind them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from blockgz.errors import BlockgzError, UsageError
from replayer.serve import archive_routes, job_routes
from replayer.serve.errors import MAX_BODY_BYTES, told
from replayer.serve.guard import Guard, Logins
from replayer.serve.pages import error_page, login_pages
from replayer.serve.service import running_service
from replayer.serve.settings import ServeSettings

API = "/api/v1"
DESCRIPTION = (
    "The operations behind the pages of `replayer serve`. Errors are `{error, why, do}`. Long answers are JSON lines, "
    "or server-sent events; if a client disconnects, the work for it ends."
)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}}}
    for status, text in {
        400: "the request is not valid",
        401: "no valid token or user",
        403: "from another site",
        404: "not in the archive, or no such job",
        405: "no such method",
        409: "another writer or job owns the partition or topic",
        410: "damage: the records cannot be read",
        413: "the body is too large",
        415: "the body is not JSON",
        421: "the Host header names another server",
        429: "too many wrong tokens",
        502: "the store or the cluster refused the request",
        503: "the store or the cluster does not answer",
    }.items()
}


def make_app(settings: ServeSettings) -> FastAPI:
    """Return the application for one archive."""
    logins = Logins(settings.access.token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with running_service(settings) as service:
            yield {"service": service, "logins": logins}

    app = FastAPI(
        title="blockgz",
        version=version("blockgz"),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    known = [Depends(refuse_unknown_parameters)]
    for routes in (archive_routes.api, job_routes.api):
        app.include_router(routes, prefix=API, responses=ERRORS, dependencies=known)
    for routes in (archive_routes.pages, job_routes.pages, login_pages):
        app.include_router(routes, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    for kind in (BlockgzError, RequestValidationError, ValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.openapi = _with_failures(app.openapi)  # type: ignore[method-assign]
    schema = f"{API}/openapi.json"
    app.add_api_route(schema, app.openapi, include_in_schema=False, dependencies=known, response_model=None)
    # Behind the guard, so that its answers have the guard's headers.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)
    app.add_middleware(Guard, settings.access, logins, _answer)
    return app


def refuse_unknown_parameters(request: Request) -> None:
    """Raise UsageError for a parameter of the query that the route does not take: it would be ignored."""
    taken = {each.alias for each in request.scope["route"].dependant.query_params}
    if unknown := sorted(request.query_params.keys() - taken):
        raise UsageError(
            f"there is no parameter {unknown[0][:40]!r}",
            why=f"the parameters here are: {', '.join(sorted(taken))}" if taken else "nothing can be given here",
            remedy="see /api",
        )


def _answer(request: Request, error: Exception) -> Response:
    status, failure = told(error)
    headers = getattr(error, "headers", None)
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse(failure, status_code=status, headers=headers)
    return error_page(request, status, failure)


def _with_failures(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Return the schema with that of errors, in the place of FastAPI's own."""

    def made() -> dict[str, Any]:
        schema = make()
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        text = {"type": "string"}
        schemas["Failure"] = {"type": "object", "properties": dict.fromkeys(("error", "why", "do"), text)}
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        return schema

    return made

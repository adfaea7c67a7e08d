"""docs/service.md names every operation of the API, every page and option that exists, and no other."""

import re
from pathlib import Path

from fastapi.routing import APIRoute

from replayer.serve import archive_routes, job_routes
from replayer.serve.app import ERRORS
from replayer.serve.errors import MAX_BODY_BYTES, STATUS_OF_CODE
from replayer.serve.guard import LOGINS_A_MINUTE, SESSION_SECONDS
from replayer.serve.replays import MOST_PLANS
from replayer.serve.settings import LEAST_TOKEN
from replayer.serve.tasks import MOST_FOUND, MOST_RUNNING

PAGE = (Path(__file__).parent.parent / "docs" / "service.md").read_text()


def test_every_operation_is_named() -> None:
    routes = [*archive_routes.api.routes, *job_routes.api.routes]
    there = {f"{next(iter(route.methods))} {route.path}" for route in routes if isinstance(route, APIRoute)}
    assert set(re.findall(r"^\| `((?:GET|POST) [^`]+)`", PAGE, re.MULTILINE)) == there


def test_every_status_is_named() -> None:
    rows = re.findall(r"^\| ([0-9]{3}[0-9, ]*) \| [^|]+ \|([0-9, ]*)\|$", PAGE, re.MULTILINE)
    told = {int(status): codes for statuses, codes in rows for status in statuses.split(", ")}
    assert set(told) == set(ERRORS) - {405}
    for code, status in STATUS_OF_CODE.items():
        assert str(code) in told[status].strip().split(", ")


def test_its_bounds_are_those_of_the_program() -> None:
    assert f"at least {LEAST_TOKEN} characters" in PAGE
    assert f"lasts {SESSION_SECONDS // 3600} hours" in PAGE
    assert LOGINS_A_MINUTE == 10 and "Ten wrong tokens a" in PAGE
    assert f"up to {MAX_BODY_BYTES // 1024} KiB" in PAGE
    assert f"{MOST_RUNNING} tasks and {MOST_PLANS} plans at once" in PAGE
    assert f"{MOST_FOUND:,} hits a search" in PAGE

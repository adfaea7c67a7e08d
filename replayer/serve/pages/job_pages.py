"""Pages of what takes long: searches, replays, verifications, and what archivers tell."""

import shlex
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from blockgz.errors import UsageError
from replayer.replay.pace import parse_rate
from replayer.serve.api.job_routes import (
    SearchForm,
    VerifyJob,
    all_jobs,
    begin_proof,
    begin_search,
    begin_verification,
    get_job,
    planned,
    steered,
)
from replayer.serve.pages.rendering import SentForm, first, lines_of, page
from replayer.serve.replay_form import form_of
from replayer.serve.replays import doubtful, new_name
from replayer.serve.service import Serving, User, unless_gone

routes = APIRouter()
Short = Annotated[str, Query(max_length=2000)]
TEXTS = ("topic", "to_topic", "from", "to", "at", "since", "until", "grep", "partitions", "timestamps", "tombstones")
CHOICES = ("at_rule", "retention", "on_damage", "rate", "speed", "compression", "job")
LISTS = ("key", "header", "strip_header", "add_header", "topic_config")
SWITCHES = ("null_key", "provenance", "create_topic", "append", "transactional", "partial")


@routes.get("/search")
async def search_page(
    request: Request,
    service: Serving,
    topic: Short = "",
    start: Annotated[str, Query(alias="from", max_length=80)] = "",
    to: Annotated[str, Query(max_length=80)] = "",
    key: Short = "",
    header: Short = "",
    grep: Short = "",
) -> Response:
    """The form, and what the search would read once it is filled in."""
    given = {"topic": topic, "from": start, "to": to, "key": key, "header": header, "grep": grep}
    plan = None
    if topic and (key or header or grep):
        plan = (await unless_gone(request, planned(service, _search_form(given)))).document
    return page(request, "search.html", given=given, plan=plan)


@routes.post("/search")
async def begin_search_page(service: Serving, user: User, form: SentForm) -> Response:
    """Begins the search."""
    given = {name: first(form, name) for name in ("topic", "from", "to", "key", "header", "grep")}
    return _to_job((await begin_search(_search_form(given), service, user)).id)


def _search_form(given: dict[str, str]) -> SearchForm:
    return SearchForm.model_validate(
        {
            "topic": given["topic"],
            "from": given["from"] or "earliest",
            "to": given["to"] or "latest",
            "key": [given["key"]] if given["key"] else [],
            "header": [given["header"]] if given["header"] else [],
            "grep": given["grep"] or None,
        }
    )


@routes.get("/replay")
async def replay_page(request: Request, topic: Short = "", start: Annotated[str, Query(alias="from")] = "") -> Response:
    """The form of a replay."""
    return page(request, "replay.html", given={"topic": topic, "from": start}, failure=None)


@routes.post("/replay/plan")
async def plan_page(request: Request, service: Serving, form: SentForm) -> Response:
    """The plan of a replay, or the form again with why it is refused."""
    given: dict[str, Any] = {name: first(form, name) or None for name in (*TEXTS, *CHOICES)}
    given |= {name: lines_of(form, name) for name in LISTS} | {name: name in form for name in SWITCHES}
    asked = form_of(given)
    plan = await unless_gone(request, service.replays.plan(asked))
    # The name is given here, so that a form that is sent twice begins one job.
    named = asked.model_copy(update={"job": asked.job or new_name(asked)})
    address = service.view.archive.reader.address
    brokers = service.settings.kafka["bootstrap.servers"]
    words = ["replayer", "replay", asked.topic, *asked.arguments, "-a", address, "-b", brokers]
    words += [] if service.settings.zone is None else ["--timezone", str(service.settings.zone)]
    return page(
        request,
        "plan.html",
        plan=plan,
        doubtful=doubtful(plan),
        asked=named.model_dump_json(by_alias=True),
        target=asked.named_target,
        command=shlex.join(words),
    )


@routes.post("/replay/begin")
async def begin_replay_page(service: Serving, user: User, form: SentForm) -> Response:
    """Begins the replay whose plan was shown."""
    asked = form_of(first(form, "asked"))
    if rule := first(form, "at_rule"):
        asked = form_of({**asked.model_dump(by_alias=True), "at_rule": rule})
    return _to_job(await service.replays.begin(asked, first(form, "confirm"), user))


@routes.get("/jobs")
async def jobs_page(request: Request, service: Serving) -> Response:
    """All jobs."""
    return page(request, "jobs.html", jobs=await all_jobs(service))


@routes.get("/jobs/{name}")
async def job_page(name: str, request: Request, service: Serving) -> Response:
    """One job, as it goes on."""
    job = await get_job(name, service)
    log = service.replays.log_tail(name) if job["kind"] == "replay" else ""
    return page(request, "job.html", job=job, log=log)


@routes.post("/jobs/{name}/prove")
async def prove_page(name: str, service: Serving, user: User, form: SentForm) -> Response:  # noqa: ARG001
    """Begins the proof of a replay."""
    return _to_job((await begin_proof(name, service, user)).id)


@routes.post("/jobs/{name}/rate")
async def rate_page(name: str, service: Serving, form: SentForm) -> Response:
    """Changes the rate of a replay."""
    rate = first(form, "rate") or None
    if rate is not None:
        parse_rate(rate)
    await service.replays.limit(name, rate)
    return _to_job(name)


@routes.post("/jobs/{name}/{action}")
async def steer_page(name: str, action: str, service: Serving, form: SentForm) -> Response:  # noqa: ARG001
    """Pauses, resumes or cancels a job."""
    await steered(name, action, service)
    return _to_job(name)


@routes.get("/verify")
async def verify_page(request: Request, service: Serving) -> Response:
    """The history of reports, and the form of a verification."""
    return page(request, "verify.html", reports=await service.in_thread(service.reports.all))


@routes.post("/verify")
async def begin_verify_page(service: Serving, user: User, form: SentForm) -> Response:
    """Begins a verification."""
    try:
        share = float(first(form, "sample", "100").rstrip("%")) / 100
        job = VerifyJob.model_validate(
            {
                "kind": "verify",
                "topics": first(form, "topics").split(),
                "depth": first(form, "depth", "blocks"),
                "sample": share,
            }
        )
    except ValueError as error:
        raise UsageError("the form is not valid", why="depth or share is not one", remedy="write 5 for 5%") from error
    return _to_job(begin_verification(job, service, user).id)


@routes.get("/verify/{name}")
async def report_page(name: str, request: Request, service: Serving) -> Response:
    """One report."""
    report = await service.in_thread(service.reports.report, name)
    return page(request, "report.html", name=name, report=report)


@routes.get("/archivers")
async def archivers_page(request: Request, service: Serving) -> Response:
    """What the archivers tell."""
    return page(request, "archivers.html", archivers=await service.archivers.all())


def _to_job(name: str) -> Response:
    return RedirectResponse(f"/jobs/{name}", status_code=303)

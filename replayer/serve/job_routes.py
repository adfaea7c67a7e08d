"""The API and the pages of jobs (replays, proofs, verifications, searches), reports and archivers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from blockgz.archive.archive import parse_topic
from blockgz.archive.positions import parse_position
from blockgz.archive.selection import Positions, SelectionRequest
from blockgz.errors import BlockgzError, NotInArchive, StoreUnavailable, UsageError
from blockgz.record_filter import RecordFilter
from blockgz.units import wall_clock
from replayer.replay.pace import parse_rate
from replayer.serve.archive_routes import conditions
from replayer.serve.errors import failure_of
from replayer.serve.pages import SentForm, first, lines_of, page
from replayer.serve.replays import LOOK_SECONDS, ReplayForm, Text, Texts, doubtful, form_of, new_name
from replayer.serve.replays import OVER as REPLAY_OVER
from replayer.serve.service import BoundedAnswer, Service, Serving, User, unless_gone
from replayer.serve.tasks import Search, Task, events, planned_search, search, steer
from replayer.serve.verifying import DEPTHS, verify

api = APIRouter(tags=["jobs"])
STEERING = ("pause", "resume", "cancel")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class SearchForm(_Form):
    """Records of a topic between two positions, with one of the keys, all headers, and a value that matches."""

    topic: Text = Field(min_length=1)
    start: Text = Field("earliest", alias="from")
    to: Text = "latest"
    key: Texts = []
    header: Texts = []
    grep: Text | None = None


class ReplayJob(_Form):
    """A replay; `confirm` is the name of its target."""

    kind: Literal["replay"]
    replay: ReplayForm
    confirm: Text


class ProveJob(_Form):
    """The proof that a replay job wrote what it should have."""

    kind: Literal["prove"]
    job: Text


class VerifyJob(_Form):
    """A verification of topics, all if none is named; `sample` is the share of chunks that is checked."""

    kind: Literal["verify"]
    topics: Texts = []
    depth: Literal["structure", "blocks", "records"] = "blocks"
    sample: float = Field(1.0, gt=0, le=1)


class SearchJob(_Form):
    """A search."""

    kind: Literal["search"]
    search: SearchForm


AnyJob = Annotated[ReplayJob | ProveJob | VerifyJob | SearchJob, Field(discriminator="kind")]


class Rate(_Form):
    """`5000/s`, `20MB/s`, or null for no limit."""

    rate: Text | None


@api.post("/plans/replay")
async def plan_replay(form: ReplayForm, service: Serving, request: Request) -> dict[str, Any]:
    """Return what a replay would do, or why it is refused; write nothing."""
    return await unless_gone(request, service.replays.plan(form))


@api.post("/plans/search")
async def plan_search(form: SearchForm, service: Serving, request: Request) -> dict[str, Any]:
    """Return what a search has to read."""
    return (await unless_gone(request, _planned(service, form))).document


async def _planned(service: Service, form: SearchForm) -> Search:
    sought, now = conditions(form.key, form.header, form.grep), wall_clock()
    zone = service.settings.zone
    if not sought:
        raise UsageError("there is nothing to search for", remedy="give a key, a header or a pattern")
    positions = Positions(parse_position(form.start, now, zone), parse_position(form.to, now, zone))
    selection = SelectionRequest(positions, filter=RecordFilter(None, None, sought), now=now)
    return await planned_search(service.view.archive, parse_topic(form.topic), selection)


@api.get("/jobs")
async def list_jobs(service: Serving) -> dict[str, Any]:
    """Return all jobs, the newest first; those other than replays end with the server."""
    found = [*(task.document for task in service.tasks), *await service.replays.all()]
    return {"jobs": sorted(found, key=lambda job: job["created_at_ms"] or 0, reverse=True)}


@api.post("/jobs", status_code=201)
async def create_job(job: AnyJob, service: Serving, user: User) -> dict[str, Any]:
    """Begin a job. A replay needs the server's --allow-replay."""
    return await get_job(await begin(job, service, user), service)


async def begin(job: AnyJob, service: Service, user: str) -> str:
    """Begin a job and return its name; raise UsageError, or NotInArchive for a proof of no job."""
    match job:
        case ReplayJob():
            return await service.replays.begin(job.replay, job.confirm, user)
        case ProveJob():
            await _refuse_proof(job.job, service)
            work: Callable[[Task], Any] = partial(_prove, service=service, name=job.job)
            return service.tasks.begin("prove", f"job {job.job}", user, work).id
        case VerifyJob():
            work = partial(
                verify,
                archive=service.view.archive,
                settings=service.settings,
                keep=partial(service.replays.in_thread, service.reports.keep),
                wanted=[parse_topic(topic) for topic in job.topics],
                depth=DEPTHS[job.depth],
                share=job.sample,
            )
            title = f"{', '.join(job.topics) or 'all topics'}, {job.depth}, {100 * job.sample:.4g} % of the chunks"
            return service.tasks.begin("verify", title, user, work).id
        case SearchJob(search=form):
            work = partial(search, sought=await _planned(service, form))
            title = f"{', '.join([*form.key, *form.header, *filter(None, [form.grep])])} in {form.topic}"
            return service.tasks.begin("search", title, user, work, can_pause=True).id


async def _refuse_proof(name: str, service: Service) -> None:
    if not service.settings.has_brokers:
        raise UsageError("nothing can be proved", why="the server was started without -b", remedy="start it with -b")
    job = await service.replays.get(name)
    if "prove" not in job["actions"]:
        raise UsageError(f"job {name} cannot be proved now", why=f"it is {job['state']}", remedy="wait until it ended")


async def _prove(task: Task, service: Service, name: str) -> None:
    # Here, because it needs a Kafka client, which most servers never make.
    from replayer.replay.proof import proof_document, prove_job  # noqa: PLC0415
    from replayer.replay.request import Surroundings  # noqa: PLC0415

    @contextmanager
    def watched(total: int) -> Iterator[Callable[[int], None]]:
        task.all, task.unit = total, "records"
        yield task.advance

    around = Surroundings(service.view.archive, service.settings.kafka, service.replays.store)
    proof = await prove_job(name, around, watched)
    task.result = proof_document(proof)


@api.get("/jobs/{name}")
async def get_job(name: str, service: Serving) -> dict[str, Any]:
    """Return one job."""
    return service.tasks.get(name).document if name in service.tasks else await service.replays.get(name)


@api.post("/jobs/{name}/rate")
async def limit_job(name: str, rate: Rate, service: Serving) -> dict[str, Any]:
    """Change the rate of a running replay."""
    if rate.rate is not None:
        parse_rate(rate.rate)
    await service.replays.limit(name, rate.rate)
    return await get_job(name, service)


@api.post("/jobs/{name}/{action}")
async def steer_job(name: str, action: str, service: Serving) -> dict[str, Any]:
    """Steer a job: `pause`, `resume` or `cancel`. A replay that ended before it was complete continues at its
    positions.
    """
    if action not in STEERING:
        raise NotInArchive(f"there is no action {action[:40]!r}", remedy=f"use one of {', '.join(STEERING)}")
    if name in service.tasks:
        steer(service.tasks.get(name), action)
    elif action == "resume":
        await service.replays.resume(name)
    else:
        await service.replays.steer(name, action)
    return await get_job(name, service)


@api.get("/jobs/{name}/events", response_class=StreamingResponse)
async def watch_job(name: str, service: Serving) -> StreamingResponse:
    """Send the job at once and after each change, as server-sent events, until it is over."""
    known = await get_job(name, service)

    async def changes() -> AsyncIterator[bytes]:
        found = events(service.tasks.get(name)) if name in service.tasks else _replay_events(service, known)
        async for document in found:
            yield b"data: " + msgspec.json.encode(document) + b"\n\n"

    return BoundedAnswer(service.watched, changes(), "text/event-stream")


async def _replay_events(service: Service, known: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield a job until it is over; a store that does not answer is a failure of the job as it was last known."""
    while True:
        yield known
        if known["state"] in REPLAY_OVER:
            return
        await asyncio.sleep(LOOK_SECONDS)
        try:
            known = await service.replays.watched(known["id"])
        except StoreUnavailable as error:
            known = known | {"failure": failure_of(error)}
        except BlockgzError:  # the job was removed
            return


@api.get("/reports", tags=["reports"])
async def list_reports(service: Serving) -> dict[str, Any]:
    """Return the verification reports in the server's folder, the newest first."""
    found = await service.in_thread(service.reports.all)
    return {"reports": [each.document for each in found]}


@api.get("/damage", tags=["reports"])
async def list_damage(service: Serving) -> dict[str, Any]:
    """Return the damage that no later verification found repaired."""
    await service.view.survey()
    return {"damage": msgspec.to_builtins(await service.open_damage())}


@api.get("/reports/{name}", tags=["reports"])
async def get_report(name: str, service: Serving) -> Response:
    """Return one report as it was written."""
    return Response(await service.in_thread(service.reports.body, name), media_type="application/json")


@api.get("/archivers", tags=["archivers"])
async def list_archivers(service: Serving) -> dict[str, Any]:
    """Return what the archivers of --archiver report."""
    found = []
    for each in await service.archivers.all():
        partitions = [{**msgspec.to_builtins(p), "objection": p.objection} for p in each.partitions]
        found.append({**msgspec.to_builtins(each), "partitions": partitions})
    return {"archivers": found}


pages = APIRouter()
Short = Annotated[str, Query(max_length=2000)]


@pages.get("/search")
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
    """Show the form, and what the search would read once the form is filled in."""
    given = {"topic": topic, "from": start, "to": to, "key": key, "header": header, "grep": grep}
    request.state.form = "search.html", {"given": given, "plan": None}
    is_filled = topic and (key or header or grep)
    plan = await plan_search(_search_form(given), service, request) if is_filled else None
    return page(request, "search.html", given=given, plan=plan)


@pages.post("/search")
async def begin_search_page(request: Request, service: Serving, user: User, form: SentForm) -> Response:
    """Begin the search."""
    given = {name: first(form, name) for name in ("topic", "from", "to", "key", "header", "grep")}
    request.state.form = "search.html", {"given": given, "plan": None}
    return await _begun(SearchJob(kind="search", search=_search_form(given)), service, user)


def _search_form(given: dict[str, str]) -> SearchForm:
    lists = {name: [given[name]] for name in ("key", "header") if given[name]}
    texts = {name: given[name] for name in ("from", "to", "grep") if given[name]}
    return SearchForm.model_validate({"topic": given["topic"], **lists, **texts})


@pages.get("/replay")
async def replay_page(request: Request, topic: Short = "", start: Annotated[str, Query(alias="from")] = "") -> Response:
    """Show the form of a replay."""
    return page(request, "replay.html", given={"topic": topic, "from": start})


@pages.post("/replay/plan")
async def plan_page(request: Request, service: Serving, form: SentForm) -> Response:
    """Show the plan of a replay, or the form again with why it is refused."""
    given: dict[str, Any] = {}
    request.state.form = "replay.html", {"given": given}
    for field_name, field in ReplayForm.model_fields.items():
        name = field.alias or field_name
        if isinstance(field.default, bool):
            given[name] = name in form
        else:
            given[name] = lines_of(form, name) if isinstance(field.default, list) else first(form, name) or None
    asked = form_of(given)
    plan = await plan_replay(asked, service, request)
    # The name is given here, so that a form that is sent twice begins one job.
    named = asked.model_copy(update={"job": asked.job or new_name(asked)})
    words = ["replayer", "replay", asked.topic, *asked.arguments, *([f"--job={asked.job}"] if asked.job else [])]
    return page(
        request,
        "plan.html",
        plan=plan,
        doubtful=doubtful(plan),
        asked=named.model_dump_json(by_alias=True),
        target=asked.named_target,
        command=service.settings.command(*words, of_cluster=True),
    )


@pages.post("/replay/begin")
async def begin_replay_page(request: Request, service: Serving, user: User, form: SentForm) -> Response:
    """Begin the replay whose plan was shown."""
    asked = form_of(first(form, "asked"))
    if rule := first(form, "at_rule"):
        asked = form_of({**asked.model_dump(by_alias=True), "at_rule": rule})
    request.state.form = "replay.html", {"given": asked.model_dump(by_alias=True)}
    return await _begun(ReplayJob(kind="replay", replay=asked, confirm=first(form, "confirm")), service, user)


@pages.get("/jobs")
async def jobs_page(request: Request, service: Serving) -> Response:
    """Show all jobs."""
    return page(request, "jobs.html", **await list_jobs(service))


@pages.get("/jobs/{name}")
async def job_page(name: str, request: Request, service: Serving) -> Response:
    """Show one job and how far it is."""
    job = await get_job(name, service)
    log = service.replays.log_tail(name) if job["kind"] == "replay" else ""
    return page(request, "job.html", job=job, log=log)


@pages.post("/jobs/{name}/prove")
async def prove_page(name: str, service: Serving, user: User, form: SentForm) -> Response:  # noqa: ARG001
    """Begin the proof of a replay."""
    return await _begun(ProveJob(kind="prove", job=name), service, user)


@pages.post("/jobs/{name}/rate")
async def rate_page(name: str, service: Serving, form: SentForm) -> Response:
    """Change the rate of a replay."""
    await limit_job(name, Rate(rate=first(form, "rate") or None), service)
    return _to_job(name)


@pages.post("/jobs/{name}/{action}")
async def steer_page(name: str, action: str, service: Serving, form: SentForm) -> Response:  # noqa: ARG001
    """Pause, resume or cancel a job."""
    await steer_job(name, action, service)
    return _to_job(name)


@pages.get("/verify")
async def verify_page(request: Request, service: Serving) -> Response:
    """Show the history of reports, and the form of a verification."""
    given = {"topics": "", "depth": "blocks", "sample": "5"}
    return page(request, "verify.html", reports=await service.in_thread(service.reports.all), given=given)


@pages.post("/verify")
async def begin_verify_page(request: Request, service: Serving, user: User, form: SentForm) -> Response:
    """Begin a verification."""
    given = {"topics": first(form, "topics"), "depth": first(form, "depth", "blocks"), "sample": first(form, "sample")}
    reports = await service.in_thread(service.reports.all)
    request.state.form = "verify.html", {"given": given, "reports": reports}
    try:
        share = float((given["sample"] or "100").rstrip("%")) / 100
        sent = {"kind": "verify", "topics": given["topics"].split(), "depth": given["depth"], "sample": share}
        job = VerifyJob.model_validate(sent)
    except ValueError as error:
        raise UsageError("the form is not valid", why="depth or share is not one", remedy="write 5 for 5%") from error
    return await _begun(job, service, user)


@pages.get("/verify/{name}")
async def report_page(name: str, request: Request, service: Serving) -> Response:
    """Show one report."""
    report = await service.in_thread(service.reports.report, name)
    return page(request, "report.html", name=name, report=report)


@pages.get("/archivers")
async def archivers_page(request: Request, service: Serving) -> Response:
    """Show what the archivers report."""
    return page(request, "archivers.html", archivers=await service.archivers.all())


async def _begun(job: AnyJob, service: Service, user: str) -> Response:
    return _to_job(await begin(job, service, user))


def _to_job(name: str) -> Response:
    return RedirectResponse(f"/jobs/{name}", status_code=303)

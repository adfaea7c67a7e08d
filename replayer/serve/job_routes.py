"""The API and the pages of jobs (replays, proofs, verifications, searches), reports and archivers."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from blockgz.archive.archive import parse_topic
from blockgz.archive.positions import parse_position
from blockgz.archive.request import SelectionRequest
from blockgz.archive.selection import Positions
from blockgz.errors import NotInArchive, StoreUnavailable, UsageError
from blockgz.record_filter import RecordFilter
from index_format.errors import BlockgzError
from replayer.replay.pace import parse_rate
from replayer.serve.archive_routes import conditions
from replayer.serve.errors import failure_of
from replayer.serve.pages import SentForm, first, lines_of, page
from replayer.serve.replays import LOOK_SECONDS, ReplayForm, Text, Texts, doubtful, form_of, new_name
from replayer.serve.replays import OVER as REPLAY_OVER
from replayer.serve.service import BoundedAnswer, Service, Serving, User, now_ms, unless_gone
from replayer.serve.tasks import Search, Task, events, planned_search, search, steer
from replayer.serve.verifying import DEPTHS, verify

api = APIRouter(tags=["jobs"])
STEERING = ("pause", "resume", "cancel")


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class SearchForm(_Asked):
    """Records of a topic between two positions, with one of the keys, all headers, and a value that matches."""

    topic: Text = Field(min_length=1)
    start: Text = Field("earliest", alias="from")
    to: Text = "latest"
    key: Texts = []
    header: Texts = []
    grep: Text | None = None


class ReplayJob(_Asked):
    """A replay; `confirm` is the name of its target."""

    kind: Literal["replay"]
    replay: ReplayForm
    confirm: Text


class ProveJob(_Asked):
    """The proof that a replay job wrote what it should have."""

    kind: Literal["prove"]
    job: Text


class VerifyJob(_Asked):
    """A verification of topics, all if none is named; `sample` is the share of chunks that is checked."""

    kind: Literal["verify"]
    topics: Texts = []
    depth: Literal["structure", "blocks", "records"] = "blocks"
    sample: float = Field(1.0, gt=0, le=1)


class SearchJob(_Asked):
    """A search."""

    kind: Literal["search"]
    search: SearchForm


AnyJob = Annotated[ReplayJob | ProveJob | VerifyJob | SearchJob, Field(discriminator="kind")]


class Rate(_Asked):
    """`5000/s`, `20MB/s`, or null for no limit."""

    rate: Text | None


@api.post("/plans/replay")
async def plan_replay(form: ReplayForm, service: Serving, request: Request) -> dict[str, Any]:
    """What a replay would do, or why it is refused; nothing is written."""
    return await unless_gone(request, service.replays.plan(form))


@api.post("/plans/search")
async def plan_search(form: SearchForm, service: Serving, request: Request) -> dict[str, Any]:
    """What a search has to read."""
    return (await unless_gone(request, planned(service, form))).document


async def planned(service: Service, form: SearchForm) -> Search:
    """The search of a form; raises UsageError, or what the archive raises."""
    sought, now = conditions(form.key, form.header, form.grep), now_ms()
    zone = service.settings.zone
    if not sought:
        raise UsageError("there is nothing to search for", remedy="give a key, a header or a pattern")
    positions = Positions(parse_position(form.start, now, zone), parse_position(form.to, now, zone))
    selection = SelectionRequest(positions, filter=RecordFilter(None, None, sought), now=now)
    return await planned_search(service.view.archive, parse_topic(form.topic), selection)


@api.get("/jobs")
async def list_jobs(service: Serving) -> dict[str, Any]:
    """All jobs, the newest first; those other than replays end with the server."""
    return {"jobs": await all_jobs(service)}


async def all_jobs(service: Service) -> list[dict[str, Any]]:
    """Replay jobs and tasks, the newest first."""
    found = [*(task.document for task in service.tasks), *await service.replays.all()]
    return sorted(found, key=lambda job: job["created_at_ms"] or 0, reverse=True)


@api.post("/jobs", status_code=201)
async def create_job(job: AnyJob, service: Serving, user: User) -> dict[str, Any]:
    """Begins a job. A replay needs the server's --allow-replay."""
    return await get_job(await begin(job, service, user), service)


async def begin(job: AnyJob, service: Service, user: str) -> str:
    """Begins a job; its name."""
    match job:
        case ReplayJob():
            return await service.replays.begin(job.replay, job.confirm, user)
        case ProveJob():
            return (await begin_proof(job.job, service, user)).id
        case VerifyJob():
            return begin_verification(job, service, user).id
        case SearchJob():
            return (await begin_search(job.search, service, user)).id


async def begin_search(form: SearchForm, service: Service, user: str) -> Task:
    """Begins a search."""
    sought = await planned(service, form)
    words = ", ".join([*form.key, *form.header, *([form.grep] if form.grep else [])])
    title = f"{words} in {form.topic}"
    return service.tasks.begin("search", title, user, partial(search, sought=sought), can_pause=True)


def begin_verification(job: VerifyJob, service: Service, user: str) -> Task:
    """Begins a verification; raises UsageError for what names no topic."""
    wanted = [parse_topic(topic) for topic in job.topics]
    work = partial(
        verify,
        archive=service.view.archive,
        settings=service.settings,
        keep=partial(service.replays.in_thread, service.reports.keep),
        wanted=wanted,
        depth=DEPTHS[job.depth],
        share=job.sample,
    )
    title = f"{', '.join(job.topics) or 'all topics'}, {job.depth}, {100 * job.sample:.4g} % of the chunks"
    return service.tasks.begin("verify", title, user, work)


async def begin_proof(name: str, service: Service, user: str) -> Task:
    """Begins the proof of a replay job; raises NotInArchive or UsageError."""
    if not service.has_brokers:
        raise UsageError("nothing can be proved", why="the server was started without -b", remedy="start it with -b")
    job = await service.replays.get(name)
    if "prove" not in job["actions"]:
        raise UsageError(f"job {name} cannot be proved now", why=f"it is {job['state']}", remedy="wait until it ended")
    return service.tasks.begin("prove", f"job {name}", user, partial(_prove, service=service, name=name))


async def _prove(task: Task, service: Service, name: str) -> None:
    # Here, because it needs a Kafka client, which most servers never make.
    from replayer.replay.proof import proof_document, prove_job  # noqa: PLC0415

    @contextmanager
    def watched(total: int) -> Iterator[Callable[[int], None]]:
        task.all, task.unit = total, "records"
        yield task.advance

    kept, folder = await service.in_thread(service.replays.kept, name)
    proof = await prove_job(kept, folder, service.view.archive, service.settings.kafka, watched)
    task.result = proof_document(proof)


@api.get("/jobs/{name}")
async def get_job(name: str, service: Serving) -> dict[str, Any]:
    """One job."""
    if name in service.tasks:
        return service.tasks.get(name).document
    return await service.replays.get(name)


@api.post("/jobs/{name}/rate")
async def limit_job(name: str, rate: Rate, service: Serving) -> dict[str, Any]:
    """Changes the rate of a running replay."""
    if rate.rate is not None:
        parse_rate(rate.rate)
    await service.replays.limit(name, rate.rate)
    return await get_job(name, service)


@api.post("/jobs/{name}/{action}")
async def steer_job(name: str, action: str, service: Serving) -> dict[str, Any]:
    """`pause`, `resume` or `cancel`. A replay that ended before it was complete is resumed where it stopped."""
    await steered(name, action, service)
    return await get_job(name, service)


async def steered(name: str, action: str, service: Service) -> None:
    """Steers a job; raises UsageError or NotInArchive."""
    if action not in STEERING:
        raise NotInArchive(f"there is no action {action[:40]!r}", remedy=f"use one of {', '.join(STEERING)}")
    if name in service.tasks:
        steer(service.tasks.get(name), action)
    elif action == "resume":
        await service.replays.resume(name)
    else:
        await service.replays.steer(name, action)


@api.get("/jobs/{name}/events", response_class=StreamingResponse)
async def watch_job(name: str, service: Serving) -> StreamingResponse:
    """The job at once and after each change, as server-sent events, until it is over."""
    known = await get_job(name, service)

    async def changes() -> AsyncIterator[bytes]:
        found = events(service.tasks.get(name)) if name in service.tasks else _replay_events(service, known)
        async for document in found:
            yield b"data: " + msgspec.json.encode(document) + b"\n\n"

    return BoundedAnswer(service.watched, changes(), "text/event-stream")


async def _replay_events(service: Service, known: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A store that does not answer is told as a failure of the job as it was; a job that was removed ends it."""
    while True:
        yield known
        if known["state"] in REPLAY_OVER:
            return
        await asyncio.sleep(LOOK_SECONDS)
        try:
            known = await service.replays.watched(known["id"])
        except StoreUnavailable as error:
            known = known | {"failure": failure_of(error)}
        except BlockgzError:
            return


@api.get("/reports", tags=["reports"])
async def list_reports(service: Serving) -> dict[str, Any]:
    """Verification reports in the server's folder, the newest first."""
    found = await service.in_thread(service.reports.all)
    return {"reports": [each.document for each in found]}


@api.get("/damage", tags=["reports"])
async def list_damage(service: Serving) -> dict[str, Any]:
    """Return the damage that no later verification found repaired."""
    await service.view.survey()
    return {"damage": msgspec.to_builtins(await service.open_damage())}


@api.get("/reports/{name}", tags=["reports"])
async def get_report(name: str, service: Serving) -> Response:
    """One report as it was written."""
    return Response(await service.in_thread(service.reports.body, name), media_type="application/json")


@api.get("/archivers", tags=["archivers"])
async def list_archivers(service: Serving) -> dict[str, Any]:
    """What the archivers tell that the server was told of."""
    found = []
    for each in await service.archivers.all():
        partitions = [{**msgspec.to_builtins(p), "objection": p.objection} for p in each.partitions]
        found.append({**asdict(each), "partitions": partitions})
    return {"archivers": found}


pages = APIRouter()
Short = Annotated[str, Query(max_length=2000)]
TEXTS = ("topic", "to_topic", "from", "to", "at", "since", "until", "grep", "partitions", "timestamps", "tombstones")
CHOICES = ("at_rule", "retention", "on_damage", "rate", "speed", "compression", "job")
LISTS = ("key", "header", "strip_header", "add_header", "topic_config")
SWITCHES = ("null_key", "provenance", "create_topic", "append", "transactional", "partial")


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
    """The form, and what the search would read once it is filled in."""
    given = {"topic": topic, "from": start, "to": to, "key": key, "header": header, "grep": grep}
    plan = None
    if topic and (key or header or grep):
        plan = (await unless_gone(request, planned(service, _search_form(given)))).document
    return page(request, "search.html", given=given, plan=plan)


@pages.post("/search")
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


@pages.get("/replay")
async def replay_page(request: Request, topic: Short = "", start: Annotated[str, Query(alias="from")] = "") -> Response:
    """The form of a replay."""
    return page(request, "replay.html", given={"topic": topic, "from": start}, failure=None)


@pages.post("/replay/plan")
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


@pages.post("/replay/begin")
async def begin_replay_page(service: Serving, user: User, form: SentForm) -> Response:
    """Begins the replay whose plan was shown."""
    asked = form_of(first(form, "asked"))
    if rule := first(form, "at_rule"):
        asked = form_of({**asked.model_dump(by_alias=True), "at_rule": rule})
    return _to_job(await service.replays.begin(asked, first(form, "confirm"), user))


@pages.get("/jobs")
async def jobs_page(request: Request, service: Serving) -> Response:
    """All jobs."""
    return page(request, "jobs.html", jobs=await all_jobs(service))


@pages.get("/jobs/{name}")
async def job_page(name: str, request: Request, service: Serving) -> Response:
    """One job, as it goes on."""
    job = await get_job(name, service)
    log = service.replays.log_tail(name) if job["kind"] == "replay" else ""
    return page(request, "job.html", job=job, log=log)


@pages.post("/jobs/{name}/prove")
async def prove_page(name: str, service: Serving, user: User, form: SentForm) -> Response:  # noqa: ARG001
    """Begins the proof of a replay."""
    return _to_job((await begin_proof(name, service, user)).id)


@pages.post("/jobs/{name}/rate")
async def rate_page(name: str, service: Serving, form: SentForm) -> Response:
    """Changes the rate of a replay."""
    rate = first(form, "rate") or None
    if rate is not None:
        parse_rate(rate)
    await service.replays.limit(name, rate)
    return _to_job(name)


@pages.post("/jobs/{name}/{action}")
async def steer_page(name: str, action: str, service: Serving, form: SentForm) -> Response:  # noqa: ARG001
    """Pauses, resumes or cancels a job."""
    await steered(name, action, service)
    return _to_job(name)


@pages.get("/verify")
async def verify_page(request: Request, service: Serving) -> Response:
    """The history of reports, and the form of a verification."""
    return page(request, "verify.html", reports=await service.in_thread(service.reports.all))


@pages.post("/verify")
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


@pages.get("/verify/{name}")
async def report_page(name: str, request: Request, service: Serving) -> Response:
    """One report."""
    report = await service.in_thread(service.reports.report, name)
    return page(request, "report.html", name=name, report=report)


@pages.get("/archivers")
async def archivers_page(request: Request, service: Serving) -> Response:
    """What the archivers tell."""
    return page(request, "archivers.html", archivers=await service.archivers.all())


def _to_job(name: str) -> Response:
    return RedirectResponse(f"/jobs/{name}", status_code=303)

"""Pages of what is archived: topics, coverage, records."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse
from starlette.responses import RedirectResponse, Response

from blockgz.archive.paging import Missing
from index_format.chunk_index import Gap
from index_format.errors import BlockgzError
from index_format.keys import parse_topic_folder
from index_format.records import TIMESTAMP_TYPES, Record
from replayer.coverage.partition_coverage import PartitionCoverage, Scale, axis_of, timed_gaps
from replayer.coverage.picture import CoverageRow, svg
from replayer.serve.api.archive_routes import look_up, narrowed, open_page
from replayer.serve.content import shown
from replayer.serve.costs import cost_text, counted
from replayer.serve.errors import told, trouble_of
from replayer.serve.pages.rendering import PAGE_SECONDS, error_page, page, progress_page
from replayer.serve.service import Serving
from replayer.serve.verifying import OpenDamage

routes = APIRouter()
TOPICS_ON_A_PAGE = 100
PARTITIONS_ON_A_PAGE = 25
RECORDS_ON_A_PAGE = 50
MOST_HEADERS = 100
SLICES = 150
Number = Annotated[int, Query(ge=1, le=100_000)]
Place = Annotated[int | None, Query(ge=0, lt=2**62)]


@routes.get("/healthz")
async def health() -> Response:
    """Whether the server answers."""
    return PlainTextResponse("ok\n")


@routes.get("/")
async def overview(
    request: Request, service: Serving, q: Annotated[str, Query(max_length=249)] = "", number: Number = 1
) -> Response:
    """All topics."""
    survey = await service.view.survey(PAGE_SECONDS)
    if survey is None:
        return progress_page(request, "Topics", service.view.look)
    named = [each for name, each in survey.documents.items() if q.lower() in name.lower()]
    start = (number - 1) * TOPICS_ON_A_PAGE
    reports = await service.in_thread(service.reports.of_archive, service.view.archive_id)
    everything = survey.documents.values()
    return page(
        request,
        "overview.html",
        topics=named[start : start + TOPICS_ON_A_PAGE],
        named=len(named),
        totals={
            "topics": len(everything),
            "partitions": sum(len(each["partitions"]) for each in everything),
            "records": sum(each["records"] for each in everything),
            "bytes": sum(each["bytes"] for each in everything),
            "newest": max((each["max_timestamp_ms"] or 0 for each in everything), default=0) or None,
        },
        missing=survey.missing,
        open_damage=await service.open_damage(),
        taken_at=int(survey.taken_at * 1000),
        trouble=trouble_of(service.view.look.error),
        lags=await service.archivers.of_topics(PAGE_SECONDS),
        silent=[each.url for each in await service.archivers.all(0.0) if each.error],
        report=next(iter(reports), None),
        q=q,
        number=number,
        pages=max(1, -(-len(named) // TOPICS_ON_A_PAGE)),
    )


@routes.get("/topics/{topic}")
async def topic_page(
    topic: str,
    request: Request,
    service: Serving,
    scale: Scale = "time",
    start: Annotated[int | None, Query(alias="from", ge=0, lt=2**62)] = None,
    end: Annotated[int | None, Query(alias="to", ge=0, lt=2**62)] = None,
    number: Number = 1,
) -> Response:
    """The coverage of a topic's partitions as a picture, and what there is of each."""
    parse_topic_folder(topic)
    found = await service.view.coverage(topic, PAGE_SECONDS)
    if not isinstance(found, tuple):
        return progress_page(request, topic, found)
    coverages, look = found
    survey = await service.view.topic(topic)
    assert survey is not None
    folders = {parse_topic_folder(topic), *(each.keys.folder for each in survey.partitions)}
    known = [each for each in await service.open_damage() if each.folder in set(map(str, folders))]
    begin = (number - 1) * PARTITIONS_ON_A_PAGE
    shown_ones = coverages[begin : begin + PARTITIONS_ON_A_PAGE]
    rows = [CoverageRow(topic, with_lost(each, known)) for each in shown_ones]
    axis = narrowed(axis_of(shown_ones, SLICES, scale), start, end)
    return page(
        request,
        "topic.html",
        topic=topic,
        rows=rows,
        picture=svg(rows, axis, style=False) if axis is not None else None,
        scale=scale,
        is_narrowed=start is not None or end is not None,
        damaged=survey.damaged,
        objects=[each for each in known if each.start is None],
        maintenance={each.partition: each.marker.maintenance or None for each in survey.partitions},
        incarnations=service.view.incarnations(parse_topic_folder(topic).topic),
        taken_at=service.view.taken_at_ms,
        trouble=trouble_of(look.error or service.view.look.error),
        partitions=len(coverages),
        records=sum(each.records for each in coverages),
        number=number,
        pages=max(1, -(-len(coverages) // PARTITIONS_ON_A_PAGE)),
        command=shlex.join(["replayer", "coverage", topic, "-a", service.view.archive.reader.address]),
    )


def with_lost(coverage: PartitionCoverage, found: Sequence[OpenDamage]) -> PartitionCoverage:
    """Return the coverage with what verifications found damaged."""
    lost = [
        Gap(each.start, each.end, each.reason)
        for each in found
        if each.partition == coverage.partition
        and each.start is not None
        and each.end is not None
        and each.start < each.end
    ]
    if not lost:
        return coverage
    damage = (*coverage.damage, *timed_gaps(lost, coverage.timed))
    return replace(coverage, damage=damage)


@routes.get("/topics/{topic}/{partition}")
async def records_page(
    topic: str,
    partition: int,
    request: Request,
    service: Serving,
    at: Annotated[str, Query(max_length=80)] = "latest",
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> Response:
    """Records from a position on, or before an offset."""
    at = at.strip() or "latest"
    with counted() as costs:
        opened = partial(open_page, service, topic, partition, at, before, RECORDS_ON_A_PAGE)
        found = await service.reading(request, opened)
    cost = cost_text(costs, found.opened_bytes)
    address = service.view.archive.reader.address
    where = f"{topic}:{partition}"
    command = ["replayer", "cat", where, "--from", str(found.start), "--to", str(found.end), "-a", address]
    return page(
        request,
        "records.html",
        topic=topic,
        partition=partition,
        found=found,
        items=[(isinstance(item, Missing), item) for item in found.items],
        at=at if before is None else "",
        cost=cost,
        command=shlex.join(command),
    )


@routes.get("/topics/{topic}/{partition}/{position}")
async def record_page(topic: str, partition: int, position: str, request: Request, service: Serving) -> Response:
    """One record, in every form."""
    try:
        with counted() as costs:
            found = await service.reading(request, partial(look_up, service, topic, partition, position))
    except BlockgzError as error:
        status, failure = told(error)
        is_offset = position.isascii() and position.isdecimal() and status in (404, 410)
        return error_page(request, status, failure, f"/topics/{topic}/{partition}?at={position}" if is_offset else None)
    record: Record = found.record
    if position != str(record.offset):
        return RedirectResponse(f"/topics/{topic}/{partition}/{record.offset}", status_code=303)
    address = service.view.archive.reader.address
    return page(
        request,
        "record.html",
        topic=topic,
        partition=partition,
        record=record,
        timestamp_type=TIMESTAMP_TYPES[record.timestamp_type],
        key=shown(record.key),
        value=shown(record.value),
        headers=[(name, shown(value)) for name, value in record.headers[:MOST_HEADERS]],
        more_headers=max(0, len(record.headers) - MOST_HEADERS),
        cost=cost_text(costs, found.chunk_bytes),
        command=shlex.join(["replayer", "get", f"{topic}:{partition}:{record.offset}", "-a", address]),
    )


@routes.get("/api")
async def api_page(request: Request) -> Response:
    """What the API offers."""
    return page(request, "api.html", schema=request.app.openapi())

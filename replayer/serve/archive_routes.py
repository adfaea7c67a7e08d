"""The API and the pages of what is archived: topics, partitions, coverage, records."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from blockgz.archive.archive import TopicPartitions, parse_topic
from blockgz.archive.blocks import READ_AHEAD
from blockgz.archive.formatting import json_printer
from blockgz.archive.inventory import damaged_document, partition_document
from blockgz.archive.lookup import FoundRecord, RecordQuery, failure, look_up_together, offset_at
from blockgz.archive.paging import Missing, Page, page_at, page_before
from blockgz.archive.positions import parse_position, parse_time
from blockgz.archive.selection import DamagePolicies, Positions, SelectionRequest, selected_batches
from blockgz.errors import BlockgzError, UsageError
from blockgz.record_filter import Condition, KeyIn, Pattern, RecordFilter, ValueMatches, header_condition
from blockgz.units import wall_clock
from index_format.keys import parse_topic_folder
from index_format.objects import Gap
from index_format.record_formats import json_object
from index_format.records import TIMESTAMP_TYPES, Record
from replayer.coverage import Axis, PartitionCoverage, Scale, axis_of, coverage_document, svg, timed_gaps
from replayer.serve.archive_view import ArchiveSurvey
from replayer.serve.archivers import Archiver
from replayer.serve.content import shown
from replayer.serve.errors import failure_of, told, trouble_of
from replayer.serve.pages import PAGE_SECONDS, error_page, page, progress_page
from replayer.serve.service import MOST_STREAMS, BoundedAnswer, Costs, Service, Serving, counted, unless_gone
from replayer.serve.verifying import OpenDamage

api = APIRouter(tags=["archive"])
NDJSON = "application/x-ndjson"
MOST_SLICES = 2000
MOST_ON_A_PAGE = 1000
# The read-ahead of each stream: there may be many, of clients that read slowly.
STREAM_AHEAD = READ_AHEAD.shared(MOST_STREAMS)
JSON = "application/json"
PartitionNumber = int
Place = Annotated[
    str,
    Query(description="an offset, earliest, latest, -N, a time, @UNIXTIME, or a duration before now", max_length=80),
]


@api.get("/topics")
async def list_topics(service: Serving, q: Annotated[str, Query(max_length=249)] = "") -> dict[str, Any]:
    """Return all topics whose names contain `q`, each with its sums; as of a moment ago."""
    survey = await service.view.survey()
    assert survey is not None
    shown = [each for name, each in survey.documents.items() if q in name]
    topics = [{**each, "partitions": len(each["partitions"])} for each in shown]
    missing = [each._asdict() for each in survey.missing]
    return {
        "archive": service.view.archive.reader.address,
        "taken_at_ms": int(survey.taken_at * 1000),
        "topics": topics,
        "missing": missing,
    }


@api.get("/topics/{topic}")
async def get_topic(topic: str, service: Serving) -> dict[str, Any]:
    """Return the partitions of a topic, each read now."""
    parse_topic_folder(topic)
    survey = await service.view.archive.survey_topic(topic)
    return {
        "topic": topic,
        "partitions": [await partition_document(each) for each in survey.partitions],
        "damaged": damaged_document(survey.damaged),
    }


@api.get("/topics/{topic}/coverage")
async def get_coverage(
    topic: str,
    service: Serving,
    request: Request,
    scale: Scale = "time",
    start: Annotated[int | None, Query(alias="from", ge=0, lt=2**62)] = None,
    end: Annotated[int | None, Query(alias="to", ge=0, lt=2**62)] = None,
    slices: Annotated[int, Query(ge=1, le=MOST_SLICES)] = 60,
) -> dict[str, Any]:
    """Return how many records are in each slice of time (ms) or offsets [from, to), and where gaps and damage are."""
    parse_topic_folder(topic)
    found = await unless_gone(request, service.view.coverage(topic))
    assert isinstance(found, tuple)
    return coverage_document(found[0], narrowed(axis_of(found[0], slices, scale), start, end))


def narrowed(axis: Axis | None, start: int | None, end: int | None) -> Axis | None:
    """Return the axis between two places, if they are given; raise UsageError if nothing is between them."""
    if axis is None:
        return None
    first, last = axis.start if start is None else start, axis.end if end is None else end
    if first >= last:
        raise UsageError(f"the range from {first} to {last} is empty", remedy="swap from and to")
    return Axis(first, last, axis.slices, axis.scale)


@api.get("/topics/{topic}/find")
async def find_offsets(
    topic: str, service: Serving, request: Request, time: Annotated[list[str], Query(max_length=20)]
) -> list[dict[str, Any]]:
    """Return the offset of the first record at or after each time, in every partition."""
    wanted = parse_topic(topic)
    instants = [parse_time(text, wall_clock(), service.settings.zone) for text in time]

    async def find() -> list[dict[str, Any]]:
        partitions = await service.view.archive.open_topic(wanted.topic, wanted.partitions)
        return [(await offset_at(partition, at)).document for at in instants for partition in partitions]

    return await unless_gone(request, find())


@api.get("/topics/{topic}/partitions/{partition}")
async def get_partition(topic: str, partition: int, service: Serving) -> dict[str, Any]:
    """Return one partition: offsets, chunks, gaps, owner; read now."""
    parse_topic_folder(topic)
    return await partition_document(await service.view.archive.open_partition(topic, partition))


@api.get("/topics/{topic}/partitions/{partition}/page")
async def get_page(
    topic: str,
    partition: int,
    service: Serving,
    request: Request,
    at: Place = "latest",
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    n: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 50,
) -> Response:
    """Return a page of records from a position on, or before an offset, and why records in it are missing."""
    with counted() as costs:

        async def read() -> bytes:
            page = await open_page(service, topic, partition, at, before, n)
            return msgspec.json.encode(page_document(topic, partition, page, costs))

        body = await service.reading(request, read)
    return service.answer(body, JSON)


async def open_page(service: Service, topic: str, partition: int, at: str, before: int | None, count: int) -> Page:
    """Return the requested page; raise as opening the partition does."""
    parse_topic_folder(topic)
    archived = await service.view.archive.open_partition(topic, partition)
    if before is not None:
        return await page_before(archived, before, count)
    return await page_at(archived, parse_position(at, wall_clock(), service.settings.zone), count)


def page_document(topic: str, partition: int, page: Page, costs: Costs) -> dict[str, Any]:
    """Return a page as JSON; items are records, or what is missing."""
    plain = parse_topic_folder(topic).topic
    return {
        "from": page.start,
        "to": page.end,
        "previous": {"before": page.start} if page.has_before else None,
        "next": {"at": page.end} if page.has_after else None,
        "items": [_item(item, plain, partition) for item in page.items],
        "stats": costs.stats(page.opened_bytes),
    }


def _item(item: Record | Missing, topic: str, partition: int) -> dict[str, Any]:
    if isinstance(item, Missing):
        return {"missing": {"from": item.start, "to": item.end, "kind": item.kind, "reason": item.reason}}
    return {"record": json_object(item, topic=topic, partition=partition)}


@api.get("/topics/{topic}/partitions/{partition}/records", response_class=StreamingResponse)
async def stream_records(
    topic: str,
    partition: int,
    service: Serving,
    start: Annotated[str, Query(alias="from", max_length=80)] = "earliest",
    to: Annotated[str, Query(max_length=80)] = "latest",
    n: Annotated[int, Query(ge=1, le=2**31)] = 1000,
    key: Annotated[list[str] | None, Query(max_length=100)] = None,
    header: Annotated[list[str] | None, Query(max_length=100)] = None,
    grep: Annotated[str | None, Query(max_length=2000)] = None,
) -> StreamingResponse:
    """Return at most `n` records from one position to another as JSON lines, as `replayer cat --json` prints them.

    The last line is `{"cursor":{"next":OFFSET,"complete":true}}`, or `{"failure":{…}}` where the archive is damaged.
    """
    now, zone = wall_clock(), service.settings.zone
    asked = SelectionRequest(
        Positions(parse_position(start, now, zone), parse_position(to, now, zone)),
        filter=RecordFilter(None, None, conditions(key, header, grep)),
        now=now,
    )
    chosen = await asked.select(service.view.archive, TopicPartitions(topic, (partition,)))
    end = chosen[0].offsets.end

    async def lines() -> AsyncIterator[bytes]:
        following, left = chosen[0].offsets.start, n
        try:
            async with aclosing(selected_batches(chosen, asked.filter, n, DamagePolicies(), STREAM_AHEAD)) as batches:
                async for found, batch in batches:
                    for piece in json_printer()(found.topic, partition, batch):
                        yield piece
                        await asyncio.sleep(0)  # other requests have their turn, and a client that left is noticed
                    following, left = batch.column("offset")[-1].as_py() + 1, left - batch.num_rows
        except BlockgzError as error:
            yield msgspec.json.encode({"failure": failure_of(error)}) + b"\n"
            return
        complete = left > 0 or following >= end
        yield msgspec.json.encode({"cursor": {"next": end if complete else following, "complete": complete}}) + b"\n"

    return BoundedAnswer(service.streams, lines(), NDJSON)


def conditions(keys: list[str] | None, headers: list[str] | None, pattern: str | None) -> tuple[Condition, ...]:
    """Return the conditions that records have to meet; raise UsageError."""
    found: list[Condition] = [header_condition(text) for text in headers or ()]
    if keys:
        found.append(KeyIn(tuple(key.encode(errors="surrogateescape") for key in keys)))
    if pattern:
        found.append(ValueMatches(Pattern(pattern)))
    return tuple(found)


@api.get("/topics/{topic}/partitions/{partition}/records/{position}")
async def get_record(topic: str, partition: int, position: str, service: Serving, request: Request) -> Response:
    """Return one record by its offset, or the first at or after another position; `stats` say what it cost."""
    with counted() as costs:

        async def read() -> bytes:
            found = await look_up(service, topic, partition, position)
            record = json_object(found.record, topic=parse_topic_folder(topic).topic, partition=partition)
            return msgspec.json.encode({"record": record, "stats": costs.stats(found.chunk_bytes)})

        body = await service.reading(request, read)
    return service.answer(body, JSON)


async def look_up(service: Service, topic: str, partition: int, position: str) -> FoundRecord:
    """Return the record at a position; raise NotInArchive with the reason, or what is damaged."""
    parse_topic_folder(topic)
    sought = parse_position(position, wall_clock(), service.settings.zone)
    query = RecordQuery(topic, partition, sought, f"{topic}:{partition}:{position}")
    outcome = (await look_up_together(service.view.archive, [query]))[query]
    if isinstance(outcome, FoundRecord):
        return outcome
    raise failure(query, outcome)


@api.get("/topics/{topic}/partitions/{partition}/records/{position}/{part}", response_class=Response)
async def get_content(
    topic: str, partition: int, position: str, part: str, service: Serving, request: Request
) -> Response:
    """Return the bytes of a record's `key` or `value`, to be saved; 204 if it is null."""
    if part not in ("key", "value"):
        raise UsageError(f"a record has no {part[:40]!r}", remedy="request its key or its value")
    found = await service.reading(request, partial(look_up, service, topic, partition, position))
    content = found.record.key if part == "key" else found.record.value
    if content is None:
        return Response(status_code=204)
    name = f"{parse_topic_folder(topic).topic}-{partition}-{found.record.offset}.{part}"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return service.answer(bytes(content), "application/octet-stream", disposition)


pages = APIRouter()
TOPICS_ON_A_PAGE = 100
PARTITIONS_ON_A_PAGE = 25
RECORDS_ON_A_PAGE = 50
MOST_HEADERS = 100
SLICES = 150
Number = Annotated[int, Query(ge=1, le=100_000)]


@pages.get("/healthz")
async def health() -> Response:
    """Return whether the server answers."""
    return PlainTextResponse("ok\n")


@pages.get("/")
async def overview(
    request: Request, service: Serving, q: Annotated[str, Query(max_length=249)] = "", number: Number = 1
) -> Response:
    """Return all topics."""
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
        still=_standing_still(survey, await service.archivers.all(0.0)),
        needed=service.settings.command(),
        silent=[each.url for each in await service.archivers.all(0.0) if each.error],
        report=next(iter(reports), None),
        q=q,
        number=number,
        pages=max(1, -(-len(named) // TOPICS_ON_A_PAGE)),
    )


def _standing_still(survey: ArchiveSurvey, archivers: Sequence[Archiver]) -> list[tuple[str, str, str | None]]:
    """Return the partitions that cannot be read or are not archived: name, reason, and what gets each going."""
    damaged = ((name, each) for name, topic in survey.topics.items() for each in topic.damaged.items())
    found = [(f"{name}:{number}", error.reason, error.remedy) for name, (number, error) in damaged]
    stopped = (each for archiver in archivers for each in archiver.partitions if each.objection)
    return found + [(f"{each.topic}:{each.partition}", each.objection or "", each.remedy) for each in stopped]


@pages.get("/topics/{topic}")
async def topic_page(
    topic: str,
    request: Request,
    service: Serving,
    scale: Scale = "time",
    start: Annotated[int | None, Query(alias="from", ge=0, lt=2**62)] = None,
    end: Annotated[int | None, Query(alias="to", ge=0, lt=2**62)] = None,
    number: Number = 1,
) -> Response:
    """Return the coverage of a topic's partitions as a picture, and as numbers for each."""
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
    rows = [with_lost(each, known) for each in shown_ones]
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
        command=service.settings.command("replayer", "coverage", topic),
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


@pages.get("/topics/{topic}/{partition}")
async def records_page(
    topic: str,
    partition: int,
    request: Request,
    service: Serving,
    at: Annotated[str, Query(max_length=80)] = "latest",
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> Response:
    """Show records from a position on, or before an offset."""
    at = at.strip() or "latest"
    with counted() as costs:
        opened = partial(open_page, service, topic, partition, at, before, RECORDS_ON_A_PAGE)
        found = await service.reading(request, opened)
    cost = costs.text(found.opened_bytes)
    command = ["replayer", "cat", f"{topic}:{partition}", "--from", str(found.start), "--to", str(found.end)]
    return page(
        request,
        "records.html",
        topic=topic,
        partition=partition,
        found=found,
        items=[(isinstance(item, Missing), item) for item in found.items],
        at=at if before is None else "",
        cost=cost,
        command=service.settings.command(*command),
    )


@pages.get("/topics/{topic}/{partition}/{position}")
async def record_page(topic: str, partition: int, position: str, request: Request, service: Serving) -> Response:
    """Return one record, in every form."""
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
        cost=costs.text(found.chunk_bytes),
        command=service.settings.command("replayer", "get", f"{topic}:{partition}:{record.offset}"),
    )


@pages.get("/api")
async def api_page(request: Request) -> Response:
    """Show the operations of the API."""
    return page(request, "api.html", schema=request.app.openapi())

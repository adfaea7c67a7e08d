"""The API of what is archived: topics, partitions, coverage, records."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from blockgz.archive.blocks import READ_AHEAD
from blockgz.archive.formatting import json_printer
from blockgz.archive.listing import damaged_document, partition_document
from blockgz.archive.lookup import Found, RecordQuery, failure, look_up_together, offset_at
from blockgz.archive.paging import Missing, Page, page_at, page_before
from blockgz.archive.positions import parse_position, parse_time
from blockgz.archive.request import DamagePolicies, SelectionRequest, selected_batches
from blockgz.archive.selection import Positions
from blockgz.archive.topics import TopicPartitions, parse_topic
from blockgz.errors import UsageError
from blockgz.record_filter import Condition, KeyIn, Pattern, RecordFilter, ValueMatches, header_condition
from index_format.errors import BlockgzError
from index_format.keys import parse_topic_folder
from index_format.record_formats.json_lines import json_object
from index_format.records import Record
from replayer.coverage.document import coverage_document
from replayer.coverage.partition_coverage import Axis, Scale, axis_of
from replayer.coverage.picture import CoverageRow
from replayer.serve.bounds import BoundedAnswer
from replayer.serve.costs import Costs, counted
from replayer.serve.errors import failure_of
from replayer.serve.service import MOST_STREAMS, Service, Serving, now_ms, unless_gone

routes = APIRouter(tags=["archive"])
NDJSON = "application/x-ndjson"
MOST_SLICES = 2000
MOST_ON_A_PAGE = 1000
STREAM_AHEAD = READ_AHEAD.shared(MOST_STREAMS)
"""Of each stream: there may be many, of clients that read slowly."""
JSON = "application/json"
PartitionNumber = int
Place = Annotated[
    str,
    Query(description="an offset, earliest, latest, -N, a time, @UNIXTIME, or a duration before now", max_length=80),
]


@routes.get("/topics")
async def list_topics(service: Serving, q: Annotated[str, Query(max_length=249)] = "") -> dict[str, Any]:
    """All topics whose names contain `q`, each with its sums; as of a moment ago."""
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


@routes.get("/topics/{topic}")
async def get_topic(topic: str, service: Serving) -> dict[str, Any]:
    """The partitions of a topic, each read now."""
    parse_topic_folder(topic)
    survey = await service.view.archive.survey_topic(topic)
    return {
        "topic": topic,
        "partitions": [await partition_document(each) for each in survey.partitions],
        "damaged": damaged_document(survey.damaged),
    }


@routes.get("/topics/{topic}/coverage")
async def get_coverage(
    topic: str,
    service: Serving,
    request: Request,
    scale: Scale = "time",
    start: Annotated[int | None, Query(alias="from", ge=0, lt=2**62)] = None,
    end: Annotated[int | None, Query(alias="to", ge=0, lt=2**62)] = None,
    slices: Annotated[int, Query(ge=1, le=MOST_SLICES)] = 60,
) -> dict[str, Any]:
    """How many records are in each slice of time (ms) or offsets [from, to), and where gaps and damage are."""
    parse_topic_folder(topic)
    found = await unless_gone(request, service.view.coverage(topic))
    assert isinstance(found, tuple)
    rows = [CoverageRow(topic, each) for each in found[0]]
    return coverage_document(rows, narrowed(axis_of(found[0], slices, scale), start, end))


def narrowed(axis: Axis | None, start: int | None, end: int | None) -> Axis | None:
    """The axis between two places, where they are given; raises UsageError where nothing is between them."""
    if axis is None:
        return None
    first, last = axis.start if start is None else start, axis.end if end is None else end
    if first >= last:
        raise UsageError(f"there is nothing between {first} and {last}", remedy="swap from and to")
    return Axis(first, last, axis.slices, axis.scale)


@routes.get("/topics/{topic}/find")
async def find_offsets(
    topic: str, service: Serving, request: Request, time: Annotated[list[str], Query(max_length=20)]
) -> list[dict[str, Any]]:
    """The offset of the first record at or after each time, in every partition."""
    wanted = parse_topic(topic)
    instants = [parse_time(text, now_ms(), service.settings.zone) for text in time]

    async def find() -> list[dict[str, Any]]:
        partitions = await service.view.archive.open_topic(wanted.topic, wanted.partitions)
        found = [await offset_at(partition, at) for at in instants for partition in partitions]
        return [
            {
                "topic": each.topic,
                "partition": each.partition,
                "time_ms": each.time,
                "offset": each.offset,
                "timestamp_ms": each.timestamp,
                "found": each.found,
            }
            for each in found
        ]

    return await unless_gone(request, find())


@routes.get("/topics/{topic}/partitions/{partition}")
async def get_partition(topic: str, partition: int, service: Serving) -> dict[str, Any]:
    """One partition: offsets, chunks, gaps, owner; read now."""
    parse_topic_folder(topic)
    return await partition_document(await service.view.archive.open_partition(topic, partition))


@routes.get("/topics/{topic}/partitions/{partition}/page")
async def get_page(
    topic: str,
    partition: int,
    service: Serving,
    request: Request,
    at: Place = "latest",
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    n: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 50,
) -> Response:
    """A page of records from a position on, or before an offset; what is missing, and why, stands in its place."""
    with counted() as costs:

        async def read() -> bytes:
            page = await open_page(service, topic, partition, at, before, n)
            return msgspec.json.encode(page_document(topic, partition, page, costs))

        body = await service.reading(request, read)
    return service.answer(body, JSON)


async def open_page(service: Service, topic: str, partition: int, at: str, before: int | None, count: int) -> Page:
    """The page that is asked for; raises as opening the partition does."""
    parse_topic_folder(topic)
    archived = await service.view.archive.open_partition(topic, partition)
    if before is not None:
        return await page_before(archived, before, count)
    return await page_at(archived, parse_position(at, now_ms(), service.settings.zone), count)


def page_document(topic: str, partition: int, page: Page, costs: Costs) -> dict[str, Any]:
    """A page as JSON; items are records, or what is missing."""
    plain = parse_topic_folder(topic).topic
    return {
        "from": page.start,
        "to": page.end,
        "previous": {"before": page.start} if page.has_before else None,
        "next": {"at": page.end} if page.has_after else None,
        "items": [_item(item, plain, partition) for item in page.items],
        "stats": {
            "requests": costs.requests,
            "bytes_fetched": costs.bytes_fetched,
            "chunk_bytes": page.opened_bytes,
        },
    }


def _item(item: Record | Missing, topic: str, partition: int) -> dict[str, Any]:
    if isinstance(item, Missing):
        return {"missing": {"from": item.start, "to": item.end, "kind": item.kind, "reason": item.reason}}
    return {"record": json_object(item, topic=topic, partition=partition)}


@routes.get("/topics/{topic}/partitions/{partition}/records", response_class=StreamingResponse)
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
    """At most `n` records from one position to another as JSON lines, as `replayer cat --json` prints them.

    The last line is `{"cursor":{"next":OFFSET,"complete":true}}`, or `{"failure":{…}}` where the archive is damaged.
    """
    now, zone = now_ms(), service.settings.zone
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
    """What records have to be like; raises UsageError."""
    found: list[Condition] = [header_condition(text) for text in headers or ()]
    if keys:
        found.append(KeyIn(tuple(key.encode(errors="surrogateescape") for key in keys)))
    if pattern:
        found.append(ValueMatches(Pattern(pattern)))
    return tuple(found)


@routes.get("/topics/{topic}/partitions/{partition}/records/{position}")
async def get_record(topic: str, partition: int, position: str, service: Serving, request: Request) -> Response:
    """One record by its offset, or the first at or after another position; `stats` say what it cost."""
    with counted() as costs:

        async def read() -> bytes:
            found = await look_up(service, topic, partition, position)
            record = json_object(found.record, topic=parse_topic_folder(topic).topic, partition=partition)
            stats = {
                "requests": costs.requests,
                "bytes_fetched": costs.bytes_fetched,
                "chunk_bytes": found.chunk_bytes,
            }
            return msgspec.json.encode({"record": record, "stats": stats})

        body = await service.reading(request, read)
    return service.answer(body, JSON)


async def look_up(service: Service, topic: str, partition: int, position: str) -> Found:
    """The record at a position; raises NotInArchive with the reason, or what is damaged."""
    parse_topic_folder(topic)
    sought = parse_position(position, now_ms(), service.settings.zone)
    query = RecordQuery(topic, partition, sought, f"{topic}:{partition}:{position}")
    outcome = (await look_up_together(service.view.archive, [query]))[query]
    if isinstance(outcome, Found):
        return outcome
    raise failure(query, outcome)


@routes.get("/topics/{topic}/partitions/{partition}/records/{position}/{part}", response_class=Response)
async def get_content(
    topic: str, partition: int, position: str, part: str, service: Serving, request: Request
) -> Response:
    """The bytes of a record's `key` or `value`, to be saved; 204 where it is null."""
    if part not in ("key", "value"):
        raise UsageError(f"a record has no {part[:40]!r}", remedy="ask for its key or its value")
    found = await service.reading(request, partial(look_up, service, topic, partition, position))
    content = found.record.key if part == "key" else found.record.value
    if content is None:
        return Response(status_code=204)
    name = f"{parse_topic_folder(topic).topic}-{partition}-{found.record.offset}.{part}"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return service.answer(bytes(content), "application/octet-stream", disposition)

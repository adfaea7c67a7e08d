"""From a plan to a result: the one way in which `spark load` and `spark export` run and report."""

import asyncio
import time
from typing import Any

import click
import msgspec

from blockgz_runtime.program.main import debug
from blockgz_runtime.program.tables import bytes_text
from blockgz_runtime.spark.session import session
from replayer.cli.spark.job_options import Request, selections
from replayer.cli.spark.stage_progress import stage_progress
from replayer.read.request import SKIPS
from replayer.spark.archive_place import ArchivePlace, opened
from replayer.spark.jobs.job_plan import JobPlan, planned
from replayer.spark.jobs.layout import check_parts
from replayer.spark.jobs.values import ValueOptions
from replayer.spark.jobs.writing import Reading, Target, Written, write

PARTLY = 3


def run(request: Request, what: str, target: dict[str, Any]) -> int:
    """Plans, writes and reports; `target` has the fields of writing.Target. Returns the exit code."""
    began = time.monotonic()
    archive, given = request.archive, request.values
    place = ArchivePlace(archive.address, archive.endpoint_url, archive.region, archive.max_block_bytes)
    values = ValueOptions(given.value, given.key, given.schema, given.registry, given.on_bad)
    written_to = Target(**target)
    check_parts(written_to.partition_by, decodes=values.decodes)
    plan = asyncio.run(_plan(request, place))
    document = _plan_document(plan, written_to)
    if request.dry_run:
        _print(document, _plan_text(plan, "would read"), as_json=request.as_json)
        return 0
    click.echo(_plan_text(plan, "reads"), err=True)
    reading = Reading(place, request.selection.filter, values, request.on_damage == SKIPS)
    with (
        session(f"replayer spark {what}", request.spark.master, request.spark.settings, quiet=not debug.get()) as spark,
        stage_progress(what, spark.sparkContext.statusTracker(), as_json=request.as_json),
    ):
        written = write(spark, plan, reading, written_to)
    document |= _written_document(written) | {"seconds": round(time.monotonic() - began, 3)}
    _print(document, _written_text(written, written_to), as_json=request.as_json)
    return PARTLY if written.bad or written.skipped else 0


async def _plan(request: Request, place: ArchivePlace) -> JobPlan:
    async with opened(place) as archive:
        chosen = await selections(archive, request.topics, request.selection)
        return await planned(chosen, request.selection.filter, request.cutting.task_bytes, request.cutting.min_tasks)


def _plan_document(plan: JobPlan, target: Target) -> dict[str, Any]:
    return {
        "topics": plan.topics,
        "destination": target.table or target.path,
        "format": target.file_format,
        "mode": target.mode,
        "partition_by": list(target.partition_by),
        "tasks": len(plan.tasks),
        "chunks": plan.chunks,
        "bytes": plan.bytes,
        "records_at_most": plan.records,
        "gaps": [
            {"topic": each.topic, "partition": each.partition, **msgspec.to_builtins(each.gap)} for each in plan.gaps
        ],
    }


def _plan_text(plan: JobPlan, verb: str) -> str:
    lines = [
        f"{verb} {', '.join(plan.topics)}: {plan.chunks:,} chunks, {bytes_text(plan.bytes)}, at most "
        f"{plan.records:,} records, in {len(plan.tasks):,} tasks"
    ]
    for topic, partition, gap in plan.gaps:
        lines.append(f"WARNING {topic}:{partition} recorded gap {gap.start}..{gap.end}: {gap.reason}")
    return "\n".join(lines)


def _written_document(written: Written) -> dict[str, Any]:
    return {
        "records": written.written,
        "records_read": written.read,
        "bad_values": written.bad,
        "first_bad_value": written.first_bad,
        "skipped": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "from": each.start,
                "to": each.end,
                "reason": each.reason,
            }
            for each in written.skipped
        ],
    }


def _written_text(written: Written, target: Target) -> str:
    lines = [f"{written.written:,} records written to {target.table or target.path}"]
    if written.bad:
        lines.append(f"FAILURE {written.bad:,} could not be decoded, the first of them {written.first_bad}")
    for topic, partition, start, end, reason in written.skipped:
        lines.append(f"FAILURE {topic}:{partition} skipped offsets {start}..{end}: {reason}")
    return "\n".join(lines)


def _print(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(document) if as_json else text)

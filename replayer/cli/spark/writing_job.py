"""From options to the result of `spark export` and `spark load`."""

import time
from dataclasses import replace
from typing import Any

import click
import msgspec

from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.request import SKIPS
from blockgz.errors import PARTLY_FAILED
from blockgz.process import run_async
from blockgz.program.command import debug
from blockgz.program.tables import bytes_text
from blockgz.spark.session import session
from replayer.cli.options.selection_options import CHOOSE_BY_OPTION
from replayer.cli.spark.job_options import WriteRequest
from replayer.cli.spark.stage_progress import stage_progress
from replayer.spark.jobs.values import ValueOptions
from replayer.spark.jobs.writing import JobPlan, Output, ReadRequest, WriteResult, check_parts, planned, write


def run(
    request: WriteRequest, what: str, file_format: str, *, path: str | None = None, table: str | None = None
) -> int:
    """Plans, writes and reports; returns the exit code."""
    began = time.monotonic()
    archive = request.archive
    place = replace(archive.absolute(), old_format=None)
    reading = ReadRequest(place, request.selection.filter, ValueOptions(**request.values), request.on_damage == SKIPS)
    output = Output(file_format, request.mode, path, table, request.partition_by)
    check_parts(output.partition_by, decodes=reading.values.decodes)
    cutting = request.cutting
    plan = run_async(planned(place, request.topics, request.selection, cutting.task_bytes, cutting.min_tasks))
    document = _plan_document(plan, output)
    if request.dry_run:
        _print(document, _plan_text(plan, "would read"), as_json=request.as_json)
        return 0
    refuse_doubtful(plan.cuts, CHOOSE_BY_OPTION)
    click.echo(_plan_text(plan, "reads"), err=True)
    with (
        session(f"replayer spark {what}", request.spark.master, request.spark.settings, quiet=not debug.get()) as spark,
        stage_progress(what, spark.sparkContext.statusTracker(), as_json=request.as_json),
    ):
        result = write(spark, plan, reading, output)
    document |= _result_document(result) | {"seconds": round(time.monotonic() - began, 3)}
    _print(document, _result_text(result, output), as_json=request.as_json)
    return PARTLY_FAILED if result.bad or result.skipped else 0


def _plan_document(plan: JobPlan, output: Output) -> dict[str, Any]:
    return {
        "topics": plan.topics,
        "destination": output.table or output.path,
        "format": output.file_format,
        "mode": output.mode,
        "partition_by": list(output.partition_by),
        "tasks": len(plan.tasks),
        "chunks": plan.chunks,
        "bytes": plan.bytes,
        "records_at_most": plan.records,
        "gaps": [
            {"topic": each.topic, "partition": each.partition, **msgspec.to_builtins(each.gap)} for each in plan.gaps
        ],
        "cuts": [{"topic": topic, **cut.document(partition)} for topic, partition, cut in plan.cuts],
    }


def _plan_text(plan: JobPlan, verb: str) -> str:
    lines = [
        f"{verb} {', '.join(plan.topics)}: {plan.chunks:,} chunks, {bytes_text(plan.bytes)}, at most "
        f"{plan.records:,} records, in {len(plan.tasks):,} tasks"
    ]
    for topic, partition, gap in plan.gaps:
        lines.append(f"WARNING {topic}:{partition} recorded gap [{gap.start}..{gap.end}): {gap.reason}")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join([*lines, *(f"WARNING {line}" for line in cut_lines(plan.cuts))])


def _result_document(result: WriteResult) -> dict[str, Any]:
    return {
        "records": result.written,
        "records_read": result.read,
        "bad_values": result.bad,
        "first_bad_value": result.first_bad,
        "skipped": [
            dict(zip(("topic", "partition", "from", "to", "reason"), each, strict=True)) for each in result.skipped
        ],
    }


def _result_text(result: WriteResult, output: Output) -> str:
    lines = [f"{result.written:,} records written to {output.table or output.path}"]
    if result.bad:
        lines.append(f"FAILURE {result.bad:,} could not be decoded, the first of them {result.first_bad}")
    for topic, partition, start, end, reason in result.skipped:
        lines.append(f"FAILURE {topic}:{partition} skipped offsets [{start}..{end}): {reason}")
    return "\n".join(lines)


def _print(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(document) if as_json else text)

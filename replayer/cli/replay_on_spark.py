"""`replayer replay --spark`: one task for each source partition, and the output of that."""

import asyncio
import time
from typing import TYPE_CHECKING

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import PARTLY_FAILED
from blockgz.program.main import noting_what_is_left
from blockgz.program.options import spark_needed
from blockgz.program.progress import record_progress
from blockgz.program.tables import print_table, range_text
from replayer.cli.options.options import open_archive
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.options.spark_options import SparkOptions
from replayer.cli.replay_output import agreed, left_out_json, print_left_out
from replayer.replay.plan import ReplayPlan
from replayer.replay.result import plan_json

if TYPE_CHECKING:
    from replayer.spark.replay import LanesResult, Replay


async def replay_on_spark(
    options: ReplayOptions, spark: SparkOptions, as_json: bool, properties: dict[str, str], address: ArchivePlace
) -> int:
    """Plan the replay, ask, and run it with one Spark task per source partition; return the exit code."""
    with spark_needed("replayer replay --spark"):
        from replayer.spark.replay import planned_lanes  # noqa: PLC0415
    async with (
        open_archive(address) as archive,
        planned_lanes(options.request, archive, address.absolute(), properties) as (target, plan, job),
    ):
        if not agreed(plan, options, as_json=as_json):
            return 0
        await asyncio.to_thread(target.make_ready, plan.lifted)
        begun = time.monotonic()
        result = await _run(job, plan, spark, as_json=as_json)
        note = await target.set_back() if result.complete else None
        if note is not None:
            click.echo(note, err=True)
    if as_json:
        click.echo(msgspec.json.encode(_result_json(plan, result, time.monotonic() - begun)))
    else:
        _print_result(plan, result, time.monotonic() - begun)
    for source, (start, end, reason) in result.skipped:
        click.echo(f"FAILURE {plan.topic}:{source} skipped offsets [{start}..{end}): {reason}", err=True)
    return PARTLY_FAILED if result.skipped or result.left_out.unfit or plan.missing else 0


async def _run(job: "Replay", plan: ReplayPlan, spark: SparkOptions, *, as_json: bool) -> "LanesResult":
    from blockgz.spark.session import session  # noqa: PLC0415
    from replayer.spark.replay import LanesResult, run_rounds, written  # noqa: PLC0415

    if not job.tasks(job.before):
        return LanesResult(job.before, job.before)
    with (
        session("blockgz replay", spark.master, spark.settings) as running,
        noting_what_is_left(lambda: f"not complete: repeat the command with --resume --job {plan.job.name}"),
        record_progress("replaying", plan.records, as_json=as_json, before=written(job.before)) as advance,
    ):
        bytes_each = plan.bytes / plan.records if plan.records else 0
        return await run_rounds(job, running, lambda records: advance(records, int(records * bytes_each)))


def _result_json(plan: ReplayPlan, result: "LanesResult", seconds: float) -> dict[str, object]:
    return {
        "records": result.records,
        "partitions": [
            {
                "partition": source,
                "target_partitions": list(plan.router.targets(source)),
                "records": position.written - result.before[source].written,
                "records_before": result.before[source].written,
                "from": result.before[source].sources[source].next,
                "to": position.sources[source].next,
            }
            for source, position in sorted(result.now.items())
        ],
        "topic": plan.topic,
        "target": plan.target,
        "seconds": round(seconds, 3),
        "zero_timestamps": sum(outcome.zero_timestamps for outcome in result.outcomes),
        "records_before": result.records_before,
        "complete": result.complete,
        "lost_commits": sum(outcome.lost_commits for outcome in result.outcomes),
        "tasks": len(result.outcomes),
        **left_out_json(result.left_out),
        "skipped": [
            {"partition": source, "from": start, "to": end, "reason": reason}
            for source, (start, end, reason) in result.skipped
        ],
        "plan": plan_json(plan),
    }


def _print_result(plan: ReplayPlan, result: "LanesResult", seconds: float) -> None:
    rows = []
    for source, now in sorted(result.now.items()):
        before = result.before[source]
        offsets = range_text(before.sources[source].next, now.sources[source].next)
        rows.append((str(source), str(now.written - before.written), offsets))
    print_table(("PARTITION", "RECORDS", "OFFSETS"), rows)
    click.echo(f"{result.records} records replayed to {plan.target} in {seconds:.1f} s")
    if result.records_before:
        click.echo(f"{result.records_before} records of job {plan.job.name} had been written before")
    if zeros := sum(outcome.zero_timestamps for outcome in result.outcomes):
        click.echo(f"warning: {zeros} records with timestamp 0 were sent with 1", err=True)
    print_left_out(result.left_out)

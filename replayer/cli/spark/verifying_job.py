"""From options to the report of `spark verify`."""

import asyncio

import click
import msgspec

from blockgz_runtime.program.main import debug
from blockgz_runtime.program.tables import bytes_text
from blockgz_runtime.spark.session import session
from replayer.cli.options.archive_options import ArchiveOptions
from replayer.cli.report import ReportOptions, conclude
from replayer.cli.spark.job_options import Cutting, topic_arguments
from replayer.cli.spark.session_options import SessionOptions
from replayer.cli.spark.stage_progress import stage_progress
from replayer.spark.archive_place import ArchivePlace, opened
from replayer.spark.jobs.verifying import VerificationPlan, planned, verify
from replayer.verify.chunk_checks import ChunkChoice, Depth


def run(
    archive: ArchiveOptions,
    topics: tuple[str, ...],
    depth: Depth,
    choice: ChunkChoice,
    cutting: Cutting,
    spark: SessionOptions,
    report_to: ReportOptions,
    *,
    digests: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Plans, checks and reports; returns the exit code."""
    place = ArchivePlace(archive.address, archive.endpoint_url, archive.region, archive.max_block_bytes)
    plan = asyncio.run(_plan(place, topics, choice, cutting, digests=digests))
    counts = {"partitions": len(plan.subjects), "chunks": plan.chunks, "bytes": plan.bytes, "tasks": len(plan.slices)}
    text = f"{plan.chunks:,} chunks, {bytes_text(plan.bytes)}, in {len(plan.slices):,} tasks"
    if dry_run:
        click.echo(msgspec.json.encode(counts) if as_json else f"would check {text}")
        return 0
    click.echo(f"checks {text}", err=True)
    with (
        session("replayer spark verify", spark.master, spark.settings, quiet=not debug.get()) as running,
        stage_progress("verify", running.sparkContext.statusTracker(), as_json=as_json),
    ):
        report = verify(running, plan, place, depth)
    return conclude(report, str(archive.address), depth, report_to, as_json=as_json)


async def _plan(
    place: ArchivePlace, topics: tuple[str, ...], choice: ChunkChoice, cutting: Cutting, *, digests: bool
) -> VerificationPlan:
    async with opened(place) as archive:
        wanted = [(each.topic, each.partitions) for each in await topic_arguments(archive, topics)]
        return await planned(archive, wanted, choice, cutting.task_bytes, digests=digests)

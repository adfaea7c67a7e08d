"""From options to the report of `spark verify`."""

import asyncio

import click
import msgspec

from ...chunk_choice import ChunkChoice
from ...spark.place import ArchivePlace, opened
from ...spark.session import session
from ...spark.verifying import VerificationPlan, planned, verify
from ...verify import Depth
from ..archive_options import ArchiveOptions
from ..program import debug
from ..report import ReportOptions
from ..tables import bytes_text
from ..verification_output import conclude
from .job_options import Cutting, topic_arguments
from .session_options import SessionOptions
from .stage_progress import stage_progress


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

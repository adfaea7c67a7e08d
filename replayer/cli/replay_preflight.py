"""What archive and cluster have to say before a replay, and the operator's word."""

import asyncio
import sys
from collections.abc import Iterator

import click

from blockgz_runtime.errors import UsageError
from replayer.cli.options.damage import SKIPS
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.replay_job import KnownJob
from replayer.cli.replay_target import ShapedTarget, as_sent
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.plan import Preflight, RepublishPlan, Request
from replayer.replay.record_edits import wall_clock
from replayer.replay.sources import describe_source, find_refusable


async def ask_before(options: ReplayOptions, known: KnownJob, target: ShapedTarget, admin: KafkaAdmin) -> Preflight:
    """Asks archive and cluster; changes nothing."""
    remaining, facts, now_ms = known.remaining, target.facts, wall_clock()
    sources = [await describe_source(selection, known.planning) for selection in remaining]
    there = facts is not None and target.creates is None
    lanes = {lane for each in remaining for lane in known.pipeline.targets(each.partition.partition)}
    held = sorted(lane for lane in lanes if there and facts and lane < facts.num_partitions)
    # Only the records themselves could tell what transforms make of their keys and sizes.
    asked = None if options.shape.chain else facts.config if facts else None
    return Preflight(
        Request(known.work.selections[0].partition.topic, options.target, options.into_source, options.shape.append),
        as_sent(sources, options.shape, now_ms),
        facts,
        await asyncio.to_thread(admin.watermarks, options.target, held) if held else {},
        await find_refusable(remaining, asked, known.planning),
        now_ms,
        known.pipeline.router,
        known.state(resume=options.resume),
        creates=target.creates is not None,
        notes=(*_chosen(options), *target.notes),
    )


def _chosen(options: ReplayOptions) -> Iterator[str]:
    if not options.selection.filter.passes_all:
        yield f"only records with {options.selection.filter}"
    if options.on_damage == SKIPS:
        yield "damaged blocks are passed over, and named at the end"


def confirm(plan: RepublishPlan, yes: bool) -> None:
    """Asks whether to write; raises UsageError where nobody can be asked, click.Abort for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"nothing was written to {plan.target}",
            why="there is no terminal to ask on, and --yes was not given",
            remedy="add --yes, or --dry-run to see the plan only",
        )
    click.confirm(f"Write about {plan.records} records to {plan.target}?", abort=True, err=True)

"""Output of `replayer replay`: the plan before, the result after, for people and as JSON."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.damage import LostRange
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import OffsetRange
from blockgz.program.main import confirm
from blockgz.program.tables import bytes_text, print_table, range_text
from blockgz.units import time_text
from index_format.errors import masked_urls
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.options.selection_options import CHOOSE_BY_OPTION
from replayer.replay.plan import ReplayPlan
from replayer.replay.result import ReplayResult, plan_json
from replayer.replay.stages import LeftOut


def agreed(plan: ReplayPlan, options: ReplayOptions, *, as_json: bool, seconds: float | None = None) -> bool:
    """Print the plan, and the `seconds` it may take, and asks whether to write; False for a dry run.

    Raises UsageError without a terminal, click.exceptions.Exit for a no.
    """
    if not as_json:
        _print_plan(plan)
        cost = f"about {plan.requests:,} requests to the store for {bytes_text(plan.stored_bytes)}"
        click.echo(cost if seconds is None else f"{cost}, {duration_text(seconds)} or more", err=True)
    if options.dry_run:
        if as_json:
            planned = {"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan) | {"seconds": seconds}}
            click.echo(msgspec.json.encode(planned))
        return False
    refuse_doubtful(plan.cuts, CHOOSE_BY_OPTION)
    question = f"Write {_count_text(plan)} to {plan.target}?"
    confirm(question, undone=f"nothing was written to {plan.target}", is_agreed=options.yes)
    return True


def _print_plan(plan: ReplayPlan) -> None:
    """Print the plan as a table, and its warnings, on stderr."""
    columns = ("PARTITION", "OFFSETS", "RECORDS", "SIZE", "FROM", "TO")
    rows: list[tuple[str | int, ...]] = [
        (
            source.partition,
            range_text(source.start, source.end),
            source.records,
            bytes_text(source.bytes),
            *(time_text(time) for time in source.timestamps or (None, None)),
        )
        for source in plan.sources
    ]
    title = f"{plan.topic} -> {plan.target}, {_count_text(plan)}"
    print_table(columns, rows, droppable=("SIZE", "FROM", "TO"), title=title, file=sys.stderr)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    print_cut_bytes(plan.cut_bytes)
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)


def print_cut_bytes(num_bytes: int) -> None:
    """Print on stderr how much was read to find the ends as of a time."""
    if num_bytes:
        click.echo(f"read {bytes_text(num_bytes)} of blocks to find the cuts", err=True)


def _count_text(plan: ReplayPlan) -> str:
    return f"{'' if plan.is_exact else 'at most '}{plan.records} records"


def duration_text(seconds: float) -> str:
    """Return seconds as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def print_result(plan: ReplayPlan, result: ReplayResult) -> None:
    """Print the result as a table on stdout."""
    columns = ("PARTITION", "TARGET", "RECORDS", "OFFSETS", "TARGET OFFSETS")
    rows = [
        (
            lane.partition,
            lane.target_partition,
            lane.records,
            _range_text(lane.offsets),
            _range_text(lane.target_offsets),
        )
        for lane in result.partitions
    ]
    print_table(columns, rows)
    rate = result.records / result.seconds if result.seconds else 0
    click.echo(
        f"{result.records} records ({bytes_text(result.bytes)}) replayed to {plan.target} in {result.seconds:.1f} s, "
        f"{rate:,.0f} records/s"
    )
    if result.records_before:
        click.echo(f"{result.records_before} records of job {plan.job.name} had been written before")
    if not result.complete:
        click.echo(f"not complete: repeat the command with --resume --job {plan.job.name}", err=True)
    for line in cut_lines(plan.cuts):
        click.echo(f"note: {line}", err=True)
    if result.zero_timestamps:
        click.echo(f"warning: {result.zero_timestamps} records with timestamp 0 were sent with 1", err=True)


def proof_command(job: str, jobs: str | None, properties: Mapping[str, str], archive: ArchivePlace) -> str:
    """Return the command that proves the records that a job wrote; settings of the connection (-X) are to be added."""
    words = ["replayer", "verify", "--job", job, "-a", str(archive.address), "-b", properties["bootstrap.servers"]]
    given = {"jobs": jobs, "keys": archive.keys, **asdict(archive.s3)}
    for name, value in given.items():
        if value is not None and masked_urls(value) == value:  # that of a proxy may have a password
            words += [f"--{name.replace('_', '-')}", value]
    return shlex.join(words)


def left_out_json(left_out: LeftOut) -> dict[str, Any]:
    """Return how many records transforms left out, and how many each of them changed, for `--json`."""
    told = msgspec.to_builtins(left_out)
    return {"transforms": told.pop("changed"), "left_out": told}


def print_left_out(left_out: LeftOut) -> None:
    """Print how many records transforms left out, and how many each of them changed."""
    for number, reason in (
        (left_out.dropped, "dropped by transforms"),
        (left_out.routed_elsewhere, "routed to other topics by transforms"),
        (left_out.unfit, "skipped because a transform could not handle them"),
    ):
        if number:
            click.echo(f"{number} records were {reason}")
    for name, number in left_out.changed.items():
        click.echo(f"{number} records were changed by transform {name}")


def _range_text(offsets: OffsetRange | None) -> str:
    return "-" if offsets is None else range_text(offsets.start, offsets.end)


def skipped_json(skipped: Sequence[tuple[ArchivedPartition, LostRange]]) -> list[dict[str, Any]]:
    """Return what was skipped as damaged, for `--json`; `to` is excluded."""
    return [
        {"partition": partition.partition, "from": each.start, "to": each.end, "reason": each.reason}
        for partition, each in skipped
    ]

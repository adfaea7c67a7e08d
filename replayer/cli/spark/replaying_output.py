"""What `replayer spark replay` prints in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import msgspec

from blockgz_runtime.errors import PARTLY_FAILED
from blockgz_runtime.program.tables import print_table
from replayer.cli.replay_output import plan_json, print_left_out
from replayer.replay.ledger import LanePosition
from replayer.replay.plan import ReplayPlan
from replayer.replay.prepare import KnownJob
from replayer.replay.stages import LeftOut
from replayer.spark.jobs.lane_task import LaneOutcome


@dataclass(frozen=True)
class Done:
    """Where the lanes stood before and stand now, and what tasks said."""

    before: Mapping[int, LanePosition]
    now: Mapping[int, LanePosition]
    outcomes: Sequence[LaneOutcome]

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return all(position.complete for position in self.now.values())


def written(positions: Mapping[int, LanePosition]) -> int:
    """Records of the job in the target."""
    return sum(position.written for position in positions.values())


def print_done(plan: ReplayPlan, done: Done, known: KnownJob, seconds: float, *, as_json: bool) -> int:
    """Prints what was done, as JSON or as a table; the exit code that this means."""
    left_out = LeftOut()
    for outcome in done.outcomes:
        left_out.dropped += outcome.left_out.dropped
        left_out.routed_elsewhere += outcome.left_out.routed_elsewhere
        left_out.unfit += outcome.left_out.unfit
    skipped = [
        {"partition": source, "from": start, "to": end, "reason": reason}
        for source, start, end, reason in sorted(
            {(outcome.source, *each) for outcome in done.outcomes for each in outcome.skipped}
        )
    ]
    zeros = sum(outcome.zero_timestamps for outcome in done.outcomes)
    partitions = [
        {
            "partition": source,
            "target_partitions": list(plan.router.targets(source)),
            "records": position.written - done.before[source].written,
            "records_before": done.before[source].written,
            "from": done.before[source].sources[source].next,
            "to": position.sources[source].next,
        }
        for source, position in sorted(done.now.items())
    ]
    records, before = written(done.now) - written(done.before), written(done.before)
    if as_json:
        result = {
            "records": records,
            "partitions": partitions,
            "topic": plan.topic,
            "target": plan.target,
            "seconds": round(seconds, 3),
            "zero_timestamps": zeros,
            "records_before": before,
            "complete": done.complete,
            "lost_commits": sum(outcome.lost_commits for outcome in done.outcomes),
            "tasks": len(done.outcomes),
            "left_out": msgspec.to_builtins(left_out),
            "skipped": skipped,
            "plan": plan_json(plan),
        }
        click.echo(msgspec.json.encode(result))
    else:
        rows = [(str(each["partition"]), str(each["records"]), f"{each['from']}..{each['to']}") for each in partitions]
        print_table(("PARTITION", "RECORDS", "OFFSETS"), rows)
        click.echo(f"{records} records replayed to {plan.target} in {seconds:.1f} s")
        if before:
            click.echo(f"{before} records of job {known.job.name} had been written before")
        if zeros:
            click.echo(f"warning: {zeros} records with timestamp 0 were sent with 1", err=True)
        print_left_out(left_out)
    for each in skipped:
        click.echo(
            f"FAILURE {plan.topic}:{each['partition']} skipped offsets {each['from']}..{each['to']}: {each['reason']}",
            err=True,
        )
    return PARTLY_FAILED if skipped else PARTLY_FAILED if left_out.unfit else 0

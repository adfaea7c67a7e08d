"""A drill: a share of an archive is restored under other names, proved, and removed again."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from blockgz.archive.positions import Rule
from blockgz.errors import BlockgzError, NotInArchive, Verdict, worst
from blockgz.units import wall_clock
from replayer.replay.jobs.folder import JobFolder
from replayer.replay.jobs.undo import carry_out, plan_undo
from replayer.replay.request import Surroundings
from replayer.restore.document import RestoreFolder, RestorePlan, WantedTopics
from replayer.restore.running import TopicOutcome


@dataclass(frozen=True)
class Drill:
    """The settings of a drill: `share` (0..1] of the partitions that hold records, chosen at random from `seed`."""

    at: int
    topics: tuple[str, ...]
    prefix: str
    share: float
    seed: int
    replication_factor: int | None = None
    at_rule: Rule | None = None

    @property
    def name(self) -> str:
        """The name of its restore, with which those of its jobs begin."""
        return f"drill-{self.at}-{self.seed}"

    @property
    def plan(self) -> RestorePlan:
        """The restore of everything, without its topics; what the archive lacks is reported, and the rest tried."""
        return RestorePlan(
            archive_id="",
            at=self.at,
            at_rule=self.at_rule or "majority",
            replication_factor=self.replication_factor,
            on_damage="skip",
            partial=True,
            groups=None,
        )

    @property
    def wanted(self) -> WantedTopics:
        """The topics under names with the prefix."""
        return WantedTopics(self.topics, (("(.*)", self.prefix.replace("\\", "\\\\") + r"\1"),))


def sampled(plan: RestorePlan, share: float, seed: int) -> RestorePlan:
    """Return the plan with a sample of its partitions, at least one; raise NotInArchive if none holds a record."""
    places = [(each.source, number) for each in plan.restorable if each.records for number in each.numbers]
    if not places:
        raise NotInArchive(
            "there is nothing to try a restore with",
            why=plan.refused[0].refused or "" if plan.refused else "no topic holds a record from before the time",
            remedy="see replayer ls and replayer restore --dry-run",
        )
    chosen = set(random.Random(seed).sample(places, max(1, math.ceil(share * len(places)))))
    topics = []
    for each in plan.restorable:
        numbers = tuple(number for number in each.numbers if (each.source, number) in chosen)
        if numbers:
            topics.append(replace(each, numbers=numbers, partitions=numbers[-1] + 1))
    return replace(plan, topics=tuple(topics))


def removed(outcomes: Sequence[TopicOutcome], folder: RestoreFolder, around: Surroundings) -> list[str]:
    """Delete the topics of a drill and their folders, and return what could not be deleted and why.

    A topic is deleted as `replayer undo` does it: where the drill created it, and nobody else wrote to it.
    """
    left = []
    for outcome in outcomes:
        job = JobFolder(around.jobs, outcome.job)
        try:
            kept = job.request()
            if kept is not None:
                carry_out(plan_undo(job, kept, around.properties), job, around.properties, wall_clock())
                job.remove()
        except BlockgzError as error:
            left.append(f"{outcome.topic.target}: {error.reason}; try replayer undo --job {outcome.job}")
    if not left:
        folder.remove()
    return left


def drill_document(
    drill: Drill,
    whole: RestorePlan,
    part: RestorePlan,
    outcomes: Sequence[TopicOutcome],
    left: Sequence[str],
    seconds: float,
) -> dict[str, Any]:
    """Return what a drill tried and found as JSON values; `seconds` is the time that restoring and proving took.

    The whole restore's time is that of the part, by the bytes of both.
    """
    proved = all(each.state == "restored" for each in outcomes)
    lacks = [f"{each.source}: {text}" for each in whole.topics for text in (each.lacks or (each.refused,)) if text]
    skipped = [f"{each.topic.source}: {lost}" for each in outcomes for lost in each.skipped]
    gaps = [f"{each.source}: {gap}" for each in part.topics for gap in each.gaps]
    failed = not proved or left or lacks or skipped
    tried, of = (sum(len(each.numbers) for each in plan.topics) for plan in (part, whole))
    verdicts = [each.verdict for each in outcomes if each.verdict is not None]
    verdicts += [Verdict.FAILURE] if failed else [Verdict.WARNING] if gaps else []
    verdicts += [Verdict.SAMPLED] if tried < of else []
    return {
        "verdict": worst(verdicts),
        "drill": drill.name,
        "at": drill.at,
        "seed": drill.seed,
        "partitions": tried,
        "partitions_of": of,
        "records": sum(each.records for each in outcomes),
        "bytes": part.bytes,
        "seconds": round(seconds, 3),
        "whole": {
            "topics": len(whole.topics),
            "records": whole.records,
            "bytes": whole.bytes,
            "seconds": round(seconds * whole.bytes / part.bytes, 3) if part.bytes else None,
        },
        "topics": [
            {
                "source": each.topic.source,
                "target": each.topic.target,
                "partitions": list(each.topic.numbers),
                "state": each.state,
                "records": each.records,
                "proof": each.verdict,
                "error": each.error,
            }
            for each in outcomes
        ],
        "gaps": gaps,
        "notes": [
            f"{each.topic.target}: {note}"
            for each in outcomes
            for note in dict.fromkeys((*each.topic.notes, *each.notes))
        ],
        "warnings": list(whole.warnings),
        "lacks": lacks,
        "skipped": skipped,
        "not_removed": list(left),
    }

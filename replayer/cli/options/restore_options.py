"""The options of `replayer restore`."""

import os
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import msgspec

from blockgz.archive.positions import Rule, parse_time
from blockgz.archive.selection import STOPS
from blockgz.program import options
from blockgz.topic_patterns import matcher
from blockgz.units import wall_clock
from replayer.cli.options.options import Rules, approximate_option, group_map_option, jobs_option, renaming_option
from replayer.cli.options.selection_options import at_rule_option, damage_option
from replayer.cli.options.verify_options import parse_share, report_option
from replayer.groups import map_of
from replayer.replay.pace import SharedRate, Slowest, parse_rate
from replayer.replay.request import parse_topic_config
from replayer.restore.document import SAMPLE, RestoreGroups, RestorePlan, WantedTopics
from replayer.verify.report import ReportFiles

MOST_WORKERS = 8
# A share so small is the first and the last piece of each partition, and one in between.
ENDS = 1e-9

OPTIONS_OF_PLAN: Mapping[str, str] = {
    "transactional": "--no-transactional",
    "prove": "--prove",
    "prove_share": "--sample",
    "replication_factor": "--replication-factor",
    "topic_config": "--topic-config",
    "omit_topic_config": "--omit-topic-config",
    "partial": "--partial",
    "at": "--at",
}

Doing = Literal["restore", "follow", "status", "switch-over"]


class Running(NamedTuple):
    """The location of the job folders, and how fast topics are restored."""

    jobs: str | None
    workers: int
    patience: float
    pace: Slowest


def _running(jobs: str | None, workers: int | None, rate: str | None, patience: float) -> Running:
    pace = Slowest(rate=SharedRate(parse_rate(rate)) if rate is not None else None)
    return Running(jobs, workers or min(2 * (os.cpu_count() or 1), MOST_WORKERS), patience, pace)


class RestoreOptions(NamedTuple):
    doing: Doing
    asked: RestorePlan
    """The plan by the options alone, without its topics."""
    given: Collection[str]
    """Fields of the plan whose options were given: an earlier run or a file may decide about the others."""
    wanted: WantedTopics
    every: float
    name: str | None
    resume: bool
    plan: Path | None
    from_plan: Path | None
    running: Running
    report_to: ReportFiles
    dry_run: bool
    yes: bool
    where: str = ""
    """The options of archive, cluster and jobs, for the command that continues."""

    @property
    def is_new(self) -> bool:
        """True if the plan is made of the options, and is not that of a file or of an earlier run."""
        return "at" in self.given or (self.doing == "follow" and not self.resume)

    @property
    def has_chosen(self) -> bool:
        """True if a person chose where partitions end: by a rule, by the cuts of a plan, or in an earlier run."""
        return not self.is_new or "at_rule" in self.given or self.resume

    def ruled(self, rule: Rule | None) -> "RestoreOptions":
        """Return the same options with a rule for `--at`."""
        if rule is None or not self.is_new:
            return self
        asked = msgspec.structs.replace(self.asked, at_rule=rule)
        return self._replace(asked=asked, given={*self.given, "at_rule"})

    def differing(self, plan: RestorePlan) -> list[str]:
        """Return the options that differ from the plan that was agreed to."""
        asked = self.asked
        names = [name for name in OPTIONS_OF_PLAN if name in self.given]
        found = [OPTIONS_OF_PLAN[name] for name in names if getattr(plan, name) != getattr(asked, name)]
        if self.wanted.rename and self._renames_otherwise(plan):
            found.append("--map")
        if self.wanted.topics and self._names_others(plan):
            found.append("TOPIC")
        if asked.groups is not None and plan.groups is not None:
            chosen = (asked.groups.globs, asked.groups.rename)
            if chosen not in (((), ()), (plan.groups.globs, plan.groups.rename)):
                found.append("--groups or --group-map")
        return found

    def _renames_otherwise(self, plan: RestorePlan) -> bool:
        if plan.follow is not None:
            return self.wanted.rename != plan.follow.rename
        rename = map_of(self.wanted.rename)
        return any(rename(each.topic) != each.target for each in plan.topics)

    def _names_others(self, plan: RestorePlan) -> bool:
        if plan.follow is not None:
            return self.wanted.topics != plan.follow.topics
        planned = {each.topic for each in plan.topics}
        known = planned | {each.topic for each in plan.left_out}
        meant = [set(filter(matcher(each), known)) for each in self.wanted.topics]
        return not all(meant) or not planned <= set().union(*meant)


def _groups(globs: tuple[str, ...], no_groups: bool, rename: Rules, approximate: bool) -> RestoreGroups | None:
    if no_groups and (globs or rename or approximate):
        raise click.UsageError("--no-groups restores no groups: remove the options that choose them")
    return None if no_groups else RestoreGroups(globs, rename, approximate)


groups_options = options.OptionSet(
    "groups",
    _groups,
    options.Option(
        "--groups",
        "globs",
        multiple=True,
        envvar="BLOCKGZ_RESTORE_GROUPS",
        metavar="GLOB",
        help="Only consumer groups whose name matches; may be repeated.  [default: all]",
    ),
    options.Option("--no-groups", is_flag=True, help="Leave consumer groups alone."),
    group_map_option,
    approximate_option,
)


def _json_only(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix != ".json":
            raise click.UsageError(f"--report {path}: a restore writes .json")
    return paths


report_options = options.OptionSet(
    "report_to",
    ReportFiles,
    report_option("Also write what was restored to a .json file; may be repeated.", _json_only),
    options.sign_key_option,
)


def time_of(text: str) -> int:
    """Parse a time as `--at` takes it; return ms."""
    return parse_time(text, wall_clock(), options.option_zone()).timestamp


def _doing(follow: bool, status: bool, switch_over: bool, name: str | None, is_planned: bool, resume: bool) -> Doing:
    flags: dict[Doing, bool] = {"follow": follow, "status": status, "switch-over": switch_over}
    wanted = [doing for doing, is_wanted in flags.items() if is_wanted]
    if len(wanted) > 1:
        raise click.UsageError(f"--{wanted[0]} and --{wanted[1]} are two things: give one")
    doing: Doing = wanted[0] if wanted else "restore"
    if doing != "restore" and name is None:
        raise click.UsageError(f"--{doing} needs --name, which says which standby")
    if doing in ("status", "switch-over") and (is_planned or resume):
        raise click.UsageError(f"--{doing} is of what is followed: remove topics, --map, --at, --resume and plans")
    return doing


def _refuse_contradiction(
    doing: Doing, given: Mapping[str, Any], wanted: WantedTopics, groups: RestoreGroups | None, rest: Mapping[str, Any]
) -> None:
    from_plan, resume = rest["from_plan"], rest["resume"]
    if from_plan is not None and resume:
        raise click.UsageError("--resume continues what was agreed to: remove --from-plan")
    if from_plan is not None and ("at" in given or wanted != WantedTopics()):
        raise click.UsageError("--from-plan says what is restored: remove the topics, --at and --map")
    if from_plan is not None and (given.keys() & OPTIONS_OF_PLAN.keys() or groups != RestoreGroups()):
        raise click.UsageError(
            "--from-plan says how topics are restored: remove the options of groups, --prove, --sample, --partial, "
            "--replication-factor, --topic-config, --on-damage and --no-transactional, or edit the plan"
        )
    if doing == "follow" and ("at" in given or rest["plan"] or from_plan or "transactional" in given):
        raise click.UsageError("--follow has no end and needs transactions: remove --at, plans, --no-transactional")
    if doing == "restore" and "at" not in given and from_plan is None and not resume:
        raise click.UsageError("--at, which says as of when, is missing")
    if "prove_share" in given and given.get("prove") != "sample":
        raise click.UsageError("--sample says how much is proved with --prove sample")
    if doing == "follow" and "prove" in given:
        raise click.UsageError("--prove says what --switch-over compares: remove it")
    if "at_rule" in given and "at" not in given:
        raise click.UsageError("--at-rule says how --at is understood: add --at TIME, or edit the cuts of a plan")


def _restore(
    topics: tuple[str, ...],
    follow_archive: bool,
    status: bool,
    switch_over: bool,
    topic_map: Rules,
    groups: RestoreGroups | None,
    no_transactional: bool,
    on_damage: str,
    partial: bool,
    at: int | None,
    at_rule: Rule | None,
    create_acls: bool | None,
    prove: Literal["all", "sample", "none"] | None,
    share: float | None,
    replication_factor: int | None,
    topic_config: dict[str, str],
    omit_topic_config: tuple[str, ...],
    **rest: Any,
) -> RestoreOptions:
    wanted = WantedTopics(topics, topic_map)
    is_planned = bool(topics or topic_map or at is not None or rest["plan"] or rest["from_plan"])
    doing = _doing(follow_archive, status, switch_over, rest["name"], is_planned, rest["resume"])
    fields: dict[str, Any] = {
        "at": at,
        "at_rule": at_rule,
        "transactional": False if no_transactional else None,
        "replication_factor": replication_factor,
        "topic_config": topic_config or None,
        "omit_topic_config": omit_topic_config or None,
        "on_damage": None if on_damage == STOPS else on_damage,
        "partial": partial or None,
        "prove": prove,
        "prove_share": share,
        "create_acls": create_acls,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    _refuse_contradiction(doing, given, wanted, groups, rest)
    defaults: dict[str, Any] = {"at": wall_clock(), "at_rule": "majority", "prove_seed": random.randrange(2**32)}
    if doing == "switch-over" and prove is None:
        defaults |= {"prove": "sample", "prove_share": ENDS}
    follow = wanted if doing == "follow" else None
    asked = RestorePlan(archive_id="", groups=groups, follow=follow, **{**defaults, **given})
    return RestoreOptions(doing, asked, given.keys(), wanted, **rest)


factor_option = options.Option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    metavar="N",
    help="Replicas of the topics. The default is the cluster's.",
)
running_options = options.OptionSet(
    "running",
    _running,
    jobs_option,
    options.Option(
        "--workers",
        type=click.IntRange(1, 64),
        envvar="BLOCKGZ_RESTORE_WORKERS",
        metavar="N",
        help=f"Topics that are restored at once.  [default: twice the cores, at most {MOST_WORKERS}]",
    ),
    options.Option(
        "--rate",
        metavar="N/s",
        help="Maximum rate of all topics together: records (5000/s), or bytes of keys and values (20MB/s).",
    ),
    options.Option(
        "--patience",
        type=options.DURATION,
        default="5m",
        metavar="TIME",
        help="How long to wait for brokers that do not respond.",
    ),
)

restore_options = options.OptionSet(
    "options",
    _restore,
    options.Argument("topics", metavar="[TOPIC...]", nargs=-1),
    options.Option(
        "--at", cls=options.TimeOption, metavar="TIME", parse=time_of, help="Restore everything before this time."
    ),
    at_rule_option,
    renaming_option(
        "--map",
        "topic_map",
        envvar="BLOCKGZ_TOPIC_MAP",
        help=r"Give topics other names, such as '(.*)=restored.\1'; may be repeated, the first match counts.",
    ),
    factor_option,
    options.Option(
        "--topic-config",
        multiple=True,
        metavar="NAME=VALUE",
        parse=lambda texts: dict(map(parse_topic_config, texts)),
        help="Give every topic this setting instead of its own; may be repeated.",
    ),
    options.Option(
        "--omit-topic-config",
        multiple=True,
        metavar="NAME",
        help="Leave out this setting of the topics; may be repeated.",
    ),
    groups_options,
    options.Option(
        "--acls/--no-acls",
        "create_acls",
        default=None,
        envvar="BLOCKGZ_RESTORE_ACLS",
        help="Also create the ACLs that the topics had, on their new names; their users may not exist in the target.  "
        "[default: no-acls]",
    ),
    options.Option(
        "--prove",
        type=click.Choice(["all", "sample", "none"]),
        help="Compare every topic with the archive, record by record, or a sample of each partition.  [default: all; "
        "with --switch-over the first and last records of each partition, and all counts]",
    ),
    options.Option(
        "--sample",
        "share",
        envvar="BLOCKGZ_RESTORE_SAMPLE",
        type=options.Parsed("share", parse_share),
        metavar="PERCENT",
        help="With --prove sample: this share of each partition, chosen at random, its first and last records, and all "
        f"counts.  [default: {SAMPLE.share:.0%}]",
    ),
    options.Option(
        "--no-transactional", is_flag=True, help="Write without transactions: after a crash, some records come twice."
    ),
    damage_option,
    options.Option("--partial", is_flag=True, help="If the archive lacks something, restore the rest and exit with 3."),
    options.Option(
        "--name",
        envvar="BLOCKGZ_RESTORE_NAME",
        metavar="NAME",
        help="Name of the restore. The default is derived from what is restored.",
    ),
    options.Option(
        "--resume", is_flag=True, help="Continue the restore that was begun; what it did not create is not touched."
    ),
    options.Option(
        "--plan",
        envvar="BLOCKGZ_RESTORE_PLAN",
        type=options.LocalPath(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the plan to this file as JSON, and nothing else; it may be edited.",
    ),
    options.Option(
        "--from-plan",
        type=options.LocalPath(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Carry out the plan in this file.",
    ),
    options.Option(
        "--follow",
        "follow_archive",
        is_flag=True,
        envvar="BLOCKGZ_RESTORE_FOLLOW",
        help="Keep a warm standby: restore all, then all that is added to the archive.",
    ),
    options.Option(
        "--every",
        type=options.DURATION,
        default="1m",
        envvar="BLOCKGZ_RESTORE_EVERY",
        metavar="TIME",
        help="With --follow: how often to check the archive for new chunks.",
    ),
    options.Option(
        "--status",
        is_flag=True,
        envvar="BLOCKGZ_RESTORE_STATUS",
        help="Say how far the standby of this --name is behind the archive.",
    ),
    options.Option(
        "--switch-over",
        is_flag=True,
        help="End following, restore what the archive holds, prove the ends, set settings and groups.",
    ),
    running_options,
    report_options,
    options.dry_run_option,
    options.yes_option,
)

"""`replayer restore`."""

import asyncio
import gc
from pathlib import Path

import click
import msgspec

from blockgz.archive.place import ArchivePlace
from blockgz.errors import PARTLY_FAILED, CutUndecided, UsageError, listed
from blockgz.process import run_async, share_heaps
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing, confirm
from blockgz.units import time_text
from replayer.cli.options.archive_options import archive_options, open_archive
from replayer.cli.options.options import json_option
from replayer.cli.options.restore_options import RestoreOptions, restore_options
from replayer.cli.options.selection_options import with_choice
from replayer.cli.restore.carrying_out import Named, carried_out, surroundings, with_acls
from replayer.cli.restore.output import print_plan
from replayer.cli.restore.standby import followed, standby_status, switched_over
from replayer.errors import ReplayRefused
from replayer.replay.jobs.lock import held
from replayer.replay.target_topic import state_folder
from replayer.restore.document import RestorePlan, parse_plan, plan_text
from replayer.restore.folder import RestoreFolder
from replayer.restore.planning import found_topics, looked_over, name_of, refuse_other_archive
from replayer.restore.report import plan_document
from replayer.restore.request import Surroundings


@click.command(
    "restore",
    epilog=closing(
        "replayer restore --at 2026-11-20T12:00:00Z --dry-run -b new:9092 -a s3://bucket/prefix",
        "replayer restore --at 2026-11-20T12:00:00Z --name night -b new:9092 -a s3://bucket/prefix",
        "replayer restore --resume --name night --yes -b new:9092 -a s3://bucket/prefix",
        "replayer restore --at -1h 'shop.*' --map '(.*)=drill.\\1' --group-map '(.*)=drill.\\1' -b HOST:PORT -a DIR",
        "replayer restore --at 2026-11-20T12:00:00Z --plan plan.json -b new:9092 -a ./archive",
        "replayer restore --follow --name standby --yes -b new:9092 -a s3://bucket/prefix",
        "replayer restore --status --name standby -b new:9092 -a s3://bucket/prefix",
        "replayer restore --switch-over --name standby --yes -b new:9092 -a s3://bucket/prefix",
        "replayer restore --from-plan plan.json --report restored.json --yes -b new:9092 -a ./archive",
    ),
)
@restore_options
@json_option
@kafka_options(required=True)
@archive_options
def command(options: RestoreOptions, as_json: bool, kafka: dict[str, str], archive: ArchivePlace) -> int:
    """Restore topics to a cluster, all as of one time, and let their consumers continue.

    TOPIC is a name, a glob or ~regex; the default is all topics. Each gets the partitions, the settings and the records
    that it had at the time, also where it was deleted or created again since. Every topic is proved, then the consumer
    groups are set to where they stood. Prints the plan and asks first. Topics that exist are refused.

    With --follow it keeps a warm standby: it goes on with what the archive gains, until --switch-over.

    SIGTERM and Ctrl-C commit, then exit; --resume continues, after a crash as well.
    """
    share_heaps()
    gc.freeze()
    return with_choice(lambda rule: run_async(_restore(options.ruled(rule), as_json, kafka, archive)))


async def _restore(options: RestoreOptions, as_json: bool, kafka: dict[str, str], place: ArchivePlace) -> int:
    async with open_archive(place) as archive:
        around = surroundings(options.running, archive, kafka, place)
        if options.doing == "status":
            return await standby_status(str(options.name), around, as_json=as_json)
        if options.doing == "switch-over":
            return await switched_over(options, around, as_json=as_json)
        named = await _planned(options, around)
        seconds = options.running.pace.seconds(named.plan.records, named.plan.bytes, 0)
        if not as_json:
            print_plan(*named, seconds, around.budget.used)
        if options.plan is not None:
            _write(options.plan, named.plan)
        if as_json and (options.dry_run or options.plan is not None):
            document = plan_document(*named, seconds, around.budget.used)
            click.echo(msgspec.json.encode({"dry_run": True, **document}))
        if options.plan is not None:
            return 0
        code = _code_of(named.plan)
        if not options.has_chosen:
            refuse_undecided(named.plan)
        if options.dry_run:
            return code
        question = f"Create {len(named.plan.restorable)} topics and write {named.plan.records} records?"
        confirm(question, undone="nothing was restored", is_agreed=options.yes)
        with held(state_folder() / "jobs", named.name):
            if named.plan.follow is not None:
                return await followed(named, options, around, as_json=as_json)
            return await carried_out(named, options, around, as_json=as_json)


async def _planned(options: RestoreOptions, around: Surroundings) -> Named:
    """What was agreed to before, with --resume; else what is planned now."""
    if options.resume and options.name is not None:
        return Named(options.name, await _resumed(options.name, options, around))
    if options.from_plan is not None:
        plan = with_acls(parse_plan(options.from_plan.read_bytes(), str(options.from_plan)), options)
        await refuse_other_archive(plan, around.archive)
    elif options.asked is not None:
        plan = await found_topics(options.asked, around)
    else:
        raise UsageError(
            "which restore is to be continued is not said",
            why="neither --name nor --at is given",
            remedy="add --name NAME, or repeat the first command with --resume",
        )
    admin = await asyncio.to_thread(lambda: around.admin)
    name = options.name or name_of(plan, admin.cluster_id or around.properties["bootstrap.servers"])
    if options.resume:
        return Named(name, await _resumed(name, options, around))
    return Named(name, await looked_over(plan, name, around, admin))


async def _resumed(name: str, options: RestoreOptions, around: Surroundings) -> RestorePlan:
    """The plan that was agreed to, with what may be said otherwise when it is resumed: its groups and ACLs."""
    plan = with_acls((await asyncio.to_thread(RestoreFolder(around.jobs, name).begun)).plan, options)
    await refuse_other_archive(plan, around.archive)
    if options.doing == "follow" and plan.follow is None:
        raise UsageError(
            f"restore {name} follows nothing", why="it restores one moment", remedy="remove --follow, or check --name"
        )
    differing = options.begun.differing(plan)
    if differing:
        raise UsageError(
            f"restore {name} was begun otherwise: {', '.join(differing)}",
            why="--resume carries out the plan that was agreed to first",
            remedy="remove what is named, or start another restore with --name NAME",
        )
    if plan.groups is None or options.groups is None:
        return msgspec.structs.replace(plan, groups=None)
    groups = msgspec.structs.replace(plan.groups, approximate=plan.groups.approximate or options.groups.approximate)
    return msgspec.structs.replace(plan, groups=groups)


def _refuse_refused(plan: RestorePlan) -> None:
    """Raises ReplayRefused where a topic cannot be restored, unless the others are to be."""
    if plan.refused and (not plan.partial or not plan.restorable):
        first = plan.refused[0]
        raise ReplayRefused(
            f"{len(plan.refused)} of {len(plan.topics)} topics cannot be restored as planned: {first.source}",
            why=first.refused or "",
            remedy="change the plan (--map, --from-plan), or restore the others with --partial",
        )


def refuse_undecided(plan: RestorePlan) -> None:
    """Raise CutUndecided if a person has to choose where the partitions of a topic end."""
    doubtful = [each for each in plan.restorable if each.choice is not None]
    if doubtful:
        raise CutUndecided(
            f"it is not certain which records of {listed(each.source for each in doubtful)} are from before "
            f"{time_text(plan.at)}",
            why=listed(each.choice for each in doubtful),
            remedy="repeat the command with --at-rule majority (the fewest records on the wrong side) or --at-rule "
            "first (up to the first record of the time or later); or write --plan FILE, edit its cuts, and use "
            "--from-plan FILE",
        )


def _code_of(plan: RestorePlan) -> int:
    """The code that carrying it out would exit with, if nothing fails; raises as `_refuse_refused` does."""
    _refuse_refused(plan)
    lacks = plan.refused or any(each.lacks for each in plan.topics)
    return PARTLY_FAILED if lacks and plan.follow is None else 0


def _write(path: Path, plan: RestorePlan) -> None:
    try:
        path.write_bytes(plan_text(plan))
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=str(error), remedy="name another file") from error
    for each in plan.topics:
        if each.choice is not None:
            click.echo(f"warning: look at the cuts in {path} before you use them: {each.choice}", err=True)
    click.echo(f"the plan is in {path}: carry it out with --from-plan {path}", err=True)

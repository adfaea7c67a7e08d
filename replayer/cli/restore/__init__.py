"""`replayer restore`."""

import asyncio
import gc
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from blockgz_runtime.errors import FAILED, PARTLY_FAILED, UsageError
from blockgz_runtime.process import share_heaps
from blockgz_runtime.program.kafka_options import kafka_options
from blockgz_runtime.program.main import closing, confirm, ended_code
from blockgz_runtime.program.progress import record_progress
from index_format.errors import BlockgzError
from replayer.cli.options.archive_options import archive_options, open_archive
from replayer.cli.options.job_options import open_jobs
from replayer.cli.options.options import json_option
from replayer.cli.options.restore_options import RestoreOptions, Running, restore_options
from replayer.cli.restore.output import print_outcome, print_plan, print_restored
from replayer.errors import ReplayRefused
from replayer.kafka.acls import KafkaAcls
from replayer.kafka.groups import KafkaGroups
from replayer.place import ArchivePlace
from replayer.read.archive import Archive
from replayer.replay.jobs.lock import held
from replayer.replay.jobs.log import this_process
from replayer.replay.stages import wall_clock
from replayer.replay.target_topic import state_folder
from replayer.restore.acls import AclsOutcome, set_acls
from replayer.restore.consumers import GroupsOutcome, set_groups
from replayer.restore.document import RestorePlan, parse_plan, plan_text
from replayer.restore.folder import RestoreFolder, RestoreRecord
from replayer.restore.planning import found_topics, looked_over, name_of
from replayer.restore.report import outcome_document, plan_document
from replayer.restore.request import Surroundings
from replayer.restore.running import RestoreRun, TopicOutcome

THREADS_OF_A_TOPIC = 6
"""So many calls of one replay may wait for brokers at once."""


class _Named(NamedTuple):
    """A plan, and what its restore is called."""

    name: str
    plan: RestorePlan


@click.command(
    "restore",
    epilog=closing(
        "replayer restore --at 2026-11-20T12:00:00Z --dry-run -b new:9092 -a s3://bucket/prefix",
        "replayer restore --at 2026-11-20T12:00:00Z --name night -b new:9092 -a s3://bucket/prefix",
        "replayer restore --resume --name night --yes -b new:9092 -a s3://bucket/prefix",
        "replayer restore --at -1h 'shop.*' --map '(.*)=drill.\\1' --group-map '(.*)=drill.\\1' -b HOST:PORT -a DIR",
        "replayer restore --at 2026-11-20T12:00:00Z --plan plan.json -b new:9092 -a ./archive",
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

    SIGTERM and Ctrl-C commit, then exit; --resume continues, after a crash as well.
    """
    share_heaps()
    gc.freeze()
    return asyncio.run(_restore(options, as_json, kafka, archive))


async def _restore(options: RestoreOptions, as_json: bool, kafka: dict[str, str], place: ArchivePlace) -> int:
    async with open_archive(place) as archive:
        around = surroundings(options.running, archive, kafka, place)
        named = await _planned(options, around)
        seconds = options.running.pace.seconds(named.plan.records, named.plan.bytes, 0)
        if not as_json:
            print_plan(*named, seconds)
        if options.plan is not None:
            _write(options.plan, named.plan)
        if options.dry_run or options.plan is not None:
            if as_json:
                click.echo(msgspec.json.encode({"dry_run": True, **plan_document(*named, seconds)}))
            return 0
        _refuse_refused(named.plan)
        question = f"Create {len(named.plan.restorable)} topics and write {named.plan.records} records?"
        confirm(question, undone="nothing was restored", is_agreed=options.yes)
        with held(state_folder() / "jobs", named.name):
            return await _carried_out(named, options, around, as_json=as_json)


def surroundings(running: Running, archive: Archive, kafka: dict[str, str], place: ArchivePlace) -> Surroundings:
    """What a restore works with; the calls of all its topics get threads."""
    executor = ThreadPoolExecutor(THREADS_OF_A_TOPIC * (running.workers + 1))
    asyncio.get_running_loop().set_default_executor(executor)
    return Surroundings(archive, kafka, open_jobs(running.jobs, place), running.pace, running.patience)


async def _planned(options: RestoreOptions, around: Surroundings) -> _Named:
    """What was agreed to before, with --resume; else what is planned now."""
    if options.resume and options.name is not None:
        return _Named(options.name, _resumed(options.name, options, around))
    if options.from_plan is not None:
        plan = _with_acls(parse_plan(options.from_plan.read_bytes(), str(options.from_plan)), options)
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
        return _Named(name, _resumed(name, options, around))
    return _Named(name, await looked_over(plan, name, around, admin))


def _resumed(name: str, options: RestoreOptions, around: Surroundings) -> RestorePlan:
    """The plan that was agreed to, with what may be said otherwise when it is resumed: its groups and ACLs."""
    plan = _with_acls(RestoreFolder(around.jobs, name).begun().plan, options)
    if plan.groups is None or options.groups is None:
        return msgspec.structs.replace(plan, groups=None)
    groups = msgspec.structs.replace(plan.groups, approximate=plan.groups.approximate or options.groups.approximate)
    return msgspec.structs.replace(plan, groups=groups)


def _with_acls(plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    return plan if options.create_acls is None else msgspec.structs.replace(plan, create_acls=options.create_acls)


def _refuse_refused(plan: RestorePlan) -> None:
    """Raises ReplayRefused where a topic cannot be restored, unless the others are to be."""
    if plan.refused and (not plan.partial or not plan.restorable):
        first = plan.refused[0]
        raise ReplayRefused(
            f"{len(plan.refused)} of {len(plan.topics)} topics cannot be restored as planned: {first.source}",
            why=first.refused or "",
            remedy="change the plan (--map, --from-plan), or restore the others with --partial",
        )


async def _carried_out(named: _Named, options: RestoreOptions, around: Surroundings, *, as_json: bool) -> int:
    name, plan = named
    folder = RestoreFolder(around.jobs, name)
    await asyncio.to_thread(_begin, folder, plan, around, resume=options.resume)
    began = time.monotonic()
    total = round(plan.records * plan.passes)
    with record_progress("restoring", total, as_json=as_json) as progress:
        told = (lambda _: None) if as_json else print_outcome
        run = RestoreRun(plan, folder, around, options.running.workers, progress, told)
        with ending_signals(run) as signals:
            try:
                outcomes = await run.topics()
                groups, error = await _groups(run, outcomes)
                acls = await _acls(run, outcomes)
            except asyncio.CancelledError as stopped:
                raise click.exceptions.Exit(ended_code(FAILED, signals, is_done=False)) from stopped
    document = outcome_document(name, plan, outcomes, groups, error, time.monotonic() - began, acls)
    options.report_to.write(document)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        print_restored(name, outcomes, groups, error, acls)
    stand = (groups is not None or plan.groups is None) and (acls is not None or not plan.create_acls)
    is_done = not run.ending or (stand and all(each.state == "restored" for each in outcomes))
    lacks = any(each.topic.lacks or each.skipped for each in outcomes)
    failed = document["verdict"] == "FAILURE" or lacks
    return ended_code(PARTLY_FAILED if failed else 0, signals, is_done=is_done)


def _begin(folder: RestoreFolder, plan: RestorePlan, around: Surroundings, *, resume: bool) -> None:
    """Writes down what is agreed to, or checks that it is continued on the same cluster and archive."""
    cluster = around.admin.cluster_id
    if not resume:
        record = RestoreRecord(
            name=folder.name, cluster_id=cluster, host=this_process(), begun_at=wall_clock(), plan=plan
        )
        folder.begin(record)
        return
    kept = folder.begun()
    if None not in (kept.cluster_id, cluster) and kept.cluster_id != cluster:
        raise ReplayRefused(
            f"restore {folder.name} goes to another cluster",
            why=f"that has id {kept.cluster_id}, this one {cluster}",
            remedy="check -b, or start another restore with --name NAME",
        )


async def _groups(run: RestoreRun, outcomes: list[TopicOutcome]) -> tuple[GroupsOutcome | None, str | None]:
    """What was set, or why not; nothing before every topic is restored."""
    if run.plan.groups is None or run.ending:
        return None, None
    failed = [each for each in outcomes if each.state == "failed"]
    if failed:
        return None, f"{failed[0].topic.source} is not restored; set the others with replayer groups apply --job"
    try:
        groups = KafkaGroups(run.around.properties)
        return await set_groups(run.plan, run.folder, run.around, groups), None
    except BlockgzError as error:
        return None, f"{error.reason}; {error.remedy}" if error.remedy else error.reason


async def _acls(run: RestoreRun, outcomes: list[TopicOutcome]) -> AclsOutcome | None:
    """What was created, or why not; nothing before every topic is restored."""
    if not run.plan.create_acls or run.ending:
        return None
    failed = [each for each in outcomes if each.state == "failed"]
    if failed:
        return AclsOutcome({}, error=f"{failed[0].topic.source} is not restored")
    try:
        return await asyncio.to_thread(set_acls, run.plan, run.folder, KafkaAcls(run.around.properties))
    except BlockgzError as error:
        return AclsOutcome({}, error=f"{error.reason}; {error.remedy}" if error.remedy else error.reason)


def _write(path: Path, plan: RestorePlan) -> None:
    try:
        path.write_bytes(plan_text(plan))
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=str(error), remedy="name another file") from error
    click.echo(f"the plan is in {path}: carry it out with --from-plan {path}", err=True)


@contextmanager
def ending_signals(run: RestoreRun) -> Iterator[set[int]]:
    """While this lasts, signals end the run; a second one does not wait for the commit. Those that came."""
    loop, work, signals = asyncio.get_running_loop(), asyncio.current_task(), set[int]()

    def end(number: int) -> None:
        if signals and work is not None:
            work.cancel()
        elif number == signal.SIGINT:
            click.echo("stopping after the next commit; interrupt again to stop at once", err=True)
        signals.add(number)
        run.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    try:
        yield signals
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

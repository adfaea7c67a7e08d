"""Carrying out what a restore's plan says, from the first topic to the groups and the report."""

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

import click
import msgspec

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Verdict
from blockgz.archive.place import ArchivePlace
from blockgz.errors import FAILED, PARTLY_FAILED
from blockgz.process import ENDING, loop_signals
from blockgz.program.main import ended_code
from blockgz.program.progress import record_progress
from index_format.errors import BlockgzError
from replayer.cli.options.job_options import open_jobs
from replayer.cli.options.restore_options import RestoreOptions, Running
from replayer.cli.restore.output import print_outcome, print_restored
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAcls
from replayer.kafka.groups import KafkaGroups
from replayer.replay.jobs.log import this_process
from replayer.replay.stages import wall_clock
from replayer.restore.acls import AclsOutcome, set_acls
from replayer.restore.consumers import GroupsOutcome, set_groups
from replayer.restore.document import RestorePlan
from replayer.restore.folder import RestoreFolder, RestoreRecord
from replayer.restore.report import outcome_document
from replayer.restore.request import Surroundings
from replayer.restore.running import RestoreRun
from replayer.restore.topic_replay import TopicOutcome

THREADS_OF_A_TOPIC = 6
"""So many calls of one replay may wait for brokers at once."""


NOTHING: Mapping[str, Sequence[str]] = {}


class Named(NamedTuple):
    """A plan, and what its restore is called."""

    name: str
    plan: RestorePlan


class Endable(Protocol):
    """What a signal ends."""

    def end(self) -> None: ...


def with_acls(plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """The plan, with or without ACLs where that is said now."""
    return plan if options.create_acls is None else msgspec.structs.replace(plan, create_acls=options.create_acls)


def surroundings(running: Running, archive: Archive, kafka: dict[str, str], place: ArchivePlace) -> Surroundings:
    """What a restore works with; the calls of all its topics get threads."""
    executor = ThreadPoolExecutor(THREADS_OF_A_TOPIC * (running.workers + 1))
    asyncio.get_running_loop().set_default_executor(executor)
    return Surroundings(archive, kafka, open_jobs(running.jobs, place), running.pace, running.patience)


async def carried_out(
    named: Named,
    options: RestoreOptions,
    around: Surroundings,
    *,
    as_json: bool,
    skipped: Mapping[str, Sequence[str]] = NOTHING,
) -> int:
    """Restores, prints and writes what was done; `skipped` by source what was passed over at damage before."""
    name, plan = named
    again = "--switch-over" if options.doing == "switch-over" else "--resume"
    folder = RestoreFolder(around.jobs, name)
    await asyncio.to_thread(begin, folder, plan, around, resume=again == "--switch-over" or options.resume)
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
    for outcome in outcomes:
        outcome.skipped = [*skipped.get(outcome.topic.source, ()), *outcome.skipped]
    document = outcome_document(name, plan, outcomes, groups, error, time.monotonic() - began, acls)
    options.report_to.write(document)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        print_restored(outcomes, groups, error, acls, f"{again} --name {name}")
    stand = (groups is not None or plan.groups is None) and (acls is not None or not plan.create_acls)
    is_done = not run.ending or (stand and all(each.state == "restored" for each in outcomes))
    lacks = any(each.topic.lacks or each.skipped for each in outcomes)
    failed = document["verdict"] is Verdict.FAILURE or lacks
    return ended_code(PARTLY_FAILED if failed else 0, signals, is_done=is_done)


def begin(folder: RestoreFolder, plan: RestorePlan, around: Surroundings, *, resume: bool) -> None:
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


@contextmanager
def ending_signals(run: Endable) -> Iterator[set[int]]:
    """While this lasts, signals end the run; a second one does not wait for the commit. Those that came."""
    work, signals = asyncio.current_task(), set[int]()

    def end(number: int) -> None:
        if signals and work is not None:
            work.cancel()
        elif number == signal.SIGINT:
            click.echo("stopping after the next commit; interrupt again to stop at once", err=True)
        signals.add(number)
        run.end()

    with loop_signals({number: partial(end, number) for number in ENDING}):
        yield signals

"""`replayer restore`, and a warm standby: `--follow`, `--status` and `--switch-over`."""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from blockgz.archive.archive import ArchivePlace, ArchiveReader
from blockgz.errors import FAILED, PARTLY_FAILED, BlockgzError, CutUndecided, UsageError, Verdict, listed
from blockgz.process import ENDING, loop_signals, run_async, share_heaps
from blockgz.program.archive_options import s3_options
from blockgz.program.main import RunningGroup, closing, confirm, ended_code, print_failure
from blockgz.program.options import kafka_options
from blockgz.program.progress import record_progress
from blockgz.program.terminal import print_each, print_table
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_store
from blockgz.units import bytes_text, time_text, wall_clock
from replayer.cli.options.options import archive_options, jobs_option, json_option, open_archive
from replayer.cli.options.restore_options import RestoreOptions, Running, restore_options
from replayer.cli.options.selection_options import with_choice
from replayer.cli.replay import duration_text, place_options, print_cut_bytes
from replayer.cli.undo import UndoOptions, undo_options
from replayer.errors import ReplayRefused
from replayer.kafka.admin import TopicChanges, kafka_groups
from replayer.replay.jobs.control import held, is_running, lock_folder
from replayer.replay.jobs.folder import existing_jobs, job_names, jobs_place, open_jobs, this_process
from replayer.replay.jobs.undo import undo_document
from replayer.replay.request import Surroundings
from replayer.restore import document as records
from replayer.restore import standby
from replayer.restore.begun import CONTINUED, deleted_topics, plan_restore_undo, restore_document, undo_restore
from replayer.restore.consumers import Applied, FollowedGroups, set_acls, set_groups
from replayer.restore.planning import found_topics, gathered, looked_over, name_of, planned_again, refuse_other_archive
from replayer.restore.running import RestoreRun, TopicOutcome, TopicReplays, outcome_document, plan_document


def print_plan(name: str, plan: records.RestorePlan, seconds: float, cut_bytes: int = 0) -> None:
    """The plan as a table, totals and warnings, on stderr."""
    rows = [
        (
            each.source,
            each.target,
            each.partitions,
            each.records,
            bytes_text(each.bytes),
            time_text(each.newest),
            len(each.groups),
            "REFUSED" if each.refused else "yes",
        )
        for each in plan.topics
    ]
    columns = ("SOURCE", "TARGET", "PARTITIONS", "RECORDS", "SIZE", "NEWEST", "GROUPS", "RESTORED")
    title = f"standby {name}" if plan.follow else f"restore {name}, as of {time_text(plan.at)}"
    print_table(columns, rows, droppable=("NEWEST", "GROUPS", "PARTITIONS"), title=title, file=sys.stderr)
    for each in plan.left_out:
        click.echo(f"left out: {each.topic}: {each.why}", err=True)
    for topic in plan.topics:
        _print_notes(topic)
    print_each("warning: ", plan.warnings, err=True)
    print_cut_bytes(cut_bytes)
    groups = sorted({group for each in plan.restorable for group in each.groups})
    positions = sum(each.positions for each in plan.restorable)
    click.echo(_acls_text(plan), err=True)
    factor = plan.replication_factor
    disk = f"{bytes_text(plan.bytes * (factor or 1))} on disk before compression"
    disk += f" with {factor} replicas" if factor else " a replica"
    click.echo(
        f"{len(plan.restorable)} of {len(plan.topics)} topics, {plan.records} records, {disk}; {len(groups)} consumer "
        f"groups with {positions} positions; {duration_text(seconds)} or more{_proof_text(plan)}",
        err=True,
    )


def _acls_text(plan: records.RestorePlan) -> str:
    unknown = f"; which ones {plan.without_acls} topics had is unknown" if plan.without_acls else ""
    what = "are created for the new names" if plan.create_acls else "are not created without --acls"
    return f"{plan.acls} ACLs of the topics are known, and {what}{unknown}"


def _proof_text(plan: records.RestorePlan) -> str:
    if plan.sample is not None:
        return f", and a sample of {plan.sample.share:.6g} is proved (seed {plan.sample.seed})"
    if plan.follow is not None:
        return ", then what the archive gains"
    return ", twice that proved" if plan.prove == "all" else ", without a proof"


def _print_notes(topic: records.TopicToRestore) -> None:
    print_each(f"note: {topic.source}: ", (*topic.notes, *(f"recorded gap: {gap}" for gap in topic.gaps)), err=True)
    for setting, value in topic.left_behind.items():
        click.echo(f"note: {topic.source}: {setting}={value} belonged to the old brokers and is left out", err=True)
    print_each(f"warning: {topic.source}: ", (*topic.lacks, *(topic.missing or ())), err=True)
    if topic.refused is not None:
        click.echo(f"REFUSED {topic.source}: {topic.refused}", err=True)


def print_outcome(outcome: TopicOutcome) -> None:
    """A topic that is done, or failed, in a line on stderr."""
    names = f"{outcome.topic.source} -> {outcome.topic.target}"
    if outcome.state == "restored":
        proof = "not proved" if outcome.verdict is None else f"proof {outcome.verdict}"
        click.echo(f"{names}: {outcome.records} records, {proof}, {outcome.seconds:.1f} s", err=True)
    elif outcome.error is not None:
        click.echo(f"{names}: {outcome.state}: {outcome.error}", err=True)


def print_restored(outcomes: Sequence[TopicOutcome], groups: Applied | None, acls: Applied | None, again: str) -> None:
    """The result, as a table on stdout; `again` is the command that continues it."""
    rows = [(each.topic.source, each.topic.target, each.records, each.verdict or "-", each.state) for each in outcomes]
    print_table(("SOURCE", "TARGET", "RECORDS", "PROOF", "STATE"), rows)
    for each in outcomes:
        print_each(f"note: {each.topic.target}: ", each.notes, err=True)
        print_each(f"WARNING {each.topic.target}: ", each.warnings, err=True)
        print_each(f"FAILURE {each.topic.source}: skipped ", each.skipped, err=True)
        if each.state == "restored" and each.topic.lacks:
            click.echo(f"WARNING {each.topic.target}: {each.topic.lacking(each.job)}", err=True)
        if each.state in ("failed", "refused"):
            click.echo(f"FAILURE {each.topic.source}: {each.error}", err=True)
            if each.do:
                click.echo(f"do: {each.do}", err=True)
    if groups is not None and groups.error is None:
        positions = sum(groups.counts.values())
        click.echo(f"consumer groups that are set to where they were: {len(groups.counts)}, positions: {positions}")
    if acls is not None and acls.error is None:
        click.echo(f"{sum(acls.counts.values())} ACLs are created, of {len(acls.counts)} topics")
    for what, applied in (("consumer group was set", groups), ("ACL was created", acls)):
        print_each("note: ", applied.notes if applied else (), err=True)
        if applied is not None and applied.error is not None:
            click.echo(f"FAILURE no {what}: {applied.error}", err=True)
    unset = any(each is not None and each.error is not None for each in (groups, acls))
    if any(each.state in ("failed", "interrupted") for each in outcomes) or unset:
        click.echo(f"not complete; to continue: {again}", err=True)


# Calls of one replay that may wait for brokers at once.
THREADS_OF_A_TOPIC = 6


NOTHING: Mapping[str, Sequence[str]] = {}


def with_acls(plan: records.RestorePlan, options: RestoreOptions) -> records.RestorePlan:
    """Return the plan, with or without ACLs if an option says so."""
    is_said = "create_acls" in options.given
    return msgspec.structs.replace(plan, create_acls=options.asked.create_acls) if is_said else plan


def adjusted(plan: records.RestorePlan, options: RestoreOptions) -> records.RestorePlan:
    """Return the plan that was agreed to with what may be said otherwise later: its groups, ACLs and damage."""
    groups, asked = plan.groups, options.asked.groups
    if groups is not None:
        approximate = asked is not None and asked.approximate
        agreed = msgspec.structs.replace(groups, approximate=groups.approximate or approximate)
        groups = None if asked is None else agreed
    on_damage = options.asked.on_damage if "on_damage" in options.given else plan.on_damage
    return msgspec.structs.replace(with_acls(plan, options), groups=groups, on_damage=on_damage)


def surroundings(running: Running, archive: ArchiveReader, kafka: dict[str, str], place: ArchivePlace) -> Surroundings:
    """Return the surroundings of a restore; the calls of all its topics get threads."""
    executor = ThreadPoolExecutor(THREADS_OF_A_TOPIC * (running.workers + 1))
    asyncio.get_running_loop().set_default_executor(executor)
    return Surroundings(archive, kafka, open_jobs(running.jobs, place), running.pace, running.patience)


async def carried_out(
    name: str,
    plan: records.RestorePlan,
    options: RestoreOptions,
    around: Surroundings,
    *,
    as_json: bool,
    skipped: Mapping[str, Sequence[str]] = NOTHING,
) -> int:
    """Restores, prints and writes what was done; `skipped` by source what was passed over at damage before."""
    again = "--switch-over" if options.doing == "switch-over" else "--resume"
    folder = records.RestoreFolder(around.jobs, name)
    resume = again == "--switch-over" or options.resume
    await asyncio.to_thread(begin, folder, plan, around, resume=resume, where=options.where)
    began = time.monotonic()
    total = round(plan.records * plan.passes)
    with record_progress("restoring", total, as_json=as_json) as progress:
        told = (lambda _: None) if as_json else print_outcome
        run = RestoreRun(plan, folder, around, options.running.workers, progress, told)
        with ending_signals(run) as signals:
            try:
                outcomes = await run.topics()
                groups = acls = None
                if plan.groups is not None:
                    whole = {each.topic.source: each.lost for each in outcomes if each.state == "restored"}
                    set_all = partial(set_groups, plan, folder, around, whole=whole)
                    groups = await _applied(run, [], lambda: set_all(kafka_groups(around.properties)))
                if plan.create_acls:
                    create = partial(set_acls, plan, folder)
                    acls = await _applied(
                        run, outcomes, lambda: asyncio.to_thread(create, TopicChanges(around.properties))
                    )
            except asyncio.CancelledError as stopped:
                raise click.exceptions.Exit(ended_code(FAILED, signals, is_done=False)) from stopped
    for outcome in outcomes:
        outcome.skipped = [*skipped.get(outcome.topic.source, ()), *outcome.skipped]
    document = outcome_document(name, plan, outcomes, groups, acls, time.monotonic() - began)
    options.report_to.write(document)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        print_restored(outcomes, groups, acls, (await asyncio.to_thread(folder.begun)).command(again))
    are_set = plan.groups is None or (groups is not None and groups.error is None)
    stand = are_set and (acls is not None or not plan.create_acls)
    is_done = not run.ending or (stand and all(each.state == "restored" for each in outcomes))
    lacks = any(each.topic.lacks or each.skipped for each in outcomes)
    failed = document["verdict"] is Verdict.FAILURE or lacks
    return ended_code(PARTLY_FAILED if failed else 0, signals, is_done=is_done)


def begin(
    folder: records.RestoreFolder, plan: records.RestorePlan, around: Surroundings, *, resume: bool, where: str = ""
) -> None:
    """Write down what is agreed to, or check that it is continued on the same cluster and archive."""
    cluster = around.admin.cluster_id
    if not resume:
        record = records.RestoreRecord(
            name=folder.name, cluster_id=cluster, host=this_process(), begun_at=wall_clock(), plan=plan, where=where
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


async def _applied(
    run: RestoreRun, needed: list[TopicOutcome], apply: Callable[[], Awaitable[Applied]]
) -> Applied | None:
    """Return what `apply` set, or why nothing was set before the needed topics are restored; None if the run ends."""
    if run.ending:
        return None
    failed = [each for each in needed if each.state == "failed"]
    if failed:
        return Applied({}, error=f"{failed[0].topic.source} is not restored")
    try:
        return await apply()
    except BlockgzError as error:
        return Applied({}, error=f"{error.reason}; {error.remedy}" if error.remedy else error.reason)


@contextmanager
def ending_signals(run: RestoreRun | standby.StandbyRun) -> Iterator[set[int]]:
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


ASK_AGAIN_SECONDS = 0.2
# Seconds to wait for a follower on another machine; after that its writes are refused.
ELSEWHERE_SECONDS = 30.0


async def followed(
    name: str, plan: records.RestorePlan, options: RestoreOptions, around: Surroundings, *, as_json: bool
) -> int:
    """Follow until a signal or a switch-over ends it; topics whose state changed are printed, as lines of JSON too."""
    folder = records.RestoreFolder(around.jobs, name)
    await asyncio.to_thread(begin, folder, plan, around, resume=options.resume, where=options.where)
    if await asyncio.to_thread(folder.get, records.SwitchOver) is not None:
        raise ReplayRefused(
            f"standby {name} is switched over",
            why="consumers and producers may use it",
            remedy="start another one with --name NAME, on another cluster or with --map",
        )
    wanted, groups = plan.groups, None
    if wanted is not None:
        cluster = await asyncio.to_thread(kafka_groups, around.properties)
        groups = FollowedGroups(wanted, name, cluster)
    replays = TopicReplays(name, lambda *_: None)
    run = standby.StandbyRun(
        plan,
        folder,
        around,
        replays,
        groups,
        options.running.workers,
        options.every,
        (lambda stand: click.echo(msgspec.json.encode(stand))) if as_json else _print_stand,
    )
    with ending_signals(run) as signals:
        click.echo(f"following: see replayer restore --status --name {name}", err=True)
        try:
            await run.follow()
        except asyncio.CancelledError as stopped:
            raise click.exceptions.Exit(ended_code(FAILED, signals, is_done=False)) from stopped
    told = await asyncio.to_thread(folder.get, records.SwitchOver)
    click.echo("following ended" + (f": {told.host} switches over" if told else ""), err=True)
    return ended_code(0, signals, is_done=True)


def _print_stand(stand: records.TopicStand) -> None:
    why = f": {stand.why}" if stand.why else ""
    click.echo(f"{stand.source} -> {stand.target}: {stand.state}{why}", err=True)
    if stand.do:
        click.echo(f"do: {stand.do}", err=True)
    print_each(f"FAILURE {stand.source}: skipped ", stand.skipped, err=True)


async def standby_status(name: str, around: Surroundings, *, as_json: bool) -> int:
    """Print how far a standby is behind; return 3 if a topic is not followed, or nobody follows."""
    folder = records.RestoreFolder(around.jobs, name)
    plan = await asyncio.to_thread(_plan_of, folder)
    await refuse_other_archive(plan, around.archive)
    topics = await asyncio.to_thread(folder.followed)
    _, turns = await standby.survey(plan, topics, around, wall_clock())
    there = [turn.topic for turn in turns if not turn.is_gone]
    lags = await gathered(there, lambda topic: standby.lag_of(topic, name, around))
    report = await asyncio.to_thread(folder.get, records.StandbyReport)
    now = wall_clock()
    follower = await asyncio.to_thread(standby.follower_of, folder, report, now)
    of_sources = {topic.source: lag for topic, lag in zip(there, lags, strict=True)}
    document = standby.standby_document(name, turns, of_sources, report, follower, now)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        _print_status(document)
    sick = document["error"] or any(each["state"] in ("stopped", "failing") for each in document["topics"])
    return PARTLY_FAILED if sick or follower == "not running" else 0


def _print_status(document: dict[str, Any]) -> None:
    columns = ("SOURCE", "TARGET", "STATE", "RECORDS", "BEHIND", "SECONDS")
    rows = [
        (
            each["source"],
            each["target"],
            each["state"],
            each["records"],
            each["behind_records"],
            round(each["behind_seconds"]),
        )
        for each in document["topics"]
    ]
    print_table(columns, rows, droppable=("TARGET", "RECORDS"))
    for each in document["topics"]:
        if each["why"]:
            click.echo(f"{each['state']}: {each['source']}: {each['why']}", err=True)
        if each["do"]:
            click.echo(f"do: {each['do']}", err=True)
        print_each(f"FAILURE {each['source']}: skipped ", each["skipped"], err=True)
    print_each("note: ", document["group_notes"], err=True)
    if document["error"]:
        click.echo(f"FAILURE the last slot: {document['error']}", err=True)
    click.echo(
        f"{document['follower']}, last slot {time_text(document['slot_at'])}: {document['behind_records']} records and "
        f"{duration_text(document['behind_seconds'])} behind the archive"
    )


async def switched_over(options: RestoreOptions, around: Surroundings, *, as_json: bool) -> int:
    """End following, copy what the archive holds now, prove it, and set settings and groups."""
    assert options.name is not None
    folder = records.RestoreFolder(around.jobs, options.name)
    plan = await asyncio.to_thread(_plan_of, folder)
    await refuse_other_archive(plan, around.archive)
    await asyncio.to_thread(begin, folder, plan, around, resume=True)
    question = f"End following, and switch over to standby {folder.name}?"
    confirm(question, undone="it is still followed", is_agreed=options.yes)
    await asyncio.to_thread(folder.put, records.SwitchOver(host=this_process(), at=wall_clock()))
    await _followers_gone(folder, options.running.patience)
    with held(lock_folder(), folder.name):
        topics = await asyncio.to_thread(folder.followed)
        report = await asyncio.to_thread(folder.get, records.StandbyReport)
        skipped = {each.source: each.skipped for each in (report.topics if report else ())}
        asked = options.asked
        proof = {"prove": asked.prove, "prove_share": asked.prove_share, "prove_seed": asked.prove_seed}
        plan = msgspec.structs.replace(adjusted(plan, options), **proof)
        whole = await standby.switched_plan(
            plan, *await standby.survey(plan, topics, around, wall_clock()), topics, around
        )
        return await carried_out(folder.name, whole, options, around, as_json=as_json, skipped=skipped)


def _plan_of(folder: records.RestoreFolder) -> records.RestorePlan:
    plan = folder.begun().plan
    if plan.follow is None:
        raise UsageError(
            f"restore {folder.name} follows nothing",
            why="it restores one moment",
            remedy="name a standby that was begun with --follow",
        )
    return plan


async def _followers_gone(folder: records.RestoreFolder, patience: float) -> None:
    """Wait until the follower has noticed the switch-over and ended; no longer than `patience` seconds."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while (waited := clock() - began) < patience:
        elsewhere = False
        if waited < ELSEWHERE_SECONDS:
            report = await asyncio.to_thread(folder.get, records.StandbyReport)
            elsewhere = standby.follows_elsewhere(report, this_process(), wall_clock())
        if not elsewhere and not await asyncio.to_thread(is_running, lock_folder(), folder.name):
            return
        await asyncio.sleep(ASK_AGAIN_SECONDS)


@click.command("ls", epilog=closing("replayer restore ls", "replayer restore ls --jobs s3://bucket/replay-jobs --json"))
@jobs_option
@json_option
@s3_options
def list_command(jobs: str | None, as_json: bool, s3: S3Settings) -> int:
    """List restores: as of when, into which cluster, how many topics are done, and their state.

    STATE is running (on this machine), complete, incomplete, undone, or for a standby following, not running or
    switched over.
    """
    store, code, found = existing_jobs(jobs, s3), 0, list[dict[str, Any]]()
    for folder in (records.RestoreFolder(store, name) for name in job_names(store)) if store else ():
        try:
            found += [restore_document(folder, store)] if store and folder.get(records.RestoreRecord) else []
        except ReplayRefused as error:
            code = PARTLY_FAILED if print_failure(error) else 0
    keys = ("restore", "at", "target", "topics_done", "topics_of", "groups", "state")
    rows = [[time_text(each[key]) if key == "at" else each[key] for key in keys] for each in found]
    if as_json:
        click.echo(msgspec.json.encode({"restores": found}))
    else:
        print_table(("RESTORE", "AS OF", "TARGET", "DONE", "TOPICS", "GROUPS", "STATE"), rows, droppable=("TARGET",))
    return code


@click.command("status", epilog=closing("replayer restore status night", "replayer restore status night --json"))
@click.argument("name")
@jobs_option
@json_option
@s3_options
def status_command(name: str, jobs: str | None, as_json: bool, s3: S3Settings) -> int:
    """Show the topics of a restore, what is missing, and the command that continues it.

    Reads only the folders of its jobs. Exits with 3 if something is missing and no process continues it.
    """
    store = open_store(jobs_place(jobs), s3)
    document = restore_document(records.RestoreFolder(store, name), store, with_topics=True)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        keys = ("source", "target", "records", "proof", "state")
        print_table([key.upper() for key in keys], [[each[key] for key in keys] for each in document["topics"]])
        for each in document["topics"]:
            print_each(f"FAILURE {each['source']}: skipped ", each["skipped"], err=True)
            print_each(f"missing: {each['source']}: ", [each["missing"]] if each["missing"] else ())
        print_each("missing: ", document["missing"])
        click.echo(
            f"restore {name} is {document['state']}: {document['topics_done']} of "
            f"{document['topics_of']} topics"
            + (f", {document['groups']} groups" if document["state"] != "undone" else "")
        )
        print_each("to continue: ", [document["continue"]] if document["continue"] else ())
    return PARTLY_FAILED if document["state"] in CONTINUED else 0


@click.command("undo", epilog=closing("replayer restore undo night --dry-run -b new:9092"))
@click.argument("name")
@undo_options
def undo_command(name: str, undo: UndoOptions) -> int:
    """Delete the topics that a restore created, and its consumer groups.

    Each topic is deleted as replayer undo does it: one that others wrote to stays, and the exit code is 3. Groups that
    have consumers, or positions in other topics, stay as well. Prints the plan, then asks for the restore's name.
    Copies of the topics in the archive of -a are marked: they are not missed once they are gone.
    """
    store, client = open_store(jobs_place(undo.jobs), undo.s3), kafka_groups(undo.kafka)
    folder = records.RestoreFolder(store, name)
    with held(lock_folder(), name):
        topics, groups, left = plan = plan_restore_undo(folder, store, undo.kafka, client)
        if not undo.as_json:
            rows = [(each.request.target, each.topic_id, each.records) for each in topics]
            print_table(("TOPIC", "ID", "RECORDS"), rows, title=f"created by restore {name}", file=sys.stderr)
            print_each("warning: ", [warning for each in topics for warning in each.warnings], err=True)
            print_each("group: ", groups, err=True)
            print_each("left: ", left, err=True)
        if not undo.dry_run:
            question = f"Delete {len(topics)} topics with {sum(each.records for each in topics)} records?"
            confirm(question, undone="nothing was deleted", is_agreed=undo.yes, typed=name)
            later = undo_restore(plan, folder, store, undo.kafka, client)
            print_each("left: ", later, err=True)
            left += later
            undo.mark_copies(deleted_topics(folder, store))
    document = {"restore": name, "topics": [undo_document(each) for each in topics], "groups": groups, "left": left}
    if undo.as_json:
        click.echo(msgspec.json.encode({**document, "dry_run": undo.dry_run, "deleted": not undo.dry_run}))
    elif not undo.dry_run:
        click.echo(f"restore {name} is undone" + (f"; for the rest: replayer restore undo {name}" if left else ""))
    return PARTLY_FAILED if left else 0


@click.command(
    "restore",
    cls=RunningGroup,
    commands=[list_command, status_command, undo_command],
    invoke_without_command=True,
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
        "replayer restore status night",
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
        options = options._replace(where=place_options(options.running.jobs, kafka, place.absolute()))
        if options.doing == "status":
            return await standby_status(str(options.name), around, as_json=as_json)
        if options.doing == "switch-over":
            return await switched_over(options, around, as_json=as_json)
        name, plan = await _planned(options, around)
        seconds = options.running.pace.seconds(plan.records, plan.bytes, 0)
        if not as_json:
            print_plan(name, plan, seconds, around.budget.used)
        if options.plan is not None:
            _write(options.plan, plan)
        if as_json and (options.dry_run or options.plan is not None):
            document = plan_document(name, plan, seconds, around.budget.used)
            click.echo(msgspec.json.encode({"dry_run": True, **document}))
        if options.plan is not None:
            return 0
        code = _code_of(plan)
        if not options.has_chosen:
            refuse_undecided(plan)
        if options.dry_run:
            return code
        question = f"Create {len(plan.restorable)} topics and write {plan.records} records?"
        confirm(question, undone="nothing was restored", is_agreed=options.yes)
        with held(lock_folder(), name):
            if plan.follow is not None:
                return await followed(name, plan, options, around, as_json=as_json)
            return await carried_out(name, plan, options, around, as_json=as_json)


async def _planned(options: RestoreOptions, around: Surroundings) -> tuple[str, records.RestorePlan]:
    """Return the plan that was agreed to before, with --resume; otherwise a new one."""
    if options.resume and options.name is not None:
        return options.name, await _resumed(options.name, options, around)
    if options.from_plan is not None:
        plan = with_acls(records.parse_plan(options.from_plan.read_bytes(), str(options.from_plan)), options)
        await refuse_other_archive(plan, around.archive)
    elif options.is_new:
        plan = await found_topics(options.asked, options.wanted, around)
    else:
        raise UsageError(
            "which restore is to be continued is not said",
            why="neither --name nor --at is given",
            remedy="add --name NAME, or repeat the first command with --resume",
        )
    admin = await asyncio.to_thread(lambda: around.admin)
    name = options.name or name_of(plan, admin.cluster_id or around.properties["bootstrap.servers"])
    if options.resume:
        return name, await _resumed(name, options, around)
    return name, await looked_over(plan, name, around)


async def _resumed(name: str, options: RestoreOptions, around: Surroundings) -> records.RestorePlan:
    """Return the plan that was agreed to, as `adjusted` does; what was refused then is planned again."""
    plan = (await asyncio.to_thread(records.RestoreFolder(around.jobs, name).begun)).plan
    await refuse_other_archive(plan, around.archive)
    if options.doing == "follow" and plan.follow is None:
        raise UsageError(
            f"restore {name} follows nothing", why="it restores one moment", remedy="remove --follow, or check --name"
        )
    differing = options.differing(plan)
    if differing:
        raise UsageError(
            f"restore {name} was begun otherwise: {', '.join(differing)}",
            why="--resume carries out the plan that was agreed to first",
            remedy="remove what is named, or start another restore with --name NAME",
        )
    plan = adjusted(plan, options)
    return plan if plan.follow is not None else await planned_again(plan, name, around)


def refuse_undecided(plan: records.RestorePlan) -> None:
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


def _code_of(plan: records.RestorePlan) -> int:
    """Return the code that carrying it out would exit with, if nothing fails.

    Raise ReplayRefused if a topic cannot be restored, unless the others are to be.
    """
    if plan.refused and (not plan.partial or not plan.restorable):
        first = plan.refused[0]
        raise ReplayRefused(
            f"{len(plan.refused)} of {len(plan.topics)} topics cannot be restored as planned: {first.source}",
            why=first.refused or "",
            remedy="repair it first, as replayer verify names; --partial, the last way, leaves out the rest for good"
            if first.lacks
            else "change the plan (--map, --from-plan), or restore the others with --partial",
        )
    lacks = plan.refused or any(each.lacks or each.missing for each in plan.topics)
    return PARTLY_FAILED if lacks and plan.follow is None else 0


def _write(path: Path, plan: records.RestorePlan) -> None:
    try:
        path.write_bytes(records.plan_text(plan))
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=str(error), remedy="name another file") from error
    for each in plan.topics:
        if each.choice is not None:
            click.echo(f"warning: look at the cuts in {path} before you use them: {each.choice}", err=True)
    click.echo(f"the plan is in {path}: carry it out with --from-plan {path}", err=True)

"""`replayer restore --follow`, `--status` and `--switch-over`: a warm standby."""

import asyncio
from typing import Any

import click
import msgspec

from blockgz.errors import FAILED, PARTLY_FAILED, UsageError
from blockgz.program.main import confirm, ended_code
from blockgz.program.tables import print_table
from blockgz.units import time_text
from replayer.cli.options.restore_options import RestoreOptions
from replayer.cli.replay_output import duration_text
from replayer.cli.restore.carrying_out import Named, begin, carried_out, ending_signals, with_acls
from replayer.errors import ReplayRefused
from replayer.kafka.groups import KafkaGroups
from replayer.replay.jobs.lock import held, is_running
from replayer.replay.jobs.log import this_process
from replayer.replay.stages import wall_clock
from replayer.replay.target_topic import state_folder
from replayer.restore.consumers import FollowedGroups, plan_groups
from replayer.restore.document import RestorePlan
from replayer.restore.folder import RestoreFolder, StandbyReport, SwitchOver, TopicStand
from replayer.restore.following import StandbyRun
from replayer.restore.planning import gathered, refuse_other_archive
from replayer.restore.request import Surroundings
from replayer.restore.standby import follows_elsewhere, lag_of, standby_document, switched_plan
from replayer.restore.topic_replay import TopicReplays
from replayer.restore.turns import survey

ASK_AGAIN_SECONDS = 0.2
ELSEWHERE_SECONDS = 30.0
"""So long a follower on another machine is waited for; after that its writes are refused."""


async def followed(named: Named, options: RestoreOptions, around: Surroundings, *, as_json: bool) -> int:
    """Follows until a signal or a switch-over ends it; topics whose state changed are printed, as lines of JSON too."""
    folder = RestoreFolder(around.jobs, named.name)
    await asyncio.to_thread(begin, folder, named.plan, around, resume=options.resume)
    if await asyncio.to_thread(folder.switched_over) is not None:
        raise ReplayRefused(
            f"standby {named.name} is switched over",
            why="consumers and producers may use it",
            remedy="start another one with --name NAME, on another cluster or with --map",
        )
    wanted, groups = named.plan.groups, None
    if wanted is not None:
        cluster = await asyncio.to_thread(KafkaGroups, around.properties)
        groups = FollowedGroups(wanted, named.name, cluster, plan_groups)
    replays = TopicReplays(named.name, lambda *_: None)
    run = StandbyRun(
        named.plan,
        folder,
        around,
        replays,
        groups,
        options.running.workers,
        options.every,
        _print_json if as_json else _print_stand,
    )
    with ending_signals(run) as signals:
        click.echo(f"following: see replayer restore --status --name {named.name}", err=True)
        try:
            await run.follow()
        except asyncio.CancelledError as stopped:
            raise click.exceptions.Exit(ended_code(FAILED, signals, is_done=False)) from stopped
    told = await asyncio.to_thread(folder.switched_over)
    click.echo("following ended" + (f": {told.host} switches over" if told else ""), err=True)
    return ended_code(0, signals, is_done=True)


def _print_json(stand: TopicStand) -> None:
    click.echo(msgspec.json.encode(stand))


def _print_stand(stand: TopicStand) -> None:
    why = f": {stand.why}" if stand.why else ""
    click.echo(f"{stand.source} -> {stand.target}: {stand.state}{why}", err=True)
    if stand.do:
        click.echo(f"do: {stand.do}", err=True)
    for lost in stand.skipped:
        click.echo(f"FAILURE {stand.source}: skipped {lost}", err=True)


async def standby_status(name: str, around: Surroundings, *, as_json: bool) -> int:
    """Prints how far a standby is behind; 3 where a topic is not followed, or nobody follows."""
    folder = RestoreFolder(around.jobs, name)
    plan = await asyncio.to_thread(_plan_of, folder)
    await refuse_other_archive(plan, around.archive)
    topics = await asyncio.to_thread(folder.followed)
    found = await survey(plan, topics, around, wall_clock())
    lags = await gathered(found.due, lambda turn: lag_of(turn.topic, name, around))
    report = await asyncio.to_thread(folder.reported)
    now = wall_clock()
    follower = await asyncio.to_thread(_follower, folder, report, now)
    of_sources = {turn.topic.source: lag for turn, lag in zip(found.due, lags, strict=True)}
    document = standby_document(name, found, of_sources, report, follower, now)
    if as_json:
        click.echo(msgspec.json.encode(document))
    else:
        _print_status(document)
    sick = document["error"] or any(each["state"] in ("stopped", "failing") for each in document["topics"])
    return PARTLY_FAILED if sick or follower == "not running" else 0


def _follower(folder: RestoreFolder, report: StandbyReport | None, now_ms: int) -> str:
    if folder.switched_over() is not None:
        return "switched over"
    if is_running(state_folder() / "jobs", folder.name) or follows_elsewhere(report, this_process(), now_ms):
        return "following"
    return "not running"


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
        for lost in each["skipped"]:
            click.echo(f"FAILURE {each['source']}: skipped {lost}", err=True)
    for note in document["group_notes"]:
        click.echo(f"note: {note}", err=True)
    if document["error"]:
        click.echo(f"FAILURE the last slot: {document['error']}", err=True)
    click.echo(
        f"{document['follower']}, last slot {time_text(document['slot_at'])}: {document['behind_records']} records and "
        f"{duration_text(document['behind_seconds'])} behind the archive"
    )


async def switched_over(options: RestoreOptions, around: Surroundings, *, as_json: bool) -> int:
    """Ends following, copies what the archive holds now, proves it, and gives settings and groups."""
    assert options.name is not None
    folder = RestoreFolder(around.jobs, options.name)
    plan = await asyncio.to_thread(_plan_of, folder)
    await refuse_other_archive(plan, around.archive)
    await asyncio.to_thread(begin, folder, plan, around, resume=True)
    question = f"End following, and switch over to standby {folder.name}?"
    confirm(question, undone="it is still followed", is_agreed=options.yes)
    await asyncio.to_thread(folder.switch_over, SwitchOver(host=this_process(), at=wall_clock()))
    await _followers_gone(folder, options.running.patience)
    with held(state_folder() / "jobs", folder.name):
        topics = await asyncio.to_thread(folder.followed)
        report = await asyncio.to_thread(folder.reported)
        skipped = {each.source: each.skipped for each in (report.topics if report else ())}
        plan = with_acls(_as_asked(plan, options), options)
        found = await survey(plan, topics, around, wall_clock())
        whole = await switched_plan(plan, found, topics, around)
        return await carried_out(Named(folder.name, whole), options, around, as_json=as_json, skipped=skipped)


def _plan_of(folder: RestoreFolder) -> RestorePlan:
    plan = folder.begun().plan
    if plan.follow is None:
        raise UsageError(
            f"restore {folder.name} follows nothing",
            why="it restores one moment",
            remedy="name a standby that was begun with --follow",
        )
    return plan


def _as_asked(plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    prove, sample = options.proof
    groups = plan.groups
    if groups is not None:
        approximate = options.groups is not None and options.groups.approximate
        groups = (
            None
            if options.groups is None
            else msgspec.structs.replace(groups, approximate=groups.approximate or approximate)
        )
    return msgspec.structs.replace(plan, prove=prove, prove_share=sample.share, prove_seed=sample.seed, groups=groups)


async def _followers_gone(folder: RestoreFolder, patience: float) -> None:
    """Waits until nobody follows, as whoever does is told; no longer than `patience` seconds."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while (waited := clock() - began) < patience:
        elsewhere = False
        if waited < ELSEWHERE_SECONDS:
            report = await asyncio.to_thread(folder.reported)
            elsewhere = follows_elsewhere(report, this_process(), wall_clock())
        if not elsewhere and not await asyncio.to_thread(is_running, state_folder() / "jobs", folder.name):
            return
        await asyncio.sleep(ASK_AGAIN_SECONDS)

"""What `replayer restore` prints: the plan before, each topic as it is done, the result after."""

import sys
from collections.abc import Sequence

import click

from blockgz.program.tables import bytes_text, print_table
from blockgz.units import time_text
from replayer.cli.replay_output import duration_text, print_cut_bytes
from replayer.restore.acls import AclsOutcome
from replayer.restore.consumers import GroupsOutcome
from replayer.restore.document import RestorePlan, TopicToRestore
from replayer.restore.topic_replay import TopicOutcome


def print_plan(name: str, plan: RestorePlan, seconds: float, cut_bytes: int = 0) -> None:
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
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)
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


def _acls_text(plan: RestorePlan) -> str:
    unknown = f"; which ones {plan.without_acls} topics had is unknown" if plan.without_acls else ""
    what = "are created for the new names" if plan.create_acls else "are not created without --acls"
    return f"{plan.acls} ACLs of the topics are known, and {what}{unknown}"


def _proof_text(plan: RestorePlan) -> str:
    if plan.sample is not None:
        return f", and a sample of {plan.sample.share:.6g} is proved (seed {plan.sample.seed})"
    if plan.follow is not None:
        return ", then what the archive gains"
    return ", twice that proved" if plan.prove == "all" else ", without a proof"


def _print_notes(topic: TopicToRestore) -> None:
    for text in (*topic.notes, *(f"recorded gap: {gap}" for gap in topic.gaps)):
        click.echo(f"note: {topic.source}: {text}", err=True)
    for setting, value in topic.left_behind.items():
        click.echo(f"note: {topic.source}: {setting}={value} belonged to the old brokers and is left out", err=True)
    for text in topic.lacks:
        click.echo(f"warning: {topic.source}: {text}", err=True)
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


def print_restored(
    outcomes: Sequence[TopicOutcome],
    groups: GroupsOutcome | None,
    groups_error: str | None,
    acls: AclsOutcome | None,
    again: str,
) -> None:
    """The result, as a table on stdout; `again` are the options that continue it."""
    rows = [(each.topic.source, each.topic.target, each.records, each.verdict or "-", each.state) for each in outcomes]
    print_table(("SOURCE", "TARGET", "RECORDS", "PROOF", "STATE"), rows)
    for each in outcomes:
        for note in each.notes:
            click.echo(f"note: {each.topic.target}: {note}", err=True)
        for lost in each.skipped:
            click.echo(f"FAILURE {each.topic.source}: skipped {lost}", err=True)
        if each.state in ("failed", "refused"):
            click.echo(f"FAILURE {each.topic.source}: {each.error}", err=True)
            if each.do:
                click.echo(f"do: {each.do}", err=True)
    if groups is not None:
        positions = sum(groups.positions.values())
        click.echo(f"{len(groups.positions)} consumer groups stand where they stood: {positions} positions are set")
        for note in groups.notes:
            click.echo(f"note: {note}", err=True)
    if groups_error is not None:
        click.echo(f"FAILURE no consumer group was set: {groups_error}", err=True)
    if acls is not None:
        _print_acls(acls)
    unset = groups_error is not None or (acls is not None and acls.error is not None)
    if any(each.state == "interrupted" for each in outcomes) or unset:
        click.echo(f"not complete: repeat the command with {again}", err=True)


def _print_acls(acls: AclsOutcome) -> None:
    if acls.error is not None:
        click.echo(f"FAILURE no ACL was created: {acls.error}", err=True)
        return
    click.echo(f"{sum(acls.created.values())} ACLs are created, of {len(acls.created)} topics")
    for note in acls.notes:
        click.echo(f"note: {note}", err=True)

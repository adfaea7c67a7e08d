"""`replayer groups`."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import NotInArchive, UsageError, listed
from blockgz.process import run_async
from blockgz.program.main import closing, confirm
from blockgz.program.options import Option, OptionSet, TimeOption, dry_run_option, kafka_options, yes_option
from blockgz.program.terminal import print_each, print_table
from blockgz.units import time_text, wall_clock
from index_format.keys import parse_topic_folder
from replayer.cli.options import options
from replayer.cli.options.restore_options import time_of
from replayer.cli.replay import duration_text
from replayer.groups import map_of, planning
from replayer.groups.applying import GroupChanges, Rollback
from replayer.kafka.admin import KafkaAdmin, kafka_groups
from replayer.replay.jobs.folder import open_jobs
from replayer.replay.recorded_job import kept_job
from replayer.replay.request import Surroundings

# `at: int | None`, ms since the epoch.
at_option = Option(
    "--at",
    cls=TimeOption,
    metavar="TIME",
    parse=time_of,
    help="Take the positions as of this time; the newest if not given.",
)
# `globs: tuple[str, ...]`.
group_option = Option(
    "--group", "globs", multiple=True, metavar="GLOB", help="Only groups whose name matches; may be repeated."
)
# `job: str`.
job_option = Option("--job", metavar="NAME", required=True, help="The replay job that made the copy.")


class GroupsOptions(NamedTuple):
    job: str
    jobs: str | None
    at: int | None
    globs: tuple[str, ...]
    rename: options.Rules
    positions: str | None
    approximate: bool


asked_options = OptionSet(
    "asked",
    GroupsOptions,
    job_option,
    options.jobs_option,
    at_option,
    group_option,
    options.group_map_option,
    Option(
        "--positions",
        metavar="FILE",
        help="Take the positions from this CSV file of kafka-consumer-groups --export, not from the archive.",
    ),
    options.approximate_option,
)


@click.group(
    "groups",
    epilog=closing(
        "replayer groups show orders -a ./archive",
        "replayer groups plan --job restore-1 -b localhost:9092 -a ./archive",
        "replayer groups apply --job restore-1 --at 2026-11-20T12:00:00Z --yes -b localhost:9092 -a ./archive",
        "replayer groups rollback --job restore-1 -b localhost:9092 -a ./archive",
    ),
)
def command() -> None:
    """Show where consumer groups stood, and let them continue in a copy.

    The archive keeps the positions of consumer groups on each topic. A position is translated along the run map of the
    replay job that made the copy: the group continues with the first record at or after it.
    """


@command.command(epilog=closing("replayer groups show orders --at 2026-11-20T12:00:00Z -a ./archive"))
@click.argument("topic", metavar="TOPIC")
@at_option
@group_option
@options.format_option()
@options.archive_options
def show(topic: str, at: int | None, globs: tuple[str, ...], form: str, archive: ArchivePlace) -> None:
    """Show where consumer groups stood on an archived topic.

    AGE in the title is the time between the last answer of the cluster and the requested time.
    """
    run_async(_show(topic, at, globs, form, archive))


async def _show(topic: str, at: int | None, globs: Sequence[str], form: str, place: ArchivePlace) -> None:
    async with options.open_archive(place) as archive:
        folder = parse_topic_folder(topic) if "~" in topic else await archive.folder_of(topic)
        table = await planning.archived_groups(archive, folder, at)
        ends = {each.partition: each.next_offset for each in await archive.open_topic(str(folder))}
    chosen = planning.meant_groups(planning.positions_of(table), globs, str(folder))
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "topic": str(folder),
            "partition": partition,
            "offset": position.offset,
            "behind": max(ends[partition] - position.offset, 0) if partition in ends else None,
            "metadata": position.metadata,
        }
        for group, positions in chosen.items()
        for partition, position in sorted(positions.items())
    ]
    if form == "json":
        document = {"topic": str(folder), "slot_ms": table.slot, "age_ms": table.age_ms, "positions": rows}
        click.echo(msgspec.json.encode(document))
    elif form == "jsonl":
        for row in rows:
            click.echo(msgspec.json.encode(row))
    elif form == "csv":
        _print_csv((row["group"], folder.topic, row["partition"], row["offset"]) for row in rows)
    else:
        title = f"{folder} at {time_text(table.slot)}, {duration_text(table.age_ms / 1000)} before the time asked for"
        columns = ("GROUP", "PARTITION", "OFFSET", "BEHIND", "METADATA")
        cells = [(r["group"], r["partition"], r["offset"], r["behind"], r["metadata"] or "") for r in rows]
        print_table(columns, cells, droppable=("METADATA",), title=title)


@command.command(
    epilog=closing(
        "replayer groups plan --job restore-1 -b localhost:9092 -a ./archive",
        "replayer groups plan --job restore-1 --format csv -b localhost:9092 -a ./archive > positions.csv",
    )
)
@asked_options
@options.format_option()
@kafka_options(required=True)
@options.archive_options
def plan(asked: GroupsOptions, form: str, kafka: dict[str, str], archive: ArchivePlace) -> None:
    """Show where consumer groups would continue in the copy that a replay job made.

    Changes nothing. The CSV form is what kafka-consumer-groups --reset-offsets --from-file takes.
    """
    planned = run_async(_planned(asked, kafka, archive))
    if form in ("json", "jsonl"):
        click.echo(msgspec.json.encode(planning.group_plan_document(planned)))
    elif form == "csv":
        if not asked.approximate:
            planned.refuse_inexact()
        _print_csv(
            (group.name, planned.topic, partition, position.offset)
            for group in planned.groups
            for partition, position in sorted(group.positions.items())
        )
    else:
        _print_plan(planned)


@command.command(epilog=closing("replayer groups apply --job restore-1 --yes -b localhost:9092 -a ./archive"))
@asked_options
@dry_run_option
@yes_option
@options.json_option
@kafka_options(required=True)
@options.archive_options
def apply(
    asked: GroupsOptions, dry_run: bool, yes: bool, as_json: bool, kafka: dict[str, str], archive: ArchivePlace
) -> None:
    """Set the positions of consumer groups in the copy that a replay job made.

    Prints the plan and asks first. Groups with active consumers are refused. What was there is kept in the
    job's folder, and every position is read back.
    """
    planned = run_async(_planned(asked, kafka, archive))
    if not as_json:
        _print_plan(planned)
    if not asked.approximate:
        planned.refuse_inexact()
    count = sum(len(group.positions) for group in planned.groups)
    if not dry_run:
        question = f"Set {count} positions of {len(planned.groups)} groups on {planned.topic}?"
        confirm(question, undone="no position was set", is_agreed=yes)
        changes = GroupChanges(open_jobs(asked.jobs, archive), asked.job)
        changes.apply(planned, kafka_groups(kafka), wall_clock())
    if as_json:
        click.echo(msgspec.json.encode({"applied": not dry_run} | planning.group_plan_document(planned)))
    elif not dry_run:
        click.echo(f"{count} positions of {len(planned.groups)} groups are set, and read back", err=True)


@command.command(epilog=closing("replayer groups rollback --job restore-1 --yes -b localhost:9092 -a ./archive"))
@job_option
@options.jobs_option
@dry_run_option
@yes_option
@kafka_options(required=True)
@options.archive_options
def rollback(
    job: str, jobs: str | None, dry_run: bool, yes: bool, kafka: dict[str, str], archive: ArchivePlace
) -> None:
    """Set the positions back that groups apply changed, for all groups of a job.

    Refused for groups that have moved since. A group that did not exist before is deleted.
    """
    store = open_jobs(jobs, archive)
    kept, _ = kept_job(job, store)
    facts = KafkaAdmin(kafka).topic(kept.target)
    topic_id = facts.topic_id if facts else None
    groups, changes = kafka_groups(kafka), GroupChanges(store, job)
    found = changes.rollback(groups, topic_id=topic_id)
    _print_rollback(found)
    if not dry_run:
        confirm("Set these positions back?", undone="no position was set back", is_agreed=yes)
        changes.roll_back(found, groups, topic_id=topic_id, now_ms=wall_clock())
        click.echo("the positions are set back", err=True)


async def _planned(asked: GroupsOptions, kafka: Mapping[str, str], place: ArchivePlace) -> planning.GroupPlan:
    jobs = open_jobs(asked.jobs, place)
    kept, _ = kept_job(asked.job, jobs)
    source = parse_topic_folder(kept.folder)
    async with options.open_archive(place) as archive:
        if asked.positions is None:
            pinned = await archive.pin()
            table = await planning.archived_groups(pinned, source, asked.at)
            click.echo(f"positions as of {time_text(table.slot)}", err=True)
            if (vanished := await planning.vanished_text(pinned, source, table, asked.globs)) is not None:
                click.echo(f"warning: {vanished}", err=True)
            positions = planning.positions_of(table)
        else:
            positions = planning.positions_in_csv(_text(asked.positions), source.topic)
            if not positions:
                raise UsageError(
                    f"{asked.positions} holds no position of topic {source.topic}",
                    why=f"job {kept.job} copied that topic",
                    remedy="check the file and --job",
                )
        meant = planning.meant_groups(positions, asked.globs, asked.positions or str(source))
        planned = await planning.plan_groups_of_job(
            asked.job, Surroundings(archive, kafka, jobs), meant, map_of(asked.rename)
        )
    if meant and not planned.groups:
        raise NotInArchive(
            f"no consumer group has a position in what job {kept.job} copied",
            why=f"{listed(sorted(meant))} stood in other partitions of {source}",
            remedy="replayer groups show lists the positions of a topic",
        )
    return planned


def _text(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            body = opened.read(planning.MAX_FILE_BYTES + 1)
        if len(body) > planning.MAX_FILE_BYTES:
            raise ValueError(f"it has more than {planning.MAX_FILE_BYTES} bytes")
        return body.decode()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read", why=str(error), remedy="give a file of kafka-consumer-groups --export"
        ) from error


def _print_plan(planned: planning.GroupPlan) -> None:
    columns = ("GROUP", "PARTITION", "OFFSET", "EXACT", "READ AGAIN", "SKIPPED")
    rows = [
        (group.name, lane.lane, lane.offset, "yes" if lane.exact else "no", lane.read_again, lane.skipped)
        for group in planned.groups
        for lane in group.lanes
        if lane.offset is not None
    ]
    print_table(columns, rows, title=f"consumer groups on {planned.topic}, job {planned.job}", file=sys.stderr)
    for group in planned.groups:
        print_each(f"note: group {group.name}: ", group.notes, err=True)
        print_each(f"warning: group {group.name} is not exact: ", group.doubts, err=True)


def _print_rollback(found: Rollback) -> None:
    rows = [
        (name, partition, position.offset)
        for name, positions in found.restored.items()
        for partition, position in sorted(positions.items())
    ]
    print_table(("GROUP", "PARTITION", "OFFSET"), rows, title=f"positions on {found.topic} as they were")
    for name in found.deleted:
        click.echo(f"group {name} did not exist and is deleted")
    for name, partitions in found.left.items():
        numbers = ", ".join(map(str, partitions))
        click.echo(f"warning: group {name} keeps its position in partitions {numbers}: it had none there", err=True)


def _print_csv(rows: Any) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)

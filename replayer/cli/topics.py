"""`replayer topics`: what archived topics were like, compared with a cluster's and set there."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.errors import PARTLY_FAILED, NotInArchive, exit_code
from blockgz.process import run_async
from blockgz.program.main import Program, closing, confirm, print_failure
from blockgz.program.options import Argument, Option, dry_run_option, kafka_options, yes_option
from blockgz.program.terminal import print_each, print_table
from replayer.cli.options.options import archive_options, json_option, open_archive
from replayer.errors import ReplayRefused
from replayer.topics import FoundTopic, TopicComparison, TopicPlan, carry_out, compare_all, find_topics, plan_topic

DIFFERENT = PARTLY_FAILED
# Commands, the modules that define them, and their lines on the help page.
COMMANDS = {
    "diff": (
        "replayer.cli.topics:diff",
        "Compare partitions and configuration of topics with what the archive says of them.",
    ),
    "apply": (
        "replayer.cli.topics:apply",
        "Make topics like the archived ones: create them, add partitions, set their configuration.",
    ),
}


@click.group(
    "topics",
    cls=Program,
    places=COMMANDS,
    epilog=closing(
        "replayer topics diff orders -b localhost:9092 -a ./archive",
        "replayer topics apply '*' --dry-run -b localhost:9092 -a s3://bucket/prefix",
    ),
)
def command() -> None:
    """Compare topics with their archived configuration, or change them to match.

    The archive holds each topic's partition count and configuration, as the archiver last saw them.
    """


topics_argument = Argument("topics", metavar="TOPIC...", nargs=-1, required=True)
ignore_option = Option(
    "--ignore", "ignored", multiple=True, metavar="SETTING", help="Leave this setting out; may be repeated."
)


acls_option = Option("--acls", "with_acls", is_flag=True, help="Also compare ACLs; missing ones are created by apply.")


@click.command(
    "diff",
    epilog=closing(
        "replayer topics diff orders users -b localhost:9092 -a ./archive",
        "replayer topics diff '*' --json -b localhost:9092 -a s3://bucket/prefix",
        "replayer topics diff orders --ignore retention.ms -b localhost:9092 -a ./archive",
    ),
)
@topics_argument
@ignore_option
@acls_option
@json_option
@kafka_options(required=True)
@archive_options
def diff(
    topics: tuple[str, ...],
    ignored: tuple[str, ...],
    with_acls: bool,
    as_json: bool,
    kafka: dict[str, str],
    archive: ArchivePlace,
) -> int:
    """Compare partitions and configuration of topics with what the archive says of them.

    TOPIC is a name, a glob or ~regex. Settings are compared that were set for the archived or the live topic itself. A
    setting that has the same value by a cluster's default is no difference. What belongs to the old brokers is left
    out.

    Exits with 3 if a topic differs or is missing, and with 4 if the archive does not say what a topic was like.
    """
    found, unknown = run_async(_found(topics, archive))
    compared = compare_all(found, kafka, ignored, with_acls=with_acls) if found else []
    if as_json:
        documents = [_document(each) for each in compared]
        same = all(each.state == "equal" for each in compared) and not unknown
        click.echo(msgspec.json.encode({"archive": str(archive.address), "equal": same, "topics": documents}))
    else:
        _print_differences(compared)
    for error in unknown:
        print_failure(error)
    if unknown:
        return exit_code(unknown[0])
    return 0 if all(each.state == "equal" for each in compared) else DIFFERENT


@click.command(
    "apply",
    epilog=closing(
        "replayer topics apply orders -b localhost:9092 -a ./archive",
        "replayer topics apply '*' --dry-run -b localhost:9092 -a s3://bucket/prefix",
        "replayer topics apply orders users --replication-factor 3 --yes -b localhost:9092 -a ./archive",
    ),
)
@topics_argument
@Option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    metavar="N",
    help="Replicas of topics that are created. The default is the cluster's.",
)
@Option(
    "--reset-extra", is_flag=True, help="Also reset settings that only the live topic has to the cluster's default."
)
@ignore_option
@acls_option
@dry_run_option
@yes_option
@json_option
@kafka_options(required=True)
@archive_options
def apply(
    topics: tuple[str, ...],
    replication_factor: int | None,
    reset_extra: bool,
    ignored: tuple[str, ...],
    with_acls: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    kafka: dict[str, str],
    archive: ArchivePlace,
) -> int:
    """Make topics like the archived ones: create them, add partitions, set their configuration.

    TOPIC is a name, a glob or ~regex. Prints the plan and asks first. A missing topic is created with the archived
    partition count and configuration. A topic with fewer partitions gets more; partitions are never removed. Settings
    that differ are set one by one, all others stay. Then everything is read back.

    Exits with 3 if something of the plan was not done.
    """
    found, unknown = run_async(_found(topics, archive))
    if unknown:
        raise unknown[0]
    compared = compare_all(found, kafka, ignored, with_acls=with_acls)
    plans = [plan_topic(each, replication_factor, reset_extra=reset_extra) for each in compared]
    due = [plan for plan in plans if plan]
    if not as_json:
        _print_plan(plans)
    failed = dict[str, list[str]]()
    if due and not dry_run:
        confirm(f"Change {len(due)} topics?", undone="no topic was changed", is_agreed=yes)
        failed = {plan.compared.name: _carried_out(plan, kafka, as_json=as_json) for plan in due}
    if as_json:
        click.echo(msgspec.json.encode({"dry_run": dry_run, "topics": [_plan_document(p, failed) for p in plans]}))
    return PARTLY_FAILED if any(failed.values()) else 0


async def _found(topics: Sequence[str], place: ArchivePlace) -> tuple[list[FoundTopic], list[NotInArchive]]:
    async with open_archive(place) as archive:
        return await find_topics(archive, topics)


def _carried_out(plan: TopicPlan, kafka: dict[str, str], *, as_json: bool) -> list[str]:
    """Carry out the plan, and print which steps were done and which were not."""
    name = plan.compared.name
    try:
        lacks = list(carry_out(plan, kafka))
    except ReplayRefused as error:
        print_failure(error)
        return [f"{error.what}: {error.why}"]
    print_each(f"warning: {name}, read back: ", lacks, err=True)
    if not lacks and not as_json:
        click.echo(f"{name}: done, and read back as planned")
    return lacks


def _print_differences(compared: Sequence[TopicComparison]) -> None:
    rows: list[tuple[str, ...]] = []
    for each in compared:
        if each.live is None:
            rows.append((each.name, "topic", f"{each.archived_partitions} partitions", "missing"))
        rows += [(each.name, *(_shown(text) for text in difference)) for difference in each.differences]
    if rows:
        print_table(("TOPIC", "SETTING", "ARCHIVED", "LIVE"), rows)
    equal = [each.name for each in compared if each.state == "equal"]
    if equal:
        click.echo(f"equal: {', '.join(equal)}")
    _print_notes(compared, lambda each: each.notes)


def _shown(text: str | None) -> str:
    return "-" if text is None else text


def _print_plan(plans: Sequence[TopicPlan]) -> None:
    for plan in plans:
        for step in plan.steps or [f"topic {plan.compared.name}: nothing is changed"]:
            click.echo(step, err=True)
    _print_notes(plans, lambda plan: (*plan.compared.notes, *plan.notes))


def _print_notes(each_of: Sequence[Any], notes: Callable[[Any], Sequence[str]]) -> None:
    for each in each_of:
        print_each("note: ", notes(each), err=True)


def _document(compared: TopicComparison) -> dict[str, Any]:
    live = compared.live
    return {
        "topic": compared.name,
        "state": compared.state,
        "partitions": {"archived": compared.archived_partitions, "live": live and live.partitions},
        "differences": [each._asdict() for each in compared.differences],
        "notes": compared.notes,
    }


def _plan_document(plan: TopicPlan, failed: dict[str, list[str]]) -> dict[str, Any]:
    name = plan.compared.name
    done = {"done": not failed[name], "failed": failed[name]} if name in failed else {"done": False, "failed": []}
    created = plan.creates and {
        "partitions": plan.creates.partitions,
        "replication_factor": plan.creates.replication_factor,
        "config": dict(plan.creates.config),
    }
    return {
        **_document(plan.compared),
        "creates": created,
        "adds_to": plan.adds_to,
        "sets": plan.change.values,
        "resets": plan.change.removed,
        "creates_acls": plan.acls,
        "notes": (*plan.compared.notes, *plan.notes),
        **done,
    }
